//! Snoop: losses behind the agent are repaired by the agent, and the source does not hear of them.
//!
//! The agent caches the segments that pass towards the lossy side. Where the acknowledgements that come
//! back tell that one is lost, or none comes in time, it sends its copy, and keeps the duplicate
//! acknowledgements from the source, which would take the loss for congestion. It acknowledges nothing
//! itself: an acknowledgement that the source sees is the receiver's, with at most some of its selective
//! blocks taken out.
//!
//! Source: H. Balakrishnan, S. Seshan, E. Amir, R. Katz, Improving TCP/IP Performance over Wireless
//! Networks, MobiCom 1995, for a fixed sender and a mobile receiver. Differs:
//! - It was made before selective acknowledgements. Here they find losses as RFC 8985 does, by what was
//!   sent later and has arrived, and their blocks reach the source only below the first segment that the
//!   agent answers for: what they report beyond would have the source repair what is being repaired.
//!   It is told later, since a receiver repeats a block only a few times.
//! - Reports of duplicates (RFC 2883) that a copy of the agent's caused go no further.
//! - What the queue of the node's own link refuses is congestion: the source is told, by its duplicate
//!   acknowledgements, as of any loss before the agent.
//! - A full cache takes no more, instead of overwriting what it will be asked for; where flows compete,
//!   the largest gives way from its end.
//! - A copy waits in the link's queue like any packet; the original let it pass first.
//! - Nothing is said to a source behind the lossy side (explicit loss notification): another agent at
//!   the far end of the lossy link caches what goes the other way.
//!
//! Invariants: what is cached stays within the configured size, and the flows within their number; a
//! flow of which nothing passes for a while is forgotten.

mod flow;
#[cfg(test)]
mod tests;
mod told;

use crate::agent::{Actions, Agent};
use crate::packet::{Body, End, FlowId, NodeId, Packet};
use flow::{Admission, Flow, Verdict};
pub use midhop_experiment::agents::Snoop as Settings;
use midhop_tcp::{Flags, Segment};
use midhop_units::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// A flow's direction, by the end that the data goes to.
type Key = (FlowId, End);

/// What the agent did, under the names of the record.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    flows: u64,
    forgotten: u64,
    untracked: u64,
    cached: u64,
    uncached: u64,
    evicted: u64,
    resent: u64,
    resent_by_timer: u64,
    given_up: u64,
    suppressed: u64,
    source_resent: u64,
    congestion: u64,
}

/// A snoop agent.
#[derive(Debug)]
pub struct Snoop {
    settings: Settings,
    /// Whether a node, by its number, lies on the lossy side.
    lossy: Vec<bool>,
    flows: BTreeMap<Key, Flow>,
    /// When flows want to be looked at.
    due: BTreeSet<(Instant, Key)>,
    /// The flows by what they have cached.
    sizes: BTreeSet<(u64, Key)>,
    cached: u64,
    counts: Counts,
    /// What one call sends again; empty between calls.
    resend: Vec<Packet>,
}

impl Snoop {
    /// An agent that caches what goes to the nodes that `lossy` marks, by their numbers.
    pub fn new(settings: Settings, lossy: Vec<bool>) -> Self {
        Self {
            settings,
            lossy,
            flows: BTreeMap::new(),
            due: BTreeSet::new(),
            sizes: BTreeSet::new(),
            cached: 0,
            counts: Counts::default(),
            resend: Vec::new(),
        }
    }

    fn is_lossy(&self, node: NodeId) -> bool {
        self.lossy.get(node.index()).copied().unwrap_or(false)
    }

    /// Lets a flow's direction act, and keeps its books and its time.
    fn with<R>(
        &mut self,
        key: Key,
        act: impl FnOnce(&mut Flow, &Settings, &mut Counts, &mut Vec<Packet>) -> R,
    ) -> Option<R> {
        let flow = self.flows.get_mut(&key)?;
        let before = flow.bytes();
        let result = act(flow, &self.settings, &mut self.counts, &mut self.resend);
        let after = flow.bytes();
        if before != after {
            self.sizes.remove(&(before, key));
            self.sizes.insert((after, key));
            self.cached = self.cached - before + after;
        }
        if flow.is_over() {
            self.forget(key);
            return Some(result);
        }
        // What is asked for later than before is found out when the time has come.
        let due = flow.timeout(&self.settings).min(flow.active + self.settings.idle);
        if due < flow.due {
            self.due.remove(&(flow.due, key));
            self.due.insert((due, key));
            flow.due = due;
        }
        Some(result)
    }

    fn forget(&mut self, key: Key) {
        if let Some(flow) = self.flows.remove(&key) {
            self.sizes.remove(&(flow.bytes(), key));
            self.due.remove(&(flow.due, key));
            self.cached -= flow.bytes();
        }
    }

    fn on_ack(&mut self, now: Instant, key: Key, segment: &mut Segment) -> Verdict {
        let verdict = self.with(key, |flow, settings, counts, resend| {
            flow.active = now;
            flow.on_ack(now, segment, settings, counts, resend)
        });
        verdict.unwrap_or(Verdict::Forward)
    }

    fn on_data(&mut self, now: Instant, key: Key, packet: Packet, segment: &Segment) {
        if !self.flows.contains_key(&key) {
            if self.flows.len() >= self.settings.flows {
                self.counts.untracked += 1;
                return;
            }
            self.flows.insert(key, Flow::new(now, segment, &self.settings));
            self.sizes.insert((0, key));
            self.counts.flows += 1;
        }
        let admission = self.with(key, |flow, _, counts, _| {
            flow.active = now;
            flow.note_source(segment);
            flow.on_data(segment, counts)
        });
        let own = match admission {
            None | Some(Admission::No) => return,
            Some(Admission::Own) => true,
            Some(Admission::Source) => false,
        };
        if !self.make_room(key, packet.size.into()) {
            self.counts.uncached += 1;
            return;
        }
        self.counts.cached += 1;
        self.with(key, |flow, _, _, _| flow.cache(now, packet, segment, own));
    }

    /// Makes room for `size` more bytes of a flow, at the cost of one that has more; whether there is.
    fn make_room(&mut self, key: Key, size: u64) -> bool {
        while self.cached + size > self.settings.cache.get() {
            let Some(&(most, largest)) = self.sizes.last() else { return false };
            let own = self.flows.get(&key).map_or(0, Flow::bytes);
            if largest == key || most <= own + size {
                return false;
            }
            self.counts.evicted += 1;
            self.with(largest, |flow, _, _, _| flow.evict());
        }
        true
    }

    fn send_again(&mut self, actions: &mut Actions) {
        self.resend.drain(..).for_each(|packet| actions.send(packet));
    }
}

impl Agent for Snoop {
    fn handle_packet(&mut self, now: Instant, mut packet: Packet, actions: &mut Actions) {
        let Body::Segment(mut segment) = packet.body else { return actions.send(packet) };
        let flags = segment.flags;
        if flags.contains(Flags::RST) || flags.contains(Flags::SYN) {
            // A flow that ends, or one that begins anew under an old one's name.
            End::BOTH.into_iter().for_each(|end| self.forget((packet.flow, end)));
            return actions.send(packet);
        }
        let before = segment.options_size();
        if flags.contains(Flags::ACK) {
            let key = (packet.flow, packet.towards.other());
            let verdict = self.on_ack(now, key, &mut segment);
            self.send_again(actions);
            if verdict == Verdict::Suppress {
                return;
            }
            packet.size = packet.size - before + segment.options_size();
            packet.body = Body::Segment(segment);
        }
        let key = (packet.flow, packet.towards);
        if segment.sequence_length() > 0 && self.is_lossy(packet.destination) {
            self.on_data(now, key, packet, &segment);
        } else {
            self.with(key, |flow, _, _, _| {
                flow.active = now;
                flow.note_source(&segment);
            });
        }
        actions.send(packet);
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        while let Some(&(at, key)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.due = Instant::NEVER;
                if flow.active + self.settings.idle <= now {
                    self.counts.forgotten += 1;
                    self.forget(key);
                    continue;
                }
            }
            self.with(key, |flow, settings, counts, resend| {
                flow.on_timeout(now, settings, counts, resend);
            });
            self.send_again(actions);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn handle_drop(&mut self, _now: Instant, packet: &Packet) {
        let Body::Segment(segment) = &packet.body else { return };
        let key = (packet.flow, packet.towards);
        self.with(key, |flow, _, counts, _| {
            counts.congestion += u64::from(flow.on_congestion(segment));
        });
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.counts;
        let all = [
            ("flows", counts.flows),
            ("flows-forgotten", counts.forgotten),
            ("segments-untracked", counts.untracked),
            ("segments-cached", counts.cached),
            ("segments-uncached", counts.uncached),
            ("segments-evicted", counts.evicted),
            ("segments-resent", counts.resent),
            ("segments-resent-by-timer", counts.resent_by_timer),
            ("segments-given-up", counts.given_up),
            ("segments-left-to-source", counts.congestion),
            ("segments-resent-by-source", counts.source_resent),
            ("acks-suppressed", counts.suppressed),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn check_invariants(&self) {
        let bytes: u64 = self.flows.values().map(Flow::bytes).sum();
        assert_eq!(self.cached, bytes);
        assert!(self.cached <= self.settings.cache.get() && self.resend.is_empty());
        assert!(self.flows.len() <= self.settings.flows);
        assert_eq!(self.sizes.len(), self.flows.len());
        for (key, flow) in &self.flows {
            assert!(self.sizes.contains(&(flow.bytes(), *key)));
            assert!(self.due.contains(&(flow.due, *key)), "a flow that nothing will look at");
            flow.check_invariants(&self.settings);
        }
    }
}
