//! The queue behind an agent, which the agent does not see: estimated from how long segments take to be acknowledged.
//!
//! A drop by a full queue is congestion, which the source must learn; a radio's loss is not. The best sign to tell
//! them apart is how much waited behind the agent when a lost segment was sent. That is taken from the segment sent
//! nearest to the lost one of all that have arrived.

use midhop_units::{Duration, Instant};

/// The shortest round trip is remembered for once to twice this time, because the path may change.
const LATELY: Duration = Duration::from_s(30);
/// A shorter wait shows no queue that matters: it may be jitter.
const QUEUEING_MIN: Duration = Duration::from_ms(10);
/// Disciplines that drop before a queue is full allow a standing queue of 5 (CoDel) to 15 ms (PIE).
const EMPTY_MAX: Duration = Duration::from_ms(3);
/// The least step of the estimate of the usual wait.
const STEP_MIN: Duration = Duration::from_us(20);
/// A loss is found by a few segments sent after it. One of them may be sent a round trip of the source later, when the
/// queue is empty again. So the segments before it are remembered too.
const SAMPLES: usize = 16;

/// How much waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Nothing, or so little that no queue would drop, and no more than usual: a short queue is full when more than
    /// that waits.
    Nothing,
    /// Something.
    Some,
    /// At least three quarters of the longest recent wait.
    Full,
}

/// The queue behind the agent, as the segments of one direction of a flow see it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The latest two round trips behind the agent.
    latest: [Duration; 2],
    /// The shortest since `since`, and in the period before.
    lately: [Option<Duration>; 2],
    since: Instant,
    /// The longest wait of segments, which shows what the queue can hold. It decays slowly, because a source that
    /// avoids a full queue does not see one.
    fullest: Duration,
    /// The usual wait: half of the segments wait longer.
    usual: Duration,
    /// When the latest arrived segments were sent, and how much waited then. A ring.
    seen: [Option<(Instant, Waits)>; SAMPLES],
    next: usize,
}

impl Queue {
    /// The segment sent at `sent` is acknowledged: returns how much waited when it was sent. `promptly`: its receiver
    /// did not delay the acknowledgement to wait for another segment.
    pub fn sample(&mut self, now: Instant, sent: Instant, promptly: bool) -> Waits {
        let rtt = now.saturating_since(sent);
        self.latest = [rtt, self.latest[0]];
        if now.saturating_since(self.since) >= LATELY {
            (self.lately, self.since) = ([None, self.lately[0]], now);
            self.fullest = self.fullest * 7 / 8;
        }
        self.lately[0] = Some(self.lately[0].map_or(rtt, |shortest| shortest.min(rtt)));
        let waits = self.waits();
        if promptly {
            self.fullest = self.fullest.max(waits);
        }
        let step = STEP_MIN.max(self.fullest / 128);
        self.usual =
            if waits > self.usual { self.usual + step } else { self.usual.saturating_sub(step) };
        let shortest = self.shortest();
        let waits = if waits > QUEUEING_MIN.max(shortest / 8) && waits * 4 >= self.fullest * 3 {
            Waits::Full
        } else if waits <= EMPTY_MAX.max(shortest / 64) && waits <= self.usual {
            Waits::Nothing
        } else {
            Waits::Some
        };
        self.seen[self.next] = Some((sent, waits));
        self.next = (self.next + 1) % SAMPLES;
        waits
    }

    /// How much waited at `moment`, by the segment that was sent nearest to it; none: no segment was sent within a
    /// round trip of it.
    pub fn at(&self, moment: Instant) -> Option<Waits> {
        let apart = |sent: Instant| sent.saturating_since(moment) + moment.saturating_since(sent);
        let seen = self.seen.iter().flatten().map(|(sent, waits)| (apart(*sent), *waits));
        let (apart, waits) = seen.min_by_key(|(apart, _)| *apart)?;
        (apart <= self.latest[0]).then_some(waits)
    }

    /// The present wait: what both of the latest two round trips exceed the shortest recent one by. A single packet is
    /// no queue.
    fn waits(&self) -> Duration {
        let [one, other] = self.latest;
        one.min(other).saturating_sub(self.shortest())
    }

    fn shortest(&self) -> Duration {
        self.lately.iter().flatten().min().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::START + Duration::from_ms(ms)
    }

    /// Samples in their order, each sent at so many milliseconds and in transit for so many.
    fn queue(samples: impl IntoIterator<Item = (u64, u64, bool)>) -> Queue {
        let mut queue = Queue::default();
        for (sent, took, promptly) in samples {
            queue.sample(at(sent + took), at(sent), promptly);
        }
        queue
    }

    #[test]
    fn a_queue_is_judged_by_what_it_was_of_late() {
        let mut queue = Queue::default();
        for (sent, took, waits) in [
            (0, 600, Waits::Nothing),
            // Less than an eighth of the round trip may be jitter.
            (1_000, 670, Waits::Some),
            (2_000, 900, Waits::Full),
            (3_000, 800, Waits::Some),
            (4_000, 830, Waits::Full),
            // Three quarters of what it held before, of which an eighth is forgotten in half a minute.
            (40_000, 800, Waits::Full),
            (40_500, 780, Waits::Some),
            (75_000, 600, Waits::Nothing),
            (76_000, 780, Waits::Full),
        ] {
            queue.sample(at(sent + took), at(sent), true);
            let seen = queue.sample(at(sent + 1 + took), at(sent + 1), true);
            assert_eq!(seen, waits, "{sent}");
        }
    }

    #[test]
    fn what_was_sent_nearest_decides() {
        // A burst that fills the queue, and another one a round trip of the source later, which finds it empty.
        let first = (0..10).map(|n| (n, 20 + 3 * n, true));
        let queue = queue(first.chain((200..203).map(|sent| (sent, 20, true))));
        assert_eq!(queue.at(at(10)), Some(Waits::Full), "the last of the first burst");
        assert_eq!(queue.at(at(203)), Some(Waits::Nothing));
        assert_eq!(queue.at(at(199)), Some(Waits::Nothing));
        assert_eq!(queue.at(at(100)), None, "nobody knows");
        assert_eq!(Queue::default().at(at(0)), None, "nobody knows");
    }

    #[test]
    fn what_a_receiver_waits_for_is_no_queue() {
        let full = |delayed: [(u64, u64, bool); 3]| {
            queue(delayed.into_iter().chain((300..304).map(|sent| (sent, 36, true)))).at(at(303))
        };
        let delayed = [(0, 20, true), (100, 60, false), (200, 60, false)];
        assert_eq!(full(delayed), Some(Waits::Full));
        // Taken for a queue of 40 ms, one of 16 would never seem full.
        assert_eq!(full(delayed.map(|(sent, took, _)| (sent, took, true))), Some(Waits::Some));
    }

    #[test]
    fn a_short_queue_that_is_full_is_not_taken_for_an_empty_one() {
        // Half of the time nothing waits, then more and more up to 4 ms, over and over.
        let saw = (0..400u64).map(|n| (n, 20 + (n % 10).saturating_sub(5), true));
        let queue = queue(saw);
        assert_eq!(queue.at(at(399)), Some(Waits::Some));
        assert_eq!(queue.at(at(394)), Some(Waits::Nothing));
    }
}
