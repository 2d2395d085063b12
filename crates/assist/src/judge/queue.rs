//! Whether a queue stands behind the agent, which it does not see: by how long segments take to be acknowledged.
//!
//! What overflows a queue is congestion, which is the source's to know; what a radio loses is not. What waited, behind the
//! agent, when the segment was sent that is nearest to a lost one and has arrived, tells them apart as far as anything does.

use midhop_units::{Duration, Instant};

/// What was shortest before this and the same time again is no matter for the way as it is.
const LATELY: Duration = Duration::from_s(30);
/// Less than this waits in no queue that matters: it may be jitter.
const QUEUEING_MIN: Duration = Duration::from_ms(10);
/// Disciplines that drop before a queue is full let 5 (CoDel) to 15 ms (PIE) stand.
const EMPTY_MAX: Duration = Duration::from_ms(3);
/// The least by which the estimate of what usually waits moves.
const STEP_MIN: Duration = Duration::from_us(20);
/// A loss is found by a few segments sent after it, of which one may be a round trip of the source later, when the queue is
/// empty again: those before it are remembered too.
const SAMPLES: usize = 16;

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Nothing, or so little that no queue would drop, and no more than usual: a short queue is full when more waits than that.
    Nothing,
    /// Something.
    Some,
    /// At least three quarters of what has waited of late.
    Full,
}

/// The queue behind the agent, as one direction of a flow meets it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The latest two round trips behind the agent.
    latest: [Duration; 2],
    /// The shortest since `since`, and of the time before.
    lately: [Option<Duration>; 2],
    since: Instant,
    /// The most that segments have waited: what the queue can hold. It is forgotten slowly, as who keeps out of a full queue
    /// does not see one.
    fullest: Duration,
    /// What waits usually: half of the segments wait longer.
    usual: Duration,
    /// When the latest segments were sent that have arrived, and what waited then. A ring.
    seen: [Option<(Instant, Waits)>; SAMPLES],
    next: usize,
}

impl Queue {
    /// What was sent at `sent` is acknowledged: what waited then. `promptly`: by a receiver that was not waiting for another segment to
    /// acknowledge with it.
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

    /// What waited at `moment`: what did when the segment was sent that is nearest to it; none where there was none within a
    /// round trip.
    pub fn at(&self, moment: Instant) -> Option<Waits> {
        let apart = |sent: Instant| sent.saturating_since(moment) + moment.saturating_since(sent);
        let seen = self.seen.iter().flatten().map(|(sent, waits)| (apart(*sent), *waits));
        let (apart, waits) = seen.min_by_key(|(apart, _)| *apart)?;
        (apart <= self.latest[0]).then_some(waits)
    }

    /// What both of the latest two have beyond the shortest of late: a queue does not stand for one packet.
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

    /// Samples one after the other, each sent at so many milliseconds and under way for so many.
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
            // Less than an eighth of the way may be jitter.
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
        // A burst that fills the queue, and the next, a round trip of the source later, which finds it empty.
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
