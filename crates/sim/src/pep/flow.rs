//! One flow through a proxy: two connections and the data between them.
//!
//! It carries each end's way of ending to the other: an end of stream after its last byte, a reset as a
//! reset, a refused far side as a refusal, a silent one as silence.

use super::flow_counting::FlowCounting;
use super::leg::Model;
use super::moving::Extent;
use super::relay::{Booked, Leg, RelayDirection};
use super::{ServerPlace, Shared};
use crate::agent::Actions;
use crate::dialogue::Dialogue;
use crate::metrics::Way;
use crate::packet::{Body, End, FlowId, IP_HEADER, NodeId, Packet, Xcp};
use midhop_congestion::QueueReport;
use midhop_experiment::limit::Family;
use midhop_experiment::record::LegResult;
use midhop_experiment::tcp::TcpPlan;
use midhop_pep::budget::Budget;
use midhop_tcp::{Cause, Event, Segment, State, refusal};
use midhop_units::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a flow is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Yes,
    No,
}

/// A flow. Its legs, like its directions, have the name of the end of the flow that they face: the leg
/// of the opener faces the client.
#[derive(Debug)]
pub(super) struct SplitFlow {
    pub id: FlowId,
    /// The proxy's.
    maker: NodeId,
    nodes: [NodeId; 2],
    /// The client's and the server's.
    ports: [u16; 2],
    family: Family,
    legs: [Leg; 2],
    /// The directions that feed each leg.
    directions: [RelayDirection; 2],
    /// Whether the client is accepted only once the server has accepted.
    waits: bool,
    /// The client's SYN, which waits for the far side.
    held: Option<Segment>,
    /// The connection to the far side was opened.
    dialled: bool,
    broken: bool,
    counting: FlowCounting,
    /// The last time that was set for it.
    pub due: Instant,
}

/// A segment that the leg at `side` of a flow sends, in the far end's name.
pub(super) fn leg_packet(
    (flow, maker): (FlowId, NodeId),
    (nodes, ports, family): ([NodeId; 2], [u16; 2], Family),
    side: usize,
    segment: Segment,
    xcp: Xcp,
) -> Packet {
    Packet {
        flow,
        source: nodes[1 - side],
        ports: [ports[1 - side], ports[side]],
        family,
        towards: if side == CLIENT { End::Opener } else { End::Listener },
        destination: nodes[side],
        maker,
        size: IP_HEADER[usize::from(family == Family::Ipv6)] + segment.size(),
        xcp,
        body: Body::Segment(segment),
    }
}

const CLIENT: usize = End::Opener.index();
const SERVER: usize = End::Listener.index();

/// Source and destination of the legs' connections, between `nodes`: the proxy uses each end's own address.
pub(super) const fn ways([client, server]: [NodeId; 2]) -> [Way; 2] {
    [[server, client], [client, server]]
}

impl SplitFlow {
    /// The flow that a SYN opens, between two legs.
    pub fn new(
        maker: NodeId,
        packet: &Packet,
        waits: bool,
        legs: [Model; 2],
        tcp: &TcpPlan,
        initial: [u32; 2],
        budget: &Arc<Budget>,
    ) -> Self {
        let family = packet.family;
        let directions = [CLIENT, SERVER].map(|side| RelayDirection::feeding(&legs[side], budget));
        let [client, server] = legs;
        let leg = |model: Model, dials, initial| Leg {
            endpoint: model.endpoint(tcp, family, dials, initial),
            xcp: Dialogue::default(),
            model,
            written: 0,
            segment: Model::segment(tcp, family),
            connected: false,
            peer_closed: false,
            booked: Booked::default(),
        };
        Self {
            id: packet.flow,
            maker,
            nodes: [packet.source, packet.destination],
            ports: packet.ports,
            family,
            legs: [leg(client, false, initial[0]), leg(server, true, initial[1])],
            directions,
            waits,
            held: None,
            dialled: false,
            broken: false,
            counting: FlowCounting::default(),
            due: Instant::NEVER,
        }
    }

    /// The flow begins: its client's SYN is answered, or waits for the far side.
    pub fn open(
        &mut self,
        now: Instant,
        syn: &Segment,
        shared: &mut Shared,
        actions: &mut Actions,
    ) -> Ended {
        self.counting.enter(&mut shared.counts);
        if self.waits {
            self.held = Some(*syn);
            self.counting.wait(&mut shared.counts);
            self.dialled = true;
        } else {
            self.legs[CLIENT].endpoint.handle_segment(now, syn);
        }
        self.settle(now, shared, actions)
    }

    /// A segment of the flow was received in `packet`.
    pub fn receive(
        &mut self,
        now: Instant,
        packet: &Packet,
        segment: &Segment,
        shared: &mut Shared,
        actions: &mut Actions,
    ) -> Ended {
        let towards = packet.towards;
        if towards == End::Listener && self.held.is_some() {
            // The client retransmits its SYN, or gives up.
            if segment.flags.contains(midhop_tcp::Flags::RST) {
                self.held = None;
                self.legs[CLIENT].endpoint.close();
                self.fail(shared);
            }
            return self.settle(now, shared, actions);
        }
        let leg = &mut self.legs[towards.other().index()];
        if leg.connected && leg.endpoint.state() == State::Closed {
            // The other leg is in TIME-WAIT; this one is gone. A host without the connection
            // forwards the segment.
            actions.send(*packet);
            return Ended::No;
        }
        leg.xcp.receive(&mut leg.endpoint, &packet.xcp);
        leg.endpoint.handle_segment(now, segment);
        self.settle(now, shared, actions)
    }

    /// Whether the leg that `packet` comes from gets reports of the queue at its link.
    pub fn minds_queue(&self, packet: &Packet) -> bool {
        self.legs[packet.towards.other().index()].model.queue_feedback
    }

    /// Such a report.
    pub fn handle_queue(&mut self, packet: &Packet, report: &QueueReport) {
        let leg = &mut self.legs[packet.towards.other().index()];
        leg.endpoint.congestion_control().on_queue(report);
    }

    /// A time that [`SplitFlow::timeout`] named has come.
    pub fn wake(&mut self, now: Instant, shared: &mut Shared, actions: &mut Actions) -> Ended {
        for (side, leg) in self.legs.iter_mut().enumerate() {
            let dialled = side == CLIENT || self.dialled;
            if dialled && leg.endpoint.poll_timeout().is_some_and(|at| at <= now) {
                leg.endpoint.handle_timeout(now);
            }
            self.directions[side].follow(now, leg);
        }
        self.settle(now, shared, actions)
    }

    /// When to call [`SplitFlow::wake`].
    pub fn timeout(&self) -> Instant {
        let never = Instant::NEVER;
        let legs = [
            self.legs[CLIENT].endpoint.poll_timeout().unwrap_or(never),
            self.legs[SERVER].endpoint.poll_timeout().filter(|_| self.dialled).unwrap_or(never),
        ];
        let directions = self.directions.iter().map(RelayDirection::due);
        directions.chain(legs).min().unwrap_or(never)
    }

    /// Does everything due at this time.
    fn settle(&mut self, now: Instant, shared: &mut Shared, actions: &mut Actions) -> Ended {
        loop {
            let mut again = false;
            for side in [CLIENT, SERVER] {
                if side == SERVER && !self.dialled {
                    continue;
                }
                while let Some(segment) = self.legs[side].endpoint.poll_transmit(now) {
                    let leg = &mut self.legs[side];
                    let xcp = leg.xcp.ask(&leg.endpoint, &segment);
                    actions.send(self.packet(side, segment, xcp));
                }
                while let Some(event) = self.legs[side].endpoint.poll_event() {
                    again = true;
                    self.on_event(now, side, event, shared, actions);
                }
            }
            if self.legs.iter().all(|leg| leg.connected) && !self.broken {
                let [client, server] = &mut self.legs;
                let [down, up] = &mut self.directions;
                let before = [&*up, &*down].map(|direction| direction.state.moved());
                again |= up.go(now, client, server, shared);
                again |= down.go(now, server, client, shared);
                shared.counts.bytes_up += up.state.moved() - before[0];
                shared.counts.bytes_down += down.state.moved() - before[1];
            }
            if !again {
                break;
            }
        }
        let in_each = |states: &[State]| {
            let over = |leg: &Leg| states.contains(&leg.endpoint.state());
            over(&self.legs[CLIENT]) && (over(&self.legs[SERVER]) || !self.dialled)
        };
        // The daemon's sockets are closed while its kernel waits for late segments.
        if !in_each(&[State::Closed, State::TimeWait]) {
            return Ended::No;
        }
        let ended = if in_each(&[State::Closed]) { Ended::Yes } else { Ended::No };
        self.counting.leave(&mut shared.counts);
        ended
    }

    fn on_event(
        &mut self,
        now: Instant,
        side: usize,
        event: Event,
        shared: &mut Shared,
        actions: &mut Actions,
    ) {
        match event {
            Event::Connected => {
                self.legs[side].connected = true;
                if side == SERVER {
                    shared.answered.learn(self.target(), true, now);
                }
                if side == CLIENT {
                    self.dialled = true;
                } else if let Some(syn) = self.held.take() {
                    self.counting.go_on(&mut shared.counts);
                    self.legs[CLIENT].endpoint.handle_segment(now, &syn);
                }
            }
            Event::Readable | Event::Writable => {}
            Event::PeerClosed => self.legs[side].peer_closed = true,
            Event::Closed => {
                if let Some(thresholds) = &mut shared.thresholds {
                    thresholds.note(ways(self.nodes)[side], &self.legs[side].endpoint);
                }
                let other = &self.legs[1 - side].endpoint;
                if !self.broken && matches!(other.state(), State::Closed | State::TimeWait) {
                    shared.counts.ended += 1;
                }
            }
            Event::Reset(Cause::Aborted) => {}
            Event::Reset(cause) => {
                if side == SERVER && !self.legs[SERVER].connected {
                    shared.answered.learn(self.target(), false, now);
                }
                self.on_broken(side, cause, shared, actions);
            }
        }
    }

    /// One leg went away without ending its stream.
    fn on_broken(&mut self, side: usize, cause: Cause, shared: &mut Shared, actions: &mut Actions) {
        if let Some(syn) = self.held.take() {
            // The far side has not accepted, so the client is not accepted.
            if cause == Cause::TimedOut {
                shared.counts.silent += 1;
            } else {
                shared.counts.refused += 1;
                if let Some(reset) = refusal(&syn) {
                    actions.send(self.packet(CLIENT, reset, Xcp::default()));
                }
            }
            self.counting.go_on(&mut shared.counts);
            self.broken = true;
            self.legs[CLIENT].endpoint.close();
            return;
        }
        shared.counts.reset += u64::from(!self.broken);
        self.broken = true;
        self.legs[1 - side].endpoint.abort();
    }

    /// The client has gone before the far side responded.
    fn fail(&mut self, shared: &mut Shared) {
        self.counting.go_on(&mut shared.counts);
        shared.counts.reset += 1;
        self.broken = true;
        self.legs[SERVER].endpoint.abort();
    }

    /// There is no room for its data: both of its ends are reset.
    pub fn overflow(&mut self, now: Instant, shared: &mut Shared, actions: &mut Actions) -> Ended {
        shared.counts.overflowed += u64::from(!self.broken);
        self.broken = true;
        self.held = None;
        for leg in &mut self.legs {
            leg.endpoint.abort();
        }
        self.settle(now, shared, actions)
    }

    /// Both of its ends are reset, wherever they are in their handshakes.
    pub fn reset(&mut self, now: Instant, shared: &mut Shared, actions: &mut Actions) -> Ended {
        self.counting.go_on(&mut shared.counts);
        shared.counts.reset += u64::from(!self.broken);
        self.broken = true;
        self.held = None;
        for leg in &mut self.legs {
            leg.endpoint.abort();
        }
        self.settle(now, shared, actions)
    }

    /// Whether it counts as live.
    pub fn is_live(&self) -> bool {
        self.counting.is_live()
    }

    /// It counts as live from now on.
    pub fn enter(&mut self, shared: &mut Shared) {
        self.counting.enter(&mut shared.counts);
    }

    /// The amount of its state to move.
    pub fn extent(&self) -> Extent {
        let [down, up] = &self.directions;
        let staged = up.staged() + down.staged();
        let held = |leg: &Leg| {
            let queued = leg.written - leg.endpoint.acknowledged().min(leg.written);
            queued + leg.endpoint.readable() + leg.endpoint.out_of_order()
        };
        Extent {
            flow: self.id,
            established: self.legs.iter().all(|leg| leg.connected) && !self.broken,
            held: staged + self.legs.iter().map(held).sum::<u64>(),
            out_of_order: self.legs.iter().map(|leg| leg.endpoint.out_of_order()).sum(),
            arrived: self.legs.iter().map(|leg| leg.endpoint.received()).sum(),
        }
    }

    /// Its nodes, ports and version of IP.
    pub fn ends(&self) -> ([NodeId; 2], [u16; 2], Family) {
        (self.nodes, self.ports, self.family)
    }

    /// Moves it to the proxy on `maker`, with these legs; a leg without a model keeps its settings,
    /// over that link.
    pub fn settle_at(
        &mut self,
        now: Instant,
        maker: NodeId,
        models: [Result<Model, Option<String>>; 2],
        budget: &Arc<Budget>,
    ) {
        self.maker = maker;
        for ((leg, direction), model) in self.legs.iter_mut().zip(&mut self.directions).zip(models)
        {
            let model = match model {
                Ok(model) => model,
                Err(link) => leg.model.clone().without_pool().over(link.as_deref()),
            };
            leg.settle_at(model);
            direction.settle_at(now, leg, budget);
        }
    }

    /// For tests: checks that no byte is lost or doubled between its connections.
    ///
    /// # Panics
    /// When one is.
    pub fn check_invariants(&self) {
        let [client, server] = &self.legs;
        let [down, up] = &self.directions;
        up.check_invariants(client, server);
        down.check_invariants(server, client);
    }

    fn target(&self) -> ServerPlace {
        ServerPlace { node: self.nodes[1], port: self.ports[1], family: self.family }
    }

    fn packet(&self, side: usize, segment: Segment, xcp: Xcp) -> Packet {
        let ends = (self.nodes, self.ports, self.family);
        leg_packet((self.id, self.maker), ends, side, segment, xcp)
    }

    /// Releases its part of shared limits, and adds its counts: it is over.
    pub fn leave(&mut self, now: Instant, shared: &mut Shared) {
        self.counting.go_on(&mut shared.counts);
        self.counting.leave(&mut shared.counts);
        for direction in &mut self.directions {
            direction.leave();
        }
        if shared.measures(self.listener()) {
            self.book(now, &mut shared.legs);
        }
        // It may continue at another proxy, which then records only what follows.
        self.legs.iter_mut().for_each(|leg| leg.mark_booked(now));
    }

    /// The destination port.
    pub fn listener(&self) -> u16 {
        self.ports[1]
    }

    /// How much it holds in both directions, as last counted. Unit: bytes.
    pub fn held_bytes(&self) -> u64 {
        self.directions.iter().map(|direction| direction.held.held()).sum()
    }

    /// Its connections.
    pub fn connected(&self) -> impl Iterator<Item = &Leg> {
        self.legs.iter().filter(|leg| leg.connected)
    }

    /// Adds its connections' counts to those of their legs.
    pub fn book(&self, now: Instant, books: &mut BTreeMap<String, LegResult>) {
        self.connected().for_each(|leg| leg.book(now, books));
    }
}
