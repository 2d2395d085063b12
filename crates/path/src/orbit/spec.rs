//! A constellation behind a link, as written and as resolved.

use crate::orbit::choice::{Choice, Chooser, Slots};
use crate::orbit::constellation::Constellation;
use crate::orbit::earth::Site;
use crate::orbit::journey::{self, Journey};
use crate::orbit::profile::Part;
use crate::orbit::refusal::{OrbitError, check_latitudes, why_apart};
use crate::orbit::sky::{Station, Way};
use crate::orbit::written::ConstellationSpec;
use crate::resolve::{DELAY_MAX, ResolveError, check_time, check_time_in};
use midhop_units::Duration;
use serde::{Deserialize, Serialize};

/// The default interval at which the sky is sampled.
const STEP: Duration = Duration::from_s(1);
/// The latest that a run may begin on the constellation's clock.
const START_MAX: Duration = Duration::from_s(366 * 24 * 3600);

/// `orbit = { … }` of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OrbitSpec {
    /// The constellation.
    pub constellation: ConstellationSpec,
    /// The place of the link's first node: the user's side.
    pub from: Site,
    /// The place of its second node.
    pub to: Site,
    /// The constellation's time when the run begins. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Duration>,
    /// The part of the path that the link represents. Default: the whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// How satellites are chosen. Default `keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
    /// The interval at which satellites are chosen anew, and only then; `"0 s"`: whenever one must
    /// be changed. Default: that of the constellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// When they are first chosen anew, after the run's beginning. Default: with `every`, after one
    /// such interval, otherwise as for the constellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Duration>,
    /// How long a handover interrupts a link to the ground. Default: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruption: Option<Duration>,
    /// Whether packets wait while there is no path, or are sent and lost. Default: lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<bool>,
    /// The interval at which the delay is computed. Default 1 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Duration>,
}

/// A constellation behind a link, resolved: every default visible.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrbitPlan {
    /// The preset's name, or a description of the table's constellation.
    pub constellation: String,
    /// Number of its satellites.
    pub satellites: u32,
    /// The place of the first node.
    pub from: Site,
    /// The place of the second node.
    pub to: Site,
    /// The constellation's time when the run begins.
    pub start: Duration,
    /// The part of the path that the link represents.
    pub part: Part,
    /// How satellites are chosen.
    pub choice: Choice,
    /// The interval at which they are chosen anew, if there is one.
    pub every: Option<Duration>,
    /// When they are first chosen anew.
    pub first: Option<Duration>,
    /// How long a handover interrupts a link to the ground.
    pub interruption: Duration,
    /// Whether packets wait while there is no path.
    pub hold: bool,
    /// The interval at which the delay is computed.
    pub step: Duration,
}

impl OrbitSpec {
    /// Makes every default visible, and refuses an orbit that is not valid.
    ///
    /// # Errors
    /// When a value is impossible, or the constellation never rises over one of the places.
    pub fn resolve(&self) -> Result<(OrbitPlan, Constellation), OrbitError> {
        self.from.check("orbit.from")?;
        self.to.check("orbit.to")?;
        let (constellation, preset_slots) = self.constellation.resolve()?;
        let every = self.every.or(preset_slots.map(|slots| slots.every));
        let every = every.filter(|every| !every.is_zero());
        let preset_first = preset_slots.filter(|_| self.every.is_none()).map(|slots| slots.first);
        let first = every.map(|every| self.first.or(preset_first).unwrap_or(every));
        let plan = OrbitPlan {
            constellation: constellation.name().to_owned(),
            satellites: constellation.len() as u32,
            from: self.from,
            to: self.to,
            start: self.start.unwrap_or(Duration::ZERO),
            part: self.part.unwrap_or_default(),
            choice: self.choice.unwrap_or_default(),
            every,
            first,
            interruption: self.interruption.unwrap_or(Duration::ZERO),
            hold: self.hold.unwrap_or(false),
            step: self.step.unwrap_or(STEP),
        };
        plan.check(self)?;
        check_latitudes(&constellation, &[plan.from, plan.to], plan.start)?;
        Ok((plan, constellation))
    }
}

impl OrbitPlan {
    fn check(&self, written: &OrbitSpec) -> Result<(), ResolveError> {
        if self.start > START_MAX {
            let hint = format!("at most {START_MAX}");
            return Err(ResolveError::out_of_range("orbit.start", self.start, hint));
        }
        check_time("orbit.interruption", self.interruption)?;
        check_time_in("orbit.step", self.step, Duration::from_ms(10)..=Duration::from_s(60))?;
        match (self.every, written.first) {
            (None, Some(_)) => {
                let hint = "`first` says when satellites are first chosen anew; add `every`";
                return Err(ResolveError::missing("orbit.every", hint));
            }
            (Some(every), _) => {
                check_time_in("orbit.every", every, Duration::from_ms(100)..=DELAY_MAX)?;
                let first = self.first.unwrap_or(every);
                check_time_in("orbit.first", first, Duration::from_ms(1)..=every)?;
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Follows the path between the two places for `duration`; `progress` is called with the time
    /// so far.
    ///
    /// # Errors
    /// When they are never joined: one of them sees no satellite, or no links lead between them.
    pub fn follow(
        &self,
        constellation: &Constellation,
        duration: Duration,
        progress: &mut dyn FnMut(Duration),
    ) -> Result<Journey, OrbitError> {
        let journey = journey::follow(&self.chooser(constellation), duration, self.step, progress);
        if journey.connects() {
            return Ok(journey);
        }
        let sites = [self.from, self.to];
        Err(why_apart(constellation, &sites, self.start, duration, self.step))
    }

    /// Follows paths that another program has chosen, each from a moment of the run on, instead of
    /// choosing them. Where such a path does not work, there is none.
    pub fn replay(
        &self,
        constellation: &Constellation,
        ways: &[(Duration, Option<Way>)],
        duration: Duration,
    ) -> Journey {
        journey::replay(&self.chooser(constellation), ways, duration, self.step)
    }

    fn chooser<'c>(&self, constellation: &'c Constellation) -> Chooser<'c> {
        Chooser {
            constellation,
            stations: [self.from, self.to].map(|site| Station::new(&site, constellation)),
            choice: self.choice,
            slots: self.every.zip(self.first).map(|(every, first)| Slots { every, first }),
            start: self.start,
        }
    }
}
