//! A constellation behind a link, as written and as resolved.

use crate::orbit::choice::{Choice, Chooser, Slots};
use crate::orbit::constellation::Constellation;
use crate::orbit::earth::Site;
use crate::orbit::isl::IslRules;
use crate::orbit::journey::{self, Journey};
use crate::orbit::presets;
use crate::orbit::profile::Part;
use crate::orbit::refusal::{OrbitError, check_latitudes, why_apart};
use crate::orbit::sky::Station;
use crate::orbit::walker::{Pattern, SATELLITES_MAX, Shell};
use crate::resolve::{DELAY_MAX, ResolveError, check_number, check_time, check_time_in};
use crate::written::{self, Written};
use midhop_units::Duration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::str::FromStr;

/// The mask of constellations that say nothing about it. Unit: degrees.
const MASK_DEG: f64 = 10.0;
/// How often the sky is looked at where nothing is said.
const STEP: Duration = Duration::from_s(1);
/// The latest that a run may begin on the constellation's clock.
const START_MAX: Duration = Duration::from_s(366 * 24 * 3600);

/// `orbit = { … }` of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrbitSpec {
    /// What flies.
    pub constellation: ConstellationSpec,
    /// Where the link's first node is: the user's side.
    pub from: Site,
    /// Where its second node is.
    pub to: Site,
    /// The constellation's time when the run begins. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Duration>,
    /// Which stretch of the way the link stands for. Default the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// What decides between satellites. Default `keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
    /// Satellites are chosen anew so often, and only then; `"0 s"`: whenever one is to be changed.
    /// Default: what the constellation does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// When they are first chosen anew, after the run's beginning. Default: with `every` after one
    /// such time, else what the constellation does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Duration>,
    /// How long a handover of a link to the ground breaks it. Default not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruption: Option<Duration>,
    /// Whether packets wait while there is no way, or are sent and lost. Default lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<bool>,
    /// How often the delay is computed. Default 1 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Duration>,
}

/// What flies, as written: the name of a preset, or a table.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstellationSpec {
    /// A preset.
    Named(String),
    /// A shell or a list of elements.
    Table(Box<ConstellationTable>),
}

/// A constellation described in the scenario: either `tle`, or the keys of one Walker shell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConstellationTable {
    /// Two-line elements, with or without lines of names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tle: Option<String>,
    /// Time 0 for elements, in UTC. Default: the newest of the elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// How the planes are spread. Default `delta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// See [`Shell::altitude_km`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altitude_km: Option<f64>,
    /// See [`Shell::inclination_deg`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inclination_deg: Option<f64>,
    /// See [`Shell::planes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planes: Option<u32>,
    /// See [`Shell::satellites`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub satellites: Option<u32>,
    /// See [`Shell::phasing`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phasing: Option<f64>,
    /// See [`Shell::node_spacing_deg`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_spacing_deg: Option<f64>,
    /// The elevation below which no satellite is used. Default 10°.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_deg: Option<f64>,
    /// Links between the satellites of a shell. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isl: Option<IslRules>,
}

/// A constellation behind a link, resolved: every default visible.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrbitPlan {
    /// The preset's name, or what the table describes.
    pub constellation: String,
    /// How many satellites it has.
    pub satellites: u32,
    /// Where the first node is.
    pub from: Site,
    /// Where the second node is.
    pub to: Site,
    /// The constellation's time when the run begins.
    pub start: Duration,
    /// Which stretch of the way the link stands for.
    pub part: Part,
    /// What decides between satellites.
    pub choice: Choice,
    /// How often they are chosen anew, where that goes by the clock.
    pub every: Option<Duration>,
    /// When they first are.
    pub first: Option<Duration>,
    /// How long a handover of a link to the ground breaks it.
    pub interruption: Duration,
    /// Whether packets wait while there is no way.
    pub hold: bool,
    /// How often the delay is computed.
    pub step: Duration,
}

impl OrbitSpec {
    /// Makes every default visible and refuses what cannot be flown.
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
        check_latitudes(&constellation, &[plan.from, plan.to])?;
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

    /// Follows the way between the two places for `duration`; `progress` is told how far it is.
    ///
    /// # Errors
    /// When they are never joined: which of them sees nothing, or that no links lead between them.
    pub fn follow(
        &self,
        constellation: &Constellation,
        duration: Duration,
        progress: &mut dyn FnMut(Duration),
    ) -> Result<Journey, OrbitError> {
        let sites = [self.from, self.to];
        let chooser = Chooser {
            constellation,
            stations: [0, 1].map(|end| Station::new(&sites[end], constellation)),
            choice: self.choice,
            slots: self.every.zip(self.first).map(|(every, first)| Slots { every, first }),
            start: self.start,
        };
        let journey = journey::follow(&chooser, duration, self.step, progress);
        if journey.connects() {
            return Ok(journey);
        }
        Err(why_apart(constellation, &sites, self.start, duration, self.step))
    }
}

impl ConstellationSpec {
    /// What it describes, and its moments of choice.
    fn resolve(&self) -> Result<(Constellation, Option<Slots>), OrbitError> {
        match self {
            Self::Named(name) => {
                let preset = presets::find(name).ok_or_else(|| unknown(name))?;
                let slots = preset.slots.map(|(every, first)| Slots { every, first });
                Ok((preset.constellation(), slots))
            }
            Self::Table(table) => Ok((table.resolve()?, None)),
        }
    }
}

impl ConstellationTable {
    fn resolve(&self) -> Result<Constellation, OrbitError> {
        let mask_deg = self.mask_deg.unwrap_or(MASK_DEG);
        check_number("orbit.constellation.mask_deg", mask_deg, 0.0..=89.0)?;
        let Some(text) = &self.tle else {
            if self.epoch.is_some() {
                let hint = "time of a shell begins at 0; an epoch belongs to `tle`";
                return Err(ResolveError::missing("orbit.constellation.tle", hint).into());
            }
            let shell = self.shell()?;
            let rules = self.isl.clone().unwrap_or_else(IslRules::bent_pipe);
            rules.check()?;
            let name = format!(
                "{} of {} × {} at {} km and {}°",
                match shell.pattern {
                    Pattern::Star => "star",
                    Pattern::Delta => "delta",
                },
                shell.planes,
                shell.satellites,
                shell.altitude_km,
                shell.inclination_deg
            );
            return Ok(Constellation::walker(&name, &[(shell, rules)], mask_deg));
        };
        let shells_key = [
            self.pattern.map(|_| "orbit.constellation.pattern"),
            self.altitude_km.map(|_| "orbit.constellation.altitude_km"),
            self.inclination_deg.map(|_| "orbit.constellation.inclination_deg"),
            self.planes.map(|_| "orbit.constellation.planes"),
            self.satellites.map(|_| "orbit.constellation.satellites"),
            self.phasing.map(|_| "orbit.constellation.phasing"),
            self.node_spacing_deg.map(|_| "orbit.constellation.node_spacing_deg"),
            self.isl.as_ref().map(|_| "orbit.constellation.isl"),
        ];
        if let Some(key) = shells_key.into_iter().flatten().next() {
            let hint = "elements say where satellites are, shells are made up; keep one of them";
            return Err(ResolveError::conflict(key, "orbit.constellation.tle", hint).into());
        }
        let epoch = self.epoch.as_deref();
        let constellation = Constellation::from_elements("elements", text, epoch, mask_deg)?;
        if constellation.len() > SATELLITES_MAX {
            let hint = format!("at most {SATELLITES_MAX} satellites");
            let count = format!("{} satellites", constellation.len());
            return Err(ResolveError::out_of_range("orbit.constellation.tle", count, hint).into());
        }
        Ok(constellation)
    }

    fn shell(&self) -> Result<Shell, ResolveError> {
        fn needed<T: Copy>(value: Option<T>, key: &'static str) -> Result<T, ResolveError> {
            let hint = "a shell has altitude_km, inclination_deg, planes and satellites";
            value.ok_or_else(|| ResolveError::missing(key, hint))
        }
        let shell = Shell {
            pattern: self.pattern.unwrap_or(Pattern::Delta),
            altitude_km: needed(self.altitude_km, "orbit.constellation.altitude_km")?,
            inclination_deg: needed(self.inclination_deg, "orbit.constellation.inclination_deg")?,
            planes: needed(self.planes, "orbit.constellation.planes")?,
            satellites: needed(self.satellites, "orbit.constellation.satellites")?,
            phasing: self.phasing.unwrap_or(0.0),
            node_spacing_deg: self.node_spacing_deg,
        };
        shell.check()?;
        Ok(shell)
    }
}

fn unknown(name: &str) -> OrbitError {
    let known: Vec<&str> = presets::all().iter().map(|preset| preset.name).collect();
    let likeness = |known: &&str| strsim::jaro_winkler(known, name);
    let nearest = known.iter().copied().filter(|known| likeness(known) > 0.75);
    let hint = match nearest.max_by(|a, b| likeness(a).total_cmp(&likeness(b))) {
        Some(nearest) => format!("did you mean \"{nearest}\"?"),
        None => format!("known are {}", known.join(", ")),
    };
    OrbitError::Unknown { name: name.to_owned(), hint }
}

impl FromStr for ConstellationSpec {
    type Err = std::convert::Infallible;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Ok(Self::Named(name.to_owned()))
    }
}

impl Written for ConstellationSpec {
    const EXPECTED: &'static str = "the name of a constellation, such as \"iridium\", or a table";

    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        ConstellationTable::deserialize(table).map(|table| Self::Table(Box::new(table)))
    }
}

impl<'de> Deserialize<'de> for ConstellationSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        written::deserialize(from)
    }
}

impl Serialize for ConstellationSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Named(name) => to.serialize_str(name),
            Self::Table(table) => table.serialize(to),
        }
    }
}
