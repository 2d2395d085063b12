//! An agent's own estimate of the round trip behind it.
//!
//! Source: RFC 6298 §2, with its gains; the smallest sample is kept too, because what is answered
//! faster than that answers an earlier transmission (RFC 8985 §6.2).

use midhop_units::{Duration, Instant};

/// What was shortest longer ago than this, and up to twice as long, says nothing of the way as it is.
const SHORTEST_FOR: Duration = Duration::from_s(30);

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
}

impl RoundTrip {
    pub fn sample(&mut self, now: Instant, rtt: Duration) {
        self.latest = rtt;
        if now.saturating_since(self.since) >= SHORTEST_FOR {
            (self.lately, self.since) = ([None, self.lately[0]], now);
        }
        self.lately[0] = Some(self.lately[0].map_or(rtt, |shortest| shortest.min(rtt)));
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

    /// By how much the latest sample is above the shortest of late: what waits in queues behind the agent.
    pub fn queueing(&self) -> Duration {
        let shortest = self.lately.iter().flatten().min();
        shortest.map_or(Duration::ZERO, |shortest| self.latest.saturating_sub(*shortest))
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
    fn what_waits_is_what_lasts_longer_than_the_shortest_of_late() {
        let mut rtt = RoundTrip::default();
        let at = |s| Instant::START + Duration::from_s(s);
        assert_eq!(rtt.queueing(), Duration::ZERO);
        for (second, sample, queueing) in [
            (0, 600, 0),
            (1, 750, 150),
            (29, 640, 40),
            (31, 900, 300),
            (59, 900, 300),
            (62, 910, 10),
        ] {
            rtt.sample(at(second), Duration::from_ms(sample));
            assert_eq!(rtt.queueing(), Duration::from_ms(queueing), "{second}");
        }
        assert_eq!(rtt.minimum(), Some(Duration::from_ms(600)));
    }
}
