//! Arithmetic on what was measured: rates, fairness, page loads, start-up, and how sure one may be.

use crate::record::{FlowResult, Series, TransferResult};
use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize};
use statrs::distribution::{Continuous, ContinuousCDF, Normal, StudentsT};

/// Goodput of several flows together: all their bytes, from the first start to the last end.
/// None without flows.
pub fn aggregate_goodput(flows: &[FlowResult]) -> Option<Rate> {
    let start = flows.iter().map(|flow| flow.start).min()?;
    let end = flows.iter().map(|flow| flow.end).max()?;
    let bytes = flows.iter().fold(Bytes::ZERO, |sum, flow| sum.saturating_add(flow.bytes));
    Some(Rate::of(bytes, end.saturating_sub(start)))
}

/// Effective over provisioned bandwidth of one TCP connection. Range: 0 to 1 in a correct run.
/// None where nothing is provisioned.
pub fn epb_ratio(goodput: Rate, provisioned: Rate) -> Option<f64> {
    (provisioned > Rate::ZERO)
        .then(|| goodput.bits_per_s() as f64 / provisioned.bits_per_s() as f64)
}

/// How evenly `shares` are spread: 1 when all are equal, 1/n when one has everything.
///
/// Source: R. Jain, D. Chiu, W. Hawe, DEC-TR-301 (1984). None without a share above zero.
pub fn jain_index(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The time from the first request (with its connection's handshake) to the last object's last byte.
/// None for what is no page or did not finish.
pub fn page_load_time(transfer: &TransferResult) -> Option<Duration> {
    let opened = transfer.flows.iter().map(|flow| flow.start).min();
    let asked = transfer.objects.iter().map(|object| object.start).min()?;
    let start = opened.map_or(asked, |opened| opened.min(asked));
    let end = transfer.objects.iter().map(|object| object.end).max()?;
    transfer.complete.then(|| end.saturating_sub(start))
}

/// How long after `start` a goodput series first reaches `share` of `capacity` (in the series' unit) and
/// does so in the next sample too, so that a lone burst does not count; the last sample counts alone.
/// None when it never does.
pub fn start_up_time(
    goodput: &Series,
    start: Duration,
    capacity: f64,
    share: f64,
) -> Option<Duration> {
    let wanted = capacity * share;
    let reached = |at: usize| goodput.value.get(at).is_none_or(|&value| value >= wanted);
    let first = (0..goodput.value.len()).find(|&at| reached(at) && reached(at + 1))?;
    goodput.time_s.get(first).map(|&s| Duration::from_s_f64(s).saturating_sub(start))
}

/// The `share` quantile (0 to 1), interpolated between the two nearest samples. None without
/// samples, or with one that is not a number.
pub fn percentile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    if sorted.is_empty() || sorted.iter().any(|sample| sample.is_nan()) {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let position = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(low + (high - low) * position.fract())
}

/// The middle sample, or the mean of the two middle ones.
pub fn median(samples: &[f64]) -> Option<f64> {
    percentile(samples, 0.5)
}

/// Several measurements of the same thing, in short.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their sample standard deviation (n − 1); zero for a single one.
    pub deviation: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    /// Sums up `samples`; none without samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let count = samples.len();
        let mean = samples.iter().sum::<f64>() / count as f64;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        (count > 0).then(|| Self {
            count,
            mean,
            deviation,
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            max: samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// By how much the mean may be off either way at a confidence of `level` (0.95, 0.98), by
    /// Student's t. None with fewer than two samples or a level outside 0 to 1.
    pub fn margin(&self, level: f64) -> Option<f64> {
        if self.count < 2 || !(0.0..1.0).contains(&level) {
            return None;
        }
        let distribution = StudentsT::new(0.0, 1.0, (self.count - 1) as f64).ok()?;
        let t = distribution.inverse_cdf(0.5 + level / 2.0);
        Some(t * self.deviation / (self.count as f64).sqrt())
    }

    /// By how much the greatest may be off either way from what the greatest of as many is in the mean, at a
    /// confidence of `level`, by Student's t, as if samples were distributed normally. None with fewer than two
    /// samples or a level outside 0 to 1.
    pub fn margin_of_max(&self, level: f64) -> Option<f64> {
        let of_one = self.margin(level)? * (self.count as f64).sqrt();
        Some(of_one * deviation_of_max(self.count)?)
    }

    /// By how much the difference of this mean and `other`'s may be off either way at a confidence of
    /// `level`. Where one of them is of a single sample, the deviation of the other stands for both. None
    /// where both are, or with a level outside 0 to 1.
    ///
    /// Source: B. L. Welch, Biometrika 34 (1947); degrees of freedom of F. E. Satterthwaite (1946).
    pub fn margin_against(&self, other: &Self, level: f64) -> Option<f64> {
        let counts = [self.count as f64, other.count as f64];
        let (error, freedom) = match (self.count, other.count) {
            (0, _) | (_, 0) | (1, 1) => return None,
            (1, _) | (_, 1) => {
                let deviation = self.deviation.max(other.deviation);
                let error = deviation * (1.0 / counts[0] + 1.0 / counts[1]).sqrt();
                (error, counts[0] + counts[1] - 2.0)
            }
            _ => {
                let parts =
                    [self.deviation.powi(2) / counts[0], other.deviation.powi(2) / counts[1]];
                let sum = parts[0] + parts[1];
                let below =
                    parts[0].powi(2) / (counts[0] - 1.0) + parts[1].powi(2) / (counts[1] - 1.0);
                // Without any spread the margin is zero, whatever the degrees of freedom.
                (sum.sqrt(), if below > 0.0 { sum.powi(2) / below } else { 1.0 })
            }
        };
        let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
        (0.0..1.0).contains(&level).then(|| student.inverse_cdf(0.5 + level / 2.0) * error)
    }
}

/// The standard deviation of the greatest of `count` draws from the standard normal distribution.
///
/// Source: H. A. David, H. N. Nagaraja, Order Statistics (2003), §3.1: moments by integration over the density
/// of the greatest, n φ(x) Φ(x)ⁿ⁻¹.
fn deviation_of_max(count: usize) -> Option<f64> {
    const STEP: f64 = 0.01;
    let normal = Normal::new(0.0, 1.0).ok()?;
    let n = count as f64;
    let (mut first, mut second) = (0.0, 0.0);
    // Beyond nine deviations nothing is left that a sum would notice.
    for step in -900..900 {
        let x = (f64::from(step) + 0.5) * STEP;
        let share = n * normal.pdf(x) * normal.cdf(x).powf(n - 1.0) * STEP;
        first += x * share;
        second += x * x * share;
    }
    (count > 0).then(|| (second - first * first).max(0.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_difference_of_means_has_welchs_margin() {
        let one = Summary::of(&[27.5, 21.0, 19.0, 23.6, 17.0, 17.9]).expect("samples");
        let other = Summary::of(&[27.1, 22.0, 20.8, 23.4, 23.4, 23.5]).expect("samples");
        // Variances 15.72 and 4.48: error sqrt((15.72 + 4.48) / 6) = 1.835, 7.64 degrees, t = 2.325.
        let margin = one.margin_against(&other, 0.95);
        near(margin, 2.325 * 1.835, 0.002);
        near(other.margin_against(&one, 0.95), margin.expect("a margin"), 1e-12);
        let single = Summary::of(&[20.0]).expect("a sample");
        // t(5) = 2.571, deviation 3.965.
        near(one.margin_against(&single, 0.95), 2.571 * 3.965 * (7.0f64 / 6.0).sqrt(), 0.005);
        assert_eq!(single.margin_against(&single, 0.95), None);
        let still = Summary::of(&[5.0, 5.0]).expect("samples");
        assert_eq!(still.margin_against(&still, 0.95), Some(0.0));
    }

    #[track_caller]
    fn near(got: Option<f64>, wanted: f64, tolerance: f64) {
        assert!(got.is_some_and(|got| (got - wanted).abs() <= tolerance), "{got:?}, not {wanted}");
    }

    #[test]
    fn jain_vectors() {
        near(jain_index(&[1.0, 1.0, 1.0, 1.0]), 1.0, 1e-12);
        near(jain_index(&[1.0, 0.0, 0.0, 0.0]), 0.25, 1e-12);
        near(jain_index(&[4.0, 3.0, 2.0, 1.0]), 0.8333, 5e-5);
        near(jain_index(&[10.0, 10.0, 1.0]), 0.7313, 5e-5);
        assert_eq!((jain_index(&[]), jain_index(&[0.0])), (None, None));
    }

    #[test]
    fn quantiles_interpolate() {
        let samples = [15.0, 20.0, 35.0, 40.0, 50.0];
        near(median(&samples), 35.0, 0.0);
        near(percentile(&samples, 0.4), 29.0, 1e-12);
        near(percentile(&samples, 0.0), 15.0, 0.0);
        near(percentile(&samples, 1.0), 50.0, 0.0);
        near(median(&[2.0, 1.0]), 1.5, 0.0);
        assert_eq!((median(&[]), median(&[1.0, f64::NAN])), (None, None));
    }

    #[test]
    fn confidence_follows_student() {
        // Tables of Student's t: 4 degrees of freedom, two-sided 95 % 2.776, 98 % 3.747;
        // 19 degrees, 98 % 2.539.
        let five = Summary::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((five.mean, five.min, five.max), (3.0, 1.0, 5.0));
        let error = (2.5f64 / 5.0).sqrt();
        near(five.margin(0.95), 2.776 * error, 5e-4);
        near(five.margin(0.98), 3.747 * error, 5e-4);
        let twenty: Vec<f64> = (0..20).map(f64::from).collect();
        near(Summary::of(&twenty).unwrap().margin(0.98), 2.539 * 35f64.sqrt() / 20f64.sqrt(), 2e-3);
        assert_eq!(Summary::of(&[1.0]).unwrap().margin(0.95), None);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn the_greatest_of_several_varies_less_than_one() {
        // D. Teichroew, Ann. Math. Statist. 27 (1956): variances of the greatest of 2, 5, 10 and 20.
        for (count, variance) in
            [(1, 1.0), (2, 0.68169), (5, 0.44753), (10, 0.34434), (20, 0.27568)]
        {
            near(deviation_of_max(count).map(|it| it * it), variance, 2e-5);
        }
        let five = Summary::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("samples");
        near(five.margin_of_max(0.95), 2.776 * 2.5f64.sqrt() * 0.44753f64.sqrt(), 1e-3);
        let single = Summary::of(&[1.0]).expect("a sample");
        assert_eq!((single.margin_of_max(0.95), deviation_of_max(0)), (None, None));
    }

    #[test]
    fn start_up_ignores_a_lone_burst() {
        let series = |value: &[f64]| Series {
            quantity: "goodput".into(),
            place: "file".into(),
            flow: None,
            unit: "Mbit/s".into(),
            time_s: (1..=value.len()).map(|n| n as f64 * 0.5).collect(),
            value: value.to_vec(),
        };
        let start_up_time = |series: &Series, capacity, share| {
            start_up_time(series, Duration::ZERO, capacity, share)
        };
        let risen = series(&[1.0, 19.0, 2.0, 10.0, 18.5, 19.0]);
        assert_eq!(start_up_time(&risen, 20.0, 0.9), Some(Duration::from_ms(2500)));
        assert_eq!(start_up_time(&series(&[1.0, 19.0]), 20.0, 0.9), Some(Duration::from_s(1)));
        assert_eq!(start_up_time(&series(&[1.0, 2.0]), 20.0, 0.9), None);
        assert_eq!(start_up_time(&series(&[]), 20.0, 0.9), None);
    }

    #[test]
    fn epb_is_a_share_of_what_is_sold() {
        near(epb_ratio(Rate::from_mbit_per_s(5), Rate::from_mbit_per_s(10)), 0.5, 0.0);
        assert_eq!(epb_ratio(Rate::from_mbit_per_s(5), Rate::ZERO), None);
    }

    proptest! {
        #[test]
        fn jain_lies_between_its_ends(shares in proptest::collection::vec(0.0..1e9f64, 1..50)) {
            if let Some(index) = jain_index(&shares) {
                let least = 1.0 / shares.len() as f64;
                prop_assert!((least - 1e-9..=1.0 + 1e-9).contains(&index));
            }
        }

        #[test]
        fn a_quantile_is_within_the_samples(
            samples in proptest::collection::vec(-1e9..1e9f64, 1..50),
            share in 0.0..=1.0f64,
        ) {
            let summary = Summary::of(&samples).unwrap();
            let quantile = percentile(&samples, share).unwrap();
            prop_assert!((summary.min..=summary.max).contains(&quantile));
        }
    }
}
