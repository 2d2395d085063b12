//! Behind the lossy path: one direction of a flow whose sequence numbers are watched for gaps.
//!
//! Segments behind a gap are held until it is filled, is known to stay open, or has been open for too
//! long. Then they are forwarded in order. While the peer only observes, they are forwarded at once.
//!
//! Invariants: gaps and held segments cover everything from the end of the forwarded data to the end of the arrived
//! data, each position once or held twice; held segments lie behind a gap.

use super::peer::Peer;
use super::{DProxyCounts, DProxySettings};
use crate::sequence::{first, position};
use crate::{Carried, Report, Topic};
use midhop_tcp::{Flags, Segment};
use midhop_units::Instant;
use std::collections::BTreeMap;

/// So many gaps are repaired at once; further ones are not waited for.
const GAPS_MAX: usize = 64;
/// No more data is ever in flight (RFC 7323 §2.2). Unit: bytes.
const WINDOW_MAX: u64 = 1 << 30;
/// The arrival of one in so many segments is reported to a peer that judges the queue. That is as often as the queue of
/// a slow link changes, and costs a hundredth of the carried bytes.
const REPORT_ONE_IN: u32 = 8;

/// A held segment, or a span that is known not to come.
#[derive(Debug)]
struct Held<P> {
    packet: Option<P>,
    end: u64,
}

#[derive(Debug, Clone, Copy)]
struct Gap {
    end: u64,
    found: Instant,
    asked: Instant,
    requests: u32,
}

/// The result of a call.
#[derive(Debug)]
pub(super) struct Outcome<P> {
    /// Packets to forward, in this order.
    pub forward: Vec<P>,
    /// Reports to the peer.
    pub reports: Vec<Report>,
}

impl<P> Default for Outcome<P> {
    fn default() -> Self {
        Self { forward: Vec::new(), reports: Vec::new() }
    }
}

impl<P> Outcome<P> {
    fn report(&mut self, topic: Topic, start: u64, end: u64) {
        self.reports.push(Report { topic, from: start as u32, to: end as u32 });
    }
}

/// One direction of a flow.
#[derive(Debug)]
pub(super) struct Watch<P> {
    /// Everything before it was forwarded, or is not waited for.
    next: u64,
    /// The end of the data that has arrived.
    top: u64,
    held: BTreeMap<u64, Held<P>>,
    gaps: BTreeMap<u64, Gap>,
    /// The size of held packets. Unit: bytes, as [`Carried::room`] counts them.
    bytes: u64,
    /// The end of the stream, once its FIN has arrived.
    end: Option<u64>,
    /// How many new segments have arrived since one was reported.
    unreported: u32,
    pub active: Instant,
    pub due: Instant,
}

impl<P: Carried> Watch<P> {
    /// A direction whose first segment seen is `segment`.
    pub fn new(now: Instant, segment: &Segment) -> Self {
        let begin = first(segment.sequence);
        Self {
            next: begin,
            top: begin,
            held: BTreeMap::new(),
            gaps: BTreeMap::new(),
            bytes: 0,
            end: None,
            unreported: REPORT_ONE_IN,
            active: now,
            due: Instant::NEVER,
        }
    }

    /// The size of held packets. Unit: bytes, as [`Carried::room`] counts them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts anew at a segment that cannot belong to this stream: it lies farther ahead than a stream can leave out,
    /// at most `cache`, farther back than a source retransmits, or behind the end. It belongs to another flow with the
    /// same addresses and ports, whose SYN was not seen.
    pub fn begin_anew_unless_near(
        &mut self,
        segment: &Segment,
        cache: u64,
        outcome: &mut Outcome<P>,
    ) {
        let start = position(segment.sequence, self.next);
        let length = u64::from(segment.sequence_length());
        let behind = if self.end.is_some() { cache } else { WINDOW_MAX };
        let is_beyond = self.end.is_some_and(|end| start >= end && length > 0);
        if is_beyond || start > self.top + cache || start + behind < self.next {
            self.abandon(outcome);
            let start = first(segment.sequence);
            (self.next, self.top, self.end) = (start, start, None);
        }
        if segment.flags.contains(Flags::FIN) {
            self.end = Some(position(segment.sequence, self.next) + length);
        }
    }

    /// Processes a segment that has come over the lossy path. `room` is how much of it may be held; none: nothing is
    /// held, because the peer repairs nothing.
    pub fn on_segment(
        &mut self,
        now: Instant,
        packet: P,
        segment: &Segment,
        room: Option<u64>,
        with: (&mut Peer, &mut DProxyCounts),
        outcome: &mut Outcome<P>,
    ) {
        let (peer, counts) = with;
        let length = u64::from(segment.sequence_length());
        let start = position(segment.sequence, self.next);
        let end = start + length;
        // A segment without new data need not wait, and a SYN or RST ends the stream before it.
        if length == 0 || end <= self.next || segment.flags.contains(Flags::SYN) {
            outcome.forward.push(packet);
            return;
        }
        if start <= self.next {
            self.fill(now, start, end, peer, counts);
            outcome.forward.push(packet);
            self.next = end;
            self.top = self.top.max(end);
            self.release(outcome);
            return;
        }
        let Some(room) = room else {
            if start > self.top {
                counts.gaps += 1;
                counts.requests += 1;
                outcome.report(Topic::Wanted, self.top, start);
            }
            self.top = self.top.max(end);
            self.abandon(outcome);
            outcome.forward.push(packet);
            return;
        };
        let size = packet.room();
        let replaced = self.held.get(&start).and_then(|held| held.packet.as_ref());
        let gives_back = replaced.map_or(0, |packet| packet.room());
        if size > room + gives_back {
            counts.overflowed += 1;
            self.top = self.top.max(end);
            self.abandon(outcome);
            outcome.forward.push(packet);
            return;
        }
        if start > self.top {
            self.open(now, self.top, start, counts, outcome);
        } else {
            self.fill(now, start, end, peer, counts);
        }
        self.top = self.top.max(end);
        if replaced_end(&self.held, start) <= end {
            counts.held += 1;
            self.bytes = self.bytes - gives_back + size;
            self.held.insert(start, Held { packet: Some(packet), end });
        } else {
            // A shorter piece of a held segment has nothing new.
            outcome.forward.push(packet);
        }
        self.release(outcome);
    }

    /// Reports the arrival of one in so many new segments, and of each that shows a gap: the missing segment would have
    /// taken about as long.
    pub fn report_arrival(&mut self, segment: &Segment, outcome: &mut Outcome<P>) {
        let start = position(segment.sequence, self.next);
        let length = u64::from(segment.sequence_length());
        if length == 0 || start < self.top {
            return;
        }
        self.unreported += 1;
        if start > self.top || self.unreported >= REPORT_ONE_IN {
            self.unreported = 0;
            outcome.report(Topic::Arrived, start, start + length);
        }
    }

    /// The peer does not have the data between two sequence numbers: it was lost before the peer.
    pub fn on_lacking(
        &mut self,
        now: Instant,
        from: u32,
        to: u32,
        with: (&mut Peer, &mut DProxyCounts),
        outcome: &mut Outcome<P>,
    ) {
        let (peer, counts) = with;
        let (from, to) = (position(from, self.next), position(to, self.next));
        // A peer may report anything, even an empty span.
        if from >= to {
            return;
        }
        for (start, gap) in self.cut(from, to, counts) {
            if gap.requests == 1 {
                peer.on_answer(now, gap.asked);
            }
            self.held.entry(start).or_insert(Held { packet: None, end: gap.end });
        }
        self.release(outcome);
    }

    /// Requests missing data again, and gives up gaps that have been open for too long.
    pub fn on_timeout(
        &mut self,
        now: Instant,
        settings: &DProxySettings,
        peer: &mut Peer,
        counts: &mut DProxyCounts,
        outcome: &mut Outcome<P>,
    ) {
        let due: Vec<u64> = self
            .gaps
            .iter()
            .filter(|(_, gap)| gap.due(settings, peer) <= now)
            .map(|(start, _)| *start)
            .collect();
        for start in due {
            let Some(gap) = self.gaps.get_mut(&start) else { continue };
            if gap.given_up_at(settings, peer) <= now {
                // A peer that does not answer may be gone.
                peer.on_no_answer(now);
                counts.given_up += 1;
                let end = gap.end;
                self.gaps.remove(&start);
                self.held.entry(start).or_insert(Held { packet: None, end });
            } else {
                gap.asked = now;
                gap.requests += 1;
                counts.requests += 1;
                outcome.report(Topic::Wanted, start, gap.end);
            }
        }
        self.release(outcome);
    }

    /// When [`Watch::on_timeout`] has something to do.
    pub fn timeout(&self, settings: &DProxySettings, peer: &Peer) -> Instant {
        let due = self.gaps.values().map(|gap| gap.due(settings, peer));
        due.min().unwrap_or(Instant::NEVER)
    }

    /// Forwards everything that is held, in order.
    pub fn abandon(&mut self, outcome: &mut Outcome<P>) {
        self.next = self.top;
        self.gaps.clear();
        let held = std::mem::take(&mut self.held);
        outcome.forward.extend(held.into_values().filter_map(|held| held.packet));
        self.bytes = 0;
    }

    /// Adds a gap.
    fn open(
        &mut self,
        now: Instant,
        start: u64,
        end: u64,
        counts: &mut DProxyCounts,
        outcome: &mut Outcome<P>,
    ) {
        counts.gaps += 1;
        if self.gaps.len() >= GAPS_MAX {
            counts.given_up += 1;
            self.held.entry(start).or_insert(Held { packet: None, end });
            return;
        }
        counts.requests += 1;
        self.gaps.insert(start, Gap { end, found: now, asked: now, requests: 1 });
        outcome.report(Topic::Wanted, start, end);
    }

    /// Data has arrived that fills gaps, or parts of them.
    fn fill(
        &mut self,
        now: Instant,
        start: u64,
        end: u64,
        peer: &mut Peer,
        counts: &mut DProxyCounts,
    ) {
        let before = self.gaps.len();
        for (_, gap) in self.cut(start, end, counts) {
            if gap.requests == 1 {
                peer.on_answer(now, gap.asked);
            }
        }
        // A gap that is filled in parts is counted with its last part.
        counts.filled += before.saturating_sub(self.gaps.len()) as u64;
    }

    /// Removes the span from `from` to `to` from the gaps, and returns the removed parts. A gap that is split
    /// counts as another one.
    fn cut(&mut self, from: u64, to: u64, counts: &mut DProxyCounts) -> Vec<(u64, Gap)> {
        let mut parts = Vec::new();
        while let Some((&start, &gap)) =
            self.gaps.range(..to).next_back().filter(|(_, gap)| gap.end > from)
        {
            self.gaps.remove(&start);
            if start < from {
                self.gaps.insert(start, Gap { end: from, ..gap });
            }
            if gap.end > to {
                counts.gaps += u64::from(start < from);
                if self.gaps.len() < GAPS_MAX {
                    self.gaps.insert(to, gap);
                } else {
                    counts.given_up += 1;
                    self.held.entry(to).or_insert(Held { packet: None, end: gap.end });
                }
            }
            let part = Gap { end: gap.end.min(to), ..gap };
            parts.push((start.max(from), part));
            if start < from {
                break;
            }
        }
        parts
    }

    /// Forwards the held segments that no longer lie behind a gap.
    fn release(&mut self, outcome: &mut Outcome<P>) {
        while let Some(entry) = self.held.first_entry() {
            if *entry.key() > self.next {
                return;
            }
            let held = entry.remove();
            self.next = self.next.max(held.end);
            if let Some(packet) = held.packet {
                self.bytes -= packet.room();
                outcome.forward.push(packet);
            }
        }
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When something does not.
    pub fn check_invariants(&self) {
        let packets = self.held.values().filter_map(|held| held.packet.as_ref());
        assert_eq!(self.bytes, packets.map(|packet| packet.room()).sum::<u64>());
        assert!(self.gaps.len() <= GAPS_MAX);
        let (mut at, mut gap_before) = (self.next, false);
        let gaps = self.gaps.iter().map(|(start, gap)| (*start, gap.end, true));
        let held = self.held.iter().map(|(start, held)| (*start, held.end, false));
        let mut all: Vec<_> = gaps.chain(held).collect();
        all.sort_unstable();
        for (start, end, is_gap) in all {
            assert!(start < end && start <= at, "neither a gap nor held");
            assert!(!is_gap || start == at, "a gap where something is");
            assert!(is_gap || gap_before, "held behind no gap");
            gap_before |= is_gap;
            at = at.max(end);
        }
        assert_eq!(at, self.top);
        assert!(self.held.is_empty() == self.gaps.is_empty());
    }
}

impl Gap {
    /// When it is requested again, or given up.
    fn due(&self, settings: &DProxySettings, peer: &Peer) -> Instant {
        let given_up = self.given_up_at(settings, peer);
        if self.requests >= settings.requests {
            return given_up;
        }
        given_up.min(self.asked + peer.wait())
    }

    /// When it is given up: earlier if the peer answers none of the requests.
    fn given_up_at(&self, settings: &DProxySettings, peer: &Peer) -> Instant {
        let at = self.found + settings.hold;
        if self.requests >= settings.requests && peer.is_silent_since(self.found) {
            return at.min(self.asked + peer.wait());
        }
        at
    }
}

fn replaced_end<P>(held: &BTreeMap<u64, Held<P>>, start: u64) -> u64 {
    held.get(&start).map_or(0, |held| held.end)
}
