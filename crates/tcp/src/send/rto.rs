//! The round-trip time and the retransmission timeout from it.
//!
//! Source: RFC 6298 §2 and §5. As in Linux, the floor applies to the variance and not to the whole timeout
//! (net/ipv4/tcp_input.c); so a path whose delay steps causes no timeout.

use midhop_units::{Duration, Instant};

use crate::settings::RtoRule;

/// RFC 6298 §2.1.
pub(crate) const INITIAL: Duration = Duration::from_s(1);
/// How long a minimum of the round-trip time is valid; Linux' `tcp_min_rtt_wlen`.
const MIN_LIFETIME: Duration = Duration::from_s(300);

/// The smoothed round-trip time of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoundTrip {
    pub smoothed: Option<Duration>,
    variance: Duration,
    minimum: Option<(Duration, Instant)>,
    /// How often the timeout was doubled.
    pub backoff: u32,
}

impl RoundTrip {
    pub fn sample(&mut self, now: Instant, rtt: Duration) {
        // No clock is finer than its tick, and a round trip of zero would cause a division by zero.
        let rtt = rtt.max(Duration::from_ns(1));
        let expired = |at: Instant| now.saturating_since(at) > MIN_LIFETIME;
        if self.minimum.is_none_or(|(minimum, at)| rtt <= minimum || expired(at)) {
            self.minimum = Some((rtt, now));
        }
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variance = rtt / 2;
            }
            Some(smoothed) => {
                let error = smoothed.saturating_sub(rtt).max(rtt.saturating_sub(smoothed));
                self.variance = Duration::from_ns((self.variance.as_ns() * 3 + error.as_ns()) / 4);
                self.smoothed = Some(Duration::from_ns((smoothed.as_ns() * 7 + rtt.as_ns()) / 8));
            }
        }
    }

    pub fn minimum(&self) -> Option<Duration> {
        self.minimum.map(|(minimum, _)| minimum)
    }

    /// The timeout before any doubling.
    pub fn timeout(&self, rule: RtoRule) -> Duration {
        match (rule, self.smoothed) {
            (RtoRule::Fixed(timeout), _) => timeout,
            (_, None) => INITIAL,
            (RtoRule::Linux, Some(smoothed)) => {
                smoothed + (self.variance * 4).max(Duration::from_ms(200))
            }
            (RtoRule::Rfc6298, Some(smoothed)) => {
                (smoothed + (self.variance * 4).max(Duration::from_ms(1))).max(Duration::from_s(1))
            }
        }
    }

    /// The timeout after the doublings so far.
    pub fn backed_off(&self, rule: RtoRule) -> Duration {
        let longest = match rule {
            RtoRule::Linux => Duration::from_s(120),
            RtoRule::Rfc6298 | RtoRule::Fixed(_) => Duration::from_s(60),
        };
        let factor = 1_u64.checked_shl(self.backoff.min(20)).unwrap_or(1);
        Duration::from_ns(self.timeout(rule).as_ns().saturating_mul(factor)).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_rfc_6298() {
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.timeout(RtoRule::Rfc6298), Duration::from_s(1));
        for (sample, smoothed, variance, timeout) in
            [(600, 600.0, 300.0, 1800.0), (600, 600.0, 225.0, 1500.0), (800, 625.0, 218.75, 1500.0)]
        {
            rtt.sample(Instant::START, Duration::from_ms(sample));
            assert_eq!(rtt.smoothed.map(Duration::as_ms_f64), Some(smoothed));
            assert_eq!(rtt.variance.as_ms_f64(), variance);
            assert_eq!(rtt.timeout(RtoRule::Rfc6298).as_ms_f64(), timeout);
        }
        for (backoff, timeout) in [(1, 3), (2, 6), (5, 48), (6, 60), (40, 60)] {
            rtt.backoff = backoff;
            assert_eq!(rtt.backed_off(RtoRule::Rfc6298), Duration::from_s(timeout));
        }
    }

    #[test]
    fn linux_keeps_200_ms_over_the_round_trip() {
        let mut rtt = RoundTrip::default();
        for _ in 0..50 {
            rtt.sample(Instant::START, Duration::from_ms(20));
        }
        assert_eq!(rtt.timeout(RtoRule::Linux), Duration::from_ms(220));
        rtt.backoff = 30;
        assert_eq!(rtt.backed_off(RtoRule::Linux), Duration::from_s(120));
    }

    #[test]
    fn a_fixed_timeout_knows_no_round_trip() {
        let rule = RtoRule::Fixed(Duration::from_ms(700));
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.timeout(rule), Duration::from_ms(700));
        rtt.sample(Instant::START, Duration::from_s(2));
        rtt.backoff = 1;
        assert_eq!(rtt.backed_off(rule), Duration::from_ms(1400));
        rtt.backoff = 30;
        assert_eq!(rtt.backed_off(rule), Duration::from_s(60));
    }

    #[test]
    fn the_minimum_is_forgotten_in_time() {
        let mut rtt = RoundTrip::default();
        rtt.sample(Instant::START, Duration::from_ms(20));
        rtt.sample(Instant::START + Duration::from_s(299), Duration::from_ms(50));
        assert_eq!(rtt.minimum(), Some(Duration::from_ms(20)));
        rtt.sample(Instant::START + Duration::from_s(301), Duration::from_ms(60));
        assert_eq!(rtt.minimum(), Some(Duration::from_ms(60)));
    }
}
