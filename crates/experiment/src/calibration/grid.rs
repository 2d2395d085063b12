//! The grid of 15 s on which constellations reassign satellites: how to detect it, and how large
//! its steps are.

use super::portrait::Distribution;
use midhop_units::{Duration, Number};
use serde::Serialize;

/// Time between reconfigurations. Unit: seconds.
pub(super) const PERIOD_S: f64 = 15.0;
/// Number of phases that are tried in one period: one each 100 ms.
const PHASES: usize = 150;
/// How much is compared on either side of a boundary, and how near to it. Unit: 100 ms.
const WINDOW: usize = 30;
const GUARD: usize = 3;
/// The minimum ratio of the steps on the grid to those at other times.
const SHARPNESS_MIN: f64 = 1.5;

/// A grid of 15 s, and the steps on it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Grid {
    /// The time of its first boundary after the beginning. Range: 0 to 15.
    #[serde(rename = "phase_s", with = "Number::<Duration>")]
    pub phase: Duration,
    /// The mean step at it over the median of those at all other phases. Range: ≥ 1.5.
    pub sharpness: f64,
    /// How many boundaries were seen.
    pub boundaries: u32,
    /// How much the rate changes there, up or down. Unit: bit/s.
    pub rate_step_bit_per_s: Option<Distribution>,
    /// How much the delay changes there, up or down. Unit: seconds.
    pub delay_step_s: Option<Distribution>,
    #[serde(skip)]
    pub(super) rate_steps: Vec<f64>,
    #[serde(skip)]
    pub(super) delay_steps: Vec<f64>,
}

/// Looks for a grid in rates and delays, which are means over 100 ms; none where no phase stands
/// out.
pub(super) fn find(rate: &[f64], delay: &[f64]) -> Option<Grid> {
    let scores: Vec<f64> = (0..PHASES)
        .map(|phase| score(rate, phase).unwrap_or(0.0) + score(delay, phase).unwrap_or(0.0))
        .collect();
    let (phase, best) =
        scores.iter().copied().enumerate().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let mut sorted = scores.clone();
    sorted.sort_by(f64::total_cmp);
    let usual = sorted[PHASES / 2];
    let sharpness = best / usual.max(f64::MIN_POSITIVE);
    if best <= 1e-6 || sharpness < SHARPNESS_MIN {
        return None;
    }
    // Neighbouring phases see much of the same step: the boundary is in the middle of those that
    // are nearly as good.
    let good: Vec<f64> = (0..PHASES)
        .filter_map(|at| {
            let offset = (at + PHASES - phase + PHASES / 2) % PHASES;
            let offset = offset as f64 - (PHASES / 2) as f64;
            (offset.abs() <= 5.0 && scores[at] >= best * 0.95).then_some(offset)
        })
        .collect();
    let middle = good.iter().sum::<f64>() / good.len().max(1) as f64;
    let phase_tenths = (phase as f64 + middle).rem_euclid(PHASES as f64);
    let rate_steps = steps(rate, phase_tenths.round() as usize % PHASES);
    let delay_steps = steps(delay, phase_tenths.round() as usize % PHASES);
    Some(Grid {
        phase: Duration::from_s_f64(phase_tenths / 10.0),
        sharpness,
        boundaries: u32::try_from(rate_steps.len().max(delay_steps.len())).unwrap_or(u32::MAX),
        rate_step_bit_per_s: Distribution::of(&rate_steps),
        delay_step_s: Distribution::of(&delay_steps),
        rate_steps,
        delay_steps,
    })
}

impl Grid {
    /// The steps of several grids together, with the phase of the first.
    pub(super) fn together(grids: Vec<Self>) -> Option<Self> {
        let first = grids.first()?;
        let rate_steps: Vec<f64> = grids.iter().flat_map(|it| it.rate_steps.clone()).collect();
        let delay_steps: Vec<f64> = grids.iter().flat_map(|it| it.delay_steps.clone()).collect();
        let sharpness = grids.iter().map(|it| it.sharpness).sum::<f64>() / grids.len() as f64;
        Some(Self {
            phase: first.phase,
            sharpness,
            boundaries: grids.iter().map(|it| it.boundaries).sum(),
            rate_step_bit_per_s: Distribution::of(&rate_steps),
            delay_step_s: Distribution::of(&delay_steps),
            rate_steps,
            delay_steps,
        })
    }
}

/// The mean step at a phase relative to the mean over all phases, so that rates and delays count
/// alike.
fn score(values: &[f64], phase: usize) -> Option<f64> {
    let found = steps(values, phase);
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    if found.is_empty() || mean <= 0.0 {
        return None;
    }
    Some(found.iter().map(|step| step.abs()).sum::<f64>() / found.len() as f64 / mean)
}

/// The change from the median before each boundary to the median after it.
fn steps(values: &[f64], phase: usize) -> Vec<f64> {
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        super::portrait::quantile(&sorted, 0.5)
    };
    let boundaries = (phase..values.len()).step_by(PHASES);
    let whole = boundaries.filter(|at| *at >= WINDOW && at + WINDOW <= values.len());
    whole
        .map(|at| {
            median(&values[at + GUARD..at + WINDOW]) - median(&values[at - WINDOW..at - GUARD])
        })
        .collect()
}
