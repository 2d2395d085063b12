//! Satellites by their published two-line elements, moved by SGP4.
//!
//! Two-line elements are mean elements of one theory, and only valid with it. So the propagator is
//! the reference one (Vallado, Crawford, Hujsak and Kelso, "Revisiting Spacetrack Report #3", AIAA
//! 2006-6753, with the constants of WGS 72 with which elements are made), as the crate `sgp4`
//! implements it. Its axes (TEME) are turned into Earth-fixed ones by mean sidereal time; polar
//! motion (15 m) and the difference of UT1 and UTC (0.9 s, 400 m) are left out.

use crate::orbit::vector::Vector;
use sgp4::chrono::{NaiveDateTime, TimeDelta};
use sgp4::{Constants, Elements, MinutesSinceEpoch};
use std::sync::Arc;

/// Why a text is no list of two-line elements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElementsError {
    /// A pair of lines cannot be read.
    #[error("line {line} of the two-line elements: {reason}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// There is no pair of lines at all.
    #[error("no two-line elements: give pairs of lines that begin with \"1 \" and \"2 \"")]
    Empty,
    /// A moment in time cannot be read.
    #[error("\"{text}\" is no moment in UTC: write it as 2026-03-01T12:00:00Z")]
    Moment {
        /// The text as written.
        text: String,
    },
    /// A moment in time is so far from the elements' that they tell nothing of it.
    #[error(
        "{text} is {days} days from the newest of the elements, which are good for some weeks: \
             leave the epoch out, or take elements of that time"
    )]
    Far {
        /// The moment as written.
        text: String,
        /// How far it is.
        days: i64,
    },
}

/// Elements are not valid so far from their own time; a year is generous. Unit: days.
const AGE_MAX_DAYS: i64 = 366;

/// The length of each line.
const LINE: usize = 69;

/// A satellite with its elements, initialised for the propagator.
#[derive(Debug, Clone)]
pub(crate) struct Orbiter {
    pub(crate) name: String,
    pub(crate) epoch: NaiveDateTime,
    /// Mean height above a sphere of 6371 km, and inclination: for the latitudes from which it can
    /// be seen.
    pub(crate) altitude_km: f64,
    pub(crate) inclination_deg: f64,
    constants: Arc<Constants>,
}

/// Reads two-line elements: pairs of lines, each with or without a line with a name before it.
/// Other lines are ignored.
///
/// # Errors
/// When a pair cannot be read, or there is none.
pub(crate) fn read(text: &str) -> Result<Vec<Orbiter>, ElementsError> {
    let mut orbiters = Vec::new();
    let mut name = None;
    let mut lines = text.lines().map(str::trim_end).enumerate();
    while let Some((number, first)) = lines.next() {
        if !first.starts_with("1 ") || first.len() < 60 {
            if !first.trim().is_empty() {
                name = Some(first.trim().trim_start_matches("0 ").to_owned());
            }
            continue;
        }
        let wrong = |reason: String| ElementsError::Line { line: number + 1, reason };
        let second = lines.next().map_or("", |(_, second)| second);
        // The library assumes a digit there.
        let sums = |line: &str| line.ends_with(|last: char| last.is_ascii_digit());
        if [first, second].iter().any(|line| line.len() == LINE && !sums(line)) {
            return Err(wrong("the last character of a line is its checksum, a digit".to_owned()));
        }
        let elements = Elements::from_tle(name.take(), first.as_bytes(), second.as_bytes())
            .map_err(|error| wrong(error.to_string()))?;
        let constants = Constants::from_elements_afspc_compatibility_mode(&elements)
            .map_err(|error| wrong(error.to_string()))?;
        let rounds_per_day = elements.mean_motion;
        let rate_rad_s = rounds_per_day * 2.0 * std::f64::consts::PI / 86_400.0;
        let radius_km = libm::cbrt(crate::orbit::earth::GRAVITY_KM3_S2 / (rate_rad_s * rate_rad_s));
        orbiters.push(Orbiter {
            name: elements.object_name.clone().unwrap_or_else(|| elements.norad_id.to_string()),
            epoch: elements.datetime,
            altitude_km: radius_km - crate::orbit::earth::RADIUS_KM,
            inclination_deg: elements.inclination,
            constants: Arc::new(constants),
        });
    }
    if orbiters.is_empty() { Err(ElementsError::Empty) } else { Ok(orbiters) }
}

/// Reads a moment in UTC, such as `2026-03-01T12:00:00Z`.
///
/// # Errors
/// When it is none.
pub(crate) fn moment(text: &str) -> Result<NaiveDateTime, ElementsError> {
    NaiveDateTime::parse_from_str(text.trim_end_matches('Z'), "%Y-%m-%dT%H:%M:%S%.f")
        .map_err(|_| ElementsError::Moment { text: text.to_owned() })
}

/// The moment that `text` names, if it is near enough to the `newest` of some elements.
///
/// # Errors
/// When it is no moment, or too far away.
pub(crate) fn moment_near(
    text: &str,
    newest: NaiveDateTime,
) -> Result<NaiveDateTime, ElementsError> {
    let moment = moment(text)?;
    let days = (moment - newest).num_days().abs();
    if days > AGE_MAX_DAYS {
        return Err(ElementsError::Far { text: text.to_owned(), days });
    }
    Ok(moment)
}

impl Orbiter {
    /// The satellite in the propagator's own axes (TEME), `time_s` after `epoch`; `None` where the
    /// theory has it decayed, or gives no position.
    pub(crate) fn inertial(&self, epoch: NaiveDateTime, time_s: f64) -> Option<Vector> {
        let minutes = (seconds(epoch - self.epoch) + time_s) / 60.0;
        let state =
            self.constants.propagate_afspc_compatibility_mode(MinutesSinceEpoch(minutes)).ok()?;
        let [x, y, z] = state.position;
        Some(Vector::new(x, y, z)).filter(|place| place.length().is_finite())
    }
}

/// Sine and cosine of the angle by which TEME must be turned to follow the Earth, `time_s` after
/// `epoch`, for [`Vector::turned`].
pub(crate) fn against_sidereal_time(epoch: NaiveDateTime, time_s: f64) -> (f64, f64) {
    const YEAR_S: f64 = 365.25 * 86_400.0;
    let years = sgp4::julian_years_since_j2000(&epoch) + time_s / YEAR_S;
    libm::sincos(-sgp4::iau_epoch_to_sidereal_time(years))
}

fn seconds(delta: TimeDelta) -> f64 {
    delta.num_seconds() as f64 + f64::from(delta.subsec_nanos()) / 1e9
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The first object of the verification set that comes with AIAA 2006-6753.
    pub(crate) const VANGUARD: &str = "\
1 00005U 58002B   00179.78495062  .00000023  00000-0  28098-4 0  4753
2 00005  34.2682 348.7242 1859667 331.7664  19.3264 10.82419157413667";

    #[test]
    fn positions_are_those_of_the_verification_set() {
        let orbiter = &read(VANGUARD).expect("elements")[0];
        assert_eq!(orbiter.name, "5");
        for (minutes, place) in [
            (0.0, [7022.46529266, -1400.08296755, 0.03995155]),
            (360.0, [-7154.03120202, -3783.17682504, -3536.19412294]),
        ] {
            let own = orbiter.inertial(orbiter.epoch, minutes * 60.0).expect("a position");
            let published = Vector::new(place[0], place[1], place[2]);
            assert!(own.distance(published) < 1e-4, "{minutes} min: {own:?}");
        }
    }

    #[test]
    fn elements_of_no_orbit_are_nowhere() {
        // A drag of 10⁸⁴.
        let absurd = format!(
            "{}\n{}",
            "1 00005U 58002B   77190.08495062  .00000032  00000-0  -209884 0  4753",
            VANGUARD.lines().last().expect("a line")
        );
        let orbiter = &read(&absurd).expect("elements")[0];
        assert_eq!(orbiter.inertial(orbiter.epoch, 0.0), None);
    }

    /// Sidereal time of 1992-08-20 12:14 UT1: 152.578787810° (Vallado, Fundamentals of Astrodynamics,
    /// example 3-5).
    #[test]
    fn sidereal_time_is_the_textbook_s() {
        let moment = moment("1992-08-20T12:14:00Z").expect("a moment");
        let (sin, cos) = against_sidereal_time(moment, 0.0);
        let degrees = libm::atan2(-sin, cos).to_degrees();
        assert!((degrees - 152.578_787_81).abs() < 1e-5, "{degrees}");
        // A sidereal day later, the Earth has the same angle; a solar day later, it is a degree
        // further.
        let (sin, cos) = against_sidereal_time(moment, 86_164.090_5);
        assert!((libm::atan2(-sin, cos).to_degrees() - degrees).abs() < 1e-4);
    }

    #[test]
    fn names_are_kept_and_what_cannot_be_read_is_named() {
        let named = format!("1 1\n0 VANGUARD 1\n{VANGUARD}\n\n");
        assert_eq!(read(&named).expect("elements")[0].name, "VANGUARD 1");
        assert_eq!(read("").err(), Some(ElementsError::Empty));
        let flipped = VANGUARD.replace("10.82419157413667", "10.82419157413668");
        let error = read(&format!("X\n{flipped}")).err().map(|error| error.to_string());
        let error = error.expect("a checksum that is wrong");
        assert!(error.contains("line 2") && error.contains("checksum"), "{error}");
        // Characters that are no digits, in the place of the checksum.
        for (line, wrong) in [("4753", "475/"), ("413667", "41366+")] {
            let error = read(&VANGUARD.replace(line, wrong)).expect_err(wrong).to_string();
            assert!(error.contains("line 1 ") && error.contains("checksum"), "{error}");
        }
        let half = VANGUARD.lines().next().expect("a line");
        assert!(matches!(read(half), Err(ElementsError::Line { line: 1, .. })));
        assert!(moment("yesterday").is_err());
    }
}
