//! Histogram of durations: counted by one thread, read by any, without a lock.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Unit: milliseconds. Upper bound of each class; the last one has none.
const CLASSES_MS: [u64; 11] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000];

/// Times, by class.
#[derive(Debug, Default)]
pub struct Histogram {
    classes: [AtomicU64; CLASSES_MS.len() + 1],
    /// Unit: microseconds. Sum of all.
    sum_us: AtomicU64,
}

impl Histogram {
    /// Counts a time.
    pub fn observe(&self, time: Duration) {
        let place = CLASSES_MS.iter().position(|ms| time <= Duration::from_millis(*ms));
        if let Some(class) = self.classes.get(place.unwrap_or(CLASSES_MS.len())) {
            class.fetch_add(1, Relaxed);
        }
        self.sum_us.fetch_add(u64::try_from(time.as_micros()).unwrap_or(0), Relaxed);
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.classes.iter().map(|class| class.load(Relaxed)).sum()
    }
}

impl EncodeMetric for &Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let ends = CLASSES_MS.iter().map(|ms| *ms as f64 / 1000.0).chain([f64::MAX]);
        let counts = self.classes.iter().map(|class| class.load(Relaxed));
        let classes: Vec<_> = ends.zip(counts).collect();
        let count = classes.iter().map(|(_, count)| count).sum();
        let sum = self.sum_us.load(Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &classes, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_one_class() {
        let histogram = Histogram::default();
        for ms in [0, 1, 2, 3, 5000, 5001] {
            histogram.observe(Duration::from_millis(ms));
        }
        let classes: Vec<_> = histogram.classes.iter().map(|class| class.load(Relaxed)).collect();
        assert_eq!(classes, [2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(histogram.count(), 6);
    }
}
