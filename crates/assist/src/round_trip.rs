//! An agent's own estimate of the round trip behind it.
//!
//! Source: RFC 6298 §2, with its gains. The smallest sample is kept too: an answer that is faster than that
//! answers an earlier transmission (RFC 8985 §6.2).

use midhop_units::Duration;

/// A smoothed round trip.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Duration>,
    variance: Duration,
    minimum: Option<Duration>,
}

impl RoundTrip {
    pub fn sample(&mut self, rtt: Duration) {
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

    /// How long to wait for an answer, but at least `floor`; none before the first sample.
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
            rtt.sample(Duration::from_ms(sample));
            assert_eq!(rtt.timeout(Duration::ZERO), Some(Duration::from_ms(timeout)));
        }
        assert_eq!(rtt.timeout(Duration::from_s(2)), Some(Duration::from_s(2)));
        assert_eq!(rtt.minimum(), Some(Duration::from_ms(600)));
    }
}
