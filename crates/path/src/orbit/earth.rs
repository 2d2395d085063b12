//! The Earth: its figure, its rotation, places on it, and how a satellite appears from them.

use crate::orbit::vector::Vector;
use crate::resolve::{ResolveError, check_number};
use midhop_units::Duration;
#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

const EXPECTED: &str =
    "a place: [latitude, longitude] in degrees north and east, such as [51.5, -0.1]";

/// The mean radius, with which 3GPP TR 38.821 computes its delays. Unit: km.
pub const RADIUS_KM: f64 = 6371.0;
/// The gravitational parameter. Unit: km³/s².
pub const GRAVITY_KM3_S2: f64 = 398_600.4;
/// The speed of light, in space and, near enough, in the air. Unit: km/s.
pub const LIGHT_KM_S: f64 = 299_792.458;
/// The rotation of the Earth against the stars (IERS Conventions 2010). Unit: rad/s.
pub const ROTATION_RAD_S: f64 = 7.292_115e-5;

/// Equatorial radius and flattening of WGS 84.
const WGS84_RADIUS_KM: f64 = 6378.137;
const WGS84_FLATTENING: f64 = 1.0 / 298.257_223_563;

/// The shape of the ground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// A sphere of [`RADIUS_KM`], as the standards' tables and studies of ideal constellations take it.
    Sphere,
    /// The WGS 84 ellipsoid, which positions computed from real elements refer to.
    Wgs84,
}

/// A place on the ground as written: `[latitude, longitude]`, `[latitude, longitude, altitude]`, or a
/// table with these names.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Site {
    /// Degrees north. Range: −90 to 90.
    pub latitude_deg: f64,
    /// Degrees east. Range: −180 to 360.
    pub longitude_deg: f64,
    /// Height above the figure of the Earth. Unit: m. Default 0.
    pub altitude_m: f64,
    /// The elevation below which this place uses no satellite. Default: that of the constellation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_deg: Option<f64>,
}

impl Site {
    /// The place at these degrees north and east, at sea level.
    pub fn at(latitude_deg: f64, longitude_deg: f64) -> Self {
        Self { latitude_deg, longitude_deg, altitude_m: 0.0, mask_deg: None }
    }

    /// Refuses coordinates that are no place on the Earth. `key` is their key in the scenario.
    pub(crate) fn check(&self, key: &'static str) -> Result<(), ResolveError> {
        check_number(key, self.latitude_deg, -90.0..=90.0)?;
        check_number(key, self.longitude_deg, -180.0..=360.0)?;
        check_number(key, self.altitude_m, -500.0..=50_000.0)?;
        self.mask_deg.map_or(Ok(()), |mask| check_number(key, mask, 0.0..=89.0))
    }

    /// This place in Earth-fixed coordinates.
    pub fn ground(&self, figure: Figure) -> Ground {
        let (latitude, longitude) = (radians(self.latitude_deg), radians(self.longitude_deg));
        let (sin, cos) = libm::sincos(latitude);
        let (sin_longitude, cos_longitude) = libm::sincos(longitude);
        let up = Vector::new(cos * cos_longitude, cos * sin_longitude, sin);
        let altitude_km = self.altitude_m / 1e3;
        let position = match figure {
            Figure::Sphere => up * (RADIUS_KM + altitude_km),
            Figure::Wgs84 => {
                let squared = WGS84_FLATTENING * (2.0 - WGS84_FLATTENING);
                let normal_km = WGS84_RADIUS_KM / (1.0 - squared * sin * sin).sqrt();
                let level = (normal_km + altitude_km) * cos;
                let height = (normal_km * (1.0 - squared) + altitude_km) * sin;
                Vector::new(level * cos_longitude, level * sin_longitude, height)
            }
        };
        Ground { position, up }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (latitude, longitude) = (self.latitude_deg, self.longitude_deg);
        write!(f, "{}°{}", latitude.abs(), if latitude < 0.0 { "S" } else { "N" })?;
        write!(f, " {}°{}", longitude.abs(), if longitude < 0.0 { "W" } else { "E" })
    }
}

/// A place on the ground as a table.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct SiteTable {
    /// Degrees north.
    latitude_deg: f64,
    /// Degrees east.
    longitude_deg: f64,
    /// Height above the figure of the Earth, in metres.
    #[serde(default)]
    altitude_m: f64,
    /// The elevation below which no satellite is used from here. Default: that of the constellation.
    #[serde(default)]
    mask_deg: Option<f64>,
}

#[cfg(feature = "schema")]
impl JsonSchema for Site {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Site".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let table = generator.subschema_for::<SiteTable>();
        let numbers = json_schema!({
            "type": "array",
            "items": { "type": "number" },
            "description": EXPECTED
        });
        json_schema!({ "anyOf": [numbers, table] })
    }
}

impl<'de> Deserialize<'de> for Site {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SiteVisitor;
        impl<'de> Visitor<'de> for SiteVisitor {
            type Value = Site;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Site, A::Error> {
                let mut next = || numbers.next_element::<f64>();
                let short = |count| de::Error::invalid_length(count, &self);
                let latitude_deg = next()?.ok_or_else(|| short(0))?;
                let longitude_deg = next()?.ok_or_else(|| short(1))?;
                let altitude_m = next()?.unwrap_or(0.0);
                if next()?.is_some() {
                    return Err(short(4));
                }
                Ok(Site { altitude_m, ..Site::at(latitude_deg, longitude_deg) })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Site, A::Error> {
                let table = SiteTable::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let SiteTable { latitude_deg, longitude_deg, altitude_m, mask_deg } = table;
                Ok(Site { latitude_deg, longitude_deg, altitude_m, mask_deg })
            }
        }
        from.deserialize_any(SiteVisitor)
    }
}

/// A place on the ground in Earth-fixed coordinates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ground {
    /// Where it is. Unit: km.
    pub position: Vector,
    /// The direction of its zenith; length 1.
    pub up: Vector,
}

impl Ground {
    /// The sine of a satellite's elevation. Comparing sines avoids computing angles.
    pub fn sin_elevation(&self, satellite: Vector) -> f64 {
        let way = satellite - self.position;
        self.up.dot(way) / way.length()
    }

    /// The elevation of a satellite. Unit: degrees above the horizon; negative below it.
    pub fn elevation_deg(&self, satellite: Vector) -> f64 {
        libm::asin(self.sin_elevation(satellite).clamp(-1.0, 1.0)).to_degrees()
    }
}

/// The propagation delay over a distance, to the nearest nanosecond.
pub fn delay(km: f64) -> Duration {
    Duration::from_ns((km / LIGHT_KM_S * 1e9).round() as u64)
}

/// The distance to a satellite at an elevation, over a spherical Earth. Unit: km.
///
/// Source: 3GPP TR 38.821 §6.1.1.
pub fn slant_range_km(altitude_km: f64, elevation_deg: f64) -> f64 {
    let height = RADIUS_KM * libm::sin(radians(elevation_deg));
    (height * height + altitude_km * altitude_km + 2.0 * RADIUS_KM * altitude_km).sqrt() - height
}

/// The greatest distance from the point below a satellite at which it is above an elevation, as an
/// angle at the centre of the Earth. Unit: degrees.
pub fn coverage_deg(altitude_km: f64, mask_deg: f64) -> f64 {
    let mask = radians(mask_deg);
    let angle = libm::acos(RADIUS_KM * libm::cos(mask) / (RADIUS_KM + altitude_km)) - mask;
    angle.to_degrees()
}

/// The period of a circular orbit. Unit: s.
pub fn period_s(altitude_km: f64) -> f64 {
    let radius_km = RADIUS_KM + altitude_km;
    2.0 * std::f64::consts::PI * (radius_km * radius_km * radius_km / GRAVITY_KM3_S2).sqrt()
}

/// The longest link between two satellites of one altitude that stays `grazing_km` above the
/// ground. Unit: km.
pub fn isl_max_km(altitude_km: f64, grazing_km: f64) -> f64 {
    let (orbit_km, least_km) = (RADIUS_KM + altitude_km, RADIUS_KM + grazing_km);
    2.0 * (orbit_km * orbit_km - least_km * least_km).max(0.0).sqrt()
}

/// Degrees to radians. (`f64::to_radians` also multiplies by a constant, but does not guarantee
/// it.)
pub(crate) fn radians(degrees: f64) -> f64 {
    degrees * (std::f64::consts::PI / 180.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips of 3GPP TR 38.821 table 5.3.4.1-1: both hops, and one hop (regenerative).
    #[test]
    fn round_trips_agree_with_the_standard() {
        for (altitude_km, elevation, both_ms, one_ms) in [
            (35_786.0, 10.0, 541.46, 270.73),
            (600.0, 10.0, 25.77, 12.89),
            (1200.0, 10.0, 41.77, 20.89),
        ] {
            let hop = delay(slant_range_km(altitude_km, elevation)).as_ms_f64();
            assert!((hop * 4.0 - both_ms).abs() <= 0.01, "{altitude_km} km: {}", hop * 4.0);
            assert!((hop * 2.0 - one_ms).abs() <= 0.01, "{altitude_km} km: {}", hop * 2.0);
        }
        assert_eq!(delay(LIGHT_KM_S), Duration::from_s(1));
    }

    #[test]
    fn periods_and_passes_follow_kepler() {
        for (altitude_km, minutes) in
            [(550.0, 95.6), (780.0, 100.5), (1200.0, 109.4), (1375.0, 113.2), (35_786.0, 1436.0)]
        {
            let own = period_s(altitude_km) / 60.0;
            assert!((own - minutes).abs() < 0.5, "{altitude_km} km: {own}");
        }
        for (altitude_km, mask, pass_s) in [
            (550.0, 25.0, 269.0),
            (630.0, 35.0, 220.0),
            (1015.0, 10.0, 767.0),
            (780.0, 8.2, 667.0),
            (1375.0, 40.0, 413.0),
            (600.0, 10.0, 510.0),
            (1200.0, 10.0, 875.0),
        ] {
            let own = coverage_deg(altitude_km, mask) / 180.0 * period_s(altitude_km);
            assert!((own - pass_s).abs() < 1.0, "{altitude_km} km: {own}");
        }
    }

    #[test]
    fn the_ellipsoid_is_flat_at_the_poles_and_up_is_up() {
        let pole = Site::at(90.0, 0.0).ground(Figure::Wgs84).position;
        assert!((pole.length() - 6356.752).abs() < 0.001, "{pole:?}");
        let equator = Site { altitude_m: 1000.0, ..Site::at(0.0, 90.0) }.ground(Figure::Wgs84);
        assert!((equator.position.y - 6379.137).abs() < 1e-9);
        for figure in [Figure::Sphere, Figure::Wgs84] {
            let ground = Site::at(51.4, 10.5).ground(figure);
            let zenith = ground.position + ground.up * 550.0;
            assert!((ground.elevation_deg(zenith) - 90.0).abs() < 1e-4);
            let below = ground.position - ground.up * 550.0;
            assert!((ground.elevation_deg(below) + 90.0).abs() < 1e-4);
        }
    }

    #[test]
    fn places_are_read_in_both_forms() {
        let read = serde_json::from_str::<Site>;
        assert_eq!(read("[51.5, -0.1]").expect("a place"), Site::at(51.5, -0.1));
        assert_eq!(read("[51, 0, 30]").expect("a place").altitude_m, 30.0);
        let table = r#"{"latitude_deg": 1.0, "longitude_deg": 2.0, "mask_deg": 40.0}"#;
        assert_eq!(read(table).expect("a place").mask_deg, Some(40.0));
        for text in ["[51.5]", "[1, 2, 3, 4]", "\"Berlin\"", r#"{"latitude": 1.0}"#] {
            assert!(read(text).is_err(), "{text} was read");
        }
        assert_eq!(Site::at(-33.5, -70.5).to_string(), "33.5°S 70.5°W");
    }
}
