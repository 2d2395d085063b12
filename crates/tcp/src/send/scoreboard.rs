//! The segments that are sent and not acknowledged, and what is known of each.
//!
//! Source: the pipe and scoreboard of RFC 6675 §2–4, the transmission order of RFC 8985; differs: a
//! retransmission takes the place of the original in what is in flight, so each byte counts once.
//!
//! Segments stand in a ring in the order of their sequence. Those in flight are chained in the order
//! in which they were last sent, those found lost wait in a heap by sequence. So an acknowledgement
//! costs what it newly covers and newly shows to be lost, never what is outstanding.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use midhop_units::Instant;

use super::rate::Snapshot;
use crate::ranges::{Ranges, Span};

/// Room for so many segments stays with a connection that falls idle for the first time.
const KEPT: usize = 4;

/// Where a segment is, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    InFlight,
    Sacked,
    Lost,
}

/// A segment that was sent and is not acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// Its first position.
    pub start: u64,
    /// Unit: positions; a FIN takes one.
    pub length: u32,
    pub state: State,
    pub fin: bool,
    /// Whether it was ever sent again.
    pub retransmitted: bool,
    pub sent_at: Instant,
    /// The how-manieth transmission of the connection its last one was.
    pub order: u64,
    pub rate: Snapshot,
    older: Link,
    newer: Link,
}

impl Sent {
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }
}

/// A place in the ring that stays the same while the ring moves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link(u32);

impl Link {
    const NONE: Self = Self(u32::MAX);
    const MASK: u32 = u32::MAX >> 1;
}

/// What one acknowledgement newly covers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delivery {
    /// Unit: positions.
    pub bytes: u64,
    pub segments: u32,
    /// The latest sent of what arrived.
    pub newest: Option<Sent>,
    /// When the first and last segment that were sent only once and are now covered cumulatively left.
    pub originals: Option<(Instant, Instant)>,
    /// The same for those covered selectively.
    pub selected: Option<(Instant, Instant)>,
    /// The highest position up to which a segment that was sent only once has now arrived.
    pub original_end: u64,
    /// The lowest position at which one begins.
    pub original_start: Option<u64>,
    /// Whether a segment that was sent again is now covered cumulatively.
    pub retransmitted: bool,
}

impl Delivery {
    fn note(&mut self, sent: &Sent, cumulative: bool) {
        self.bytes += u64::from(sent.length);
        self.segments += 1;
        if self.newest.is_none_or(|newest| newest.order < sent.order) {
            self.newest = Some(*sent);
        }
        if sent.retransmitted {
            self.retransmitted |= cumulative;
            return;
        }
        let times = if cumulative { &mut self.originals } else { &mut self.selected };
        *times = Some((times.map_or(sent.sent_at, |(first, _)| first), sent.sent_at));
        self.original_end = self.original_end.max(sent.end());
        self.original_start =
            Some(self.original_start.map_or(sent.start, |start| start.min(sent.start)));
    }
}

/// Segments that were just found lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub bytes: u64,
    /// What was in flight when the first of them was sent.
    pub in_flight_at_send: Option<u64>,
}

impl Found {
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.in_flight_at_send = self.in_flight_at_send.or(other.in_flight_at_send);
    }
}

/// What is outstanding.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    ring: VecDeque<Sent>,
    /// The link of the ring's front.
    front: u32,
    oldest: Link,
    newest: Link,
    /// Starts of segments that were found lost; those that are lost no more are passed over.
    lost: BinaryHeap<Reverse<u64>>,
    sacked: Ranges,
    orders: u64,
    in_flight: u64,
    segments_in_flight: u32,
    lost_bytes: u64,
    sacked_bytes: u64,
    sacked_segments: u32,
    /// Segments that were sent again and are not covered cumulatively.
    resent: u32,
    /// The length of the longest segment. Unit: positions.
    typical: u32,
    /// Room for so many segments stays when nothing is outstanding.
    kept: usize,
}

impl Default for Scoreboard {
    fn default() -> Self {
        Self {
            ring: VecDeque::new(),
            front: 0,
            oldest: Link::NONE,
            newest: Link::NONE,
            lost: BinaryHeap::new(),
            sacked: Ranges::default(),
            orders: 0,
            in_flight: 0,
            segments_in_flight: 0,
            lost_bytes: 0,
            sacked_bytes: 0,
            sacked_segments: 0,
            resent: 0,
            typical: 1,
            kept: KEPT,
        }
    }
}

impl Scoreboard {
    /// A new segment leaves; it continues where the last one ended.
    pub fn push(&mut self, start: u64, length: u32, fin: bool, now: Instant, rate: Snapshot) {
        let sent = Sent {
            start,
            length,
            state: State::InFlight,
            fin,
            retransmitted: false,
            sent_at: now,
            order: 0,
            rate,
            older: Link::NONE,
            newer: Link::NONE,
        };
        self.typical = self.typical.max(length - u32::from(fin));
        self.ring.push_back(sent);
        self.chain(self.ring.len() - 1, now);
    }

    /// The segment at `index` leaves again.
    pub fn resend(&mut self, index: usize, now: Instant, rate: Snapshot) {
        match self.ring[index].state {
            State::InFlight => self.unchain(index),
            State::Lost => self.lost_bytes -= u64::from(self.ring[index].length),
            State::Sacked => return,
        }
        let sent = &mut self.ring[index];
        sent.state = State::InFlight;
        self.resent += u32::from(!sent.retransmitted);
        sent.retransmitted = true;
        sent.rate = rate;
        self.chain(index, now);
    }

    /// Takes in a cumulative acknowledgement of everything below `una`.
    pub fn acknowledge(&mut self, una: u64, delivery: &mut Delivery) {
        while let Some(first) = self.ring.front().copied() {
            if first.start >= una {
                break;
            }
            if first.end() > una {
                self.trim(una, delivery);
                break;
            }
            match first.state {
                State::InFlight => {
                    delivery.note(&first, true);
                    self.unchain(0);
                }
                State::Lost => {
                    delivery.note(&first, true);
                    self.lost_bytes -= u64::from(first.length);
                }
                State::Sacked => {
                    delivery.retransmitted |= first.retransmitted;
                    self.sacked_bytes -= u64::from(first.length);
                    self.sacked_segments -= 1;
                }
            }
            self.resent -= u32::from(first.retransmitted);
            self.ring.pop_front();
            self.front = self.front.wrapping_add(1) & Link::MASK;
        }
        self.sacked.remove_below(una);
        if self.ring.is_empty() {
            self.lost.clear();
            self.sacked.clear();
        }
    }

    /// The first segment is acknowledged in part: the rest stays.
    fn trim(&mut self, una: u64, delivery: &mut Delivery) {
        let Some(first) = self.ring.front_mut() else { return };
        let cut = una - first.start;
        // Less than the segment's length, which has 32 bits.
        first.length -= cut as u32;
        first.start = una;
        match first.state {
            State::InFlight => self.in_flight -= cut,
            State::Lost => {
                self.lost_bytes -= cut;
                self.lost.push(Reverse(una));
            }
            State::Sacked => {
                self.sacked_bytes -= cut;
                return;
            }
        }
        delivery.bytes += cut;
    }

    /// Takes in a selective acknowledgement; segments that it covers in part stay as they are.
    pub fn select(&mut self, block: Span, delivery: &mut Delivery) {
        if self.sacked.covers(block) {
            return;
        }
        let from = self.at_or_after(block.start);
        let mut to = self.at_or_after(block.end);
        if to > from && self.ring[to - 1].end() > block.end {
            to -= 1;
        }
        if from >= to {
            return;
        }
        let span = Span { start: self.ring[from].start, end: self.ring[to - 1].end() };
        let mut sacked = std::mem::take(&mut self.sacked);
        sacked.insert(span, |gap| self.select_gap(gap, delivery));
        self.sacked = sacked;
    }

    fn select_gap(&mut self, gap: Span, delivery: &mut Delivery) {
        let mut index = self.at_or_after(gap.start);
        while let Some(sent) = self.ring.get(index).copied().filter(|sent| sent.end() <= gap.end) {
            match sent.state {
                State::InFlight => self.unchain(index),
                State::Lost => self.lost_bytes -= u64::from(sent.length),
                State::Sacked => {
                    index += 1;
                    continue;
                }
            }
            delivery.note(&sent, false);
            self.ring[index].state = State::Sacked;
            self.sacked_bytes += u64::from(sent.length);
            self.sacked_segments += 1;
            index += 1;
        }
    }

    /// Takes the segment at `index` for lost, if it is in flight; `told` hears of each that is.
    pub fn lose(&mut self, index: usize, told: &mut impl FnMut(&Sent)) -> Found {
        let Some(sent) = self.ring.get(index).copied() else { return Found::default() };
        if sent.state != State::InFlight {
            return Found::default();
        }
        self.unchain(index);
        self.ring[index].state = State::Lost;
        self.lost_bytes += u64::from(sent.length);
        self.lost.push(Reverse(sent.start));
        told(&sent);
        Found { bytes: u64::from(sent.length), in_flight_at_send: Some(sent.rate.in_flight) }
    }

    /// Takes for lost what was last sent at `until` or before, and before transmission `order`.
    ///
    /// Returns besides whether anything sent before `order` is still in flight.
    pub fn lose_sent_before(
        &mut self,
        order: u64,
        until: Instant,
        told: &mut impl FnMut(&Sent),
    ) -> (Found, bool) {
        let mut found = Found::default();
        while let Some(index) = self.index_of(self.oldest) {
            let sent = &self.ring[index];
            if sent.order >= order {
                return (found, false);
            }
            if sent.sent_at > until {
                return (found, true);
            }
            found.add(self.lose(index, told));
        }
        (found, false)
    }

    /// Takes for lost what lies from `from` to `to` and was sent only once.
    pub fn lose_first_sent(&mut self, from: u64, to: u64, told: &mut impl FnMut(&Sent)) -> Found {
        let mut found = Found::default();
        let mut index = self.at_or_after(from);
        while let Some(sent) = self.ring.get(index).filter(|sent| sent.end() <= to) {
            if !sent.retransmitted {
                found.add(self.lose(index, told));
            }
            index += 1;
        }
        found
    }

    /// Takes everything that is in flight for lost.
    pub fn lose_all(&mut self, told: &mut impl FnMut(&Sent)) {
        while let Some(index) = self.index_of(self.oldest) {
            self.lose(index, told);
        }
    }

    /// Takes nothing for lost any more: it was all still on its way. Rare, so it may cost a sort.
    pub fn forgive(&mut self) {
        self.lost.clear();
        if self.lost_bytes == 0 {
            return;
        }
        self.lost_bytes = 0;
        for sent in self.ring.iter_mut().filter(|sent| sent.state == State::Lost) {
            sent.state = State::InFlight;
        }
        let in_flight = |&index: &usize| self.ring[index].state == State::InFlight;
        let mut chain: Vec<usize> = (0..self.ring.len()).filter(in_flight).collect();
        chain.sort_unstable_by_key(|&index| self.ring[index].order);
        (self.oldest, self.newest) = (Link::NONE, Link::NONE);
        (self.in_flight, self.segments_in_flight) = (0, 0);
        for index in chain {
            self.append(index);
        }
    }

    /// Forgets all selective acknowledgements: the receiver has reneged (RFC 2018 §8).
    pub fn renege(&mut self) {
        for index in 0..self.ring.len() {
            if self.ring[index].state == State::Sacked {
                let length = u64::from(self.ring[index].length);
                self.sacked_bytes -= length;
                self.sacked_segments -= 1;
                self.lost_bytes += length;
                self.ring[index].state = State::Lost;
                self.lost.push(Reverse(self.ring[index].start));
            }
        }
        self.sacked.clear();
    }

    /// The lowest segment that was found lost and not sent again.
    pub fn next_lost(&mut self) -> Option<usize> {
        while let Some(&Reverse(start)) = self.lost.peek() {
            if let Some(index) = self.starting_at(start)
                && self.ring[index].state == State::Lost
            {
                return Some(index);
            }
            self.lost.pop();
        }
        None
    }

    /// Positions above which at least `bytes` or `spans` ranges were selectively acknowledged.
    pub fn below_sacked(&self, bytes: u64, spans: usize) -> Option<u64> {
        let mut above = 0;
        for (nth, span) in self.sacked.iter().rev().enumerate() {
            above += span.end - span.start;
            if above > bytes || nth + 1 >= spans {
                return Some(span.start);
            }
        }
        None
    }

    /// The first segment that begins at `position` or after.
    pub fn at_or_after(&self, position: u64) -> usize {
        let Some(first) = self.ring.front() else { return 0 };
        if position <= first.start {
            return 0;
        }
        // Segments are mostly as long as each other: guess, and look around.
        let guess = ((position - first.start) / u64::from(self.typical.max(1))) as usize;
        if let Some(sent) = self.ring.get(guess) {
            if sent.start == position {
                return guess;
            }
        } else if self.ring.back().is_some_and(|last| last.start < position) {
            return self.ring.len();
        }
        self.ring.partition_point(|sent| sent.start < position)
    }

    fn starting_at(&self, start: u64) -> Option<usize> {
        let index = self.at_or_after(start);
        self.ring.get(index).is_some_and(|sent| sent.start == start).then_some(index)
    }

    pub fn get(&self, index: usize) -> Option<&Sent> {
        self.ring.get(index)
    }

    pub fn first(&self) -> Option<&Sent> {
        self.ring.front()
    }

    pub fn last(&self) -> Option<&Sent> {
        self.ring.back()
    }

    /// How many segments are outstanding.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Unit: positions.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub fn segments_in_flight(&self) -> u32 {
        self.segments_in_flight
    }

    /// What was found lost and not sent again. Unit: positions.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    pub fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// Segments that were sent again and are not covered cumulatively.
    pub fn resent_segments(&self) -> u32 {
        self.resent
    }

    /// Gives back the memory of a burst, when nothing is outstanding.
    ///
    /// Each time twice as much is kept: who sends in bursts soon has room for them for good.
    pub fn release(&mut self) {
        if self.ring.is_empty() {
            if self.ring.capacity() > self.kept {
                self.ring = VecDeque::new();
                self.kept *= 2;
            }
            if self.lost.capacity() > self.kept {
                self.lost = BinaryHeap::new();
            }
            self.sacked.release();
        }
    }

    /// What lies on the heap. Unit: bytes.
    pub fn memory(&self) -> usize {
        self.ring.capacity() * size_of::<Sent>()
            + self.lost.capacity() * size_of::<u64>()
            + self.sacked.memory()
    }

    /// A segment leaves: it comes last in the chain of those in flight.
    fn chain(&mut self, index: usize, sent_at: Instant) {
        let sent = &mut self.ring[index];
        sent.sent_at = sent_at;
        sent.order = self.orders;
        self.orders += 1;
        self.append(index);
    }

    fn append(&mut self, index: usize) {
        let link = self.link_of(index);
        let newest = self.newest;
        match self.index_of(newest) {
            Some(newest) => self.ring[newest].newer = link,
            None => self.oldest = link,
        }
        let sent = &mut self.ring[index];
        sent.older = newest;
        sent.newer = Link::NONE;
        self.newest = link;
        self.in_flight += u64::from(sent.length);
        self.segments_in_flight += 1;
    }

    fn unchain(&mut self, index: usize) {
        let Sent { older, newer, length, .. } = self.ring[index];
        match self.index_of(older) {
            Some(older) => self.ring[older].newer = newer,
            None => self.oldest = newer,
        }
        match self.index_of(newer) {
            Some(newer) => self.ring[newer].older = older,
            None => self.newest = older,
        }
        self.in_flight -= u64::from(length);
        self.segments_in_flight -= 1;
    }

    fn link_of(&self, index: usize) -> Link {
        // A ring of 2³¹ segments does not fit a sequence space of 2³² bytes.
        Link(self.front.wrapping_add(index as u32) & Link::MASK)
    }

    fn index_of(&self, link: Link) -> Option<usize> {
        (link != Link::NONE).then(|| (link.0.wrapping_sub(self.front) & Link::MASK) as usize)
    }

    /// Recounts everything slowly.
    ///
    /// # Errors
    /// The first count that is not what it should be.
    pub fn check(&self) -> Result<(), String> {
        let mut next = None;
        let (mut in_flight, mut segments, mut lost, mut sacked, mut sacked_segments) =
            (0, 0, 0, 0, 0);
        let mut resent = 0;
        for sent in &self.ring {
            if sent.length == 0 || next.is_some_and(|next| next != sent.start) {
                return Err(format!("segment at {} does not follow {next:?}", sent.start));
            }
            next = Some(sent.end());
            let length = u64::from(sent.length);
            resent += u32::from(sent.retransmitted);
            match sent.state {
                State::InFlight => (in_flight, segments) = (in_flight + length, segments + 1),
                State::Lost => lost += length,
                State::Sacked => (sacked, sacked_segments) = (sacked + length, sacked_segments + 1),
            }
            let span = Span { start: sent.start, end: sent.end() };
            if self.sacked.covers(span) != (sent.state == State::Sacked) {
                return Err(format!("segment at {} is {:?}", sent.start, sent.state));
            }
            if sent.state == State::Lost && !self.lost.iter().any(|start| start.0 == sent.start) {
                return Err(format!("lost segment at {} waits nowhere", sent.start));
            }
        }
        let counted = (in_flight, segments, lost, sacked, sacked_segments, resent);
        let kept = (
            self.in_flight,
            self.segments_in_flight,
            self.lost_bytes,
            self.sacked_bytes,
            self.sacked_segments,
            self.resent,
        );
        if counted != kept {
            return Err(format!("counts are {kept:?}, not {counted:?}"));
        }
        let (mut chained, mut at, mut order) = (0, self.oldest, None);
        while let Some(index) = self.index_of(at) {
            let sent = &self.ring[index];
            if sent.state != State::InFlight || order >= Some(sent.order) {
                return Err(format!("segment at {} is chained out of turn", sent.start));
            }
            (chained, at, order) = (chained + 1, sent.newer, Some(sent.order));
        }
        if chained == segments { Ok(()) } else { Err(format!("{chained} chained of {segments}")) }
    }
}
