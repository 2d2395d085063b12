//! Several measurements of the same quantity: mean, spread, and confidence.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Continuous, ContinuousCDF, Normal, StudentsT};

/// A summary of several measurements of the same quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of measurements.
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
    /// Summarises `samples`; none without samples.
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

    /// The margin of error of the mean at a confidence of `level` (0.95, 0.98), by Student's t.
    /// None with fewer than two samples or a level outside 0 to 1.
    pub fn margin(&self, level: f64) -> Option<f64> {
        if self.count < 2 || !(0.0..1.0).contains(&level) {
            return None;
        }
        let distribution = StudentsT::new(0.0, 1.0, (self.count - 1) as f64).ok()?;
        let t = distribution.inverse_cdf(0.5 + level / 2.0);
        Some(t * self.deviation / (self.count as f64).sqrt())
    }

    /// The margin of the greatest against the mean of the greatest of as many samples, at a
    /// confidence of `level`, by Student's t, assuming normally distributed samples. None with
    /// fewer than two samples or a level outside 0 to 1.
    pub fn margin_of_max(&self, level: f64) -> Option<f64> {
        let of_one = self.margin(level)? * (self.count as f64).sqrt();
        Some(of_one * deviation_of_max(self.count)?)
    }

    /// The margin of the difference of this mean and `other`'s at a confidence of `level`. Where
    /// one of them is of a single sample, the deviation of the other is used for both. None where
    /// both are, or with a level outside 0 to 1.
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
    // Beyond nine deviations, nothing contributes to the sum.
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

    #[track_caller]
    fn near(got: Option<f64>, wanted: f64, tolerance: f64) {
        assert!(got.is_some_and(|got| (got - wanted).abs() <= tolerance), "{got:?}, not {wanted}");
    }

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
}
