//! The mean of a few runs and its confidence interval.
//!
//! Differences and ratios have Welch's margins, as in `midhop compare`.

use crate::statistics::Summary;
use serde::Serialize;

/// The default confidence of an interval.
pub const LEVEL: f64 = 0.95;

/// A mean or another statistic of several runs, with its margin of error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the interval; zero without chance, none for a single run with chance.
    pub margin: Option<f64>,
    /// The number of runs.
    pub runs: usize,
    /// The samples; none for a value from several sets of samples.
    #[serde(skip)]
    samples: Option<Summary>,
    /// The confidence of the margin.
    #[serde(skip)]
    level: f64,
}

impl Estimate {
    /// The estimate from `samples` at a confidence of `level`; none without samples, or with one that is not finite.
    pub fn of(samples: &[f64], level: f64) -> Option<Self> {
        if samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let summary = Summary::of(samples)?;
        let margin = summary.margin(level);
        Some(Self {
            mean: summary.mean,
            margin,
            runs: summary.count,
            samples: Some(summary),
            level,
        })
    }

    /// The greatest of `samples`, with the margin against the mean of the greatest of as many
    /// samples; none without samples.
    pub(crate) fn greatest_of(samples: &[f64], level: f64) -> Option<Self> {
        let summary = Summary::of(samples)?;
        let margin = summary.margin_of_max(level);
        Some(Self { mean: summary.max, margin, runs: summary.count, samples: None, level })
    }

    /// The margin of a mean of `runs` runs that deviate as these do; zero where they do not
    /// deviate, or are too few.
    pub(crate) fn margin_of(self, runs: u32) -> f64 {
        let of_unit = |count: usize| {
            Summary { count, mean: 0.0, deviation: 1.0, min: 0.0, max: 0.0 }.margin(self.level)
        };
        let scale = of_unit(runs as usize).zip(of_unit(self.runs));
        let scale = scale.filter(|(_, own)| *own > 0.0).map_or(0.0, |(theirs, own)| theirs / own);
        self.margin.unwrap_or(0.0) * scale
    }

    /// The same without chance: every run gives it again.
    pub(crate) fn certain(self) -> Self {
        Self { margin: self.margin.or(Some(0.0)), ..self }
    }

    /// The ratio of this to that; none where one of them is zero.
    pub fn over(self, that: Self) -> Option<Self> {
        (that.mean > 0.0 && self.mean > 0.0).then(|| {
            let mean = self.mean / that.mean;
            // Relative to the means, errors of a ratio add up as those of a difference do.
            let margin = self.shares().margin_against(that.shares()).map(|margin| mean * margin);
            Self { mean, margin, runs: self.runs.min(that.runs), samples: None, ..self }
        })
    }

    /// The difference of this and that.
    pub(crate) fn minus(self, that: Self) -> Self {
        let (mean, margin) = (self.mean - that.mean, self.margin_against(that));
        Self { mean, margin, runs: self.runs.min(that.runs), samples: None, ..self }
    }

    /// The margin of the difference of both: after Welch, except where one is itself a ratio or a
    /// difference; then the margins are added in quadrature.
    fn margin_against(self, that: Self) -> Option<f64> {
        match (self.samples, that.samples) {
            _ if self.margin == Some(0.0) => that.margin,
            _ if that.margin == Some(0.0) => self.margin,
            (Some(these), Some(those)) => these.margin_against(&those, self.level),
            _ => self.margin.zip(that.margin).map(|(a, b)| a.hypot(b)),
        }
    }

    /// The same relative to its mean.
    fn shares(self) -> Self {
        let scaled = |it: Summary| Summary {
            mean: it.mean / self.mean,
            deviation: it.deviation / self.mean,
            min: it.min / self.mean,
            max: it.max / self.mean,
            ..it
        };
        Self {
            mean: 1.0,
            margin: self.margin.map(|margin| margin / self.mean),
            samples: self.samples.map(scaled),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_samples_give_the_textbook_interval() {
        // Mean 10, sample deviation sqrt(2.5), t(4) = 2.776: 2.776 · 1.5811 / sqrt(5) = 1.963.
        let estimate = Estimate::of(&[8.0, 9.0, 10.0, 11.0, 12.0], LEVEL).expect("finite samples");
        assert_eq!((estimate.mean, estimate.runs), (10.0, 5));
        let margin = estimate.margin.expect("five samples");
        assert!((margin - 1.963).abs() < 1e-3, "{margin}");
    }

    #[test]
    fn one_sample_has_no_interval_and_none_has_no_mean() {
        assert_eq!(Estimate::of(&[3.0], LEVEL).and_then(|estimate| estimate.margin), None);
        assert_eq!(Estimate::of(&[], LEVEL), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN], LEVEL), None);
    }
}
