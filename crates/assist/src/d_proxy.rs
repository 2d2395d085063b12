//! D-Proxy: two agents around a lossy path repair its losses between themselves, by the sequence numbers
//! of the TCP segments that pass.
//!
//! The agent before the lossy path caches the segments that pass. The agent behind it watches for gaps in the
//! sequence numbers, requests missing data from its peer, holds later segments meanwhile, and forwards all of them
//! in order. So the receiver never sees the loss. Acknowledgements pass unchanged, and no agent acknowledges
//! anything. Each agent has both roles: it caches what goes to the peer's side, and watches what comes from there.
//!
//! Source: D. Murray, T. Koziniec, M. Dixon, D-Proxy: Reliability in Wireless Networks, APCC 2010. What
//! the paper leaves to the implementation is chosen here:
//! - A request is a datagram of its own that names the flow and a span of sequence numbers. It may be
//!   lost. It is repeated after a timeout that follows from the times of earlier answers.
//! - Data that the peer does not have was lost before it. The peer reports that, and the gap is given up: the
//!   receiver's duplicate acknowledgements report the congestion to the source.
//! - What the queue of the node's own link drops is congestion as well, and is removed from the cache.
//! - With `judges_queue` the agents judge the queue between them. The agent behind the lossy path reports the arrival
//!   of one in some segments, and of each that shows a gap. From the times the agent before the path estimates
//!   how much waited in the queue when a lost segment passed. It leaves to the source what the queue may have dropped.
//!   It retransmits nothing before it has seen losses that no queue can have caused, and then each segment once:
//!   repeated retransmissions into a full queue keep it full. The agent behind the path holds nothing while its peer
//!   only observes, or has stopped answering.
//! - A gap is waited for no longer than a configured time, and held segments stay within a configured
//!   size. After that all of them are forwarded, and the source repairs the loss.
//! - The last segments before a pause leave no gap behind them; the source repairs their losses too.
//!
//! Invariants: segments are neither changed nor dropped, only held, and retransmitted unchanged.
//!
//! Decision 0036.

mod peer;
mod shelf;
#[cfg(test)]
mod tests;
mod watch;

use crate::judge::Radio;
use crate::{Actions, Carried, Counts, Report, Topic, Way};
use midhop_tcp::{Flags, Segment};
use midhop_units::{Bytes, Duration, Instant};
use peer::{Peer, REPAIRS};
use shelf::{Shelf, Span};
use std::collections::{BTreeMap, BTreeSet};
use watch::{Outcome, Watch};

/// How one of the two agents works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DProxySettings {
    /// What is cached for the peer, of all flows together. Unit: bytes, as [`Carried::room`] counts them.
    pub cache: Bytes,
    /// What is held behind gaps, of all flows together. Unit: bytes, as [`Carried::room`] counts them.
    pub held: Bytes,
    /// How long a gap is waited for.
    pub hold: Duration,
    /// How often the same data is requested from the peer, and the same data is retransmitted. Range: ≥ 1.
    pub requests: u32,
    /// Whether a loss while packets wait in a queue between the two is attributed to that queue, and left to the
    /// source. Not needed where the agent learns what the queue drops ([`DProxy::handle_drop`]).
    pub judges_queue: bool,
    /// The most directions of flows of which there may be a state, in either role.
    pub flows: usize,
    /// A flow without packets for so long is forgotten.
    pub idle: Duration,
}

impl Default for DProxySettings {
    fn default() -> Self {
        Self {
            cache: Bytes::new(4_000_000),
            held: Bytes::new(4_000_000),
            hold: Duration::from_s(1),
            requests: 3,
            judges_queue: false,
            flows: 10_000,
            idle: Duration::from_s(120),
        }
    }
}

/// Where a packet is, relative to the path between the two agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It goes to the peer.
    Before,
    /// It comes from the peer.
    Behind,
    /// It takes another path.
    Beside,
}

/// What the agent did, under the names of the record.
#[derive(Debug, Clone, Copy, Default)]
struct DProxyCounts {
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

/// One of the two agents. A key names a flow's direction by where its data goes.
#[derive(Debug)]
pub struct DProxy<P: Carried> {
    settings: DProxySettings,
    shelf: Shelf<P>,
    watches: BTreeMap<P::Way, Watch<P>>,
    /// When watches must be called.
    due: BTreeSet<(Instant, P::Way)>,
    /// What all watches hold. Unit: bytes, as [`Carried::room`] counts them.
    held: u64,
    peer: Peer,
    /// When the shelf is next searched for idle flows.
    clearing: Instant,
    /// The losses on the path to the peer.
    radio: Radio,
    /// When this agent last retransmitted something.
    resent: Option<Instant>,
    counts: DProxyCounts,
}

impl<P: Carried> DProxy<P> {
    /// An agent that knows no flow yet.
    pub fn new(settings: DProxySettings) -> Self {
        Self {
            shelf: Shelf::new(settings.cache.get()),
            peer: Peer::new(settings.judges_queue),
            settings,
            watches: BTreeMap::new(),
            due: BTreeSet::new(),
            held: 0,
            clearing: Instant::NEVER,
            radio: Radio::default(),
            resent: None,
            counts: DProxyCounts::default(),
        }
    }

    /// Lets a watch act, executes its outcome, and updates its timer.
    fn with(
        &mut self,
        key: P::Way,
        actions: &mut Actions<P>,
        act: impl FnOnce(&mut Watch<P>, &DProxySettings, &mut Peer, &mut DProxyCounts, &mut Outcome<P>),
    ) {
        let Some(watch) = self.watches.get_mut(&key) else { return };
        let before = watch.bytes();
        let mut outcome = Outcome::default();
        act(watch, &self.settings, &mut self.peer, &mut self.counts, &mut outcome);
        self.held = self.held - before + watch.bytes();
        let due = watch.timeout(&self.settings, &self.peer).min(watch.active + self.settings.idle);
        // A later time needs no update: the call at the earlier one finds it.
        if due < watch.due {
            self.due.remove(&(watch.due, key));
            self.due.insert((due, key));
            watch.due = due;
        }
        outcome.forward.into_iter().for_each(|packet| actions.send(packet));
        outcome.reports.into_iter().for_each(|report| actions.report(key, report));
    }

    /// Caches a segment that goes to the peer's side.
    fn keep(&mut self, now: Instant, packet: P, segment: &Segment) {
        let key = packet.way();
        if !self.shelf.knows(key) && self.shelf.len() >= self.settings.flows {
            self.counts.untracked += 1;
            return;
        }
        if self.shelf.put(now, key, packet, segment) {
            self.counts.cached += 1;
            self.clearing = self.clearing.min(now + self.settings.idle);
        }
    }

    /// Watches a segment that comes from the peer's side.
    fn watch(&mut self, now: Instant, packet: P, segment: &Segment, actions: &mut Actions<P>) {
        let key = packet.way();
        if !self.watches.contains_key(&key) {
            if segment.sequence_length() == 0 {
                return actions.send(packet);
            }
            if self.watches.len() >= self.settings.flows {
                self.counts.untracked += 1;
                return actions.send(packet);
            }
            self.watches.insert(key, Watch::new(now, segment));
        }
        let room =
            self.peer.repairs(now).then(|| self.settings.held.get().saturating_sub(self.held));
        self.with(key, actions, |watch, settings, peer, counts, outcome| {
            watch.active = now;
            watch.begin_anew_unless_near(segment, settings.cache.get(), outcome);
            if settings.judges_queue {
                watch.report_arrival(segment, outcome);
            }
            watch.on_segment(now, packet, segment, room, (peer, counts), outcome);
        });
    }

    /// The peer reports on the direction `key` of a flow.
    pub fn handle_report(
        &mut self,
        now: Instant,
        key: P::Way,
        report: Report,
        actions: &mut Actions<P>,
    ) {
        let Report { topic, from, to } = report;
        self.peer.on_report(now, topic == Topic::Resent);
        match topic {
            Topic::Wanted => self.answer(now, key, (from, to), actions),
            Topic::Arrived if self.settings.judges_queue => {
                self.shelf.on_arrival(now, key, from, &mut self.radio);
            }
            Topic::Arrived | Topic::Resent => {}
            Topic::Lacking => {
                self.with(key, actions, |watch, _, peer, counts, outcome| {
                    watch.on_lacking(now, from, to, (peer, counts), outcome);
                });
            }
        }
    }

    /// Retransmits what the peer lacks, as far as this agent should, and reports what the peer will not get.
    fn answer(&mut self, now: Instant, key: P::Way, span: Span, actions: &mut Actions<P>) {
        let Self { settings, shelf, radio, counts, .. } = self;
        let answer = if settings.judges_queue {
            shelf.find(now, key, span, 1, Some(radio))
        } else {
            shelf.find(now, key, span, settings.requests, None)
        };
        counts.resent += answer.resend.len() as u64;
        counts.lacking += answer.missing.len() as u64;
        counts.refused += answer.left.len() as u64;
        if settings.judges_queue {
            if !answer.resend.is_empty() {
                self.resent = Some(now);
            }
            // The peer must learn that this agent repairs at all.
            if let (Some((from, _)), Some((_, to))) = (answer.resent.first(), answer.resent.last())
            {
                actions.report(key, Report { topic: Topic::Resent, from: *from, to: *to });
            }
        }
        answer.resend.into_iter().for_each(|packet| actions.send(packet));
        // A peer that holds nothing waits for no report.
        let holds = self.resent.is_some_and(|last| now <= last + REPAIRS + settings.hold);
        if settings.judges_queue && !holds {
            return;
        }
        for (from, to) in answer.missing.into_iter().chain(answer.left) {
            actions.report(key, Report { topic: Topic::Lacking, from, to });
        }
    }

    /// A direction of a flow has ended, or begins anew.
    fn forget(&mut self, key: P::Way, actions: &mut Actions<P>) {
        self.shelf.forget(key);
        self.with(key, actions, |watch, _, _, _, outcome| watch.abandon(outcome));
        if let Some(watch) = self.watches.remove(&key) {
            self.due.remove(&(watch.due, key));
        }
    }

    /// A packet has arrived. `side`: where it is, relative to the path between the two agents.
    pub fn handle_packet(&mut self, now: Instant, packet: P, side: Side, actions: &mut Actions<P>) {
        let (segment, way) = (*packet.segment(), packet.way());
        let flags = segment.flags;
        if flags.contains(Flags::RST) {
            [way, way.back()].into_iter().for_each(|way| self.forget(way, actions));
            actions.send(packet);
        } else if flags.contains(Flags::SYN) {
            self.forget(way, actions);
            actions.send(packet);
        } else if side == Side::Before {
            if segment.sequence_length() > 0 {
                self.keep(now, packet.clone(), &segment);
            }
            actions.send(packet);
        } else if side == Side::Behind {
            self.watch(now, packet, &segment, actions);
        } else {
            actions.send(packet);
        }
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant, actions: &mut Actions<P>) {
        while let Some(&(at, key)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            let Some(watch) = self.watches.get_mut(&key) else { continue };
            watch.due = Instant::NEVER;
            if watch.active + self.settings.idle <= now {
                self.counts.forgotten += 1;
                self.forget(key, actions);
                continue;
            }
            self.with(key, actions, |watch, settings, peer, counts, outcome| {
                watch.on_timeout(now, settings, peer, counts, outcome);
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

    /// The queue of a link that leaves this node dropped a packet, whoever sent it.
    pub fn handle_drop(&mut self, packet: &P) {
        let taken = self.shelf.take_back(packet.way(), packet.segment());
        self.counts.refused += u64::from(taken);
    }

    /// Sends all held packets, and forgets the flows that it watches.
    pub fn let_go(&mut self, actions: &mut Actions<P>) {
        for (_, mut watch) in std::mem::take(&mut self.watches) {
            let mut outcome = Outcome::default();
            watch.abandon(&mut outcome);
            outcome.forward.into_iter().for_each(|packet| actions.send(packet));
        }
        self.due.clear();
        self.held = 0;
    }

    /// When it must be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.due.first().map_or(Instant::NEVER, |(at, _)| *at).min(self.clearing);
        (due != Instant::NEVER).then_some(due)
    }

    /// The directions of flows of which it keeps a state.
    pub fn flows(&self) -> usize {
        self.shelf.len() + self.watches.len()
    }

    /// What it has cached and holds. Unit: bytes, as [`Carried::room`] counts them.
    pub fn cached(&self) -> Bytes {
        Bytes::new(self.shelf.bytes() + self.held)
    }

    /// The counts of what it did.
    pub fn counts(&self) -> Counts {
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

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When something does not.
    pub fn check_invariants(&self) {
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
