//! The mean of a few runs and how sure one may be of it.

use midhop_experiment::metrics::Summary;
use serde::Serialize;

/// The confidence of an interval where nobody says otherwise.
pub const LEVEL: f64 = 0.95;

/// A mean over seeds with its confidence interval, at [`LEVEL`] where nobody says otherwise.
///
/// Unit: that of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half the width of the interval: the true mean lies within `mean ± half_width` in so many
    /// experiments like this one as the confidence says. None for a single sample, which says nothing about spread.
    pub half_width: Option<f64>,
    /// Samples that went in.
    pub samples: usize,
}

impl Estimate {
    /// The estimate from `samples` at a confidence of 95 %; none of no samples, or of samples that are not finite.
    pub fn of(samples: &[f64]) -> Option<Self> {
        Self::at(samples, LEVEL)
    }

    /// The same at a confidence of `level`. Range: 0 to 1.
    pub fn at(samples: &[f64], level: f64) -> Option<Self> {
        if samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let summary = Summary::of(samples)?;
        Some(Self { mean: summary.mean, half_width: summary.margin(level), samples: summary.count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_samples_give_the_textbook_interval() {
        // Mean 10, sample deviation sqrt(2.5), t(4) = 2.776: 2.776 · 1.5811 / sqrt(5) = 1.963.
        let estimate = Estimate::of(&[8.0, 9.0, 10.0, 11.0, 12.0]).expect("finite samples");
        assert_eq!((estimate.mean, estimate.samples), (10.0, 5));
        let half = estimate.half_width.expect("five samples");
        assert!((half - 1.963).abs() < 1e-3, "{half}");
    }

    #[test]
    fn one_sample_has_no_interval_and_none_has_no_mean() {
        assert_eq!(Estimate::of(&[3.0]).and_then(|estimate| estimate.half_width), None);
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
    }
}
