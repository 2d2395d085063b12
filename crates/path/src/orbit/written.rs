//! The satellites as written: the name of a preset, a shell, or a list of elements.

use crate::orbit::choice::Slots;
use crate::orbit::constellation::Constellation;
use crate::orbit::hypatia;
use crate::orbit::isl::{Isl, IslRules};
use crate::orbit::presets;
use crate::orbit::refusal::OrbitError;
use crate::orbit::walker::{Pattern, SATELLITES_MAX, Shell};
use crate::resolve::{ResolveError, check_number};
use crate::written::{self, Written};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::str::FromStr;

/// The mask of constellations that do not have one. Unit: degrees.
const MASK_DEG: f64 = 10.0;

/// A constellation as written: the name of a preset, or a table.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstellationSpec {
    /// A preset.
    Named(String),
    /// A shell or a list of elements.
    Table(Box<ConstellationTable>),
}

/// A constellation described in the scenario: either `tle`, or the keys of one Walker shell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConstellationTable {
    /// Two-line elements, with or without lines of names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tle: Option<String>,
    /// A file with them, whose content becomes `tle` when the scenario is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tle_file: Option<String>,
    /// Pairs of satellites of `tle`, numbered from 0, that are linked by ISLs, one pair per line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isls: Option<String>,
    /// A file with them, whose content becomes `isls` when the scenario is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isls_file: Option<String>,
    /// The maximum length of an ISL of `isls`. Default: as long as it stays far enough from the
    /// ground.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isl_km_max: Option<f64>,
    /// The maximum length of a link to the ground. Default: as long as the elevation is high
    /// enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ground_link_km_max: Option<f64>,
    /// Time 0 for elements, in UTC. Default: the newest of the elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// How the planes are distributed. Default `delta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// Altitude above a sphere of 6371 km. Unit: km. Range: 160 to 50,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altitude_km: Option<f64>,
    /// Inclination of the planes to the equator. Range: 0 to 180°.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inclination_deg: Option<f64>,
    /// Number of planes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planes: Option<u32>,
    /// Number of satellites in each plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub satellites: Option<u32>,
    /// Walker's F: from plane to plane the satellites are shifted by F × 360° / (planes ×
    /// satellites). Half the number of planes shifts every other plane by half a gap. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phasing: Option<f64>,
    /// The angle between the ascending nodes of neighbouring planes. Default: 180° (star) or 360°
    /// (delta) divided by the number of planes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_spacing_deg: Option<f64>,
    /// The elevation below which no satellite is used. Default 10°.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_deg: Option<f64>,
    /// Links between the satellites of a shell. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isl: Option<IslRules>,
}

impl ConstellationSpec {
    /// The constellation that it describes, and its slots.
    pub(crate) fn resolve(&self) -> Result<(Constellation, Option<Slots>), OrbitError> {
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
        let given = [
            (self.tle_file.is_some() && self.tle.is_none(), "orbit.constellation.tle_file"),
            (self.isls_file.is_some() && self.isls.is_none(), "orbit.constellation.isls_file"),
        ];
        if let Some((_, key)) = given.into_iter().find(|(unread, _)| *unread) {
            let hint = "the file has not been read; only commands that read scenarios do that";
            return Err(ResolveError::missing(key, hint).into());
        }
        let lengths = [
            (self.isl_km_max, "orbit.constellation.isl_km_max"),
            (self.ground_link_km_max, "orbit.constellation.ground_link_km_max"),
        ];
        for (length, key) in lengths {
            check_number(key, length.unwrap_or(1.0), 1.0..=1e6)?;
        }
        let Some(text) = &self.tle else {
            let only = [
                self.epoch.as_ref().map(|_| "epoch"),
                self.isls.as_ref().map(|_| "isls"),
                self.isl_km_max.map(|_| "isl_km_max"),
                self.ground_link_km_max.map(|_| "ground_link_km_max"),
            ];
            if let Some(key) = only.into_iter().flatten().next() {
                let hint = format!("`{key}` belongs to elements, not to a shell");
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
        let mut constellation = Constellation::from_elements("elements", text, epoch, mask_deg)?;
        if constellation.len() > SATELLITES_MAX {
            let hint = format!("at most {SATELLITES_MAX} satellites");
            let count = format!("{} satellites", constellation.len());
            return Err(ResolveError::out_of_range("orbit.constellation.tle", count, hint).into());
        }
        if let Some(pairs) = &self.isls {
            let count = constellation.len() as u32;
            let pairs = hypatia::isls(pairs)?;
            if let Some(pair) = pairs.iter().find(|pair| pair.iter().any(|end| *end >= count)) {
                let hint = format!("the elements are of {count} satellites, numbered from 0");
                let pair = format!("{} {}", pair[0], pair[1]);
                return Err(
                    ResolveError::out_of_range("orbit.constellation.isls", pair, hint).into()
                );
            }
            let longest = self.isl_km_max.unwrap_or(f64::INFINITY);
            constellation.join(pairs.into_iter().map(|pair| Isl::given(pair, longest)).collect());
        }
        if let Some(longest) = self.ground_link_km_max {
            constellation.bound_ground_links(longest);
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

written::schema!(ConstellationSpec, <Self as Written>::EXPECTED, ConstellationTable);

impl Serialize for ConstellationSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Named(name) => to.serialize_str(name),
            Self::Table(table) => table.serialize(to),
        }
    }
}
