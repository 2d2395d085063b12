//! Compares a recording of a link with a preset: the distance between the two, in one number and in
//! parts.
//!
//! Both are sampled in the same way ([`Portrait`]): rates as means over 20 ms, delays as probes
//! every 10 ms. All figures follow from these samples. A preset's samples come from its draws
//! ([`midhop_path::Drawn`]) and from probes over its link, for each seed. A recording's first half
//! is used to fit, its second half to judge.
//!
//! The distance of two distributions is the first Wasserstein distance, the area between their
//! quantile functions, relative to the recording's mean: the mean distance by which values must be
//! moved. It needs no bins, has a unit, and also grows where distributions do not overlap. The one
//! number is the mean of the parts.

mod compare;
mod fit;
mod grid;
mod model;
mod portrait;

pub use compare::Part;
pub use fit::Fit;
pub use grid::Grid;
pub use portrait::{Curves, Distribution, Lag, LossFigures, Portrait};

use compare::distance;
use midhop_path::presets::Preset;
use midhop_path::recorded::Recording;
use midhop_path::{Direction, ResolveError};
use midhop_units::{Duration, Number};
use portrait::Seen;
use serde::Serialize;

/// The version of the format below.
pub const CALIBRATION_SCHEMA: u32 = 1;
/// A shorter half has too few slots for a judgement.
const HALF_MIN: Duration = Duration::from_s(20);

/// What `midhop calibrate --json` prints: a recording compared with a preset.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Calibration {
    /// The version of this format.
    pub schema: u32,
    /// The preset that was compared with the recording.
    pub preset: String,
    /// Its direction, `down` or `up`.
    pub direction: String,
    /// How many seeds of each model were examined.
    pub seeds: u32,
    /// How long the recording lasts.
    #[serde(rename = "span_s", with = "Number::<Duration>")]
    pub span: Duration,
    /// When the second half begins: the models are compared with it.
    #[serde(rename = "judged_from_s", with = "Number::<Duration>")]
    pub judged_from: Duration,
    /// The whole recording.
    pub recording: Portrait,
    /// The second half.
    pub judge: Portrait,
    /// Each model and its distance from the second half, the nearest first.
    pub models: Vec<Model>,
    /// A link fitted to the first half; none where it has no rate.
    pub fit: Option<Fit>,
    /// What the recordings do not show, in sentences.
    pub unknown: Vec<String>,
    /// Curves for pictures.
    #[serde(skip)]
    pub curves: Vec<(String, Curves)>,
}

/// A model of the link.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Model {
    /// `preset`, `fitted` (to the first half), `fixed` (the means of the first half), or `first
    /// half` (as recorded).
    pub name: String,
    /// The mean of the parts: one number for the whole. Range: ≥ 0; 0: equal.
    pub distance: f64,
    /// The parts of which it is the mean.
    pub parts: Vec<Part>,
    /// Its statistics.
    pub portrait: Portrait,
}

/// Why nothing can be held against anything.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The recordings are too short.
    #[error("the recordings last {span}, and each half must last {HALF_MIN} or longer")]
    Short {
        /// How long they last.
        span: Duration,
    },
    /// The preset cannot be run.
    #[error("the preset cannot be run: {0}")]
    Preset(#[from] ResolveError),
}

impl CalibrationError {
    /// What the user can do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Short { .. } => {
                "record two minutes or more: each half should have four slots of 15 s"
            }
            Self::Preset(_) => "`midhop lab list` has the presets",
        }
    }
}

impl Calibration {
    /// The JSON Schema: every key and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> schemars::Schema {
        let settings = schemars::generate::SchemaSettings::default().for_serialize();
        settings.into_generator().into_root_schema_for::<Self>()
    }

    /// Compares `recordings` of one link, which begin together, with one direction of `preset`.
    ///
    /// # Errors
    /// When the recordings are too short.
    pub fn of(
        recordings: &[Recording],
        preset: &Preset,
        direction: Direction,
        seeds: u32,
    ) -> Result<Self, CalibrationError> {
        let seen = Seen::of(recordings, direction);
        let span = seen.span();
        let half = span / 2;
        if half < HALF_MIN {
            return Err(CalibrationError::Short { span });
        }
        let (first, second) = (seen.between(Duration::ZERO, half), seen.between(half, span));
        let judge = second.portrait();
        let grid = first.grid();
        let fit = Fit::of(&first, grid.as_ref());
        let own = match direction {
            Direction::Down => &preset.down,
            Direction::Up => &preset.up,
        };
        let what = seen.has();
        let mut candidates: Vec<(&str, Vec<Seen>)> =
            vec![("preset", model::realisations(own, direction, half, seeds, what)?)];
        let fixed = Fit::fixed(&first);
        for (name, spec) in [("fitted", fit.as_ref().map(Fit::spec)), ("fixed", fixed)] {
            if let Some(spec) = spec {
                let seen = model::realisations(&spec, direction, half, seeds, what)?;
                candidates.push((name, seen));
            }
        }
        candidates.push(("first half", vec![first]));
        let mut curves = vec![("recording".to_owned(), second.curves())];
        let mut models: Vec<Model> = Vec::new();
        for (name, seen) in candidates {
            let (distance, parts) = distance(&seen, &second);
            curves.push((name.to_owned(), Curves::of(&seen)));
            let portrait = Portrait::of(&seen);
            models.push(Model { name: name.to_owned(), distance, parts, portrait });
        }
        models.sort_by(|one, other| one.distance.total_cmp(&other.distance));
        Ok(Self {
            schema: CALIBRATION_SCHEMA,
            preset: preset.name.to_owned(),
            direction: direction.name().to_owned(),
            seeds,
            span,
            judged_from: half,
            recording: seen.portrait(),
            judge,
            models,
            unknown: unknown(recordings, &seen, grid.as_ref()),
            fit,
            curves,
        })
    }
}

/// The quantities that the recordings do not show.
fn unknown(recordings: &[Recording], seen: &Seen, grid: Option<&Grid>) -> Vec<String> {
    let mut all = Vec::new();
    let slots = seen.span().as_s_f64() / grid::PERIOD_S;
    all.push(format!(
        "{:.0} s are {slots:.0} slots of 15 s: how rates and delays of slots are distributed is guessed from so few, rare breaks are not seen, and \
         neither is the time of day, the weather, or another place",
        seen.span().as_s_f64()
    ));
    if !seen.has_rate() {
        all.push("no rate was recorded: the capacity and its steps are not judged".to_owned());
    } else {
        all.push(
            "a recorded rate is what a sender got: where it did not fill the link, or shared it, the link had more".to_owned(),
        );
    }
    if !seen.has_delay() {
        all.push("no delay was recorded: it is not judged".to_owned());
    } else if recordings.iter().any(|it| it.halved) {
        all.push(
            "delays are half of a round trip: how much of it each direction has is not known"
                .to_owned(),
        );
    }
    if seen.losses().is_none() {
        all.push("no losses were recorded: they are not judged, and the fit keeps none".to_owned());
    }
    if grid.is_none() {
        all.push("no grid of 15 s was found in it: the fit has no slots".to_owned());
    }
    let both = recordings.iter().any(|it| !it.down.is_empty())
        && recordings.iter().any(|it| !it.up.is_empty());
    if !both {
        all.push("the other direction was not recorded, nor what is common to both".to_owned());
    }
    all
}

#[cfg(test)]
mod tests;
