//! An agent's own estimate of the round trip behind it.
//!
//! Source: RFC 6298 §2, with its gains; the smallest sample is kept too, because what is answered
//! faster than that answers an earlier transmission (RFC 8985 §6.2).

use midhop_units::{Duration, Instant};

/// What was shortest before this and the same time again is no matter for the way as it is.
const LATELY: Duration = Duration::from_s(30);
/// Less than this waits in no queue that matters: it may be jitter.
const QUEUEING_MIN: Duration = Duration::from_ms(10);

/// A smoothed round trip.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Duration>,
    variance: Duration,
    minimum: Option<Duration>,
    latest: Duration,
    /// The shortest since `since`, and of the time before.
    lately: [Option<Duration>; 2],
    since: Instant,
    /// The most that a sample had beyond the shortest: what the queues behind the agent can hold. It is forgotten slowly, as
    /// who keeps out of a full queue does not see one.
    fullest: Duration,
}

impl RoundTrip {
    pub fn sample(&mut self, now: Instant, rtt: Duration) {
        self.latest = rtt;
        if now.saturating_since(self.since) >= LATELY {
            (self.lately, self.since) = ([None, self.lately[0]], now);
            self.fullest = self.fullest * 7 / 8;
        }
        self.lately[0] = Some(self.lately[0].map_or(rtt, |shortest| shortest.min(rtt)));
        self.fullest = self.fullest.max(self.waits());
        self.minimum = Some(self.minimum.map_or(rtt, |minimum| minimum.min(rtt)));
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.variance = rtt / 2;
            return;
        };
        let error = smoothed.saturating_sub(rtt).max(rtt.saturating_sub(smoothed));
        self.variance = (self.variance * 3 + error) / 4;
        self.smoothed = Some((smoothed * 7 + rtt) / 8);
    }

    pub fn minimum(&self) -> Option<Duration> {
        self.minimum
    }

    /// Whether a queue behind the agent is at least half as full as it has been, so that what gets lost now may have found
    /// no room there.
    pub fn is_queueing(&self) -> bool {
        let waits = self.waits();
        waits > QUEUEING_MIN.max(self.shortest() / 8) && waits * 2 >= self.fullest
    }

    /// What the latest sample has beyond the shortest of late.
    fn waits(&self) -> Duration {
        self.latest.saturating_sub(self.shortest())
    }

    fn shortest(&self) -> Duration {
        self.lately.iter().flatten().min().copied().unwrap_or(self.latest)
    }

    /// How long an answer is waited for, but never less than `floor`; none before the first sample.
    pub fn timeout(&self, floor: Duration) -> Option<Duration> {
        self.smoothed.map(|smoothed| (smoothed + self.variance * 4).max(floor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_gains_of_rfc_6298() {
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.timeout(Duration::ZERO), None);
        // 600: 600 + 4·300; 600 again: 600 + 4·225; 800: 625 + 4·218.75.
        for (sample, timeout) in [(600, 1800), (600, 1500), (800, 1500)] {
            rtt.sample(Instant::START, Duration::from_ms(sample));
            assert_eq!(rtt.timeout(Duration::ZERO), Some(Duration::from_ms(timeout)));
        }
        assert_eq!(rtt.timeout(Duration::from_s(2)), Some(Duration::from_s(2)));
        assert_eq!(rtt.minimum(), Some(Duration::from_ms(600)));
    }

    #[test]
    fn a_queue_is_judged_by_what_it_was_of_late() {
        let mut rtt = RoundTrip::default();
        let at = |s| Instant::START + Duration::from_s(s);
        assert!(!rtt.is_queueing());
        for (second, sample, queueing) in [
            (0, 600, false),
            // Less than an eighth of the way may be jitter.
            (1, 670, false),
            (2, 900, true),
            (3, 740, false),
            (4, 760, true),
            // Half of what it held before, of which an eighth is forgotten in half a minute.
            (40, 720, false),
            (75, 600, false),
            (76, 720, true),
        ] {
            rtt.sample(at(second), Duration::from_ms(sample));
            assert_eq!(rtt.is_queueing(), queueing, "{second}");
        }
        assert_eq!(rtt.minimum(), Some(Duration::from_ms(600)));
    }
}
