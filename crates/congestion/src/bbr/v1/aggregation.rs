//! How much more arrives in one acknowledgement than the measured rate explains.
//!
//! A path that aggregates acknowledgements and delivers them in batches has gaps, in which a window
//! of two products runs out. The bytes acknowledged in excess are added to the window.

use midhop_units::{Duration, Instant, Rate};

/// The window of the maximum: at least so many rounds, at most twice as many.
const ROUNDS: u32 = 5;
/// The excess counts up to the bytes that the rate carries in this time.
const MAX: Duration = Duration::from_ms(100);

/// The excess over the measured rate, and its recent maximum. Unit: bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Aggregation {
    since: Instant,
    acked: u64,
    /// The largest in this window of rounds and in the one before.
    largest: [u64; 2],
    rounds: u32,
}

impl Aggregation {
    /// Starts comparing at `now`.
    pub fn restart(&mut self, now: Instant) {
        self.since = now;
        self.acked = 0;
    }

    /// A round trip has begun.
    pub fn on_round(&mut self) {
        self.rounds += 1;
        if self.rounds >= ROUNDS {
            self.rounds = 0;
            self.largest = [0, self.largest[0]];
        }
    }

    /// `acked` more bytes have arrived on a path of `bandwidth`, with a window of `cwnd`.
    pub fn on_ack(&mut self, now: Instant, acked: u64, bandwidth: Rate, cwnd: u64) {
        let mut expected = bandwidth.bytes_in(now.saturating_since(self.since)).get();
        if self.acked <= expected {
            self.restart(now);
            expected = 0;
        }
        self.acked = self.acked.saturating_add(acked);
        let excess = self.acked.saturating_sub(expected).min(cwnd);
        self.largest[0] = self.largest[0].max(excess);
    }

    /// The amount to add to the window.
    pub fn bonus(&self, bandwidth: Rate) -> u64 {
        let [current, previous] = self.largest;
        current.max(previous).min(bandwidth.bytes_in(MAX).get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 Mbit/s: 1000 bytes each millisecond.
    const RATE: Rate = Rate::from_mbit_per_s(8);

    /// Acknowledges what arrives at that rate, once in so many milliseconds.
    fn every(gap_ms: u64, aggregation: &mut Aggregation) {
        for batch in 1..=200 / gap_ms {
            let now = Instant::START + Duration::from_ms(batch * gap_ms);
            aggregation.on_ack(now, gap_ms * 1000, RATE, 1_000_000);
        }
    }

    #[test]
    fn the_bonus_is_a_batch() {
        for gap_ms in [1, 10, 50] {
            let mut aggregation = Aggregation::default();
            every(gap_ms, &mut aggregation);
            assert_eq!(aggregation.bonus(RATE), gap_ms * 1000);
        }
        let mut aggregation = Aggregation::default();
        every(200, &mut aggregation);
        assert_eq!(aggregation.bonus(RATE), 100_000, "a tenth of a second at most");
    }

    #[test]
    fn the_bonus_is_forgotten_after_five_to_ten_rounds() {
        let mut aggregation = Aggregation::default();
        every(50, &mut aggregation);
        let mut rounds = 0;
        while aggregation.bonus(RATE) > 0 {
            aggregation.on_round();
            rounds += 1;
        }
        assert_eq!(rounds, 10);
    }
}
