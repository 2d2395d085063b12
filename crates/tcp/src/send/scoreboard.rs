//! The segments that are sent and not acknowledged, and the state of each.
//!
//! Source: the pipe and scoreboard of RFC 6675 §2–4, the transmission order of RFC 8985. Difference: a
//! retransmission takes the place of the original in the data in flight, so each byte counts once.
//!
//! Segments stand in a ring in the order of their sequence. Segments sent once were sent in that order too.
//! Retransmitted ones also stand in a queue in the order of their retransmission, lost ones in a
//! heap by sequence. So an acknowledgement costs time for the segments that it newly covers or shows to be
//! lost, and never for all outstanding ones.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use midhop_units::Instant;

use super::{
    rate::Snapshot,
    sent::{Delivery, Found, Order, SegmentState, Sent},
};
use crate::ranges::{Ranges, Span};

/// Room for so many segments stays with a connection that becomes idle for the first time.
const KEPT: usize = 2;
/// Up to so many segments the room doubles; beyond, it grows by a quarter, since a ring uses all of its room as
/// it turns.
const DOUBLES_TO: usize = 1024;

/// The outstanding segments.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    ring: VecDeque<Sent>,
    /// How many segments have left the ring at its front: a segment's place is this number plus its index,
    /// and stays the same while the ring moves on.
    gone: u64,
    /// No segment before this place is in flight and was sent only once.
    sent_once: u64,
    /// State that exists once a segment was not the next to arrive: boxed, since few of many connections
    /// have any.
    trouble: Option<Box<Trouble>>,
    /// The number of the next transmission.
    order: Order,
    in_flight: u64,
    segments_in_flight: u32,
    lost_bytes: u64,
    sacked_segments: u32,
    /// Retransmitted segments that are not covered cumulatively.
    resent: u32,
    /// Segments found lost that have not arrived, retransmitted or not.
    missed: u32,
    /// The length of the longest segment. Unit: positions.
    typical: u32,
    /// Room for so many segments stays when nothing is outstanding.
    kept: u32,
}

/// Segments that were lost, retransmitted, or arrived before others.
#[derive(Debug, Default)]
struct Trouble {
    /// Starts of segments found lost; segments that are no longer lost are skipped.
    lost: BinaryHeap<Reverse<u64>>,
    sacked: Ranges,
    /// Places of retransmitted segments, in the order of retransmission; segments no longer in flight, or
    /// retransmitted again, are skipped.
    sent_again: VecDeque<(u64, Order)>,
}

impl Trouble {
    fn clear(&mut self) {
        self.lost.clear();
        self.sacked.clear();
        self.sent_again.clear();
    }

    /// Frees the memory beyond so many segments.
    fn release(&mut self, kept: usize) {
        if self.lost.capacity() > kept {
            self.lost = BinaryHeap::new();
        }
        if self.sent_again.capacity() > kept {
            self.sent_again = VecDeque::new();
        }
        self.sacked.release();
    }

    fn memory(&self) -> usize {
        size_of::<Self>()
            + self.lost.capacity() * size_of::<u64>()
            + self.sent_again.capacity() * size_of::<(u64, Order)>()
            + self.sacked.memory()
    }
}

impl Default for Scoreboard {
    fn default() -> Self {
        Self {
            ring: VecDeque::new(),
            gone: 0,
            sent_once: 0,
            trouble: None,
            order: Order::default(),
            in_flight: 0,
            segments_in_flight: 0,
            lost_bytes: 0,
            sacked_segments: 0,
            resent: 0,
            missed: 0,
            typical: 1,
            kept: KEPT as u32,
        }
    }
}

impl Scoreboard {
    /// A new segment leaves; it continues where the last one ended.
    pub fn push(&mut self, start: u64, length: u32, fin: bool, now: Instant, rate: Snapshot) {
        self.typical = self.typical.max(length - u32::from(fin));
        let outstanding = self.ring.len();
        if outstanding == self.ring.capacity() {
            let small = outstanding < DOUBLES_TO;
            self.ring.reserve_exact(if small { outstanding.max(KEPT) } else { outstanding / 4 });
        }
        self.ring.push_back(Sent::new(start, length, now, self.order, rate));
        self.order = self.order.next();
        self.enter_flight(length);
    }

    /// The segment at `index` is retransmitted.
    pub fn resend(&mut self, index: usize, now: Instant, rate: Snapshot) {
        let sent = &mut self.ring[index];
        let length = sent.length;
        match sent.state {
            SegmentState::InFlight => self.leave_flight(length),
            SegmentState::Lost => self.lost_bytes -= u64::from(length),
            SegmentState::Sacked => return,
        }
        let sent = &mut self.ring[index];
        self.resent += u32::from(!sent.retransmitted);
        sent.leave_again(now, self.order, rate);
        // Looks at the queue's front, and so keeps it as short as the data in flight.
        self.oldest_sent_again();
        let place = self.gone + index as u64;
        self.trouble.get_or_insert_default().sent_again.push_back((place, self.order));
        self.order = self.order.next();
        self.enter_flight(length);
    }

    /// Processes a cumulative acknowledgement of everything below `una`.
    pub fn acknowledge(&mut self, una: u64, delivery: &mut Delivery) {
        while let Some(&first) = self.ring.front() {
            if first.start >= una {
                break;
            }
            if first.end() > una {
                self.trim(una, delivery);
                break;
            }
            match first.state {
                SegmentState::InFlight => {
                    delivery.note(&first, true);
                    self.leave_flight(first.length);
                }
                SegmentState::Lost => {
                    delivery.note(&first, true);
                    self.lost_bytes -= u64::from(first.length);
                }
                SegmentState::Sacked => {
                    delivery.retransmitted |= first.retransmitted;
                    self.sacked_segments -= 1;
                }
            }
            self.resent -= u32::from(first.retransmitted);
            self.missed -= u32::from(first.missed);
            self.ring.pop_front();
            self.gone += 1;
        }
        if let Some(trouble) = &mut self.trouble {
            trouble.sacked.remove_below(una);
            if self.ring.is_empty() {
                trouble.clear();
            }
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
            SegmentState::InFlight => self.in_flight -= cut,
            SegmentState::Lost => {
                self.lost_bytes -= cut;
                self.trouble.get_or_insert_default().lost.push(Reverse(una));
            }
            SegmentState::Sacked => return,
        }
        delivery.bytes += cut;
    }

    /// Processes a selective acknowledgement; segments that it covers in part stay as they are.
    pub fn select(&mut self, block: Span, delivery: &mut Delivery) {
        if self.trouble.as_ref().is_some_and(|trouble| trouble.sacked.covers(block)) {
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
        let mut trouble = self.trouble.take().unwrap_or_default();
        trouble.sacked.insert(span, |gap| self.select_gap(gap, delivery));
        self.trouble = Some(trouble);
    }

    fn select_gap(&mut self, gap: Span, delivery: &mut Delivery) {
        let mut index = self.at_or_after(gap.start);
        while let Some(sent) = self.ring.get(index).copied().filter(|sent| sent.end() <= gap.end) {
            match sent.state {
                SegmentState::InFlight => self.leave_flight(sent.length),
                SegmentState::Lost => self.lost_bytes -= u64::from(sent.length),
                SegmentState::Sacked => {
                    index += 1;
                    continue;
                }
            }
            delivery.note(&sent, false);
            self.missed -= u32::from(sent.missed);
            self.ring[index].missed = false;
            self.ring[index].state = SegmentState::Sacked;
            self.sacked_segments += 1;
            index += 1;
        }
    }

    /// Marks the segment at `index` as lost, if it is in flight; calls `report` with each one.
    pub fn lose(&mut self, index: usize, report: &mut impl FnMut(&Sent)) -> Found {
        let Some(sent) = self.ring.get(index).copied() else { return Found::default() };
        if sent.state != SegmentState::InFlight {
            return Found::default();
        }
        self.leave_flight(sent.length);
        self.missed += u32::from(!sent.missed);
        self.ring[index].missed = true;
        self.ring[index].state = SegmentState::Lost;
        self.lost_bytes += u64::from(sent.length);
        self.trouble.get_or_insert_default().lost.push(Reverse(sent.start));
        report(&sent);
        Found {
            bytes: u64::from(sent.length),
            in_flight_at_send: Some(sent.rate().in_flight.into()),
        }
    }

    /// Marks as lost every segment last sent at `until` or before, and before transmission `order`.
    ///
    /// Also returns whether a segment sent before `order` is still in flight.
    pub fn lose_sent_before(
        &mut self,
        order: Order,
        until: Instant,
        report: &mut impl FnMut(&Sent),
    ) -> (Found, bool) {
        let mut found = Found::default();
        while let Some(index) = self.oldest() {
            let sent = &self.ring[index];
            if !sent.order.is_before(order) {
                return (found, false);
            }
            if sent.sent_at > until {
                return (found, true);
            }
            found.add(self.lose(index, report));
        }
        (found, false)
    }

    /// Marks as lost every segment from `from` to `to` that was sent only once.
    pub fn lose_first_sent(&mut self, from: u64, to: u64, report: &mut impl FnMut(&Sent)) -> Found {
        let mut found = Found::default();
        let mut index = self.at_or_after(from);
        while let Some(sent) = self.ring.get(index).filter(|sent| sent.end() <= to) {
            if !sent.retransmitted {
                found.add(self.lose(index, report));
            }
            index += 1;
        }
        found
    }

    /// Marks every segment in flight as lost.
    pub fn lose_all(&mut self, report: &mut impl FnMut(&Sent)) {
        while let Some(index) = self.oldest() {
            self.lose(index, report);
        }
    }

    /// No segment is lost any more: all were still in flight. Rare, so it may cost a sort.
    pub fn forgive(&mut self) {
        let Some(trouble) = &mut self.trouble else { return };
        trouble.lost.clear();
        if self.missed == 0 {
            return;
        }
        self.missed = 0;
        self.in_flight += std::mem::take(&mut self.lost_bytes);
        self.sent_once = self.gone;
        trouble.sent_again.clear();
        for (place, sent) in (self.gone..).zip(&mut self.ring) {
            sent.missed = false;
            if sent.state == SegmentState::Lost {
                sent.state = SegmentState::InFlight;
                self.segments_in_flight += 1;
            }
            if sent.state == SegmentState::InFlight && sent.retransmitted {
                trouble.sent_again.push_back((place, sent.order));
            }
        }
        let next = self.order;
        // The oldest first: its distance from the next is the greatest.
        let age = |&(_, order): &(u64, Order)| Reverse(order.until(next));
        trouble.sent_again.make_contiguous().sort_unstable_by_key(age);
    }

    /// Forgets all selective acknowledgements: the receiver has reneged (RFC 2018 §8).
    pub fn renege(&mut self) {
        let Some(trouble) = &mut self.trouble else { return };
        for index in 0..self.ring.len() {
            if self.ring[index].state == SegmentState::Sacked {
                let length = u64::from(self.ring[index].length);
                self.sacked_segments -= 1;
                self.lost_bytes += length;
                self.missed += 1;
                self.ring[index].missed = true;
                self.ring[index].state = SegmentState::Lost;
                trouble.lost.push(Reverse(self.ring[index].start));
            }
        }
        trouble.sacked.clear();
    }

    /// The lowest segment found lost and not retransmitted.
    pub fn next_lost(&mut self) -> Option<usize> {
        if self.lost_bytes == 0 {
            return None;
        }
        while let Some(&Reverse(start)) = self.trouble.as_ref()?.lost.peek() {
            if let Some(index) = self.starting_at(start)
                && self.ring[index].state == SegmentState::Lost
            {
                return Some(index);
            }
            self.trouble.as_mut()?.lost.pop();
        }
        None
    }

    /// The position above which at least `bytes` or `spans` ranges were selectively acknowledged.
    pub fn below_sacked(&self, bytes: u64, spans: usize) -> Option<u64> {
        let mut above = 0;
        for (nth, span) in self.trouble.as_ref()?.sacked.iter().rev().enumerate() {
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
        // Most segments have the same length: guess, and look around.
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

    /// Data found lost and not retransmitted. Unit: positions.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    pub fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// Retransmitted segments that are not covered cumulatively.
    pub fn resent_segments(&self) -> u32 {
        self.resent
    }

    /// Segments found lost that have not arrived, retransmitted or not.
    pub fn missed_segments(&self) -> u32 {
        self.missed
    }

    /// When nothing is outstanding, frees the memory of a burst.
    ///
    /// Each time it keeps twice as much: a sender of bursts soon keeps room for them.
    pub fn release(&mut self) {
        let kept = self.kept as usize;
        if self.ring.is_empty() {
            if self.ring.capacity() > kept {
                self.ring = VecDeque::new();
                self.kept = self.kept.saturating_mul(2);
            }
            if let Some(trouble) = &mut self.trouble {
                trouble.release(kept);
            }
        }
    }

    /// Memory on the heap. Unit: bytes.
    pub fn memory(&self) -> usize {
        let trouble = self.trouble.as_ref().map_or(0, |trouble| trouble.memory());
        self.ring.capacity() * size_of::<Sent>() + trouble
    }

    fn enter_flight(&mut self, length: u32) {
        self.in_flight += u64::from(length);
        self.segments_in_flight += 1;
    }

    fn leave_flight(&mut self, length: u32) {
        self.in_flight -= u64::from(length);
        self.segments_in_flight -= 1;
    }

    /// Of the segments in flight, the one last sent before all others.
    fn oldest(&mut self) -> Option<usize> {
        let (once, again) = (self.oldest_sent_once(), self.oldest_sent_again());
        match (once, again) {
            (Some(once), Some(again)) => {
                let again_first = self.ring[again].order.is_before(self.ring[once].order);
                Some(if again_first { again } else { once })
            }
            _ => once.or(again),
        }
    }

    fn oldest_sent_once(&mut self) -> Option<usize> {
        let mut index = self.sent_once.saturating_sub(self.gone) as usize;
        while let Some(sent) = self.ring.get(index) {
            if sent.state == SegmentState::InFlight && !sent.retransmitted {
                break;
            }
            index += 1;
        }
        self.sent_once = self.gone + index as u64;
        (index < self.ring.len()).then_some(index)
    }

    fn oldest_sent_again(&mut self) -> Option<usize> {
        let trouble = self.trouble.as_mut()?;
        while let Some(&(place, order)) = trouble.sent_again.front() {
            let index = place.checked_sub(self.gone).map(|index| index as usize);
            if let Some(index) = index
                && self.ring[index].state == SegmentState::InFlight
                && self.ring[index].order == order
            {
                return Some(index);
            }
            trouble.sent_again.pop_front();
        }
        None
    }

    /// Recounts everything from scratch.
    ///
    /// # Errors
    /// The first count that is not what it should be.
    pub fn check(&self) -> Result<(), String> {
        let none = Trouble::default();
        let trouble = self.trouble.as_deref().unwrap_or(&none);
        let mut next = None;
        let (mut in_flight, mut segments, mut lost, mut sacked) = (0, 0, 0, 0);
        let (mut resent, mut missed) = (0, 0);
        for sent in &self.ring {
            if sent.length == 0 || next.is_some_and(|next| next != sent.start) {
                return Err(format!("segment at {} does not follow {next:?}", sent.start));
            }
            next = Some(sent.end());
            let length = u64::from(sent.length);
            resent += u32::from(sent.retransmitted);
            missed += u32::from(sent.missed);
            if sent.missed && sent.state == SegmentState::Sacked {
                return Err(format!("segment at {} has arrived and is missed", sent.start));
            }
            match sent.state {
                SegmentState::InFlight => {
                    (in_flight, segments) = (in_flight + length, segments + 1)
                }
                SegmentState::Lost => lost += length,
                SegmentState::Sacked => sacked += 1,
            }
            let span = Span { start: sent.start, end: sent.end() };
            if trouble.sacked.covers(span) != (sent.state == SegmentState::Sacked) {
                return Err(format!("segment at {} is {:?}", sent.start, sent.state));
            }
            if sent.state == SegmentState::Lost
                && !trouble.lost.iter().any(|start| start.0 == sent.start)
            {
                return Err(format!("lost segment at {} waits nowhere", sent.start));
            }
        }
        let counted = (in_flight, segments, lost, sacked, resent, missed);
        let kept = (
            self.in_flight,
            self.segments_in_flight,
            self.lost_bytes,
            self.sacked_segments,
            self.resent,
            self.missed,
        );
        if counted != kept {
            return Err(format!("counts are {kept:?}, not {counted:?}"));
        }
        self.check_order(&trouble.sent_again)
    }

    /// # Errors
    /// A segment in flight that would not be found in its turn.
    fn check_order(&self, queue: &VecDeque<(u64, Order)>) -> Result<(), String> {
        if queue.iter().zip(queue.iter().skip(1)).any(|(one, next)| !one.1.is_before(next.1)) {
            return Err("what was sent again stands out of turn".to_owned());
        }
        let in_flight = |(_, sent): &(u64, &Sent)| sent.state == SegmentState::InFlight;
        for (place, sent) in (self.gone..).zip(&self.ring).filter(in_flight) {
            let known = match sent.retransmitted {
                true => queue.contains(&(place, sent.order)),
                false => place >= self.sent_once,
            };
            if !known {
                return Err(format!("segment at {} would not be found", sent.start));
            }
        }
        Ok(())
    }
}
