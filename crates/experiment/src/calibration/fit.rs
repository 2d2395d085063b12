//! Fits a link to a recording.

use super::grid::{Grid, PERIOD_S};
use super::portrait::{RATE_BIN_S, Seen, quantile};
use midhop_path::DirectionSpec;
use midhop_path::delay::LinkDelay;
use midhop_path::loss::{LossSpec, LossSpecs};
use midhop_path::queue::QueueSpec;
use midhop_path::rate::LinkRate;
use midhop_path::reconfiguration::ReconfigurationSpec;
use midhop_path::switch::Switch;
use midhop_units::{Duration, Loss, Number, Rate};
use serde::Serialize;

/// A break has a rate below this share of the median rate.
const BREAK_SHARE: f64 = 0.2;
/// The maximum distance of a break's beginning from a boundary. Unit: bins of the rate.
const NEAR: usize = 25;
/// The length of a grid's slot. A slot whose beginning was not recorded is left out.
const SLOT_TENTHS: usize = 150;

/// The keys of a link whose values are drawn anew every 15 s, as they follow from a recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fit {
    /// The median of the slots' rates.
    #[serde(rename = "rate_bit_per_s", with = "Number::<Rate>")]
    pub rate: Rate,
    /// The shortest delay of a slot, one way; none if no delay was recorded.
    #[serde(rename = "delay_s", with = "Number::<Option<Duration>>")]
    pub delay: Option<Duration>,
    /// The additional delay of the slowest slot.
    #[serde(rename = "added_delay_max_s", with = "Number::<Duration>")]
    pub added_delay_max: Duration,
    /// The time of the first boundary; none if no grid was found.
    #[serde(rename = "first_s", with = "Number::<Option<Duration>>")]
    pub first: Option<Duration>,
    /// The standard deviation of the logarithm of the slots' rates.
    pub rate_sigma: f64,
    /// The smallest rate of a slot, divided by the median.
    pub rate_factor_min: f64,
    /// The largest rate of a slot, divided by the median.
    pub rate_factor_max: f64,
    /// The shortest break at a boundary; zero if no break was seen.
    #[serde(rename = "interruption_min_s", with = "Number::<Duration>")]
    pub interruption_min: Duration,
    /// The longest break at a boundary; zero if no break was seen.
    #[serde(rename = "interruption_max_s", with = "Number::<Duration>")]
    pub interruption_max: Duration,
    /// The share of packets that were lost; none if they were not counted.
    pub loss_ratio: Option<f64>,
    /// The number of slots from which these values follow.
    pub slots: u32,
}

impl Fit {
    /// Fits a link to samples, on a grid where one was found; none without rates.
    pub(super) fn of(seen: &Seen, grid: Option<&Grid>) -> Option<Self> {
        let seconds = seen.seconds();
        if seconds.is_empty() {
            return None;
        }
        let tenths = super::portrait::means(&seen.rate, 5);
        let delays = seen.delays();
        let phase = grid.map(|grid| (grid.phase.as_s_f64() * 10.0).round() as usize);
        let slots = |values: &[f64]| -> Vec<f64> {
            let Some(phase) = phase else { return vec![median(values)] };
            // The slot before the first boundary counts if most of it was recorded.
            let begins = (phase % SLOT_TENTHS..values.len()).step_by(SLOT_TENTHS);
            let begins = std::iter::once(0).chain(begins);
            let slot = |begin: usize| {
                let end = if begin == 0 { phase % SLOT_TENTHS } else { begin + SLOT_TENTHS };
                let end = end.min(values.len());
                (end >= begin + SLOT_TENTHS / 3).then(|| median(&values[begin..end]))
            };
            begins.filter_map(slot).collect()
        };
        let mut rates = slots(&tenths);
        rates.sort_by(f64::total_cmp);
        let (&slowest, &fastest) = (rates.first()?, rates.last()?);
        let middle = quantile(&rates, 0.5);
        if middle <= 0.0 {
            return None;
        }
        let logarithms: Vec<f64> =
            rates.iter().map(|rate| libm::log((rate / middle).max(0.01))).collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
        let squares: f64 = logarithms.iter().map(|it| (it - mean).powi(2)).sum();
        let degrees = logarithms.len().saturating_sub(1).max(1) as f64;
        let held = slots(&delays);
        let shortest = held.iter().copied().reduce(f64::min);
        let longest = held.iter().copied().reduce(f64::max);
        let (interruption_min, interruption_max) = breaks(seen, grid, middle);
        Some(Self {
            rate: Rate::from_bits_per_s(middle as u64),
            delay: shortest.map(Duration::from_s_f64),
            added_delay_max: longest
                .zip(shortest)
                .map_or(Duration::ZERO, |(most, least)| Duration::from_s_f64(most - least)),
            first: grid.map(|grid| grid.phase),
            rate_sigma: libm::sqrt(squares / degrees),
            rate_factor_min: (slowest / middle).clamp(0.01, 1.0),
            rate_factor_max: (fastest / middle).clamp(1.0, 100.0),
            interruption_min,
            interruption_max,
            loss_ratio: seen.losses(),
            slots: u32::try_from(rates.len()).unwrap_or(u32::MAX),
        })
    }

    /// A constant link with the means of the samples; none without rates.
    pub(super) fn fixed(seen: &Seen) -> Option<DirectionSpec> {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let rate = Rate::from_bits_per_s(mean(&seen.seconds()) as u64);
        let delay = Duration::from_s_f64(mean(&seen.delays()));
        (rate > Rate::ZERO).then(|| spec(rate, Some(delay), seen.losses(), None))
    }

    /// The link's description.
    pub fn spec(&self) -> DirectionSpec {
        let slots = self.first.map(|first| ReconfigurationSpec {
            every: Some(Duration::from_s_f64(PERIOD_S)),
            first: Some(first),
            added_delay_max: Some(self.added_delay_max),
            rate_sigma: Some(self.rate_sigma.clamp(0.0, 3.0)),
            rate_factor_min: Some(self.rate_factor_min),
            rate_factor_max: Some(self.rate_factor_max),
            interruption_min: Some(self.interruption_min),
            interruption_max: Some(self.interruption_max),
            // A recorded delay that jumps and falls again shows that packets were held, not lost.
            lossy_share: Some(Loss::NONE),
        });
        spec(self.rate, self.delay, self.loss_ratio, slots)
    }

    /// The link in the form of a scenario.
    pub fn toml(&self) -> String {
        let mut text = format!("rate = \"{}\"\n", self.rate);
        if let Some(delay) = self.delay {
            text += &format!("delay = \"{delay}\"\n");
        }
        if let Some(first) = self.first {
            text += &format!(
                "reconfiguration = {{ every = \"15 s\", first = \"{first}\", added_delay_max = \"{}\", rate_sigma = {:.3}, \
                 rate_factor_min = {:.3}, rate_factor_max = {:.3}, interruption_min = \"{}\", interruption_max = \"{}\", \
                 lossy_share = 0 }}\n",
                self.added_delay_max,
                self.rate_sigma,
                self.rate_factor_min,
                self.rate_factor_max,
                self.interruption_min,
                self.interruption_max,
            );
        }
        if let Some(loss) = self.loss_ratio.filter(|loss| *loss > 0.0) {
            text += &format!("loss = {loss:.6}\n");
        }
        text
    }
}

fn spec(
    rate: Rate,
    delay: Option<Duration>,
    loss: Option<f64>,
    slots: Option<ReconfigurationSpec>,
) -> DirectionSpec {
    let loss = loss.and_then(Loss::new).filter(|loss| *loss > Loss::NONE);
    DirectionSpec {
        rate: Some(LinkRate::Constant(rate)),
        delay: delay.map(LinkDelay::Constant),
        queue: Some(QueueSpec::Time(Duration::from_ms(175))),
        loss: loss.map(|loss| {
            LossSpecs(vec![LossSpec { probability: Some(loss), ..LossSpec::default() }])
        }),
        reconfiguration: slots.map(Switch::On),
        ..DirectionSpec::default()
    }
}

/// The shortest and the longest time near a boundary in which almost nothing passed.
fn breaks(seen: &Seen, grid: Option<&Grid>, median: f64) -> (Duration, Duration) {
    let Some(grid) = grid else { return (Duration::ZERO, Duration::ZERO) };
    let period = (PERIOD_S / RATE_BIN_S).round() as usize;
    let phase = (grid.phase.as_s_f64() / RATE_BIN_S).round() as usize % period;
    let mut found: Vec<usize> = Vec::new();
    for boundary in (phase..seen.rate.len()).step_by(period) {
        let near = boundary.saturating_sub(NEAR)..(boundary + NEAR).min(seen.rate.len());
        let (mut run, mut longest) = (0, 0);
        for &rate in &seen.rate[near] {
            run = if rate < median * BREAK_SHARE { run + 1 } else { 0 };
            longest = longest.max(run);
        }
        found.push(longest);
    }
    let time = |bins: Option<&usize>| {
        bins.map_or(Duration::ZERO, |bins| Duration::from_s_f64(*bins as f64 * RATE_BIN_S))
    };
    (time(found.iter().min()), time(found.iter().max()))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}
