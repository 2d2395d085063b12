//! Two endpoints with agents between them, over stretches that lose, duplicate and reorder. With any behaviour
//! of the agents all bytes arrive, and nothing is acknowledged that did not.

use crate::agent::{Action, Actions, Agent};
use crate::packet::{Body, End, FlowId, NodeId, Packet, Xcp};
use crate::stack;
use midhop_congestion::{Law, build};
use midhop_experiment::limit::Family;
use midhop_experiment::random::Random;
use midhop_experiment::tcp::TcpPlan;
use midhop_tcp::{Endpoint, Event, Segment, Settings};
use midhop_units::{Duration, Instant, Seed};
use std::collections::BTreeMap;

/// One stretch between neighbours, the same in both directions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stretch {
    pub delay: Duration,
    /// The maximum extra delay of a packet.
    pub jitter: Duration,
    /// Of a thousand packets.
    pub lost: u32,
    /// Of a thousand packets.
    pub twice: u32,
}

/// One end of the connection, and an observer's knowledge of it.
struct Host {
    endpoint: Endpoint,
    initial: u32,
    to_write: u64,
    read: u64,
    ended: bool,
    /// Data that has arrived, in positions from its peer's initial sequence number: disjoint spans.
    arrived: Vec<(u64, u64)>,
}

/// Whether a packet that is about to enter a stretch is lost there.
type Fate = dyn FnMut(usize, &Packet) -> bool;

/// A line of nodes: an endpoint, agents, an endpoint.
pub(super) struct Rig {
    hosts: [Host; 2],
    pub agents: Vec<Box<dyn Agent>>,
    stretches: Vec<Stretch>,
    random: Random,
    pub now: Instant,
    wire: BTreeMap<(Instant, u64), (usize, Packet)>,
    number: u64,
    /// Drops the segments for which it returns true.
    pub fate: Box<Fate>,
}

impl Rig {
    /// Agents stand at the nodes from 1 on; `bytes` go from the first to the last, and back.
    pub fn new(
        agents: Vec<Box<dyn Agent>>,
        stretches: Vec<Stretch>,
        settings: Settings,
        bytes: [u64; 2],
        seed: u64,
    ) -> Self {
        assert_eq!(stretches.len(), agents.len() + 1);
        let mut random = Random::new(Seed(seed), "rig");
        let control =
            || build(&midhop_congestion::Settings::of(Law::Cubic)).expect("cubic needs nothing");
        // Sequence numbers wrap soon after the beginning, in some runs.
        let mut initial = || u32::MAX - random.word() % 200_000;
        let (opener, listener) = (initial(), initial());
        let host = |endpoint, initial, to_write| Host {
            endpoint,
            initial,
            to_write,
            read: 0,
            ended: false,
            arrived: Vec::new(),
        };
        let hosts = [
            host(Endpoint::connect(settings.clone(), control(), opener), opener, bytes[0]),
            host(Endpoint::listen(settings, control(), listener), listener, bytes[1]),
        ];
        Self {
            hosts,
            agents,
            stretches,
            random,
            now: Instant::START,
            wire: BTreeMap::new(),
            number: 0,
            fate: Box::new(|_, _| false),
        }
    }

    /// The usual settings of hosts on both ends.
    pub fn settings() -> Settings {
        stack::settings(&TcpPlan::default(), Family::Ipv4)
    }

    /// How often the source retransmitted.
    pub fn retransmissions(&self, side: usize) -> u64 {
        self.hosts[side].endpoint.counters().retransmissions
    }

    /// A counter of agent `at`.
    pub fn count(&self, at: usize, what: &str) -> u64 {
        let counts = self.agents[at].counts();
        counts.iter().find(|(name, _)| *name == what).map_or(0, |(_, count)| *count)
    }

    /// Advances time until both ends have everything and know it.
    pub fn run(&mut self) {
        let limit = self.now + Duration::from_s(1200);
        self.settle();
        while !self.hosts.iter().all(|host| host.ended) {
            let packet = self.wire.keys().next().map(|(at, _)| *at);
            let ends = self.hosts.iter().filter_map(|host| host.endpoint.poll_timeout());
            let agents = self.agents.iter().filter_map(|agent| agent.poll_timeout());
            let next = packet.into_iter().chain(ends).chain(agents).min();
            let next = next.expect("something is still to happen");
            assert!(next <= limit, "not within 20 minutes");
            self.now = self.now.max(next);
            self.step();
        }
        for side in 0..2 {
            assert_eq!(
                self.hosts[side].read,
                self.hosts[1 - side].to_write,
                "all that was written"
            );
        }
    }

    fn step(&mut self) {
        let now = self.now;
        for host in &mut self.hosts {
            if host.endpoint.poll_timeout().is_some_and(|at| at <= now) {
                host.endpoint.handle_timeout(now);
            }
        }
        for at in 0..self.agents.len() {
            if self.agents[at].poll_timeout().is_some_and(|due| due <= now) {
                self.act(at, |agent, actions| agent.handle_timeout(now, actions));
            }
        }
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= now) {
            let (node, packet) = entry.remove();
            if (1..=self.agents.len()).contains(&node) {
                self.act(node - 1, |agent, actions| agent.handle_packet(now, packet, actions));
            } else {
                self.receive(usize::from(node > 0), &packet);
            }
        }
        self.settle();
    }

    fn act(&mut self, at: usize, act: impl FnOnce(&mut dyn Agent, &mut Actions)) {
        let mut actions = Actions::default();
        act(self.agents[at].as_mut(), &mut actions);
        self.agents[at].check_invariants();
        for action in actions.take() {
            match action {
                Action::Send(packet) => self.send(at + 1, packet),
                Action::Drop(..) => panic!("these agents drop nothing"),
            }
        }
    }

    /// Sends a packet from a node on its way.
    fn send(&mut self, node: usize, packet: Packet) {
        let to = packet.destination.index();
        let (stretch, next) = if to > node { (node, node + 1) } else { (node - 1, node - 1) };
        if (self.fate)(stretch, &packet) {
            return;
        }
        let Stretch { delay, jitter, lost, twice } = self.stretches[stretch];
        if self.random.word() % 1000 < lost {
            return;
        }
        let times = 1 + u32::from(self.random.word() % 1000 < twice);
        for _ in 0..times {
            let share = u64::from(self.random.word() % 1024);
            let at = self.now + delay + Duration::from_ns(jitter.as_ns() * share / 1024);
            self.number += 1;
            self.wire.insert((at, self.number), (next, packet));
        }
    }

    /// A packet has reached an end: the observer checks its contents.
    fn receive(&mut self, side: usize, packet: &Packet) {
        let Body::Segment(segment) = &packet.body else { panic!("not for a host") };
        assert_eq!(packet.size, 20 + segment.size());
        let (own, peer) = (self.hosts[side].initial, self.hosts[1 - side].initial);
        // Positions: 0 is the SYN. No run is longer than half the space of sequence numbers.
        let start = u64::from(segment.sequence.wrapping_sub(peer));
        if segment.length > 0 {
            assert_eq!(segment.offset + 1, start, "the bytes that the sequence number means");
        }
        let end = start + u64::from(segment.sequence_length());
        if end > start {
            add(&mut self.hosts[side].arrived, (start, end));
        }
        let there = &self.hosts[1 - side].arrived;
        let all = there.first().filter(|first| first.0 == 0).map_or(0, |first| first.1);
        let acknowledged = u64::from(segment.acknowledgment.wrapping_sub(own));
        if segment.flags.contains(midhop_tcp::Flags::ACK) {
            assert!(acknowledged <= all, "{acknowledged} acknowledged, {all} arrived");
        }
        for block in segment.sack.iter() {
            let from = u64::from(block.start.wrapping_sub(own));
            let to = u64::from(block.end.wrapping_sub(own));
            let known = there.iter().any(|span| span.0 <= from && to <= span.1);
            assert!(known && from < to, "{from}..{to} acknowledged, {there:?} arrived");
        }
        self.hosts[side].endpoint.handle_segment(self.now, segment);
    }

    fn settle(&mut self) {
        for side in 0..2 {
            loop {
                while let Some(segment) = self.hosts[side].endpoint.poll_transmit(self.now) {
                    let packet = self.packet(side, segment);
                    self.send(packet.source.index(), packet);
                }
                let host = &mut self.hosts[side];
                let Some(event) = host.endpoint.poll_event() else { break };
                host.read += host.endpoint.read(self.now, u64::MAX);
                match event {
                    Event::Connected => {
                        host.endpoint.write(host.to_write);
                        host.endpoint.close();
                    }
                    Event::PeerClosed => host.ended = true,
                    Event::Reset(cause) => panic!("{cause:?} at {:?}", self.now),
                    _ => {}
                }
            }
            self.hosts[side]
                .endpoint
                .check_invariants()
                .unwrap_or_else(|broken| panic!("{broken}"));
        }
    }

    fn packet(&self, side: usize, segment: Segment) -> Packet {
        let last = NodeId(self.agents.len() as u16 + 1);
        let nodes = [NodeId(0), last];
        Packet {
            flow: FlowId(0),
            towards: [End::Listener, End::Opener][side],
            source: nodes[side],
            destination: nodes[1 - side],
            maker: nodes[side],
            ports: [[10_000, 7000], [7000, 10_000]][side],
            family: Family::Ipv4,
            size: 20 + segment.size(),
            xcp: Xcp::default(),
            body: Body::Segment(segment),
        }
    }
}

/// Adds a span to disjoint ones in their order.
fn add(spans: &mut Vec<(u64, u64)>, span: (u64, u64)) {
    let from = spans.partition_point(|known| known.1 < span.0);
    let to = spans.partition_point(|known| known.0 <= span.1);
    let merged = spans[from..to].iter().fold(span, |a, b| (a.0.min(b.0), a.1.max(b.1)));
    spans.splice(from..to, [merged]);
}
