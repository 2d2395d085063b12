//! Shells of satellites on circular orbits, evenly spread: Walker patterns.
//!
//! A shell has `planes` planes with `satellites` satellites each. In a *delta*, the ascending nodes
//! are spread over the full circle, so that northbound and southbound satellites cross everywhere.
//! In a *star*, they are spread over half of it: then the planes meet near the poles, and between
//! the first plane and the last, whose satellites move in opposite directions, there is a *seam*.
//!
//! Source: Walker, "Satellite constellations", Journal of the British Interplanetary Society 37, 1984.
//! Motion is two-body motion over a sphere that turns; perturbations, which bend an orbit by a few
//! degrees per day, are left out.

use crate::orbit::earth::{self, GRAVITY_KM3_S2, RADIUS_KM, ROTATION_RAD_S, coverage_deg, radians};
use crate::orbit::vector::Vector;
use crate::resolve::{ResolveError, check_number};
use serde::{Deserialize, Serialize};

/// The most satellites of a shell, and of a constellation.
pub(crate) const SATELLITES_MAX: usize = 20_000;

/// How the planes of a shell are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Over half a circle, with a seam.
    Star,
    /// Over the full circle.
    Delta,
}

/// One shell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Shell {
    /// How the planes are distributed.
    pub pattern: Pattern,
    /// Altitude above a sphere of 6371 km. Unit: km. Range: 160 to 50,000.
    pub altitude_km: f64,
    /// Inclination of the planes to the equator. Range: 0 to 180°.
    pub inclination_deg: f64,
    /// Number of planes.
    pub planes: u32,
    /// Number of satellites in each plane.
    pub satellites: u32,
    /// Walker's F: from plane to plane the satellites are shifted by F × 360° / (planes ×
    /// satellites). Half the number of planes shifts every other plane by half a gap. Default 0.
    #[serde(default)]
    pub phasing: f64,
    /// The angle between the ascending nodes of neighbouring planes. Default: 180° (star) or 360°
    /// (delta) divided by the number of planes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_spacing_deg: Option<f64>,
}

impl Shell {
    /// Refuses a shell that is not possible.
    pub(crate) fn check(&self) -> Result<(), ResolveError> {
        check_number("orbit.constellation.altitude_km", self.altitude_km, 160.0..=50_000.0)?;
        check_number("orbit.constellation.inclination_deg", self.inclination_deg, 0.0..=180.0)?;
        let count = self.planes as usize * self.satellites as usize;
        if count == 0 || count > SATELLITES_MAX {
            return Err(ResolveError::out_of_range(
                "orbit.constellation.planes",
                self.planes,
                format!("planes times satellites must be 1 to {SATELLITES_MAX}"),
            ));
        }
        check_number("orbit.constellation.phasing", self.phasing, 0.0..=f64::from(self.planes))?;
        let spacing = self.node_spacing_deg.unwrap_or(0.0);
        check_number("orbit.constellation.node_spacing_deg", spacing, 0.0..=360.0)
    }

    /// The angle between the ascending nodes of neighbouring planes.
    pub fn node_spacing_deg(&self) -> f64 {
        let spread = match self.pattern {
            Pattern::Star => 180.0,
            Pattern::Delta => 360.0,
        };
        self.node_spacing_deg.unwrap_or(spread / f64::from(self.planes))
    }

    /// The highest northern or southern latitude from which a satellite of this shell is seen above
    /// the mask. Unit: degrees.
    pub fn latitude_max_deg(&self, mask_deg: f64) -> f64 {
        let highest = self.inclination_deg.min(180.0 - self.inclination_deg);
        (highest + coverage_deg(self.altitude_km, mask_deg)).min(90.0)
    }

    /// The period of a revolution. Unit: s.
    pub fn period_s(&self) -> f64 {
        earth::period_s(self.altitude_km)
    }

    /// The satellites, plane after plane, each plane in the direction of flight.
    pub(crate) fn orbits(&self) -> impl Iterator<Item = Circle> + '_ {
        let radius_km = RADIUS_KM + self.altitude_km;
        let rate_rad_s = (GRAVITY_KM3_S2 / radius_km).sqrt() / radius_km;
        let (sin_tilt, cos_tilt) = libm::sincos(radians(self.inclination_deg));
        let gap_deg = 360.0 / f64::from(self.satellites);
        let shift_deg = self.phasing * gap_deg / f64::from(self.planes);
        (0..self.planes).flat_map(move |plane| {
            let node = libm::sincos(radians(f64::from(plane) * self.node_spacing_deg()));
            let to_node = Vector::new(1.0, 0.0, 0.0).turned(node) * radius_km;
            let ahead = Vector::new(0.0, cos_tilt, sin_tilt).turned(node) * radius_km;
            (0..self.satellites).map(move |number| {
                let angle = f64::from(number) * gap_deg + f64::from(plane) * shift_deg;
                Circle { to_node, ahead, angle_rad: radians(angle), rate_rad_s }
            })
        })
    }
}

/// A circular orbit and where on it the satellite is at time 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Circle {
    /// The ascending node, in kilometres, in axes that do not turn.
    to_node: Vector,
    /// The point a quarter of a round later.
    ahead: Vector,
    /// How far past the node the satellite is at time 0.
    angle_rad: f64,
    rate_rad_s: f64,
}

impl Circle {
    /// The position of the satellite in axes that do not turn.
    pub(crate) fn inertial(&self, time_s: f64) -> Vector {
        let (sin, cos) = libm::sincos(self.angle_rad + self.rate_rad_s * time_s);
        self.to_node * cos + self.ahead * sin
    }
}

/// Sine and cosine of the angle by which points must be turned to follow the Earth, for
/// [`Vector::turned`]. At time 0, longitude 0 is below the first ascending node.
pub(crate) fn against_rotation(time_s: f64) -> (f64, f64) {
    libm::sincos(-ROTATION_RAD_S * time_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(altitude_km: f64, inclination_deg: f64) -> Shell {
        Shell {
            pattern: Pattern::Delta,
            altitude_km,
            inclination_deg,
            planes: 4,
            satellites: 3,
            phasing: 2.0,
            node_spacing_deg: None,
        }
    }

    #[test]
    fn a_circular_orbit_closes_and_keeps_its_height() {
        let shell = shell(550.0, 53.0);
        for orbit in shell.orbits() {
            let begin = orbit.inertial(0.0);
            for quarter in 0..=4 {
                let there = orbit.inertial(shell.period_s() * f64::from(quarter) / 4.0);
                assert!((there.length() - 6921.0).abs() < 1e-6);
                let turned = begin.dot(there) / 6921.0 / 6921.0;
                let expected = [1.0, 0.0, -1.0, 0.0, 1.0][quarter as usize];
                assert!((turned - expected).abs() < 1e-9, "{quarter}: {turned}");
            }
        }
    }

    #[test]
    fn satellites_reach_the_inclination_and_no_further() {
        for (inclination, highest) in [(53.0, 53.0), (98.98, 81.02), (20.0, 20.0)] {
            let shell = shell(1000.0, inclination);
            let orbit = shell.orbits().next().expect("an orbit");
            let top = (0..3600)
                .map(|second| orbit.inertial(f64::from(second) * 2.0))
                .map(|place| libm::asin(place.z / place.length()).to_degrees())
                .fold(0.0, f64::max);
            assert!((top - highest).abs() < 0.001, "{inclination}: {top}");
        }
    }

    #[test]
    fn phasing_and_nodes_follow_walker() {
        let shell = shell(550.0, 90.0);
        let orbits: Vec<Circle> = shell.orbits().collect();
        assert_eq!(orbits.len(), 12);
        // F = 2 of 4 planes with 3 satellites: 60° from plane to plane, half a gap of 120°.
        assert!((orbits[3].angle_rad.to_degrees() - 60.0).abs() < 1e-9);
        assert!((orbits[6].angle_rad.to_degrees() - 120.0).abs() < 1e-9);
        let node = orbits[3].to_node;
        assert!(node.x.abs() < 1e-9 && (node.y - 6921.0).abs() < 1e-9, "{node:?}");
    }

    #[test]
    fn a_geostationary_satellite_stands_still() {
        // The radius at which the two-body period is a sidereal day, over a sphere of 6371 km.
        let radius = libm::cbrt(GRAVITY_KM3_S2 / (ROTATION_RAD_S * ROTATION_RAD_S));
        let shell = shell(radius - RADIUS_KM, 0.0);
        let orbit = shell.orbits().next().expect("an orbit");
        for hour in 0..24 {
            let time_s = f64::from(hour) * 3600.0;
            let place = orbit.inertial(time_s).turned(against_rotation(time_s));
            assert!(place.distance(orbit.inertial(0.0)) < 0.01, "{hour}: {place:?}");
        }
    }

    #[test]
    fn impossible_shells_are_refused() {
        let good = shell(550.0, 53.0);
        assert!(good.check().is_ok());
        for bad in [
            Shell { altitude_km: 100.0, ..good.clone() },
            Shell { altitude_km: f64::NAN, ..good.clone() },
            Shell { inclination_deg: 181.0, ..good.clone() },
            Shell { planes: 0, ..good.clone() },
            Shell { satellites: 10_000, ..good.clone() },
            Shell { phasing: -1.0, ..good.clone() },
            Shell { node_spacing_deg: Some(400.0), ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?} was accepted");
        }
    }
}
