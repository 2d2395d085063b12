//! A proxy's end of a tunnel to another proxy: the connection that the daemon's crate has ([`Carrier`]), in virtual time.
//!
//! The connection is there before the run begins, as flows find it every day: the two ends
//! [`rehearse`] over a path that loses nothing. Its datagrams travel as packets with contents.
//!
//! Differs from the daemon: a tunnel that is lost is not opened again, and TCP does not stand in for it.

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

/// Timers fire at whole multiples of this, as those of the daemon's runtime do: its pacer lets datagrams go by them.
const TICK: Duration = Duration::from_ms(1);
/// For how long two ends are connected before a run, in round trips and beside them: QUIC finds the size of the
/// packets that pass.
const LEAD_RTTS: u64 = 12;
const LEAD: Duration = Duration::from_s(1);

/// A flow that is asked for, as the simulator knows it: what addresses stand for elsewhere.
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

/// What both ends of a tunnel know without any packets: they are of one simulation.
#[derive(Debug, Default)]
struct Between {
    asked: RefCell<BTreeMap<StreamId, AskedFlow>>,
    /// Unit: bytes. Payload that arrived at each end: the one that opened the tunnel, the other.
    received: [Cell<u64>; 2],
}

/// How an end's packets are addressed.
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
    /// Which end it is: the opener has gone to the listener.
    pub end: End,
}

/// One end of a tunnel.
#[derive(Debug)]
pub struct TunnelEnd {
    /// What the proxy calls its peer.
    pub peer: String,
    /// The peer's node and the link on which the way to it begins, by name.
    pub node: String,
    /// The link on which the way to it begins.
    pub link: String,
    lone: Lone,
    addressing: Addressing,
    between: Rc<Between>,
    /// For how long it was connected when the run began.
    lead: Duration,
    /// What the rehearsal had cost.
    before: CarrierStats,
    /// Whose streams they are.
    pub flows: BTreeMap<StreamId, FlowId>,
    /// Unit: bytes. Payload of flows that was sent.
    sent: u64,
    /// Whether the connection is gone.
    pub lost: bool,
    /// When it wants to be looked at.
    pub due: Instant,
}

impl TunnelEnd {
    /// Both ends of a tunnel, the opener's first: who they are to each other, their carriers and addresses.
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

    /// Whether it is the end that went to the other: flows are asked for by that.
    pub fn opens(&self) -> bool {
        self.addressing.end == End::Opener
    }

    /// The connection, and its time at `now`.
    pub fn carrier(&mut self, now: Instant) -> (Instant, &mut Carrier) {
        (now + self.lead, self.lone.carrier())
    }

    /// Whether a packet is one of the tunnel's that has come here.
    pub fn expects(&self, packet: &Packet) -> bool {
        packet.flow == self.addressing.flow && packet.destination == self.addressing.nodes[0]
    }

    /// What has happened on it.
    pub fn poll_event(&mut self, now: Instant) -> Option<CarrierEvent> {
        self.lone.poll_event(now + self.lead)
    }

    /// Takes a datagram that has come.
    pub fn receive(&mut self, now: Instant, datagram: Bytes) {
        self.lone.handle_datagram(now + self.lead, datagram, false);
    }

    /// The time that it asked for has come.
    pub fn wake(&mut self, now: Instant) {
        self.lone.handle_timeout(now + self.lead);
    }

    /// Sends what may leave; whether anything did.
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

    /// Finds out when it wants to be looked at: at the next tick.
    pub fn settle(&mut self) {
        let due = self.lone.poll_timeout();
        self.due = due.map_or(Instant::NEVER, |at| {
            let since = at.saturating_since(Instant::START + self.lead).as_ns();
            Instant::from_ns(since.next_multiple_of(TICK.as_ns()))
        });
    }

    /// Asks the other end for a flow, which is a `request` until that was done. None: it was, or the other end takes no
    /// more for now.
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

    /// Forgets a flow. A half that has not ended is broken off with this code.
    pub fn forget(&mut self, stream: StreamId, code: Code) {
        self.flows.remove(&stream);
        self.lone.carrier().forget(stream, code);
    }

    /// The flow that the other end has asked for by a stream.
    pub fn asked(&mut self, stream: StreamId) -> Option<AskedFlow> {
        let asked = self.between.asked.borrow_mut().remove(&stream)?;
        self.flows.insert(stream, asked.flow);
        Some(asked)
    }

    /// So much payload was sent.
    pub fn count_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// So much payload has come.
    pub fn count_received(&self, bytes: u64) {
        let own = &self.between.received[self.addressing.end.index()];
        own.set(own.get() + bytes);
    }

    /// What it has done, for the record.
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

/// Lets two ends talk for some time, over a path that loses nothing and takes `delay` each way.
fn rehearse(mut both: [Lone; 2], delay: Duration, time: Duration) -> [Lone; 2] {
    let end = Instant::START + time;
    // What is on its way to each, in order.
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
        // A timer that has fired and names the same moment again would stop the time.
        now = if next > now { next } else { now + Duration::from_us(1) };
    }
    both
}
