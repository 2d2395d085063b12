//! Which satellites are joined by inter-satellite links (ISLs), and when such a link works.
//!
//! In a grid, each satellite is joined to the ones before and behind it in its plane, and to those
//! of the same number in the neighbouring planes. The last plane of a delta joins the first,
//! shifted by the phasing. In a star, the seam is between them, where satellites move in opposite
//! directions. There are links across it only where `cross_seam` requests them: then each satellite
//! of the last plane is joined to the nearest one of the first.
//!
//! A link between planes is inactive while either end is nearer to a pole than the latitude
//! threshold: there the planes cross, and antennas would have to turn too fast. No link works while
//! its straight line passes below the grazing altitude.

use crate::orbit::earth::{RADIUS_KM, radians};
use crate::orbit::vector::Vector;
use crate::orbit::walker::{Pattern, Shell};
use crate::resolve::{ResolveError, check_number};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// No link passes lower than this above the ground: the air there bends and absorbs it.
pub const GRAZING_KM: f64 = 80.0;

/// How the satellites of a shell are linked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IslRules {
    /// How many neighbours ahead, behind and on each side a satellite is linked to: 0 is a bent
    /// pipe, 1 gives four links, 2 eight. Range: 0 to 4. Default 1.
    #[serde(default = "one")]
    pub reach: u32,
    /// Whether the planes at the seam of a star are linked. Default no.
    #[serde(default)]
    pub cross_seam: bool,
    /// Links between planes are inactive above this latitude. Default 90: they are always active.
    #[serde(default = "pole")]
    pub latitude_threshold_deg: f64,
    /// The lowest height at which a link may pass over the ground. Unit: km. Default 80.
    #[serde(default = "grazing")]
    pub grazing_km: f64,
}

impl Default for IslRules {
    fn default() -> Self {
        Self {
            reach: one(),
            cross_seam: false,
            latitude_threshold_deg: pole(),
            grazing_km: grazing(),
        }
    }
}

impl IslRules {
    /// No links: each packet goes up to and down from the same satellite.
    pub fn bent_pipe() -> Self {
        Self { reach: 0, ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<(), ResolveError> {
        check_number("orbit.constellation.isl.reach", f64::from(self.reach), 0.0..=4.0)?;
        let threshold = self.latitude_threshold_deg;
        check_number("orbit.constellation.isl.latitude_threshold_deg", threshold, 0.0..=90.0)?;
        check_number("orbit.constellation.isl.grazing_km", self.grazing_km, 0.0..=2000.0)
    }
}

fn one() -> u32 {
    1
}

fn pole() -> f64 {
    90.0
}

fn grazing() -> f64 {
    GRAZING_KM
}

/// What a link joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IslKind {
    /// Two satellites of one plane.
    Intraplane,
    /// Satellites of neighbouring planes.
    Interplane,
    /// Satellites on both sides of a seam.
    CrossSeam,
    /// Two satellites that a file joins.
    Given,
}

/// A link between two satellites, which may rest at times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Isl {
    /// The satellites, by their numbers in the constellation.
    pub ends: [u32; 2],
    /// What it joins.
    pub kind: IslKind,
    pub(crate) sin_latitude_max: f64,
    pub(crate) closest_km: f64,
    /// The longest that it may be, where something other than the ground bounds it.
    pub(crate) length_km_max: f64,
}

impl Isl {
    /// A link of at most this length between satellites that a file joins.
    pub(crate) fn given(ends: [u32; 2], length_km_max: f64) -> Self {
        Self { length_km_max, ..Self::of(ends, IslKind::Given, &IslRules::default()) }
    }

    fn of(ends: [u32; 2], kind: IslKind, rules: &IslRules) -> Self {
        let between_planes = matches!(kind, IslKind::Interplane | IslKind::CrossSeam);
        let threshold = radians(rules.latitude_threshold_deg);
        Self {
            ends,
            kind,
            sin_latitude_max: if between_planes { libm::sin(threshold) } else { 1.0 },
            closest_km: RADIUS_KM + rules.grazing_km,
            length_km_max: f64::INFINITY,
        }
    }

    /// Its length between satellites at these positions while it works; `None` while it is
    /// inactive.
    pub fn length_km(&self, one: Vector, other: Vector) -> Option<f64> {
        let too_far_north = |place: Vector| {
            self.sin_latitude_max < 1.0 && place.z.abs() > self.sin_latitude_max * place.length()
        };
        if too_far_north(one) || too_far_north(other) {
            return None;
        }
        let length_km = one.distance(other);
        (length_km <= self.length_km_max && one.closest_approach(other) >= self.closest_km)
            .then_some(length_km)
    }
}

/// The seam of a star whose sides are to be joined: satellite numbers of its last and first plane.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seam {
    pub(crate) last: std::ops::Range<u32>,
    pub(crate) first: std::ops::Range<u32>,
    pub(crate) rules: IslRules,
}

impl Seam {
    /// A link across this seam.
    pub(crate) fn isl(&self, ends: [u32; 2]) -> Isl {
        Isl::of(ends, IslKind::CrossSeam, &self.rules)
    }
}

/// The fixed links of a shell whose satellites have the numbers from `first` on, and its seam if
/// that is joined.
pub(crate) fn grid(shell: &Shell, rules: &IslRules, first: u32) -> (Vec<Isl>, Option<Seam>) {
    let (planes, each) = (shell.planes, shell.satellites);
    let number = |plane: u32, place: u32| first + plane * each + place % each;
    // The sum of the shifts from plane to plane over a full circle, in places.
    let wrapped = libm::round(shell.phasing) as u32;
    let mut isls = Vec::new();
    let mut joined = BTreeSet::new();
    let mut join = |ends: [u32; 2], kind| {
        // In small rings, a link may lead back to its own satellite, or two links may join the same
        // pair.
        let pair = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        if ends[0] != ends[1] && joined.insert(pair) {
            isls.push(Isl::of(ends, kind, rules));
        }
    };
    for plane in 0..planes {
        for place in 0..each {
            for step in 1..=rules.reach {
                join([number(plane, place), number(plane, place + step)], IslKind::Intraplane);
                let beside = plane + step;
                if beside < planes {
                    join([number(plane, place), number(beside, place)], IslKind::Interplane);
                } else if shell.pattern == Pattern::Delta && planes > 1 {
                    let beside = number(beside % planes, place + wrapped % each);
                    join([number(plane, place), beside], IslKind::Interplane);
                }
            }
        }
    }
    let seam = (shell.pattern == Pattern::Star && rules.cross_seam && planes > 2).then(|| Seam {
        last: number(planes - 1, 0)..number(planes - 1, 0) + each,
        first: first..first + each,
        rules: rules.clone(),
    });
    (isls, seam)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orbit::earth::isl_max_km;

    #[test]
    fn a_link_ends_where_the_ground_comes_too_near() {
        for altitude_km in [550.0, 780.0, 1200.0] {
            let isl = Isl::of([0, 1], IslKind::Intraplane, &IslRules::default());
            let radius = RADIUS_KM + altitude_km;
            let longest = isl_max_km(altitude_km, GRAZING_KM);
            for (length, works) in [(longest - 0.01, true), (longest + 0.01, false)] {
                let half = length / 2.0;
                let height = (radius * radius - half * half).sqrt();
                let ends = [Vector::new(-half, height, 0.0), Vector::new(half, height, 0.0)];
                let own = isl.length_km(ends[0], ends[1]);
                assert_eq!(own.is_some(), works, "{altitude_km} km: {length}");
            }
        }
        // Known lengths: Starlink's first shell and Kuiper's reach about 5014 and 5440 km.
        assert!((isl_max_km(550.0, 80.0) - 5014.0).abs() < 5.0);
        assert!((isl_max_km(630.0, 80.0) - 5440.0).abs() < 5.0);
    }

    #[test]
    fn links_between_planes_rest_near_the_poles_and_those_within_do_not() {
        let rules = IslRules { latitude_threshold_deg: 60.0, ..IslRules::default() };
        let at = |latitude: f64| {
            let (sin, cos) = libm::sincos(radians(latitude));
            Vector::new(cos * 7151.0, 0.0, sin * 7151.0)
        };
        for (kind, latitude, works) in [
            (IslKind::Interplane, 59.9, true),
            (IslKind::Interplane, 60.1, false),
            (IslKind::CrossSeam, -60.1, false),
            (IslKind::Intraplane, 85.0, true),
        ] {
            let isl = Isl::of([0, 1], kind, &rules);
            let length = isl.length_km(at(latitude), at(latitude * 0.9));
            assert_eq!(length.is_some(), works, "{kind:?} at {latitude}");
        }
    }
}
