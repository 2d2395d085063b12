//! The proxy as an agent: every flow that passes its node becomes two connections.
//!
//! It is the daemon in virtual time: the same configuration, policy, credit and shares of a leg's rate
//! ([`midhop_pep`]), over the simulator's TCP instead of the kernel's sockets. Both legs keep the flow's
//! addresses and ports; nothing of one leg's TCP is copied to the other.
//!
//! Differs from the daemon: explicit listeners, keep-alive and marks of interception have no meaning
//! here. A buffer's bytes are payload, while the kernel also counts its overhead; so half of a
//! configured receive buffer is offered, as in the kernel. A leg may have any congestion control of
//! ours, including those that no kernel has, and settings besides its name
//! ([`PepPlan::leg_tables`]); with `known-rate` the algorithm itself
//! divides the leg's rate among all flows.
//!
//! A node may have a naive proxy instead ([`Proxy::naive`]), which has the same flows and legs but
//! not the limits that keep its store from overflowing.
//!
//! Invariants: no flow is reset for lack of room, since windows close before; only a naive proxy resets
//! flows. Data from one leg goes to the other, in order, once. An end of stream is carried over
//! after the bytes before it, a reset at once: data that waited behind it is lost, as in a kernel's buffers.

mod chain_flow;
mod configured;
mod curves;
mod due;
mod flow;
mod flow_counting;
mod leg;
mod modem;
mod moving;
mod naive;
mod proxied;
mod relay;
mod share;
mod tunnel;
mod tunnel_flow;
mod tunnelled;

pub(crate) use modem::Modem;
pub(crate) use moving::{Extent, MovingFlow};
pub use tunnel::{Addressing, TunnelEnd};

use crate::agent::{Actions, Agent};
use crate::metrics::Thresholds;
use crate::packet::{Body, End, FlowId, NodeId, Packet, Xcp};
use configured::{Configured, Fate};
use curves::LegCurves;
use due::Due;
use flow::{Ended, SplitFlow};
use midhop_config::suggest;
use midhop_congestion::{Algorithm, QueueReport};
use midhop_experiment::limit::Family;
use midhop_experiment::naive::NaivePlan;
use midhop_experiment::pep::PepPlan;
use midhop_experiment::random::Random;
use midhop_experiment::record::{LegResult, Series};
use midhop_experiment::tcp::TcpPlan;
use midhop_experiment::tunnel::NodeTunnels;
use midhop_pep::answered::Answered;
use midhop_pep::budget::Budget;
use midhop_pep::config::{LegPlan, PeerPlan};
use midhop_pep::policy::FlowKey;
use midhop_tcp::{Flags, Segment, refusal};
use midhop_tunnel::connect::Request;
use midhop_tunnel::target::Target;
use midhop_units::{Instant, Seed};
use naive::Naive;
use proxied::{ProxiedFlow, either};
use std::any::Any;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// How a proxy's node reaches another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The addresses of the node: IPv4, IPv6.
    pub addresses: [IpAddr; 2],
    /// The link on which the route begins; `None` to an unreachable node, and to the proxy's own node.
    pub link: Option<String>,
    /// Whether the queue there is an XCP router.
    pub answers_xcp: bool,
}

/// Why a proxy is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProxyError {
    message: String,
    /// The leg whose congestion control is at fault, and the available ones.
    leg: Option<(String, Option<String>)>,
}

impl ProxyError {
    fn new(message: impl ToString) -> Self {
        Self { message: message.to_string(), leg: None }
    }

    fn of_leg(leg: &LegPlan, message: String) -> Self {
        let unknown = |name: &&String| Algorithm::from_name(name).is_none();
        let hint = leg
            .congestion
            .as_ref()
            .filter(unknown)
            .and_then(|name| suggest::hint(name, "there are", Algorithm::names()));
        Self { message, leg: Some((leg.name.clone(), hint)) }
    }

    /// The key at fault below the proxy's table, if one is known.
    pub fn keys(&self) -> Vec<String> {
        let congestion = |(leg, _): &(String, _)| ["legs", leg, "congestion"].map(str::to_owned);
        self.leg.as_ref().map(congestion).into_iter().flatten().collect()
    }

    /// The available ones, if known.
    pub fn hint(&self) -> Option<&str> {
        self.leg.as_ref()?.1.as_deref()
    }
}

/// A proxy at a node.
#[derive(Debug)]
pub struct Proxy {
    node: NodeId,
    name: String,
    make: Make,
    places: Vec<Place>,
    tcp: TcpPlan,
    flows: Vec<Option<Box<ProxiedFlow>>>,
    /// When flows must be processed.
    due: Due,
    shared: Shared,
    random: Random,
    curves: LegCurves,
    /// Flows in transit from or to this proxy: their packets are dropped.
    frozen: BTreeSet<FlowId>,
    /// New flows bypass the proxy.
    drains: bool,
}

/// The source of decisions about flows.
#[derive(Debug)]
enum Make {
    Configured(Box<Configured>),
    Naive(Box<Naive>),
}

/// The shared state of all flows of a proxy.
#[derive(Debug)]
struct Shared {
    budget: Arc<Budget>,
    counts: Counts,
    /// By link.
    legs: BTreeMap<String, LegResult>,
    answered: Answered<ServerPlace, Instant>,
    /// `None` where the proxy's host caches none.
    thresholds: Option<Thresholds>,
    /// The ports of transfers.
    transfers: BTreeSet<u16>,
    tunnels: Vec<TunnelEnd>,
}

impl Shared {
    fn new(memory: u64) -> Self {
        Self {
            budget: Arc::new(Budget::new(memory)),
            counts: Counts::default(),
            legs: BTreeMap::new(),
            answered: Answered::default(),
            thresholds: None,
            transfers: BTreeSet::new(),
            tunnels: Vec::new(),
        }
    }

    /// Whether the record has the counts of a flow to this port: as in the laboratory only those of transfers, where
    /// there are any, so that cross traffic is not among them.
    fn measures(&self, port: u16) -> bool {
        self.transfers.is_empty() || self.transfers.contains(&port)
    }
}

/// The address of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ServerPlace {
    node: NodeId,
    port: u16,
    family: Family,
}

/// The counts of flows, under the names of the record.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    live: u64,
    pending: u64,
    flows: u64,
    ended: u64,
    reset: u64,
    overflowed: u64,
    refused: u64,
    silent: u64,
    bypassed_by_rule: u64,
    bypassed_by_limit: u64,
    rejected: u64,
    bypassed_by_drain: u64,
    moved_in: u64,
    moved_out: u64,
    memory_waits: u64,
    bytes_up: u64,
    bytes_down: u64,
}

impl Proxy {
    /// The proxy of a configuration with tunnels, if it has any, at `node`, called `name`. `places` gives
    /// for each node of the network, by its number, how it is reached from there; `later` are links on which ways may begin later.
    ///
    /// # Errors
    /// When the configuration is inconsistent, or needs something that a simulation does not have.
    pub fn new(
        node: NodeId,
        name: &str,
        configuration: (&PepPlan, Option<&NodeTunnels>),
        (places, later): (Vec<Place>, Vec<String>),
        seed: Seed,
    ) -> Result<Self, ProxyError> {
        let configured = Configured::new(configuration, &places, later)?;
        let shared = Shared::new(configured.plan.limits.memory.get());
        let make = Make::Configured(Box::new(configured));
        Ok(Self::made(node, name, make, shared, places, seed))
    }

    /// A proxy that is naive on purpose, otherwise as [`Proxy::new`].
    ///
    /// # Errors
    /// When a leg's congestion control is not available.
    pub fn naive(
        node: NodeId,
        name: &str,
        plan: &NaivePlan,
        places: Vec<Place>,
        seed: Seed,
    ) -> Result<Self, ProxyError> {
        let naive = Naive::new(plan).map_err(ProxyError::new)?;
        let shared = Shared::new(naive.store.unwrap_or(u64::MAX));
        Ok(Self::made(node, name, Make::Naive(Box::new(naive)), shared, places, seed))
    }

    fn made(
        node: NodeId,
        name: &str,
        make: Make,
        shared: Shared,
        places: Vec<Place>,
        seed: Seed,
    ) -> Self {
        Self {
            node,
            name: name.to_owned(),
            make,
            places,
            tcp: TcpPlan::default(),
            flows: Vec::new(),
            due: Due::default(),
            shared,
            random: Random::new(seed, &format!("proxy-{name}")),
            curves: LegCurves::default(),
            frozen: BTreeSet::new(),
            drains: false,
        }
    }

    /// The same on a host with this TCP.
    pub fn with_tcp(self, tcp: TcpPlan) -> Self {
        let thresholds = tcp.threshold_cache.then(Thresholds::default);
        Self { tcp, shared: Shared { thresholds, ..self.shared }, ..self }
    }

    /// The same, with transfers that listen at `ports`.
    pub fn measuring(self, ports: BTreeSet<u16>) -> Self {
        Self { shared: Shared { transfers: ports, ..self.shared }, ..self }
    }

    /// Decides on a SYN that belongs to no flow here.
    fn on_new(&mut self, now: Instant, packet: Packet, segment: &Segment, actions: &mut Actions) {
        let key = Self::key(&self.places, &self.make, self.node, &packet);
        let Some((key, links)) = key else { return actions.send(packet) };
        if self.drains {
            self.shared.counts.bypassed_by_drain += 1;
            return actions.send(packet);
        }
        let target =
            ServerPlace { node: packet.destination, port: packet.ports[1], family: packet.family };
        let answered = &self.shared.answered;
        let accepts_lately =
            |within| answered.accepts(&target, |at| now.saturating_since(at) < within);
        let counts = &mut self.shared.counts;
        let fate = match &self.make {
            Make::Configured(made) => {
                let tunnels = &self.shared.tunnels;
                let toward = |peer: &str| {
                    let usable = |it: &&TunnelEnd| it.peer == peer && it.opens() && !it.lost;
                    Some(tunnels.iter().find(usable)?.link.as_str())
                };
                made.fate(&key, &links, counts.live, counts.pending, accepts_lately, toward)
            }
            Make::Naive(made) => {
                Fate::Split { waits: made.waits, legs: Box::new(made.legs(&links)) }
            }
        };
        let (waits, legs) = match fate {
            Fate::Split { waits, legs } => (waits, *legs),
            Fate::Tunnelled { waits, peer, leg, class } => {
                let [client, target] = [key.source, key.destination];
                let name = class.announced();
                let request = Request {
                    target: Target::Address(target),
                    client: Some(client),
                    class: name,
                    hops: 0,
                };
                return self.tunnel_off(
                    now,
                    (&packet, segment),
                    (waits, &peer, *leg, &class),
                    request,
                    actions,
                );
            }
            Fate::Bypassed => {
                counts.bypassed_by_rule += 1;
                return actions.send(packet);
            }
            Fate::Unserved => {
                counts.bypassed_by_limit += 1;
                return actions.send(packet);
            }
            Fate::Rejected => {
                counts.rejected += 1;
                if let Some(reset) = refusal(segment) {
                    actions.send(answer(self.node, &packet, segment, reset));
                }
                return actions.drop(packet, "rejected");
            }
        };
        let initial = [self.random.word(), self.random.word()];
        let legs = match &self.shared.thresholds {
            Some(known) => {
                let nodes = [packet.source, packet.destination];
                let [client, server] = legs;
                let [to_client, to_server] = flow::ways(nodes).map(|way| known.of(way));
                [client.with_threshold(to_client), server.with_threshold(to_server)]
            }
            None => legs,
        };
        let budget = &self.shared.budget;
        let flow = SplitFlow::new(self.node, &packet, waits, legs, &self.tcp, initial, budget);
        self.take(packet.flow, ProxiedFlow::Split(flow));
        self.with(now, packet.flow, |flow, shared| match flow {
            ProxiedFlow::Split(flow) => flow.open(now, segment, shared, actions),
            _ => Ended::No,
        });
        self.make_room(now, actions);
    }

    fn take(&mut self, id: FlowId, flow: ProxiedFlow) {
        self.shared.counts.flows += 1;
        self.place(id, flow);
    }

    fn place(&mut self, id: FlowId, flow: ProxiedFlow) {
        if self.flows.len() <= id.index() {
            self.flows.resize_with(id.index() + 1, || None);
        }
        self.flows[id.index()] = Some(Box::new(flow));
    }

    /// Gives the proxy an end of a tunnel.
    pub fn place_tunnel(&mut self, end: TunnelEnd) {
        self.shared.tunnels.push(end);
    }

    /// The plan of a peer.
    pub fn peer(&self, name: &str) -> Option<&PeerPlan> {
        match &self.make {
            Make::Configured(made) => made.plan.peers.iter().find(|peer| peer.name == name),
            Make::Naive(_) => None,
        }
    }

    /// The data for the policy's decision on a flow, and the links towards its two ends; `None` if the flow cannot
    /// be taken.
    fn key<'p>(
        places: &'p [Place],
        make: &Make,
        node: NodeId,
        packet: &Packet,
    ) -> Option<(FlowKey<'p>, [Option<String>; 2])> {
        if packet.source == node || packet.destination == node {
            return None;
        }
        let source = places.get(packet.source.index())?;
        let destination = places.get(packet.destination.index())?;
        let interface = source.link.as_deref()?;
        if matches!(make, Make::Configured(made) if !made.intercepts(interface)) {
            return None;
        }
        let family = usize::from(packet.family == Family::Ipv6);
        let key = FlowKey {
            source: SocketAddr::new(source.addresses[family], packet.ports[0]),
            destination: SocketAddr::new(destination.addresses[family], packet.ports[1]),
            interface: Some(interface),
            peer: None,
            dscp: 0,
        };
        Some((key, [source.link.clone(), destination.link.clone()]))
    }

    /// Resets the flows that hold the most until a naive proxy's store has room for the rest.
    fn make_room(&mut self, now: Instant, actions: &mut Actions) {
        let Make::Naive(made) = &self.make else { return };
        let Some(room) = made.store else { return };
        while self.shared.budget.held() > room {
            let flows = self.flows.iter().flatten();
            let largest = flows
                .map(|flow| either!(&**flow, flow => (flow.held_bytes(), Reverse(flow.id))))
                .max();
            let Some((_, Reverse(id))) = largest else { return };
            self.with(now, id, |flow, shared| match flow {
                ProxiedFlow::Split(flow) => flow.overflow(now, shared, actions),
                // A naive proxy has no tunnels.
                _ => Ended::No,
            });
        }
    }

    /// The counts of the connections of each leg by `now`, finished and live ones.
    fn books(&self, now: Instant) -> BTreeMap<String, LegResult> {
        let mut books = self.shared.legs.clone();
        for flow in measured(&self.flows, &self.shared) {
            flow.connected().for_each(|leg| leg.book(now, &mut books));
        }
        books
    }

    /// Lets a flow act, and updates its time.
    fn with(
        &mut self,
        now: Instant,
        id: FlowId,
        act: impl FnOnce(&mut ProxiedFlow, &mut Shared) -> Ended,
    ) {
        let Some(flow) = self.flows.get_mut(id.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        let before = either!(flow, flow => flow.due);
        let ended = act(flow, &mut self.shared);
        let after = match ended {
            Ended::Yes => Instant::NEVER,
            Ended::No => either!(flow, flow => flow.timeout()),
        };
        if after != before {
            self.due.set(id, after);
            either!(flow, flow => flow.due = after);
        }
        if ended == Ended::Yes {
            either!(flow, flow => flow.leave(now, &mut self.shared));
            self.flows[id.index()] = None;
        }
    }
}

/// The cause under which packets of flows in transit to another proxy are dropped.
pub(crate) const FROZEN: &str = "frozen";

impl Agent for Proxy {
    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn has_flow(&self, flow: FlowId) -> bool {
        self.flows.get(flow.index()).is_some_and(Option::is_some)
    }

    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        if !self.frozen.is_empty() && self.frozen.contains(&packet.flow) {
            return actions.drop(packet, FROZEN);
        }
        let segment = match &packet.body {
            Body::Segment(segment) => segment,
            Body::Tunnel(contents) => {
                let expects = |tunnel: &&mut TunnelEnd| tunnel.expects(&packet);
                let Some(tunnel) = self.shared.tunnels.iter_mut().find(expects) else {
                    return actions.send(packet);
                };
                let datagram = actions.contents().take(*contents);
                tunnel.receive(now, datagram);
                return self.run_tunnels(now, actions);
            }
            Body::Datagram(_) | Body::Report(_) => return actions.send(packet),
        };
        let known = self.flows.get(packet.flow.index()).is_some_and(Option::is_some);
        if known {
            self.with(now, packet.flow, |flow, shared| {
                either!(flow, flow => flow.receive(now, &packet, segment, shared, actions))
            });
            self.make_room(now, actions);
            self.run_tunnels(now, actions);
        } else if packet.towards == End::Listener
            && segment.flags.contains(Flags::SYN)
            && !segment.flags.contains(Flags::ACK)
        {
            self.on_new(now, packet, segment, actions);
            self.run_tunnels(now, actions);
        } else {
            actions.send(packet);
        }
    }

    fn minds_queue(&self, packet: &Packet) -> bool {
        let flow = self.flows.get(packet.flow.index()).and_then(Option::as_deref);
        flow.is_some_and(|flow| either!(flow, flow => flow.minds_queue(packet)))
    }

    fn handle_queue(&mut self, packet: &Packet, report: &QueueReport) {
        if let Some(flow) = self.flows.get_mut(packet.flow.index()).and_then(Option::as_deref_mut) {
            either!(flow, flow => flow.handle_queue(packet, report));
        }
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        while let Some((at, id)) = self.due.first() {
            if at > now {
                break;
            }
            self.with(
                now,
                id,
                |flow, shared| either!(flow, flow => flow.wake(now, shared, actions)),
            );
            self.make_room(now, actions);
        }
        for tunnel in self.shared.tunnels.iter_mut().filter(|tunnel| tunnel.due <= now) {
            tunnel.wake(now);
        }
        self.run_tunnels(now, actions);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let tunnels = self.shared.tunnels.iter().map(|tunnel| tunnel.due);
        let due = self.due.first().map_or(Instant::NEVER, |(at, _)| at);
        tunnels.chain([due]).min().filter(|at| *at < Instant::NEVER)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.shared.counts;
        let all = [
            ("flows", counts.flows),
            ("flows-ended", counts.ended),
            ("flows-reset", counts.reset),
            ("flows-reset-store-full", counts.overflowed),
            ("flows-refused", counts.refused),
            ("flows-unanswered", counts.silent),
            ("flows-bypassed-by-rule", counts.bypassed_by_rule),
            ("flows-bypassed-by-limit", counts.bypassed_by_limit),
            ("flows-bypassed-by-drain", counts.bypassed_by_drain),
            ("flows-rejected", counts.rejected),
            ("flows-moved-in", counts.moved_in),
            ("flows-moved-out", counts.moved_out),
            ("memory-waits", counts.memory_waits),
            ("bytes-up", counts.bytes_up),
            ("bytes-down", counts.bytes_down),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn check_invariants(&self) {
        let flows = self.flows.iter().flatten();
        let held: u64 = flows.map(|flow| either!(&**flow, flow => flow.held_bytes())).sum();
        assert_eq!(held, self.shared.budget.held(), "what flows hold is what is counted");
        for flow in self.flows.iter().flatten() {
            if let ProxiedFlow::Split(flow) = &**flow {
                assert!(!self.frozen.contains(&flow.id), "{:?} is here and elsewhere", flow.id);
                flow.check_invariants();
            }
        }
        if let Make::Naive(made) = &self.make {
            let room = made.store.unwrap_or(u64::MAX);
            assert!(held <= room, "{held} bytes in a store of {room}");
        }
    }

    fn legs(&self, now: Instant) -> Vec<LegResult> {
        let named = |leg| LegResult { node: self.name.clone(), ..leg };
        let tunnels = self.shared.tunnels.iter().map(|tunnel| tunnel.result(&self.name));
        self.books(now).into_values().map(named).chain(tunnels).collect()
    }

    fn sample(&mut self, now: Instant) {
        let legs = measured(&self.flows, &self.shared).flat_map(ProxiedFlow::connected);
        self.curves.sample(now, legs, &self.shared.legs);
    }

    fn series(&self) -> Vec<Series> {
        self.curves.series(&self.name)
    }
}

/// The flows of `flows` whose counts the record has.
fn measured<'f>(
    flows: &'f [Option<Box<ProxiedFlow>>],
    shared: &'f Shared,
) -> impl Iterator<Item = &'f ProxiedFlow> {
    let live = flows.iter().flatten().map(Box::as_ref);
    live.filter(|flow| shared.measures(either!(flow, flow => flow.listener())))
}

/// A packet with which a proxy at `maker` answers another, in its far end's name.
fn answer(maker: NodeId, to: &Packet, segment: &Segment, reply: Segment) -> Packet {
    Packet {
        source: to.destination,
        destination: to.source,
        maker,
        towards: to.towards.other(),
        ports: [to.ports[1], to.ports[0]],
        size: to.size - segment.size() + reply.size(),
        xcp: Xcp::default(),
        body: Body::Segment(reply),
        ..*to
    }
}

#[cfg(test)]
mod tests;
