//! A proxy's end of a tunnel to another proxy: the connection of the daemon's crate ([`Carrier`]), in virtual time.
//!
//! The connection exists before the run begins, as flows find it in operation: the two ends
//! [`rehearse`] over a path that loses nothing. Its datagrams travel as packets with contents.
//!
//! Differs from the daemon: a lost tunnel is not opened again, and TCP does not replace it.
//!
//! Decision 0038.

use super::modem::Modem;
use crate::agent::Actions;
use crate::packet::{Body, End, FlowId, IP_HEADER, NodeId, Packet, UDP_HEADER, Xcp};
use bytes::Bytes;
use midhop_experiment::limit::Family;
use midhop_experiment::record::LegResult;
use midhop_pep::config::ClassPlan;
use midhop_tunnel::connect::Request;
use midhop_tunnel::http3::Code;
use midhop_tunnel::quic::{Carrier, CarrierEvent, CarrierStats, Lone, StreamId};
use midhop_units::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Timers fire at whole multiples of this, as in the daemon's runtime, where they release paced
/// datagrams.
const TICK: Duration = Duration::from_ms(1);
/// How long two ends are connected before a run, in round trips and in addition to these: QUIC
/// discovers the path MTU.
const LEAD_RTTS: u64 = 12;
const LEAD: Duration = Duration::from_s(1);

/// A requested flow, in the simulator's terms: these stand for addresses elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedFlow {
    /// Its number.
    pub flow: FlowId,
    /// The opener's node and the listener's.
    pub nodes: [NodeId; 2],
    /// Their ports.
    pub ports: [u16; 2],
    /// The version of IP.
    pub family: Family,
}

/// State that both ends of a tunnel share without packets: they are of one simulation.
#[derive(Debug, Default)]
struct Between {
    asked: RefCell<BTreeMap<StreamId, AskedFlow>>,
    /// Unit: bytes. Payload that arrived at each end: the one that opened the tunnel, the other.
    received: [Cell<u64>; 2],
}

/// The addresses of an end's packets.
#[derive(Debug, Clone, Copy)]
pub struct Addressing {
    /// The tunnel's own flow.
    pub flow: FlowId,
    /// Its node and the other's.
    pub nodes: [NodeId; 2],
    /// Its port and the other's.
    pub ports: [u16; 2],
    /// The version of IP.
    pub family: Family,
    /// Which end it is: the opener has connected to the listener.
    pub end: End,
}

/// One end of a tunnel.
#[derive(Debug)]
pub struct TunnelEnd {
    /// The proxy's name for its peer.
    pub peer: String,
    /// The peer's node, and the link on which the route to it begins, by name.
    pub node: String,
    /// The link on which the route to it begins.
    pub link: String,
    lone: Lone,
    modem: Option<Modem>,
    addressing: Addressing,
    between: Rc<Between>,
    /// How long it was connected when the run began.
    lead: Duration,
    /// The counts of the rehearsal.
    before: CarrierStats,
    /// The flows of its streams.
    pub flows: BTreeMap<StreamId, FlowId>,
    /// Unit: bytes. Payload of flows that was sent.
    sent: u64,
    /// Whether the connection is gone.
    pub lost: bool,
    /// When it must be processed.
    pub due: Instant,
}

impl TunnelEnd {
    /// Both ends of a tunnel, the opener's first: their identities, carriers and addresses.
    pub fn pair(
        names: [[String; 3]; 2],
        ends: [Lone; 2],
        addressing: [Addressing; 2],
        rtt: Duration,
    ) -> [Self; 2] {
        let lead = rtt * LEAD_RTTS + LEAD;
        let between = Rc::<Between>::default();
        let ends = rehearse(ends, rtt / 2, lead).into_iter().zip(addressing).zip(names);
        let ends: Vec<Self> = ends
            .map(|((lone, addressing), [peer, node, link])| Self {
                peer,
                node,
                link,
                before: lone.stats(),
                lone,
                modem: None,
                addressing,
                between: between.clone(),
                lead,
                flows: BTreeMap::new(),
                sent: 0,
                lost: false,
                due: Instant::START,
            })
            .collect();
        ends.try_into().unwrap_or_else(|_| unreachable!("two of each"))
    }

    /// Sets the modem whose reports set its rate.
    pub(crate) fn go_by(&mut self, modem: Modem) {
        self.modem = Some(modem);
    }

    /// Whether it is the end that connected to the other: this end requests flows.
    pub fn opens(&self) -> bool {
        self.addressing.end == End::Opener
    }

    /// The connection, and its time at `now`.
    pub fn carrier(&mut self, now: Instant) -> (Instant, &mut Carrier) {
        (now + self.lead, self.lone.carrier())
    }

    /// Whether a packet is one of the tunnel's, received here.
    pub fn expects(&self, packet: &Packet) -> bool {
        packet.flow == self.addressing.flow && packet.destination == self.addressing.nodes[0]
    }

    /// The events of it.
    pub fn poll_event(&mut self, now: Instant) -> Option<CarrierEvent> {
        self.lone.poll_event(now + self.lead)
    }

    /// Processes a received datagram.
    pub fn receive(&mut self, now: Instant, datagram: Bytes) {
        self.lone.handle_datagram(now + self.lead, datagram, false);
    }

    /// The requested time has come.
    pub fn wake(&mut self, now: Instant) {
        if let Some(rate) = self.modem.as_mut().and_then(|modem| modem.look(now)) {
            self.lone.carrier().pace().reported(rate);
        }
        self.lone.handle_timeout(now + self.lead);
    }

    /// Sends everything that may leave; returns whether anything did.
    pub fn send(&mut self, now: Instant, actions: &mut Actions) -> bool {
        let mut any = false;
        while let Some(datagram) = self.lone.poll_datagram(now + self.lead) {
            any = true;
            let size = datagram.len() as u32;
            let contents = actions.contents().insert(datagram);
            let Addressing { flow, nodes: [own, other], ports, family, end } = self.addressing;
            actions.send(Packet {
                flow,
                towards: end.other(),
                source: own,
                destination: other,
                maker: own,
                ports,
                family,
                size: IP_HEADER[usize::from(family == Family::Ipv6)] + UDP_HEADER + size,
                xcp: Xcp::default(),
                body: Body::Tunnel(contents),
            });
        }
        any
    }

    /// Updates its next time: the next tick.
    pub fn settle(&mut self) {
        let due = self.lone.poll_timeout();
        self.due = due.map_or(Instant::NEVER, |at| {
            let since = at.saturating_since(Instant::START + self.lead).as_ns();
            Instant::from_ns(since.next_multiple_of(TICK.as_ns()))
        });
        if let Some(modem) = &self.modem {
            self.due = self.due.min(modem.due());
        }
    }

    /// Requests a flow from the other end, and consumes `request`. `None`: there is no request left, or the other
    /// end accepts no more for now.
    pub fn ask(
        &mut self,
        now: Instant,
        request: &mut Option<Box<Request>>,
        asked: AskedFlow,
        class: &ClassPlan,
    ) -> Option<StreamId> {
        let stream = self.lone.carrier().ask(now + self.lead, request.as_deref()?, class)?;
        *request = None;
        self.flows.insert(stream, asked.flow);
        self.between.asked.borrow_mut().insert(stream, asked);
        Some(stream)
    }

    /// Drops a flow. A half that has not ended is reset with this code.
    pub fn forget(&mut self, stream: StreamId, code: Code) {
        self.flows.remove(&stream);
        self.lone.carrier().forget(stream, code);
    }

    /// The flow that the other end has requested by a stream.
    pub fn asked(&mut self, stream: StreamId) -> Option<AskedFlow> {
        let asked = self.between.asked.borrow_mut().remove(&stream)?;
        self.flows.insert(stream, asked.flow);
        Some(asked)
    }

    /// Counts sent payload.
    pub fn count_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// Counts received payload.
    pub fn count_received(&self, bytes: u64) {
        let own = &self.between.received[self.addressing.end.index()];
        own.set(own.get() + bytes);
    }

    /// Its counts, for the record.
    pub fn result(&self, node: &str) -> LegResult {
        let [own, far] = [self.addressing.end, self.addressing.end.other()]
            .map(|end| self.between.received[end.index()].get());
        let stats = self.lone.stats();
        LegResult {
            node: node.to_owned(),
            link: self.link.clone(),
            tunnel: Some(self.node.clone()),
            // All of its flows share one connection.
            connections: u64::from(self.sent > 0 || own > 0),
            bytes: midhop_units::Bytes::new(far.min(self.sent)),
            retransmissions: stats.lost - self.before.lost,
            rtt_min: stats.rtt_min,
            phases: None,
        }
    }
}

/// Connects two ends for some time, over a path that loses nothing and takes `delay` each way.
fn rehearse(mut both: [Lone; 2], delay: Duration, time: Duration) -> [Lone; 2] {
    let end = Instant::START + time;
    // Packets in flight to each, in order.
    let mut ways: [std::collections::VecDeque<(Instant, Bytes)>; 2] = Default::default();
    let mut now = Instant::START;
    while now <= end {
        for (to, lone) in both.iter_mut().enumerate() {
            while ways[to].front().is_some_and(|(at, _)| *at <= now) {
                if let Some((_, datagram)) = ways[to].pop_front() {
                    lone.handle_datagram(now, datagram, false);
                }
            }
            lone.handle_timeout(now);
            while lone.poll_event(now).is_some() {}
            while let Some(datagram) = lone.poll_datagram(now) {
                ways[1 - to].push_back((now + delay, datagram));
            }
        }
        let arrivals = ways.iter().filter_map(|way| way.front().map(|(at, _)| *at));
        let arrivals: Vec<Instant> = arrivals.collect();
        let timers = both.iter_mut().filter_map(Lone::poll_timeout);
        let Some(next) = arrivals.into_iter().chain(timers).min() else { break };
        // If a timer fires and requests the same time again, the clock must still advance.
        now = if next > now { next } else { now + Duration::from_us(1) };
    }
    both
}
