//! The distance of a model from a recording.

use super::grid::Grid;
use super::portrait::{Seen, changes, lags, means, quantile};
use serde::Serialize;

/// One part of the distance.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Part {
    /// `rate`, `rate change`, `rate autocorrelation`, `rate step`, the same for the delay, or
    /// `loss`.
    pub quantity: String,
    /// For distributions: Wasserstein's distance, divided by the recording's mean of the rate or
    /// the delay. For autocorrelation: the mean difference over its lags. For losses: the
    /// difference of the shares. Range: ≥ 0.
    pub distance: f64,
}

/// What is compared.
struct Quantity {
    name: &'static str,
    /// Those of which the distribution is.
    values: fn(&Seen) -> Vec<f64>,
    /// Means over a second, of which the autocorrelation is.
    seconds: fn(&Seen) -> Vec<f64>,
    steps: fn(&Grid) -> &Vec<f64>,
}

/// The mean of all parts that both have, and the parts.
pub(super) fn distance(model: &[Seen], recording: &Seen) -> (f64, Vec<Part>) {
    let mut parts = Vec::new();
    let mut add = |quantity: &str, distance: Option<f64>| {
        if let Some(distance) = distance {
            parts.push(Part { quantity: quantity.to_owned(), distance });
        }
    };
    let own = std::slice::from_ref(recording);
    let quantities = [
        Quantity {
            name: "rate",
            values: Seen::seconds,
            seconds: Seen::seconds,
            steps: |grid| &grid.rate_steps,
        },
        Quantity {
            name: "delay",
            values: Seen::delays,
            seconds: |it| means(&it.delay, 100),
            steps: |grid| &grid.delay_steps,
        },
    ];
    for Quantity { name, values, seconds, steps } in quantities {
        let theirs = values(recording);
        let mean = theirs.iter().sum::<f64>() / theirs.len().max(1) as f64;
        if theirs.is_empty() || mean <= 0.0 {
            continue;
        }
        let ours: Vec<f64> = model.iter().flat_map(values).collect();
        add(name, wasserstein(&ours, &theirs).map(|it| it / mean));
        let ours: Vec<f64> = model.iter().flat_map(|it| changes(&values(it))).collect();
        let change = wasserstein(&ours, &changes(&theirs));
        add(&format!("{name} change"), change.map(|it| it / mean));
        let (ours, theirs) = (lags(model, &seconds), lags(own, &seconds));
        let both: Vec<f64> = ours
            .iter()
            .filter_map(|one| {
                let other = theirs.iter().find(|it| it.lag_s == one.lag_s)?;
                Some((one.correlation - other.correlation).abs())
            })
            .collect();
        let autocorrelation = both.iter().sum::<f64>() / both.len().max(1) as f64;
        add(&format!("{name} autocorrelation"), (!both.is_empty()).then_some(autocorrelation));
        if let Some(grid) = recording.grid() {
            // A model without a grid has no steps on one.
            let mut ours: Vec<f64> =
                model.iter().filter_map(Seen::grid).flat_map(|it| steps(&it).clone()).collect();
            if ours.is_empty() {
                ours.push(0.0);
            }
            let step = wasserstein(&ours, steps(&grid));
            add(&format!("{name} step"), step.map(|it| it / mean));
        }
    }
    let lost: Vec<f64> = model.iter().filter_map(Seen::losses).collect();
    if let Some(theirs) = recording.losses().filter(|_| !lost.is_empty()) {
        let ours = lost.iter().sum::<f64>() / lost.len() as f64;
        add("loss", Some((ours - theirs).abs()));
    }
    let mean = parts.iter().map(|part| part.distance).sum::<f64>() / parts.len().max(1) as f64;
    (mean, parts)
}

/// The area between two quantile functions; none where one has no values. Source: Vallender 1974
/// (one dimension).
pub(super) fn wasserstein(one: &[f64], other: &[f64]) -> Option<f64> {
    const SHARES: usize = 1000;
    let sorted = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let (one, other) = (sorted(one), sorted(other));
    if one.is_empty() || other.is_empty() {
        return None;
    }
    let sum: f64 = (0..SHARES)
        .map(|share| (share as f64 + 0.5) / SHARES as f64)
        .map(|share| (quantile(&one, share) - quantile(&other, share)).abs())
        .sum();
    Some(sum / SHARES as f64)
}
