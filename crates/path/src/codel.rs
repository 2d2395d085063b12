//! Controlled delay: drops from the head when packets have waited too long for too long.

use crate::queue::{Fifo, Waiting};
use midhop_units::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// CoDel's two times.
///
/// Source: RFC 8289 §4 (5 ms and 100 ms, good for round-trip times of 10 ms to 1 s).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodelPlan {
    /// The waiting time that is allowed to persist.
    pub target: Duration,
    /// How long it must be exceeded before the first drop; about the longest round-trip time.
    pub interval: Duration,
}

impl Default for CodelPlan {
    fn default() -> Self {
        Self { target: Duration::from_ms(5), interval: Duration::from_ms(100) }
    }
}

/// The state of CoDel: it examines each packet that leaves the queue.
///
/// Source: RFC 8289 §5. An ECN-capable packet is marked instead of dropped, as in Linux
/// (`include/net/codel_impl.h`).
#[derive(Debug, Clone)]
pub(crate) struct Codel {
    plan: CodelPlan,
    /// When the waiting time will have been above target for an interval.
    first_above: Option<Instant>,
    /// Whether it is in the dropping state.
    dropping: bool,
    /// When it drops next in that state.
    drop_next: Instant,
    /// Drops since it entered that state.
    count: u32,
    /// `count` when it entered that state.
    count_at_entry: u32,
}

impl Codel {
    pub(crate) fn new(plan: CodelPlan) -> Self {
        Self {
            plan,
            first_above: None,
            dropping: false,
            drop_next: Instant::START,
            count: 0,
            count_at_entry: 0,
        }
    }

    /// Takes the next packet to send from `queue`. A packet that it would drop is given to `mark`,
    /// which returns whether it could be marked; otherwise it is given to `drop`.
    pub(crate) fn take<P>(
        &mut self,
        now: Instant,
        queue: &mut Fifo<P>,
        mut mark: impl FnMut(&mut P) -> bool,
        mut drop: impl FnMut(Waiting<P>),
    ) -> Option<Waiting<P>> {
        let (mut head, mut may_drop) = self.look(now, queue);
        if self.dropping {
            self.dropping &= may_drop;
            while self.dropping && now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                if head.as_mut().is_some_and(|head| mark(&mut head.packet)) {
                    self.drop_next = self.next_after(self.drop_next);
                    break;
                }
                head.into_iter().for_each(&mut drop);
                (head, may_drop) = self.look(now, queue);
                if may_drop {
                    self.drop_next = self.next_after(self.drop_next);
                } else {
                    self.dropping = false;
                }
            }
        } else if may_drop {
            if !head.as_mut().is_some_and(|head| mark(&mut head.packet)) {
                head.into_iter().for_each(&mut drop);
                (head, _) = self.look(now, queue);
            }
            self.dropping = true;
            // Where it was in the dropping state a short while ago, it continues at about the rate
            // that worked.
            let learnt = self.count.saturating_sub(self.count_at_entry);
            let lately = now.saturating_since(self.drop_next) < self.plan.interval * 16;
            self.count = if learnt > 1 && lately { learnt } else { 1 };
            self.drop_next = self.next_after(now);
            self.count_at_entry = self.count;
        }
        head
    }

    /// Takes the head, and returns whether it has waited too long for too long.
    fn look<P>(&mut self, now: Instant, queue: &mut Fifo<P>) -> (Option<Waiting<P>>, bool) {
        let Some(head) = queue.pop() else {
            self.first_above = None;
            return (None, false);
        };
        let short = now.saturating_since(head.since) < self.plan.target;
        if short || queue.bytes() <= queue.largest_packet() {
            self.first_above = None;
            return (Some(head), false);
        }
        let above_since = *self.first_above.get_or_insert(now + self.plan.interval);
        (Some(head), now >= above_since)
    }

    fn next_after(&self, time: Instant) -> Instant {
        time + self.plan.interval.scale(1.0 / f64::from(self.count).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_units::Bytes;

    fn at_ms(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    /// Times in ms at which packets are dropped when one is taken every millisecond, each after
    /// waiting `wait_ms`, from a queue that is never empty.
    fn drops(codel: &mut Codel, from_ms: u64, till_ms: u64, wait_ms: u64) -> Vec<u64> {
        let mut drops = Vec::new();
        for now in from_ms..till_ms {
            let mut queue = Fifo::new();
            for _ in 0..10 {
                let since = at_ms(now - wait_ms);
                queue.push(Waiting { packet: (), size: Bytes::new(1500), since });
            }
            assert!(codel.take(at_ms(now), &mut queue, |()| false, |_| drops.push(now)).is_some());
        }
        drops
    }

    #[test]
    fn drops_come_an_interval_over_root_n_apart() {
        let mut codel = Codel::new(CodelPlan::default());
        // Above target from 1000 ms on: the first drop is after 100 ms, the next 100 / √1 later,
        // then 100 / √2, 100 / √3 …, each at the next whole millisecond.
        let expected: Vec<u64> = (1..8)
            .scan(1100.0, |time, n| {
                *time += 100.0 / f64::from(n).sqrt();
                Some(f64::ceil(*time) as u64)
            })
            .collect();
        let drops = drops(&mut codel, 1000, 1510, 20);
        assert_eq!(drops[0], 1100);
        assert_eq!(drops[1..=expected.len()], expected);
    }

    #[test]
    fn what_can_be_marked_is_marked_when_it_would_be_dropped() {
        let mut dropping = Codel::new(CodelPlan::default());
        let mut marking = dropping.clone();
        let drops = drops(&mut dropping, 1000, 2000, 20);
        let mut marks = Vec::new();
        for now in 1000..2000 {
            let mut queue = Fifo::new();
            for number in 0..10 {
                let since = at_ms(now - 20);
                queue.push(Waiting { packet: number, size: Bytes::new(1500), since });
            }
            let mark = |number: &mut i32| {
                *number = -1;
                marks.push(now);
                true
            };
            let taken = marking.take(at_ms(now), &mut queue, mark, |_| panic!("dropped"));
            let marked = marks.last() == Some(&now);
            assert_eq!(taken.map(|taken| taken.packet), Some(if marked { -1 } else { 0 }));
        }
        assert_eq!(marks, drops);
    }

    #[test]
    fn short_waits_and_short_queues_are_left_alone() {
        let mut codel = Codel::new(CodelPlan::default());
        assert!(drops(&mut codel, 1000, 3000, 4).is_empty());
        for now in 3000..5000 {
            let mut queue = Fifo::new();
            queue.push(Waiting { packet: (), size: Bytes::new(1500), since: at_ms(now - 500) });
            let taken = codel.take(
                at_ms(now),
                &mut queue,
                |()| false,
                |_| panic!("dropped the only packet"),
            );
            assert!(taken.is_some());
        }
    }

    #[test]
    fn it_remembers_the_rate_that_worked() {
        let mut codel = Codel::new(CodelPlan::default());
        let first = drops(&mut codel, 1000, 3000, 20).len();
        assert!(first > 50, "{first}");
        // A moment below target ends dropping. Soon after, it continues from where it was.
        assert!(drops(&mut codel, 3000, 3010, 1).is_empty());
        let again = drops(&mut codel, 3010, 3210, 20);
        assert_eq!(again[0], 3110);
        assert!(again.len() > 5, "{again:?}");
    }
}
