//! How late packets left, in buckets that grow with the value.

use midhop_experiment::record::Lateness;
use midhop_units::Duration;

/// Buckets per power of two: a quantile is right to 1/32 of its value.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// Counts of lateness values. Recording is a shift and an increment.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        let buckets = (64 - STEP_BITS as usize + 1) * STEPS as usize;
        Self { counts: vec![0; buckets], total: 0, max: Duration::ZERO }
    }

    /// Counts one packet.
    pub(crate) fn record(&mut self, late: Duration) {
        self.counts[bucket(late.as_ns())] += 1;
        self.total += 1;
        self.max = self.max.max(late);
    }

    /// Median, 99th percentile and worst. Quantiles are the upper end of their bucket.
    pub(crate) fn summary(&self) -> Lateness {
        Lateness {
            packets: self.total,
            p50: self.quantile(50),
            p99: self.quantile(99),
            max: self.max,
            stood_still: Duration::ZERO,
        }
    }

    fn quantile(&self, percent: u64) -> Duration {
        let rank = (self.total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map_or(Duration::ZERO, |index| Duration::from_ns(upper_ns(index)).min(self.max))
    }
}

/// The bucket of a value: exact below [`STEPS`], then [`STEPS`] buckets per power of two.
fn bucket(ns: u64) -> usize {
    let shift = (64 - STEP_BITS).saturating_sub(1 + (ns | (STEPS - 1)).leading_zeros());
    let index = u64::from(shift) * STEPS + (ns >> shift);
    index as usize
}

/// The largest value in a bucket.
fn upper_ns(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * STEPS {
        return index;
    }
    let shift = index / STEPS - 1;
    let base = index - shift * STEPS;
    ((u128::from(base) + 1) << shift).saturating_sub(1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        let values = (0..64).flat_map(|bit| {
            let one = 1_u64 << bit;
            [one - 1, one, one + 1, one | (one >> 1), one | (one >> 3)]
        });
        for ns in values.chain([u64::MAX]) {
            let index = bucket(ns);
            assert!(index < Histogram::new().counts.len(), "{ns}");
            assert!(upper_ns(index) >= ns, "{ns} above its bucket's {}", upper_ns(index));
            assert!(upper_ns(index) - ns <= ns / STEPS, "{ns} in a wide bucket");
            assert!(index == 0 || upper_ns(index - 1) < ns, "{ns} belongs a bucket lower");
        }
    }

    #[test]
    fn quantiles_of_a_known_row() {
        let mut histogram = Histogram::new();
        for us in 1..=1000 {
            histogram.record(Duration::from_us(us));
        }
        let summary = histogram.summary();
        let near = |value: Duration, us: u64| {
            value >= Duration::from_us(us) && value <= Duration::from_us(us + us / 30)
        };
        assert_eq!(summary.packets, 1000);
        assert!(near(summary.p50, 500) && near(summary.p99, 990), "{summary:?}");
        assert_eq!(summary.max, Duration::from_us(1000));
        assert_eq!(Histogram::new().summary(), Lateness::default());
    }
}
