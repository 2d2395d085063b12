//! Why a constellation cannot serve a link, checked before a run.

use crate::orbit::constellation::Constellation;
use crate::orbit::earth::Site;
use crate::orbit::elements::ElementsError;
use crate::orbit::hypatia::HypatiaError;
use crate::orbit::presets::{self, ConstellationPreset};
use crate::orbit::sky::{Sky, Station};
use crate::resolve::ResolveError;
use midhop_units::Duration;

/// How far ahead the next possible time is searched, and in which steps.
const AHEAD: Duration = Duration::from_s(24 * 3600);
const AHEAD_STEP: Duration = Duration::from_s(30);
/// How long another constellation must serve when the duration of the run is not known.
const TRIED: Duration = Duration::from_s(600);
/// At how many moments after the first this is checked.
const LOOKS: u64 = 10;

/// A constellation that scenarios can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fleet {
    /// Its name.
    pub name: &'static str,
    /// The number of satellites.
    pub satellites: u32,
}

/// Why an orbit is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OrbitError {
    /// A value is impossible, is missing, or contradicts another.
    #[error(transparent)]
    Value(#[from] ResolveError),
    /// Two-line elements that cannot be read.
    #[error(transparent)]
    Elements(#[from] ElementsError),
    /// Links between satellites that cannot be read.
    #[error(transparent)]
    Isls(#[from] HypatiaError),
    /// No constellation has this name.
    #[error("no constellation is called \"{name}\": {hint}")]
    Unknown {
        /// The name as written.
        name: String,
        /// The nearest name, or all known names.
        hint: String,
    },
    /// A place lies further north or south than any satellite can be seen.
    #[error(
        "{constellation} never rises above {mask_deg}° at {site}: it is seen up to {latitude_max:.1}° \
         north and south, and orbits inclined by {:.1}° more would reach it; {}",
        tenths_up(site.latitude_deg.abs() - latitude_max), fleet_that_works(*works)
    )]
    Latitude {
        /// `orbit.from` or `orbit.to`.
        key: &'static str,
        /// The constellation.
        constellation: String,
        /// The place.
        site: Box<Site>,
        /// The elevation that is asked for.
        mask_deg: f64,
        /// The highest latitude from which a satellite is ever seen.
        latitude_max: f64,
        /// The smallest constellation that joins the two places.
        works: Option<Fleet>,
    },
    /// A place sees no satellite during the whole run.
    #[error(
        "{constellation} stays below {mask_deg}° at {site} for the whole run, {best_deg:.1}° at best; \
         {}", next_chance(*next, *works)
    )]
    OutOfSight {
        /// `orbit.from` or `orbit.to`.
        key: &'static str,
        /// The constellation.
        constellation: String,
        /// The place.
        site: Box<Site>,
        /// The elevation that is asked for.
        mask_deg: f64,
        /// The highest elevation in the run.
        best_deg: f64,
        /// The first time after the run's beginning at which a satellite is high enough.
        next: Option<Duration>,
        /// Without such a time the smallest constellation that joins the two places.
        works: Option<Fleet>,
    },
    /// Both places see satellites, but there is no way from one to the other.
    #[error(
        "{constellation} never joins {} and {} in this run: {}; {}", sites[0], sites[1],
        if *isls { "no links lead from the satellites of one to those of the other; try another \
                    `start` or rules under `isl`" }
        else { "without links between satellites both must see the same one; bring the gateway \
                nearer or lower mask_deg" },
        fleet_that_works(*works)
    )]
    Apart {
        /// The constellation.
        constellation: String,
        /// The two places.
        sites: Box<[Site; 2]>,
        /// Whether there are links between satellites.
        isls: bool,
        /// The smallest constellation that joins the two places.
        works: Option<Fleet>,
    },
}

fn next_chance(next: Option<Duration>, works: Option<Fleet>) -> String {
    match next {
        Some(next) => format!("start {} later", Duration::from_s(next.as_s_f64().ceil() as u64)),
        None => format!("nor does one rise above it within a day; {}", fleet_that_works(works)),
    }
}

/// A sufficient value, rounded up to a tenth.
fn tenths_up(degrees: f64) -> f64 {
    (degrees * 10.0).ceil() / 10.0
}

fn fleet_that_works(works: Option<Fleet>) -> String {
    match works {
        Some(Fleet { name, satellites }) => {
            format!(
                "the smallest known one that joins the two is \"{name}\" ({satellites} satellites)"
            )
        }
        None => "no known constellation joins the two: bring them nearer to each other or lower \
                 their mask_deg"
            .to_owned(),
    }
}

impl OrbitError {
    /// The key at fault, with dots, below the link.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Value(error) => error.key(),
            Self::Elements(ElementsError::Moment { .. } | ElementsError::Far { .. }) => {
                "orbit.constellation.epoch"
            }
            Self::Elements(_) => "orbit.constellation.tle",
            Self::Isls(_) => "orbit.constellation.isls",
            Self::Unknown { .. } => "orbit.constellation",
            Self::Latitude { key, .. } | Self::OutOfSight { key, .. } => key,
            Self::Apart { .. } => "orbit",
        }
    }
}

/// The keys of the two places.
const KEYS: [&str; 2] = ["orbit.from", "orbit.to"];

/// The named constellation with the fewest satellites that joins two places at every sampled moment
/// from `start` on for `duration`. The places' own masks are used where they have some.
fn smallest_that_joins(sites: &[Site; 2], start: Duration, duration: Duration) -> Option<Fleet> {
    let mut known = presets::all();
    known.sort_by_key(ConstellationPreset::satellites);
    let joins = |preset: &ConstellationPreset| {
        let constellation = preset.constellation();
        let stations = sites.map(|site| Station::new(&site, &constellation));
        (0..=LOOKS).all(|look| {
            let moment = start + Duration::from_ns(duration.as_ns() / LOOKS) * look;
            let sky = Sky::new(&constellation, moment.as_s_f64());
            let [from, to] = stations.map(|station| sky.sightings(&station));
            sky.quickest(&from, &to).is_some()
        })
    };
    let found = known.into_iter().find(joins)?;
    Some(Fleet { name: found.name, satellites: found.satellites() })
}

/// Refuses a place over which no satellite ever rises, in a run from `start` on.
pub(crate) fn check_latitudes(
    constellation: &Constellation,
    sites: &[Site; 2],
    start: Duration,
) -> Result<(), OrbitError> {
    for (site, key) in sites.iter().zip(KEYS) {
        let mask_deg = site.mask_deg.unwrap_or(constellation.mask_deg());
        let latitude_max = constellation.latitude_max_deg(mask_deg);
        if site.latitude_deg.abs() > latitude_max {
            return Err(OrbitError::Latitude {
                key,
                constellation: constellation.name().to_owned(),
                site: Box::new(*site),
                mask_deg,
                latitude_max,
                works: smallest_that_joins(sites, start, TRIED),
            });
        }
    }
    Ok(())
}

/// Why two places were never joined from `start` on for `duration`.
pub(crate) fn why_apart(
    constellation: &Constellation,
    sites: &[Site; 2],
    start: Duration,
    duration: Duration,
    step: Duration,
) -> OrbitError {
    let moments = |from: Duration, to: Duration, step: Duration| {
        (0..=(to.saturating_sub(from).as_ns() / step.as_ns())).map(move |n| from + step * n)
    };
    for (site, key) in sites.iter().zip(KEYS) {
        let station = Station::new(site, constellation);
        let sky = |elapsed: Duration| Sky::new(constellation, (start + elapsed).as_s_f64());
        let seen = |elapsed: Duration| !sky(elapsed).sightings(&station).is_empty();
        if moments(Duration::ZERO, duration, step).any(seen) {
            continue;
        }
        let best_deg = moments(Duration::ZERO, duration, step)
            .map(|elapsed| sky(elapsed).elevation_max_deg(&station))
            .fold(-90.0, f64::max);
        let next = moments(duration, AHEAD.max(duration), AHEAD_STEP).find(|moment| seen(*moment));
        // If waiting helps, no other constellation is needed.
        let works = if next.is_some() { None } else { smallest_that_joins(sites, start, duration) };
        return OrbitError::OutOfSight {
            key,
            constellation: constellation.name().to_owned(),
            site: Box::new(*site),
            mask_deg: station.mask_deg(),
            best_deg,
            next,
            works,
        };
    }
    OrbitError::Apart {
        constellation: constellation.name().to_owned(),
        sites: Box::new(*sites),
        isls: constellation.has_isls(),
        works: smallest_that_joins(sites, start, duration),
    }
}
