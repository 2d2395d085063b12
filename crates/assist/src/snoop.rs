//! Snoop: losses behind the agent are repaired by the agent, and the source receives no report of them.
//!
//! The agent caches the segments that pass towards the lossy side. It retransmits its copy if the acknowledgements
//! that come back report the segment lost, or if none comes in time. It keeps duplicate acknowledgements from the
//! source, which would take the loss for congestion. It acknowledges nothing itself: an acknowledgement that the source
//! sees is the receiver's, with at most some of its selective blocks removed, or a copy with blocks that were
//! removed earlier.
//!
//! Source: H. Balakrishnan, S. Seshan, E. Amir, R. Katz, Improving TCP/IP Performance over Wireless Networks, MobiCom
//! 1995, for a fixed sender and a mobile receiver. Differs:
//! - The paper is older than selective acknowledgements. Here they find losses as RFC 8985 does, by segments sent
//!   later that have arrived. Their blocks reach the source only below the first segment that the agent answers for:
//!   blocks beyond it would make the source repair what is being repaired. A receiver repeats a block only a few
//!   times. So the agent reports kept-back blocks as soon as they may be reported, by acknowledgements of its own, of
//!   which there are no more than were kept back. Without them a source whose window is full would send nothing, and
//!   no further acknowledgement would come that could report the blocks.
//! - Reports of duplicates (RFC 2883) that a copy of the agent caused are not forwarded.
//! - What the queue of the node's own link drops is congestion: duplicate acknowledgements report it to the source,
//!   like any loss before the agent.
//! - Where the agent does not learn of such drops (`judges_queue`), it repairs nothing before it has seen the path
//!   behind it lose segments while no queue stood there. After that, a loss while nearly as much waits as recently at
//!   most is attributed to the queue. A radio's losses at such moments slow the source down too, and shorten the
//!   queue.
//! - A full cache accepts no more segments, instead of overwriting what will be needed. If flows compete, the largest
//!   gives up segments from its end.
//! - A copy waits in the link's queue like any packet; the paper lets it pass first.
//! - Nothing is reported to a source behind the lossy side (explicit loss notification): another agent at the far end
//!   of the lossy link caches the segments of the other direction.
//!
//! Invariants: the cache stays within the configured size, and the flows within their number; a
//! flow without packets for a while is forgotten.

mod flow;
mod reports;

use crate::judge::Radio;
use crate::{Actions, Carried, Counts, Way};
use flow::{Admission, Flow, Verdict};
use midhop_tcp::{Flags, Segment};
use midhop_units::{Bytes, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// How a snoop agent works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnoopSettings {
    /// The most that may be cached of all flows together. Unit: bytes, as [`Carried::room`] counts them.
    pub cache: Bytes,
    /// How many later segments must have arrived, or how many duplicate acknowledgements, before a segment
    /// counts as lost. Range: ≥ 1.
    pub threshold: u64,
    /// The least time of the local timer.
    pub timer_min: Duration,
    /// How often a segment is retransmitted before it is left to the source.
    pub resends: u32,
    /// Whether a loss while packets wait in a queue behind the agent is attributed to that queue, and left to the
    /// source. Not needed where the agent learns what the queue drops ([`Snoop::handle_drop`]).
    pub judges_queue: bool,
    /// The most directions of flows of which there may be a state.
    pub flows: usize,
    /// A flow without packets for so long is forgotten.
    pub idle: Duration,
}

impl Default for SnoopSettings {
    fn default() -> Self {
        Self {
            cache: Bytes::new(4_000_000),
            threshold: 3,
            timer_min: Duration::from_ms(100),
            resends: 10,
            judges_queue: false,
            flows: 10_000,
            idle: Duration::from_s(120),
        }
    }
}

/// What the agent did, under the names of the record.
#[derive(Debug, Clone, Copy, Default)]
struct SnoopCounts {
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
    sent: u64,
    source_resent: u64,
    congestion: u64,
}

/// State that all flows of an agent share.
#[derive(Debug)]
struct Shared<P> {
    settings: SnoopSettings,
    counts: SnoopCounts,
    radio: Radio,
    /// The retransmissions of one call; empty between calls.
    resend: Vec<P>,
}

impl<P> Shared<P> {
    /// Whether losses are repaired: an agent that judges the queue only observes before it knows.
    fn repairs(&self) -> bool {
        !self.settings.judges_queue || self.radio.loses()
    }
}

/// A snoop agent. A key names a flow's direction by where its data goes.
#[derive(Debug)]
pub struct Snoop<P: Carried> {
    shared: Shared<P>,
    flows: BTreeMap<P::Way, Flow<P>>,
    /// When flows must be called.
    due: BTreeSet<(Instant, P::Way)>,
    /// The flows by what they have cached.
    sizes: BTreeSet<(u64, P::Way)>,
    cached: u64,
}

impl<P: Carried> Snoop<P> {
    /// An agent that knows no flow yet.
    pub fn new(settings: SnoopSettings) -> Self {
        let (counts, radio, resend) = (SnoopCounts::default(), Radio::default(), Vec::new());
        Self {
            shared: Shared { settings, counts, radio, resend },
            flows: BTreeMap::new(),
            due: BTreeSet::new(),
            sizes: BTreeSet::new(),
            cached: 0,
        }
    }

    /// Lets a flow's direction act, and updates its size and its timer.
    fn with<R>(
        &mut self,
        key: P::Way,
        act: impl FnOnce(&mut Flow<P>, &mut Shared<P>) -> R,
    ) -> Option<R> {
        let flow = self.flows.get_mut(&key)?;
        let before = flow.bytes();
        let result = act(flow, &mut self.shared);
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
        // A later time needs no update: the call at the earlier one finds it.
        let due = flow.timeout(&self.shared.settings).min(flow.active + self.shared.settings.idle);
        if due < flow.due {
            self.due.remove(&(flow.due, key));
            self.due.insert((due, key));
            flow.due = due;
        }
        Some(result)
    }

    fn forget(&mut self, key: P::Way) {
        if let Some(flow) = self.flows.remove(&key) {
            self.sizes.remove(&(flow.bytes(), key));
            self.due.remove(&(flow.due, key));
            self.cached -= flow.bytes();
        }
    }

    fn on_ack(&mut self, now: Instant, key: P::Way, segment: &mut Segment) -> Verdict {
        let verdict = self.with(key, |flow, shared| {
            flow.active = now;
            flow.on_ack(now, segment, shared)
        });
        verdict.unwrap_or(Verdict::Forward)
    }

    fn on_data(&mut self, now: Instant, key: P::Way, packet: P, segment: &Segment) {
        if !self.flows.contains_key(&key) {
            if self.flows.len() >= self.shared.settings.flows {
                self.shared.counts.untracked += 1;
                return;
            }
            self.flows.insert(key, Flow::new(now, segment, &self.shared.settings));
            self.sizes.insert((0, key));
            self.shared.counts.flows += 1;
        }
        let admission = self.with(key, |flow, shared| {
            flow.active = now;
            flow.note_source(segment);
            flow.on_data(segment, &mut shared.counts)
        });
        let own = match admission {
            None | Some(Admission::No) => return,
            Some(Admission::Own) => true,
            Some(Admission::Source) => false,
        };
        if !self.make_room(key, packet.room()) {
            self.shared.counts.uncached += 1;
            return;
        }
        self.shared.counts.cached += 1;
        self.with(key, |flow, _| flow.cache(now, packet, segment, own));
    }

    /// Makes room for `size` more bytes of a flow, by evicting from flows that have more. Returns whether there is
    /// room.
    fn make_room(&mut self, key: P::Way, size: u64) -> bool {
        while self.cached + size > self.shared.settings.cache.get() {
            let Some(&(most, largest)) = self.sizes.last() else { return false };
            let own = self.flows.get(&key).map_or(0, Flow::bytes);
            if largest == key || most <= own + size {
                return false;
            }
            self.shared.counts.evicted += 1;
            self.with(largest, |flow, _| flow.evict());
        }
        true
    }

    fn send_again(&mut self, actions: &mut Actions<P>) {
        self.shared.resend.drain(..).for_each(|packet| actions.send(packet));
    }

    /// The directions of flows of which it keeps a state.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// What it has cached. Unit: bytes, as [`Carried::room`] counts them.
    pub fn cached(&self) -> Bytes {
        Bytes::new(self.cached)
    }

    /// A packet has arrived. One that `leaves` over the lossy path is to be cached.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        mut packet: P,
        leaves: bool,
        actions: &mut Actions<P>,
    ) {
        let (mut segment, way) = (*packet.segment(), packet.way());
        let flags = segment.flags;
        if flags.contains(Flags::RST) || flags.contains(Flags::SYN) {
            // A flow that ends, or a new one with the addresses and ports of an old one.
            [way, way.back()].into_iter().for_each(|way| self.forget(way));
            return actions.send(packet);
        }
        if flags.contains(Flags::ACK) {
            let before = segment;
            let verdict = self.on_ack(now, way.back(), &mut segment);
            self.send_again(actions);
            if verdict == Verdict::Suppress {
                return;
            }
            if segment != before {
                packet = packet.with(segment);
            }
        }
        if segment.sequence_length() > 0 && leaves {
            self.on_data(now, way, packet.clone(), &segment);
        } else {
            self.with(way, |flow, _| {
                flow.active = now;
                flow.note_source(&segment);
            });
        }
        if !segment.is_pure_ack() {
            return actions.send(packet);
        }
        let kept_back = self.flows.get_mut(&way.back());
        let more: Vec<Segment> = kept_back
            .map(|flow| flow.report_more(&segment, &self.shared).collect())
            .unwrap_or_default();
        actions.send(packet.clone());
        self.shared.counts.sent += more.len() as u64;
        more.into_iter().for_each(|report| actions.send(packet.clone().with(report)));
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant, actions: &mut Actions<P>) {
        while let Some(&(at, key)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.due = Instant::NEVER;
                if flow.active + self.shared.settings.idle <= now {
                    self.shared.counts.forgotten += 1;
                    self.forget(key);
                    continue;
                }
            }
            self.with(key, |flow, shared| {
                flow.on_timeout(now, shared);
            });
            self.send_again(actions);
        }
    }

    /// When it must be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The queue of a link that leaves its node dropped a packet, whoever sent it. An agent that judges queues ignores
    /// this.
    pub fn handle_drop(&mut self, packet: &P) {
        if self.shared.settings.judges_queue {
            return;
        }
        self.with(packet.way(), |flow, shared| {
            shared.counts.congestion += u64::from(flow.on_congestion(packet.segment()));
        });
    }

    /// The counts of what it did.
    pub fn counts(&self) -> Counts {
        let counts = &self.shared.counts;
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
            ("acks-sent", counts.sent),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When something does not.
    pub fn check_invariants(&self) {
        let bytes: u64 = self.flows.values().map(Flow::bytes).sum();
        assert_eq!(self.cached, bytes);
        assert!(self.cached <= self.shared.settings.cache.get() && self.shared.resend.is_empty());
        assert!(self.flows.len() <= self.shared.settings.flows);
        assert_eq!(self.sizes.len(), self.flows.len());
        for (key, flow) in &self.flows {
            assert!(self.sizes.contains(&(flow.bytes(), *key)));
            assert!(self.due.contains(&(flow.due, *key)), "a flow that nothing will look at");
            flow.check_invariants(&self.shared.settings);
        }
    }
}
