//! D-Proxy: two agents around a lossy way repair its losses between themselves, by the sequence numbers
//! of the TCP that passes.
//!
//! The one before the lossy way keeps what passes for a while. The one behind it watches for gaps in the
//! sequence numbers, asks its peer for what is missing, holds what comes meanwhile, and passes all on in
//! order, so that the receiver never sees the loss. Acknowledgements pass untouched, and nothing is
//! acknowledged by an agent. Each agent is both: what goes to the peer's side it keeps, what comes from
//! there it watches.
//!
//! Source: D. Murray, T. Koziniec, M. Dixon, D-Proxy: Reliability in Wireless Networks, APCC 2010. What
//! the paper leaves to the implementation is chosen here:
//! - A request is a datagram of its own that names the flow and a span of sequence numbers. It may be
//!   lost; it is repeated after a time made of those that answers took.
//! - What the peer has not got was lost before it. It says so, and the gap is not waited for: the
//!   receiver's duplicate acknowledgements tell the source of the congestion as ever.
//! - What the queue of the node's own link refuses is congestion as well, and not kept.
//! - A gap is waited for no longer than a configured time, and what is held stays within a configured
//!   size; after that all goes on, and the loss is the source's.
//! - The last segments before a pause leave no gap behind them; their losses are the source's too.
//!
//! Invariants: what passes is neither changed nor dropped, only held, and sent again as it was.

mod shelf;
#[cfg(test)]
mod tests;
mod watch;

use super::round_trip::RoundTrip;
use crate::agent::{Actions, Agent};
use crate::packet::{Body, End, FlowId, IP_HEADER, NodeId, Packet, Repair, UDP_HEADER, Xcp};
pub use midhop_experiment::agents::DProxy as Settings;
use midhop_experiment::limit::Family;
use midhop_tcp::{Flags, Segment};
use midhop_units::Instant;
use shelf::Shelf;
use std::collections::{BTreeMap, BTreeSet};
use watch::{Outcome, Watch};

/// What a request says: what it is, the flow by its addresses and ports, and from where to where.
/// Unit: bytes, padded to words, by [`Family`].
const REQUEST: [u32; 2] = [24, 48];
/// Where the agents talk to each other.
const PORT: u16 = 7;

/// A flow's direction, by the end that the data goes to.
type Key = (FlowId, End);

/// What the agent did, under the names of the record.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    cached: u64,
    resent: u64,
    lacking: u64,
    refused: u64,
    gaps: u64,
    requests: u64,
    held: u64,
    filled: u64,
    given_up: u64,
    overflowed: u64,
    untracked: u64,
    forgotten: u64,
}

/// One of the two agents.
#[derive(Debug)]
pub struct DProxy {
    settings: Settings,
    node: NodeId,
    peer: NodeId,
    /// Whether a node, by its number, is the peer or lies behind it.
    beyond: Vec<bool>,
    shelf: Shelf,
    watches: BTreeMap<Key, Watch>,
    /// When watches want to be looked at.
    due: BTreeSet<(Instant, Key)>,
    /// What all watches hold. Unit: bytes of packets.
    held: u64,
    /// To the peer and back.
    rtt: RoundTrip,
    /// When the shelf is next looked through for flows that have ended.
    clearing: Instant,
    counts: Counts,
}

impl DProxy {
    /// An agent at `node` whose peer is at `peer`; `beyond` marks the nodes, by their numbers, to which
    /// the way leads over the peer, the peer's own included.
    pub fn new(settings: Settings, node: NodeId, peer: NodeId, beyond: Vec<bool>) -> Self {
        Self {
            shelf: Shelf::new(settings.cache.get()),
            settings,
            node,
            peer,
            beyond,
            watches: BTreeMap::new(),
            due: BTreeSet::new(),
            held: 0,
            rtt: RoundTrip::default(),
            clearing: Instant::NEVER,
            counts: Counts::default(),
        }
    }

    fn is_beyond(&self, node: NodeId) -> bool {
        self.beyond.get(node.index()).copied().unwrap_or(false)
    }

    /// Lets a watch act, does what it wants done, and keeps its time.
    fn with(
        &mut self,
        key: Key,
        actions: &mut Actions,
        act: impl FnOnce(&mut Watch, &Settings, &mut RoundTrip, &mut Counts, &mut Outcome),
    ) {
        let Some(watch) = self.watches.get_mut(&key) else { return };
        let before = watch.bytes();
        let mut outcome = Outcome::default();
        act(watch, &self.settings, &mut self.rtt, &mut self.counts, &mut outcome);
        self.held = self.held - before + watch.bytes();
        let due = watch.timeout(&self.settings, &self.rtt).min(watch.active + self.settings.idle);
        let family = watch.family;
        // What is asked for later than before is found out when the time has come.
        if due < watch.due {
            self.due.remove(&(watch.due, key));
            self.due.insert((due, key));
            watch.due = due;
        }
        outcome.forward.into_iter().for_each(|packet| actions.send(packet));
        for (from, to) in outcome.ask {
            actions.send(self.message(key, family, Repair::Wanted { from, to }));
        }
    }

    /// A segment goes to the peer's side.
    fn keep(&mut self, now: Instant, packet: Packet, segment: &Segment) {
        let key = (packet.flow, packet.towards);
        if !self.shelf.knows(key) && self.shelf.len() >= self.settings.flows {
            self.counts.untracked += 1;
            return;
        }
        if self.shelf.put(now, key, packet, segment) {
            self.counts.cached += 1;
            self.clearing = self.clearing.min(now + self.settings.idle);
        }
    }

    /// A segment comes from the peer's side.
    fn watch(&mut self, now: Instant, packet: Packet, segment: &Segment, actions: &mut Actions) {
        let key = (packet.flow, packet.towards);
        if !self.watches.contains_key(&key) {
            if segment.sequence_length() == 0 {
                return actions.send(packet);
            }
            if self.watches.len() >= self.settings.flows {
                self.counts.untracked += 1;
                return actions.send(packet);
            }
            self.watches.insert(key, Watch::new(now, &packet, segment));
        }
        let room = self.settings.held.get().saturating_sub(self.held);
        self.with(key, actions, |watch, _, rtt, counts, outcome| {
            watch.active = now;
            watch.on_segment(now, packet, segment, room, (rtt, counts), outcome);
        });
    }

    /// The peer has something to say.
    fn on_message(&mut self, now: Instant, packet: &Packet, repair: Repair, actions: &mut Actions) {
        let key = (packet.flow, packet.towards);
        match repair {
            Repair::Wanted { from, to } => {
                let (found, missing) = self.shelf.find(key, from, to);
                self.counts.resent += found.len() as u64;
                found.into_iter().for_each(|packet| actions.send(packet));
                for (from, to) in missing {
                    self.counts.lacking += 1;
                    actions.send(self.message(key, packet.family, Repair::Lacking { from, to }));
                }
            }
            Repair::Lacking { from, to } => {
                self.with(key, actions, |watch, _, rtt, counts, outcome| {
                    watch.on_lacking(now, from, to, (rtt, counts), outcome);
                });
            }
        }
    }

    /// A message to the peer about a flow's direction.
    fn message(&self, (flow, towards): Key, family: Family, repair: Repair) -> Packet {
        let version = usize::from(family == Family::Ipv6);
        Packet {
            flow,
            towards,
            source: self.node,
            destination: self.peer,
            maker: self.node,
            ports: [PORT, PORT],
            family,
            size: IP_HEADER[version] + UDP_HEADER + REQUEST[version],
            xcp: Xcp::default(),
            body: Body::Repair(repair),
        }
    }

    /// A direction of a flow has ended, or begins anew.
    fn forget(&mut self, key: Key, actions: &mut Actions) {
        self.shelf.forget(key);
        self.with(key, actions, |watch, _, _, _, outcome| watch.abandon(outcome));
        if let Some(watch) = self.watches.remove(&key) {
            self.due.remove(&(watch.due, key));
        }
    }
}

impl Agent for DProxy {
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        let segment = match packet.body {
            Body::Segment(segment) => segment,
            Body::Repair(repair) if packet.destination == self.node => {
                return self.on_message(now, &packet, repair, actions);
            }
            Body::Repair(_) | Body::Datagram(_) => return actions.send(packet),
        };
        let (flags, from_peer) = (segment.flags, self.is_beyond(packet.source));
        if flags.contains(Flags::RST) {
            End::BOTH.into_iter().for_each(|end| self.forget((packet.flow, end), actions));
            actions.send(packet);
        } else if flags.contains(Flags::SYN) {
            self.forget((packet.flow, packet.towards), actions);
            actions.send(packet);
        } else if self.is_beyond(packet.destination) && !from_peer {
            if segment.sequence_length() > 0 {
                self.keep(now, packet, &segment);
            }
            actions.send(packet);
        } else if from_peer && !self.is_beyond(packet.destination) {
            self.watch(now, packet, &segment, actions);
        } else {
            actions.send(packet);
        }
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        while let Some(&(at, key)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            let Some(watch) = self.watches.get_mut(&key) else { continue };
            watch.due = Instant::NEVER;
            if watch.active + self.settings.idle <= now {
                self.counts.forgotten += 1;
                self.forget(key, actions);
                continue;
            }
            self.with(key, actions, |watch, settings, rtt, counts, outcome| {
                watch.on_timeout(now, settings, rtt, counts, outcome);
            });
        }
        if self.clearing <= now {
            let idle = self.settings.idle;
            if let Some(then) = now.as_ns().checked_sub(idle.as_ns()) {
                self.counts.forgotten += self.shelf.forget_idle(Instant::from_ns(then));
            }
            self.clearing = if self.shelf.len() == 0 { Instant::NEVER } else { now + idle };
        }
    }

    fn handle_drop(&mut self, _now: Instant, packet: &Packet) {
        let Body::Segment(segment) = &packet.body else { return };
        let key = (packet.flow, packet.towards);
        self.counts.refused += u64::from(self.shelf.take_back(key, segment));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = self.due.first().map_or(Instant::NEVER, |(at, _)| *at).min(self.clearing);
        (due != Instant::NEVER).then_some(due)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.counts;
        let all = [
            ("segments-cached", counts.cached),
            ("segments-evicted", self.shelf.evicted),
            ("segments-resent", counts.resent),
            ("segments-left-to-source", counts.refused),
            ("requests-unanswerable", counts.lacking),
            ("gaps", counts.gaps),
            ("gaps-filled", counts.filled),
            ("gaps-given-up", counts.given_up),
            ("requests", counts.requests),
            ("segments-held", counts.held),
            ("holds-overflowed", counts.overflowed),
            ("segments-untracked", counts.untracked),
            ("flows-forgotten", counts.forgotten),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn check_invariants(&self) {
        self.shelf.check_invariants();
        let held: u64 = self.watches.values().map(Watch::bytes).sum();
        assert_eq!(self.held, held);
        assert!(held <= self.settings.held.get());
        assert!(
            self.watches.len() <= self.settings.flows && self.shelf.len() <= self.settings.flows
        );
        for (key, watch) in &self.watches {
            assert!(self.due.contains(&(watch.due, *key)), "a flow that nothing will look at");
            watch.check_invariants();
        }
    }
}
