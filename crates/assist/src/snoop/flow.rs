//! One direction of a flow: what is cached of it, and what its acknowledgements report.
//!
//! A cached segment is *own* as long as the agent answers for it: it was seen for the first time, in
//! sequence, and is neither known to have arrived nor left to the source again. The source is shown
//! no sign of the loss of an own segment.
//!
//! Invariants: nothing is cached that the receiver is known to have; the own segments are those in `line`, by their
//! last transmission.

use super::reports::{Reports, is_repeat};
use super::{Shared, SnoopCounts, SnoopSettings};
use crate::Carried;
use crate::judge::{Queue, Radio, may_be_congestion};
use crate::round_trip::RoundTrip;
use crate::sequence::{first, is_after, position};
use midhop_tcp::{Flags, SackBlocks, Segment, Timestamps};
use midhop_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How many segments may be retransmitted for one acknowledgement: as many as in slow start.
const RESENDS_AT_ONCE: usize = 2;
/// The timer doubles at most so often.
const BACKOFF_MAX: u32 = 6;
/// How many of the agent's acknowledgements may follow one of the receiver, to report kept-back blocks.
const REPORTS_AT_ONCE: u32 = 32;

/// What happens to an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Forward,
    Suppress,
}

/// Whether a segment is to be cached, and who answers for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is not new, or nothing needs it.
    No,
    /// The agent would answer for it.
    Own,
    /// The source has sent it before: only the timer repairs it.
    Source,
}

/// A segment that may be needed again.
#[derive(Debug, Clone)]
struct Cached<P> {
    packet: P,
    end: u64,
    sent: Instant,
    /// The number of this transmission in the direction.
    order: u64,
    resends: u32,
    /// Whether the source has sent it more than once.
    repeated: bool,
    /// Whether the timer has retransmitted it: what arrives then may be the first transmission, late.
    timed: bool,
}

impl<P: Carried> Cached<P> {
    fn stamp(&self) -> Option<u32> {
        self.packet.segment().timestamps.map(|stamps| stamps.value)
    }
}

/// What the source last reported about the other direction.
#[derive(Debug, Clone, Copy)]
struct Latest {
    acknowledgment: u32,
    window: u16,
    timestamps: Option<Timestamps>,
}

/// One direction of a flow.
#[derive(Debug)]
pub(super) struct Flow<P> {
    /// The end of the data that was seen.
    highest: u64,
    /// The receiver's cumulative acknowledgement.
    acknowledged: u64,
    /// The window that it offers, unscaled; none before its first acknowledgement.
    window: Option<u16>,
    /// By their first position.
    segments: BTreeMap<u64, Cached<P>>,
    own: BTreeSet<u64>,
    /// The own segments, ordered by their last transmission.
    line: BTreeSet<(u64, u64)>,
    /// What is cached. Unit: bytes of packets.
    bytes: u64,
    transmissions: u64,
    /// The latest transmission that is known to have arrived.
    arrived: u64,
    /// The latest transmission for which it is decided whether a queue may have dropped it.
    judged: u64,
    /// Whether the receiver acknowledges selectively.
    selective: bool,
    /// Without selective acknowledgements: duplicates since the last acknowledgement that was none, and how many of
    /// them show that the first segment is lost.
    duplicates: u64,
    duplicates_needed: u64,
    rtt: RoundTrip,
    queue: Queue,
    backoff: u32,
    /// When the receiver last acknowledged something new.
    progress: Instant,
    /// Whether the source knows of the congestion that the receiver echoes.
    echo_reported: bool,
    latest: Option<Latest>,
    /// The stamp that the receiver last echoed.
    echoed: Option<u32>,
    /// The latest of the source's stamps.
    stamp: Option<u32>,
    reports: Reports,
    /// Acknowledgements from which something was removed, minus those that the agent has sent in their place. So no
    /// more acknowledgements reach the source than its receiver has sent.
    kept_back: u32,
    /// The position after the FIN.
    fin: Option<u64>,
    /// When a packet of it last passed.
    pub active: Instant,
    /// When it must be called, as it was last noted.
    pub due: Instant,
}

impl<P: Carried> Flow<P> {
    /// A direction whose first segment seen is `segment`.
    pub fn new(now: Instant, segment: &Segment, settings: &SnoopSettings) -> Self {
        let begin = first(segment.sequence);
        Self {
            highest: begin,
            acknowledged: begin,
            window: None,
            segments: BTreeMap::new(),
            own: BTreeSet::new(),
            line: BTreeSet::new(),
            bytes: 0,
            transmissions: 0,
            arrived: 0,
            judged: 0,
            selective: false,
            duplicates: 0,
            duplicates_needed: settings.threshold,
            rtt: RoundTrip::default(),
            queue: Queue::default(),
            backoff: 0,
            progress: now,
            echo_reported: false,
            latest: None,
            echoed: None,
            stamp: None,
            reports: Reports::default(),
            kept_back: 0,
            fin: None,
            active: now,
            due: Instant::NEVER,
        }
    }

    /// What is cached. Unit: bytes of packets.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the receiver has acknowledged the end of the stream.
    pub fn is_over(&self) -> bool {
        self.fin.is_some_and(|fin| self.acknowledged >= fin)
    }

    /// Notes what the source reports about the other direction.
    pub fn note_source(&mut self, segment: &Segment) {
        let known = self.latest.map(|latest| latest.acknowledgment);
        if segment.flags.contains(Flags::ACK)
            && known.is_none_or(|known| !is_after(known, segment.acknowledgment))
        {
            self.latest = Some(Latest {
                acknowledgment: segment.acknowledgment,
                window: segment.window,
                timestamps: segment.timestamps,
            });
        }
    }

    /// Processes a segment that is about to pass. Returns whether to cache it.
    pub fn on_data(&mut self, segment: &Segment, counts: &mut SnoopCounts) -> Admission {
        let start = position(segment.sequence, self.highest);
        let end = start + u64::from(segment.sequence_length());
        let stamp = segment.timestamps.map(|stamps| stamps.value);
        // The source's timestamps grow with the order of sending: a segment with an older timestamp was overtaken.
        let late = match (stamp, self.stamp) {
            (Some(own), Some(latest)) => is_after(latest, own),
            _ => false,
        };
        if stamp.is_some() && !late {
            self.stamp = stamp;
        }
        if segment.flags.contains(Flags::FIN) {
            self.fin = Some(end);
        }
        let new = start >= self.highest;
        self.highest = self.highest.max(end);
        if end <= self.acknowledged || self.reports.has(start, end) {
            return Admission::No;
        }
        let known = self.segments.get(&start);
        if known.is_some_and(|known| known.end == end && stamp.is_some() && stamp == known.stamp())
        {
            // The network duplicated it: the source does not send a segment twice in a millisecond.
            return Admission::No;
        }
        self.transmissions += 1;
        if known.is_some() {
            counts.source_resent += 1;
            self.remove(start);
            return Admission::Source;
        }
        if new || late { Admission::Own } else { Admission::Source }
    }

    /// Caches the segment that [`Flow::on_data`] has just admitted.
    pub fn cache(&mut self, now: Instant, packet: P, segment: &Segment, own: bool) {
        let start = position(segment.sequence, self.highest);
        let end = start + u64::from(segment.sequence_length());
        let order = self.transmissions;
        let size = packet.room();
        let cached =
            Cached { packet, end, sent: now, order, resends: 0, repeated: !own, timed: false };
        self.bytes += size;
        self.segments.insert(start, cached);
        if own {
            self.own.insert(start);
            self.line.insert((order, start));
        }
    }

    /// Evicts the last cached segment, for lack of room.
    pub fn evict(&mut self) -> bool {
        let last = self.segments.last_key_value().map(|(start, _)| *start);
        last.is_some_and(|start| self.remove(start).is_some())
    }

    /// A queue before the lossy side dropped a segment: the source must learn that.
    pub fn on_congestion(&mut self, segment: &Segment) -> bool {
        let start = position(segment.sequence, self.highest);
        self.remove(start).is_some()
    }

    /// Processes an acknowledgement from the receiver, and removes from it what the source need not learn. Adds the
    /// segments to retransmit now to `shared.resend`.
    pub fn on_ack(
        &mut self,
        now: Instant,
        segment: &mut Segment,
        shared: &mut Shared<P>,
    ) -> Verdict {
        let ack = position(segment.acknowledgment, self.acknowledged);
        self.highest = self.highest.max(ack);
        if let Some(stamps) = segment.timestamps {
            self.echoed = Some(stamps.echo);
        }
        let advanced = ack > self.acknowledged;
        let stale = ack < self.acknowledged;
        let repeats = !advanced && !stale && self.window == Some(segment.window);
        let duplicate = repeats && segment.is_pure_ack() && self.highest > ack;
        if !stale {
            self.window = Some(segment.window);
        }
        let behind = self.reports.is_behind();
        self.deliver(now, ack, segment, advanced, shared);
        if advanced {
            self.progress = now;
            self.backoff = 0;
            self.duplicates = 0;
            self.duplicates_needed = shared.settings.threshold;
        }
        self.detect(now, duplicate, shared);
        if !shared.repairs() && !behind {
            self.reports.on_passed();
            self.echo_reported = segment.flags.contains(Flags::ECE);
            return Verdict::Forward;
        }
        let covered = shared.repairs() && self.covering(self.acknowledged).is_some();
        let limit = self.limit(shared);
        let reported = segment.sack.len();
        let silenced = self.reports.silence(segment, ack, limit);
        let echo = segment.flags.contains(Flags::ECE);
        let echo_reported = self.echo_reported;
        if duplicate && (covered || silenced) && segment.sack.is_empty() && (!echo || echo_reported)
        {
            shared.counts.suppressed += 1;
            self.kept_back = self.kept_back.saturating_add(1);
            return Verdict::Suppress;
        }
        if segment.sack.len() < reported {
            self.kept_back = self.kept_back.saturating_add(1);
        }
        self.echo_reported = echo;
        Verdict::Forward
    }

    /// The start of the first segment whose loss the source need not learn.
    fn limit(&self, shared: &Shared<P>) -> u64 {
        self.own.first().copied().filter(|_| shared.repairs()).unwrap_or(u64::MAX)
    }

    /// The acknowledgements to send after `passed`, which report blocks that no longer need to be kept back. Without
    /// them the receiver might send nothing for long, because the source may send nothing before it knows the blocks.
    pub fn report_more(
        &mut self,
        passed: &Segment,
        shared: &Shared<P>,
    ) -> impl Iterator<Item = Segment> + '_ {
        let ack = position(passed.acknowledgment, self.acknowledged);
        let limit = self.limit(shared);
        let bare = Segment { sack: SackBlocks::default(), ..*passed };
        (0..REPORTS_AT_ONCE).map_while(move |_| {
            let reports = self.kept_back > 0 && self.reports.is_behind_below(limit);
            reports.then(|| {
                self.kept_back -= 1;
                let mut more = bare;
                self.reports.silence(&mut more, ack, limit);
                more
            })
        })
    }

    /// Removes from the cache what an acknowledgement reports as arrived.
    fn deliver(
        &mut self,
        now: Instant,
        ack: u64,
        segment: &Segment,
        advanced: bool,
        shared: &mut Shared<P>,
    ) {
        let mut came = Vec::new();
        if advanced {
            self.acknowledged = ack;
            self.take_within(0..ack, &mut came);
        }
        self.reports.on_acknowledged(self.acknowledged);
        for (number, block) in segment.sack.iter().enumerate() {
            let from = position(block.start, ack);
            let to = position(block.end, ack);
            if to <= from || from <= ack || (number == 0 && is_repeat(segment, ack)) {
                continue;
            }
            self.selective = true;
            if from > self.acknowledged {
                self.reports.on_report(from, to);
            }
            self.take_within(from..to, &mut came);
        }
        // A round trip is measured only if no segment was sent twice, and none waited at the receiver for an
        // earlier segment (Karn's rule).
        let clean = came.iter().all(|(_, cached)| cached.resends == 0 && !cached.repeated);
        let newest = came.iter().map(|(_, cached)| cached).max_by_key(|cached| cached.order);
        if let Some(newest) = newest.filter(|_| clean && self.duplicates == 0) {
            if shared.settings.judges_queue {
                // Receivers acknowledge every second segment at once, and segments behind a gap.
                let promptly = came.len() > 1 || !segment.sack.is_empty();
                shared.radio.on_arrival(now, self.queue.sample(now, newest.sent, promptly));
            }
            self.rtt.sample(now - newest.sent);
        }
        for (start, cached) in came {
            // An answer that is faster than any before it answers the first transmission. If the source or the timer
            // has retransmitted a segment, it may have arrived before, and its answer does not show which transmission
            // arrived.
            let sooner = self.rtt.minimum().is_none_or(|minimum| now - cached.sent < minimum);
            let certain = !cached.repeated && !cached.timed;
            if certain && (cached.resends == 0 || !sooner) {
                self.arrived = self.arrived.max(cached.order);
            }
            if cached.resends > 0 && !cached.repeated {
                self.reports.on_repaired(start, cached.end);
            }
        }
    }

    /// Removes from the cache what lies within `arrived`. Segments may overlap: a source can segment its stream anew.
    fn take_within(&mut self, arrived: Range<u64>, came: &mut Vec<(u64, Cached<P>)>) {
        let end = arrived.end;
        let mut next = arrived.start;
        while let Some((&start, known)) = self.segments.range(next..end.max(next)).next() {
            next = start + 1;
            if known.end <= end {
                came.extend(self.remove(start).map(|cached| (start, cached)));
            }
        }
    }

    /// Finds lost own segments, and retransmits them.
    fn detect(&mut self, now: Instant, duplicate: bool, shared: &mut Shared<P>) {
        let threshold = shared.settings.threshold;
        if self.selective {
            if shared.settings.judges_queue {
                self.leave_what_a_queue_refused(now, threshold, shared);
            }
            for _ in 0..RESENDS_AT_ONCE {
                let Some(&(order, start)) = self.line.first() else { return };
                if order + threshold > self.arrived {
                    return;
                }
                self.resend(now, start, shared);
            }
            return;
        }
        let Some(start) = self.covering(self.acknowledged) else { return };
        let Some(known) = self.segments.get(&start) else { return };
        if duplicate {
            self.duplicates += 1;
        }
        let overtaken = known.order + threshold <= self.arrived;
        if overtaken || self.duplicates >= self.duplicates_needed {
            // All segments in flight beyond it will still cause duplicates. Further duplicates show that this
            // transmission was lost too.
            let length = (known.end - start).max(1);
            let beyond = self.highest.saturating_sub(known.end).div_ceil(length);
            self.duplicates_needed = self.duplicates.max(beyond) + threshold;
            if shared.settings.judges_queue && self.was_refused(now, known, &mut shared.radio) {
                shared.counts.congestion += 1;
                self.remove(start);
            } else {
                self.resend(now, start, shared);
            }
        }
    }

    /// Whether a queue behind the agent may have dropped a lost segment. If the path loses nothing while the queue is
    /// empty, every loss counts as a drop. So does the loss of a copy: repeated retransmissions into a full queue keep
    /// it full.
    fn was_refused(&self, now: Instant, lost: &Cached<P>, radio: &mut Radio) -> bool {
        let waits = self.queue.at(lost.sent);
        radio.on_loss(now, waits);
        lost.resends > 0 || may_be_congestion(waits, radio)
    }

    /// Leaves to the source the lost segments that a queue behind the agent may have dropped, because the source must
    /// learn of congestion. All losses that one acknowledgement shows are decided at once, however slowly they are
    /// then repaired.
    fn leave_what_a_queue_refused(&mut self, now: Instant, threshold: u64, shared: &mut Shared<P>) {
        let lost = self.arrived.saturating_sub(threshold);
        if lost <= self.judged {
            return;
        }
        let unsettled = self.line.range((self.judged + 1, 0)..=(lost, u64::MAX));
        let refused = unsettled.map(|(_, start)| *start).filter(|start| {
            let lost = self.segments.get(start);
            lost.is_some_and(|lost| self.was_refused(now, lost, &mut shared.radio))
        });
        let refused: Vec<u64> = refused.collect();
        self.judged = lost;
        for start in refused {
            shared.counts.congestion += 1;
            self.remove(start);
        }
    }

    /// Retransmits a segment, or leaves it to the source after too many retransmissions.
    fn resend(&mut self, now: Instant, start: u64, shared: &mut Shared<P>) -> bool {
        let Some(known) = self.segments.get_mut(&start) else { return false };
        if known.resends >= shared.settings.resends {
            shared.counts.given_up += 1;
            self.disown(start);
            return false;
        }
        self.transmissions += 1;
        let before = known.order;
        known.order = self.transmissions;
        known.sent = now;
        known.resends += 1;
        if self.line.remove(&(before, start)) {
            self.line.insert((self.transmissions, start));
        }
        shared.counts.resent += 1;
        shared.resend.push(refreshed(&known.packet, self.latest, self.echoed));
        true
    }

    /// The timer may have fired.
    pub fn on_timeout(&mut self, now: Instant, shared: &mut Shared<P>) {
        if self.timeout(&shared.settings) > now {
            return;
        }
        let Some(&start) = self.segments.keys().next() else { return };
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        if shared.repairs() && self.resend(now, start, shared) {
            shared.counts.resent_by_timer += 1;
            if let Some(known) = self.segments.get_mut(&start) {
                known.timed = true;
            }
        } else {
            // The agent gives it up; the source may still retransmit it.
            self.remove(start);
        }
    }

    /// When the first segment has waited too long for its acknowledgement.
    pub fn timeout(&self, settings: &SnoopSettings) -> Instant {
        // Without acknowledgements of this flow nothing is known, and a closed window is no loss.
        let (Some(wait), Some((_, first))) =
            (self.rtt.timeout(settings.timer_min), self.segments.first_key_value())
        else {
            return Instant::NEVER;
        };
        if self.window == Some(0) {
            return Instant::NEVER;
        }
        let wait = Duration::from_ns(wait.as_ns().saturating_mul(1 << self.backoff));
        first.sent.max(self.progress) + wait
    }

    /// The own segment that holds `position`.
    fn covering(&self, position: u64) -> Option<u64> {
        let (&start, known) = self.segments.range(..=position).next_back()?;
        (known.end > position && self.own.contains(&start)).then_some(start)
    }

    /// Leaves a segment to the source.
    fn disown(&mut self, start: u64) {
        if let Some(known) = self.segments.get(&start) {
            self.line.remove(&(known.order, start));
            self.own.remove(&start);
        }
    }

    fn remove(&mut self, start: u64) -> Option<Cached<P>> {
        self.disown(start);
        let cached = self.segments.remove(&start)?;
        self.bytes -= cached.packet.room();
        Some(cached)
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When something does not.
    pub fn check_invariants(&self, settings: &SnoopSettings) {
        let bytes: u64 = self.segments.values().map(|cached| cached.packet.room()).sum();
        assert_eq!(self.bytes, bytes);
        assert_eq!(self.own.len(), self.line.len());
        for &(order, start) in &self.line {
            assert!(self.own.contains(&start));
            assert_eq!(self.segments.get(&start).map(|cached| cached.order), Some(order));
        }
        for (start, cached) in &self.segments {
            assert!(*start < cached.end && cached.end > self.acknowledged, "cached and arrived");
            assert!(cached.end <= self.highest && cached.order <= self.transmissions);
            assert!(cached.resends <= settings.resends);
            assert!(!(cached.repeated && self.own.contains(start)), "the source's and own");
        }
        self.reports.check_invariants(self.acknowledged);
    }
}

/// A cached packet in the form in which it is retransmitted. It reports about the other direction what the source
/// reports by now. Its timestamp is not older than one that the receiver has accepted since: an older one would be
/// refused (RFC 7323 §5).
fn refreshed<P: Carried>(packet: &P, latest: Option<Latest>, echoed: Option<u32>) -> P {
    let mut segment = *packet.segment();
    segment.sack = SackBlocks::default();
    if let Some(latest) = latest {
        segment.acknowledgment = latest.acknowledgment;
        segment.window = latest.window;
    }
    if let Some(stamps) = &mut segment.timestamps {
        if let Some(theirs) = latest.and_then(|latest| latest.timestamps) {
            stamps.echo = theirs.echo;
        }
        if let Some(echoed) = echoed.filter(|echoed| is_after(*echoed, stamps.value)) {
            stamps.value = echoed;
        }
    }
    packet.clone().with(segment)
}
