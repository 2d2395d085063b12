//! The pacer: the queue below QUIC. Datagrams leave it at the pace of the connection's controller.
//!
//! QUIC hands over datagrams as soon as the window allows. Here they wait until the pace releases them.
//! The queue is short: once it holds what leaves within [`QUEUE_TIME`], it [is full](Pacer::is_full)
//! and QUIC keeps its data. So QUIC decides as late as possible what goes next, and its round-trip time contains no
//! more than that queue.
//!
//! The owner of the socket calls [`push`](Pacer::push) for each datagram, [`pop`](Pacer::pop)
//! until there is none, and sets a timer for [`wake`](Pacer::wake). A late timer costs
//! nothing while datagrams wait, here or in a QUIC that was [refused](Pacer::refuse): up to
//! [`LATE_MAX`] of what was missed leaves at once.
//!
//! Decision 0015.

use crate::control::Pace;
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::VecDeque;

/// How much time the queue may hold.
pub const QUEUE_TIME: Duration = Duration::from_ms(4);
/// How much unused time is made up for while datagrams wait. A thread is late by half as much when it, or another on
/// its processor, has megabytes to read, and by all of it on a host that others load. The rest is lost, and a congestion
/// control that measures its path measures less (decision 0071).
pub const LATE_MAX: Duration = Duration::from_ms(50);
/// The same while no datagram waits.
const IDLE_MAX: Duration = Duration::from_ms(1);
/// Two datagrams may always wait, however slow the leg. Unit: bytes.
const QUEUE_MIN: u64 = 3000;
/// Credit is counted in bits × a billion, so that nothing is rounded.
const ONE_BIT: i128 = 1_000_000_000;

/// Datagrams of one path that wait to be released. `D` stands for a datagram.
///
/// Invariant: in any interval, no more has left than the pace allows, plus [`LATE_MAX`] and one datagram.
#[derive(Debug)]
pub struct Pacer<D> {
    pace: Pace,
    queue: VecDeque<(D, u64)>,
    /// The size of the datagrams that wait, headers included. Unit: bytes.
    waiting: u64,
    /// The credit for what may leave now; below zero: it must be earned first.
    credit: i128,
    at: Instant,
    /// When the queue last became empty.
    emptied: Instant,
    /// Whether QUIC has more that it could not hand over.
    refused: bool,
}

impl<D> Pacer<D> {
    /// An empty queue that releases datagrams at `pace`.
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self {
            pace,
            queue: VecDeque::new(),
            waiting: 0,
            credit: 0,
            at: now,
            emptied: now,
            refused: false,
        }
    }

    /// Releases datagrams at another pace from now on: another connection of the same path has begun.
    pub fn follow(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// The pace.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Whether the queue is full. A caller that checks before each batch may push the whole batch.
    pub fn is_full(&self) -> bool {
        let Some(rate) = self.pace.rate() else { return false };
        self.waiting >= rate.bytes_in(self.pace.queue_time()).get().max(QUEUE_MIN)
    }

    /// QUIC has one more datagram, and must keep it for now. QUIC offers it again; until then the time does not
    /// count as idle, even if the queue becomes empty.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Takes a datagram with a payload of `size` bytes.
    pub fn push(&mut self, now: Instant, size: Bytes, datagram: D) {
        self.earn(now);
        self.refused = false;
        let size = size.saturating_add(self.pace.overhead()).get();
        self.waiting += size;
        self.queue.push_back((datagram, size));
    }

    /// Removes the next datagram that may leave.
    pub fn pop(&mut self, now: Instant) -> Option<D> {
        self.peek(now)?;
        let (datagram, size) = self.queue.pop_front()?;
        self.waiting -= size;
        self.spend(size);
        Some(datagram)
    }

    /// The next datagram that may leave; it stays in the queue.
    pub fn peek(&mut self, now: Instant) -> Option<&D> {
        self.earn(now);
        if self.credit < 0 && self.pace.rate().is_some() {
            return None;
        }
        self.queue.front().map(|(datagram, _)| datagram)
    }

    /// How many datagrams with a payload of up to `size` bytes may leave now without entering the queue: at most
    /// `max`, and none unless the queue is empty.
    pub fn room(&mut self, now: Instant, size: Bytes, max: usize) -> usize {
        self.earn(now);
        if !self.queue.is_empty() {
            return 0;
        }
        let Some(_) = self.pace.rate() else { return max };
        let size = size.saturating_add(self.pace.overhead()).get().max(1);
        // One datagram more than the credit covers may leave.
        let whole =
            u128::try_from(self.credit).map(|it| it / (u128::from(size) * 8 * ONE_BIT as u128) + 1);
        whole.map_or(0, |whole| usize::try_from(whole).unwrap_or(max).min(max))
    }

    /// So many datagrams with a payload of `size` bytes together have left without entering the queue. There was
    /// [room](Self::room) for them.
    pub fn pass(&mut self, count: usize, size: Bytes) {
        let overhead = self.pace.overhead().get().saturating_mul(count as u64);
        let size = size.get().saturating_add(overhead);
        self.refused = false;
        self.spend(size);
    }

    /// When the next datagram may leave; `None` where none waits.
    pub fn wake(&self) -> Option<Instant> {
        self.queue.front()?;
        let missing = u128::try_from(-self.credit).unwrap_or(0);
        let wait = match self.pace.rate() {
            None => 0,
            Some(rate) => missing.div_ceil(u128::from(rate.bits_per_s().max(1))),
        };
        Some(self.at + Duration::from_ns(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// Datagrams that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What waits, headers included.
    pub fn waiting(&self) -> Bytes {
        Bytes::new(self.waiting)
    }

    /// So many bytes have left, headers included.
    fn spend(&mut self, bytes: u64) {
        self.credit = match self.pace.rate() {
            Some(_) => self.credit - i128::from(bytes) * 8 * ONE_BIT,
            None => 0,
        };
        if self.queue.is_empty() {
            self.emptied = self.at;
        }
    }

    /// Credits the time that has passed, at the present pace.
    fn earn(&mut self, now: Instant) {
        let passed = now.saturating_since(self.at);
        self.at = self.at.max(now);
        let rate = self.pace.rate().unwrap_or(Rate::ZERO);
        // A queue that has just become empty is about to be filled again.
        let idle = self.queue.is_empty()
            && !self.refused
            && self.at.saturating_since(self.emptied) > QUEUE_TIME;
        let bound = if idle { IDLE_MAX } else { LATE_MAX };
        let worth = |span: Duration| i128::from(rate.bits_per_s()) * i128::from(span.as_ns());
        self.credit = (self.credit + worth(passed)).min(worth(bound));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pacer(rate: Option<Rate>) -> Pacer<u64> {
        Pacer::new(Pace::of(rate, Bytes::new(28)), Instant::START)
    }

    fn at_us(us: u64) -> Instant {
        Instant::START + Duration::from_us(us)
    }

    /// Keeps the queue full for `span`, with a timer that is late by what `late` returns each time.
    fn sent_over(rate: Rate, span: Duration, mut late: impl FnMut() -> Duration) -> u64 {
        let mut queue = pacer(Some(rate));
        let (mut now, mut sent) = (Instant::START, 0);
        while now < Instant::START + span {
            // QUIC fills it again whenever there is room.
            while queue.wake().is_none_or(|wake| wake <= now) {
                while !queue.is_full() {
                    (0..10).for_each(|_| queue.push(now, Bytes::new(1472), 1500));
                }
                sent += std::iter::from_fn(|| queue.pop(now)).sum::<u64>();
            }
            now = queue.wake().unwrap_or(now) + late();
        }
        sent
    }

    #[test]
    fn a_full_queue_leaves_at_its_pace_however_late_the_timer() {
        for mbit in [1, 20, 140] {
            let (rate, span) = (Rate::from_mbit_per_s(mbit), Duration::from_s(10));
            let exact = rate.bytes_in(span).get();
            for late_us in [0, 1000, 9000, 24_000, 49_000] {
                let sent = sent_over(rate, span, || Duration::from_us(late_us));
                let slack = rate.bytes_in(LATE_MAX * 2).get() + 1500;
                assert!(sent.abs_diff(exact) <= slack, "{mbit} Mbit/s, {late_us} us: {sent}");
            }
        }
    }

    #[test]
    fn without_a_pace_everything_leaves_at_once() {
        let mut queue = pacer(None);
        for number in 0..1000 {
            queue.push(Instant::START, Bytes::new(1200), number);
        }
        assert!(!queue.is_full());
        assert_eq!(queue.wake(), Some(Instant::START));
        assert_eq!((0..1000).filter_map(|_| queue.pop(Instant::START)).count(), 1000);
        assert_eq!(queue.wake(), None);
    }

    /// What may bypass an empty queue is what the queue would have released at once.
    #[test]
    fn what_passes_by_is_as_much_as_the_queue_lets_go() {
        for rate in [None, Some(Rate::from_mbit_per_s(12)), Some(Rate::from_mbit_per_s(400))] {
            let (mut queue, mut passing) = (pacer(rate), pacer(rate));
            for now in [0, 5, 1000, 1001, 90_000].map(at_us) {
                (0..200).for_each(|number| queue.push(now, Bytes::new(1472), number));
                let left = std::iter::from_fn(|| queue.pop(now)).count();
                let room = passing.room(now, Bytes::new(1472), 200);
                assert_eq!(room, left, "{rate:?} at {now:?}");
                if room > 0 {
                    passing.pass(room, Bytes::new(1472 * room as u64));
                }
                queue.queue.clear();
                queue.waiting = 0;
                assert_eq!(passing.credit, queue.credit);
                assert_eq!(passing.room(now, Bytes::new(1472), 1), usize::from(rate.is_none()));
            }
            passing.push(at_us(99_000_000), Bytes::new(100), 0);
            assert_eq!(passing.room(at_us(99_000_000), Bytes::new(1472), 1), 0, "one waits");
        }
    }

    #[test]
    fn a_silence_is_no_leave_to_burst() {
        let mut queue = pacer(Some(Rate::from_mbit_per_s(12)));
        let now = at_us(60_000_000);
        for number in 0..10 {
            queue.push(now, Bytes::new(1472), number);
        }
        // One millisecond's worth, and one datagram more than the credit covers.
        assert_eq!(std::iter::from_fn(|| queue.pop(now)).count(), 2);
        assert_eq!(queue.wake(), Some(now + Duration::from_ms(1)));
    }

    /// A caller that releases datagrams is late for both: the timer, and the request to QUIC for more.
    #[test]
    fn a_queue_that_runs_empty_while_quic_waits_loses_no_time() {
        let rate = Rate::from_mbit_per_s(140);
        for (refused, expected) in [(true, 8 + 48), (false, 1 + 1)] {
            let mut queue = pacer(Some(rate));
            let mut sent = 0;
            for now in [at_us(0), at_us(8000), at_us(56_000)] {
                // More than QUIC has room for.
                (0..1000).for_each(|_| queue.push(now, Bytes::new(1472), 1500));
                sent += std::iter::from_fn(|| queue.pop(now)).sum::<u64>();
                queue.queue.clear();
                (queue.waiting, queue.emptied) = (0, now);
                if refused {
                    queue.refuse();
                }
            }
            let exact = rate.bytes_in(Duration::from_ms(expected)).get();
            assert!(sent.abs_diff(exact) <= 3 * 1500, "{refused}: {sent} for {exact}");
        }
    }

    proptest! {
        #[test]
        fn nothing_leaves_early_or_out_of_order(
            kbit in 10_u64..200_000,
            steps in proptest::collection::vec((0_u64..20_000, 0_u64..12), 1..200),
        ) {
            let rate = Rate::from_bits_per_s(kbit * 1000);
            let mut queue = pacer(Some(rate));
            let (mut now, mut pushed, mut popped, mut bytes) = (Instant::START, 0_u64, 0_u64, 0_u64);
            for (wait_us, push) in steps {
                now = now + Duration::from_us(wait_us);
                for _ in 0..push {
                    queue.push(now, Bytes::new(1000), pushed);
                    pushed += 1;
                }
                while let Some(number) = queue.pop(now) {
                    prop_assert_eq!(number, popped);
                    popped += 1;
                    bytes += 1028;
                }
                let allowed = rate.bytes_in(now.saturating_since(Instant::START) + LATE_MAX).get();
                prop_assert!(bytes <= allowed + 1028);
                prop_assert_eq!(queue.len() as u64, pushed - popped);
            }
            // The queue empties at its pace.
            while let Some(wake) = queue.wake() {
                now = now.max(wake);
                prop_assert!(queue.pop(now).is_some());
            }
            prop_assert_eq!(queue.waiting(), Bytes::ZERO);
        }
    }
}
