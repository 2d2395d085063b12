//! Samples of a link over time, and their figures.

use super::grid::{self, Grid};
use midhop_path::Direction;
use midhop_path::recorded::{LossSample, Recording};
use midhop_units::Duration;
use serde::Serialize;

/// The bin of rates. Unit: seconds.
pub(super) const RATE_BIN_S: f64 = 0.02;
/// The interval of delay probes. Unit: seconds.
pub(super) const PROBE_S: f64 = 0.01;
/// Bins of a rate in a second, over whose mean the distribution is taken.
const SECOND: usize = 50;
/// Probes in 100 ms, over whose mean the distribution of delays is taken.
const TENTH: usize = 10;
/// The lags of the autocorrelation. Unit: seconds.
const LAGS_S: [usize; 6] = [1, 2, 3, 5, 10, 15];

/// A link over a time.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Seen {
    /// Unit: bit/s; one each [`RATE_BIN_S`].
    pub(super) rate: Vec<f64>,
    /// Unit: seconds, one way; one each [`PROBE_S`].
    pub(super) delay: Vec<f64>,
    pub(super) losses: Vec<LossSample>,
}

impl Seen {
    /// Several recordings of one link that begin together: each quantity comes from the first that
    /// has it.
    pub(super) fn of(recordings: &[Recording], direction: Direction) -> Self {
        let mut seen = Self::default();
        for recording in recordings {
            let rates = match direction {
                Direction::Up if !recording.up.is_empty() => &recording.up,
                _ => &recording.down,
            };
            if seen.rate.is_empty() {
                let end = rates.last().map_or(0.0, |it| it.end.as_s_f64());
                seen.rate = vec![0.0; (end / RATE_BIN_S) as usize];
                for sample in rates {
                    spread(
                        &mut seen.rate,
                        sample.begin.as_s_f64(),
                        sample.end.as_s_f64(),
                        sample.bit_per_s,
                    );
                }
            }
            if seen.delay.is_empty() {
                seen.delay = held(&recording.delays);
            }
            if seen.losses.is_empty() {
                seen.losses.clone_from(&recording.losses);
            }
        }
        // Only the time in which both were recorded is used.
        let ends: Vec<f64> =
            [seen.rate.len() as f64 * RATE_BIN_S, seen.delay.len() as f64 * PROBE_S]
                .into_iter()
                .filter(|end| *end > 0.0)
                .collect();
        let end = ends.into_iter().fold(f64::INFINITY, f64::min);
        if end.is_finite() {
            return seen.between(Duration::ZERO, Duration::from_s_f64(end));
        }
        seen
    }

    pub(super) fn span(&self) -> Duration {
        let rate = self.rate.len() as f64 * RATE_BIN_S;
        Duration::from_s_f64(rate.max(self.delay.len() as f64 * PROBE_S))
    }

    pub(super) fn between(&self, from: Duration, until: Duration) -> Self {
        let cut = |values: &[f64], step: f64| {
            let at = |time: Duration| ((time.as_s_f64() / step).round() as usize).min(values.len());
            values[at(from)..at(until)].to_vec()
        };
        let within = |it: &&LossSample| (from..until).contains(&it.at);
        Self {
            rate: cut(&self.rate, RATE_BIN_S),
            delay: cut(&self.delay, PROBE_S),
            losses: self.losses.iter().filter(within).copied().collect(),
        }
    }

    pub(super) fn has_rate(&self) -> bool {
        !self.rate.is_empty()
    }

    pub(super) fn has_delay(&self) -> bool {
        !self.delay.is_empty()
    }

    /// Whether it has rates, delays and losses.
    pub(super) fn has(&self) -> [bool; 3] {
        [self.has_rate(), self.has_delay(), self.losses().is_some()]
    }

    /// The share of packets that were lost.
    pub(super) fn losses(&self) -> Option<f64> {
        let sent: u64 = self.losses.iter().map(|it| it.sent).sum();
        let lost: u64 = self.losses.iter().map(|it| it.lost).sum();
        (sent > 0).then(|| lost as f64 / sent as f64)
    }

    /// Means over a second. Unit: bit/s.
    pub(super) fn seconds(&self) -> Vec<f64> {
        means(&self.rate, SECOND)
    }

    /// Means over a tenth of a second. Unit: seconds.
    pub(super) fn delays(&self) -> Vec<f64> {
        means(&self.delay, TENTH)
    }

    pub(super) fn grid(&self) -> Option<Grid> {
        grid::find(&means(&self.rate, SECOND / TENTH), &self.delays())
    }

    pub(super) fn portrait(&self) -> Portrait {
        Portrait::of(std::slice::from_ref(self))
    }

    pub(super) fn curves(&self) -> Curves {
        Curves::of(std::slice::from_ref(self))
    }
}

/// Adds a rate that held from one time to another to the bins.
fn spread(bins: &mut [f64], from: f64, until: f64, rate: f64) {
    let mut bin = (from / RATE_BIN_S) as usize;
    while bin < bins.len() && (bin as f64) * RATE_BIN_S < until {
        let begin = bin as f64 * RATE_BIN_S;
        let share = (until.min(begin + RATE_BIN_S) - from.max(begin)).max(0.0) / RATE_BIN_S;
        bins[bin] += rate * share;
        bin += 1;
    }
}

/// The delay at each probe: the last one known by then.
fn held(delays: &[(Duration, Duration)]) -> Vec<f64> {
    let Some((end, _)) = delays.last() else { return Vec::new() };
    let count = (end.as_s_f64() / PROBE_S) as usize + 1;
    let mut at = 0;
    (0..count)
        .map(|probe| {
            // Half a step of tolerance: a sample of 10 ms belongs to its own probe.
            let time = (probe as f64 + 0.5) * PROBE_S;
            while at + 1 < delays.len() && delays[at + 1].0.as_s_f64() <= time {
                at += 1;
            }
            delays[at].1.as_s_f64()
        })
        .collect()
}

pub(super) fn means(values: &[f64], count: usize) -> Vec<f64> {
    values.chunks_exact(count).map(|chunk| chunk.iter().sum::<f64>() / count as f64).collect()
}

/// Statistics of a link over a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Portrait {
    /// The rate: means over a second. Unit: bit/s. None if no rate is known.
    pub rate_bit_per_s: Option<Distribution>,
    /// The difference between the mean of one second and that of the previous second. Unit: bit/s.
    pub rate_change_bit_per_s: Option<Distribution>,
    /// The delay, one way: means over 100 ms. Unit: seconds. None if no delay is known.
    pub delay_s: Option<Distribution>,
    /// The difference between the mean of 100 ms and that of the previous 100 ms. Unit: seconds.
    pub delay_change_s: Option<Distribution>,
    /// Packets that were lost; none if they were not counted.
    pub loss: Option<LossFigures>,
    /// The grid of 15 s on which it steps; none if it has none.
    pub grid: Option<Grid>,
    /// Autocorrelation of the rate, means over a second.
    pub rate_autocorrelation: Vec<Lag>,
    /// Autocorrelation of the delay, means over a second.
    pub delay_autocorrelation: Vec<Lag>,
}

/// Quantiles and the mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// The 5th percentile.
    pub p05: f64,
    /// The 25th percentile.
    pub p25: f64,
    /// The median.
    pub p50: f64,
    /// The 75th percentile.
    pub p75: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The largest.
    pub max: f64,
}

/// Packets that were lost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LossFigures {
    /// Packets of which it is known whether they arrived.
    pub sent: u64,
    /// Those of them that were lost.
    pub lost: u64,
    /// Their share. Range: 0 to 1.
    pub loss_ratio: f64,
}

/// Autocorrelation at one lag.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lag {
    /// The lag.
    pub lag_s: f64,
    /// The correlation. Range: −1 to 1.
    pub correlation: f64,
}

impl Distribution {
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |share: f64| quantile(&sorted, share);
        Some(Self {
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            min: sorted[0],
            p05: at(0.05),
            p25: at(0.25),
            p50: at(0.5),
            p75: at(0.75),
            p95: at(0.95),
            max: sorted[last],
        })
    }
}

/// A quantile of sorted values, interpolated between two.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = share * last as f64;
    let below = place as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

impl Portrait {
    /// The figures of several samples of one kind together.
    pub(super) fn of(seen: &[Seen]) -> Self {
        let together = |values: &dyn Fn(&Seen) -> Vec<f64>| {
            Distribution::of(&seen.iter().flat_map(values).collect::<Vec<f64>>())
        };
        let sent: u64 = seen.iter().flat_map(|it| &it.losses).map(|it| it.sent).sum();
        let lost: u64 = seen.iter().flat_map(|it| &it.losses).map(|it| it.lost).sum();
        let loss_ratio = lost as f64 / sent.max(1) as f64;
        Self {
            rate_bit_per_s: together(&Seen::seconds),
            rate_change_bit_per_s: together(&|it| changes(&it.seconds())),
            delay_s: together(&Seen::delays),
            delay_change_s: together(&|it| changes(&it.delays())),
            loss: (sent > 0).then_some(LossFigures { sent, lost, loss_ratio }),
            grid: Grid::together(seen.iter().filter_map(Seen::grid).collect()),
            rate_autocorrelation: lags(seen, &Seen::seconds),
            delay_autocorrelation: lags(seen, &|it| means(&it.delay, SECOND * 2)),
        }
    }
}

/// The changes from each value to the next.
pub(super) fn changes(values: &[f64]) -> Vec<f64> {
    values.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// The mean autocorrelation of several samples, at the lags that each covers twice.
pub(super) fn lags(seen: &[Seen], values: &dyn Fn(&Seen) -> Vec<f64>) -> Vec<Lag> {
    let all: Vec<Vec<f64>> = seen.iter().map(values).collect();
    LAGS_S
        .into_iter()
        .filter(|lag| all.iter().all(|values| values.len() >= 2 * lag) && !all.is_empty())
        .map(|lag| {
            let sum: f64 = all.iter().map(|values| autocorrelation(values, lag)).sum();
            Lag { lag_s: lag as f64, correlation: sum / all.len() as f64 }
        })
        .collect()
}

/// The correlation of values with those `lag` later; 1 for a constant.
fn autocorrelation(values: &[f64], lag: usize) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let square: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    if square <= f64::EPSILON * mean * mean * values.len() as f64 {
        return 1.0;
    }
    let product: f64 =
        values.iter().zip(&values[lag..]).map(|(one, other)| (one - mean) * (other - mean)).sum();
    product / square
}

/// The curves of pictures.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curves {
    /// Quantiles of the rate's means over a second, from the smallest to the largest. Unit: bit/s.
    /// Shape: `[share]`, 101 or none.
    pub rate: Vec<f64>,
    /// Quantiles of the delay's means over 100 ms. Unit: seconds.
    pub delay: Vec<f64>,
    /// The rate of one recording or run, second by second. Unit: bit/s.
    pub seconds: Vec<f64>,
    /// The delay of one recording or run, for each 100 ms. Unit: seconds.
    pub tenths: Vec<f64>,
}

impl Curves {
    pub(super) fn of(seen: &[Seen]) -> Self {
        let quantiles = |values: &dyn Fn(&Seen) -> Vec<f64>| {
            let mut sorted: Vec<f64> = seen.iter().flat_map(values).collect();
            sorted.sort_by(f64::total_cmp);
            if sorted.is_empty() {
                return sorted;
            }
            (0..=100).map(|percent| quantile(&sorted, f64::from(percent) / 100.0)).collect()
        };
        let first = seen.first();
        Self {
            rate: quantiles(&Seen::seconds),
            delay: quantiles(&Seen::delays),
            seconds: first.map(Seen::seconds).unwrap_or_default(),
            tenths: first.map(Seen::delays).unwrap_or_default(),
        }
    }
}
