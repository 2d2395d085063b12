//! Why a constellation cannot serve a link, found out before anything runs.

use crate::orbit::constellation::Constellation;
use crate::orbit::earth::Site;
use crate::orbit::elements::ElementsError;
use crate::orbit::hypatia::HypatiaError;
use crate::orbit::sky::{Sky, Station};
use crate::resolve::ResolveError;
use midhop_units::Duration;

/// How far ahead a next chance is looked for, and how finely.
const AHEAD: Duration = Duration::from_s(24 * 3600);
const AHEAD_STEP: Duration = Duration::from_s(30);

/// Why an orbit as written is refused.
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
        /// The nearest, or those there are.
        hint: String,
    },
    /// A place lies further north or south than any satellite can be seen.
    #[error(
        "{constellation} never rises above {mask_deg}° at {site}: it is seen up to {latitude_max:.1}° \
         north and south; take a constellation with a higher inclination, a place nearer the equator, \
         or a lower mask_deg"
    )]
    Latitude {
        /// `orbit.from` or `orbit.to`.
        key: &'static str,
        /// The constellation.
        constellation: String,
        /// The place.
        site: Site,
        /// The elevation that is asked for.
        mask_deg: f64,
        /// The highest latitude from which a satellite is ever seen.
        latitude_max: f64,
    },
    /// A place sees no satellite while the run lasts.
    #[error(
        "{constellation} stays below {mask_deg}° at {site} for the whole run, {best_deg:.1}° at best; \
         {}", next_chance(*next)
    )]
    OutOfSight {
        /// `orbit.from` or `orbit.to`.
        key: &'static str,
        /// The constellation.
        constellation: String,
        /// The place.
        site: Site,
        /// The elevation that is asked for.
        mask_deg: f64,
        /// The highest elevation in the run.
        best_deg: f64,
        /// The first time after the run's beginning at which a satellite is high enough.
        next: Option<Duration>,
    },
    /// Both places see satellites, but there is no way from one to the other.
    #[error(
        "{constellation} never joins {from} and {to} in this run: {}",
        if *isls { "no links lead from the satellites of one to those of the other; try another \
                    `start` or rules under `isl`" }
        else { "without links between satellites both must see the same one; bring the gateway \
                nearer, lower mask_deg, or take a constellation with ISLs" }
    )]
    Apart {
        /// The constellation.
        constellation: String,
        /// One place.
        from: Site,
        /// The other.
        to: Site,
        /// Whether there are links between satellites.
        isls: bool,
    },
}

fn next_chance(next: Option<Duration>) -> String {
    match next {
        Some(next) => format!("start {} later", Duration::from_s(next.as_s_f64().ceil() as u64)),
        None => "nor does one rise above it within a day: lower mask_deg or take another \
                 constellation"
            .to_owned(),
    }
}

impl OrbitError {
    /// The key that is at fault, with dots, below the link.
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

/// Refuses a place that no satellite's orbit comes near.
pub(crate) fn check_latitudes(
    constellation: &Constellation,
    sites: &[Site; 2],
) -> Result<(), OrbitError> {
    for (site, key) in sites.iter().zip(KEYS) {
        let mask_deg = site.mask_deg.unwrap_or(constellation.mask_deg());
        let latitude_max = constellation.latitude_max_deg(mask_deg);
        if site.latitude_deg.abs() > latitude_max {
            return Err(OrbitError::Latitude {
                key,
                constellation: constellation.name().to_owned(),
                site: *site,
                mask_deg,
                latitude_max,
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
        return OrbitError::OutOfSight {
            key,
            constellation: constellation.name().to_owned(),
            site: *site,
            mask_deg: station.mask_deg(),
            best_deg,
            next: moments(duration, AHEAD.max(duration), AHEAD_STEP).find(|moment| seen(*moment)),
        };
    }
    OrbitError::Apart {
        constellation: constellation.name().to_owned(),
        from: sites[0],
        to: sites[1],
        isls: constellation.has_isls(),
    }
}
