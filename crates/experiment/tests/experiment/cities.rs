//! The delays in `studies/far-proxy/flight.toml` are those of great circles between its cities.

use midhop_units::Duration;

/// Latitude and longitude of the city's centre, in degrees north and east, from public gazetteers
/// such as GeoNames, to the hundredth.
const CITIES: [(&str, f64, f64); 6] = [
    ("frankfurt", 50.11, 8.68),
    ("new-york", 40.71, -74.01),
    ("london", 51.51, -0.13),
    ("lisbon", 38.72, -9.14),
    ("chicago", 41.88, -87.63),
    ("dallas", 32.78, -96.80),
];
const RADIUS_KM: f64 = 6371.0;
/// The study's own rule: 30 ms there and back for 2,000 km.
const ONE_WAY_MS_PER_KM: f64 = 15.0 / 2000.0;
/// The study's backhaul from a ground station in Boise to Seattle.
const BACKHAUL_KM: f64 = 640.0;
/// The file has delays to the hundredth of a millisecond.
const DELAY_OFF_MS_MAX: f64 = 0.005;
/// And distances to the kilometre; hundredths of a degree are slightly too coarse for that.
const DISTANCE_OFF_KM_MAX: f64 = 1.0;

/// The great circle between two cities, by the haversine formula. From Boise, it is the backhaul and
/// the distance in the name.
fn distance_km(way: &str) -> f64 {
    if let Some(beyond) = way.strip_prefix("boise-") {
        return BACKHAUL_KM + beyond.parse::<f64>().expect("a number of kilometres");
    }
    let at = |name: &str| {
        let city = CITIES.into_iter().find(|(city, ..)| *city == name);
        let (_, latitude, longitude) = city.unwrap_or_else(|| panic!("{way}: where is {name}?"));
        (latitude.to_radians(), longitude.to_radians())
    };
    let (station, home) = way.rsplit_once('-').expect("a station and a home");
    let ((from, from_east), (to, to_east)) = (at(station), at(home));
    let half = |angle: f64| (angle / 2.0).sin().powi(2);
    let part = half(to - from) + from.cos() * to.cos() * half(to_east - from_east);
    2.0 * RADIUS_KM * part.sqrt().asin()
}

#[test]
fn flights_are_as_long_as_great_circles() {
    let text = include_str!("../../../../studies/far-proxy/flight.toml");
    let scenario: toml::Table = text.parse().expect("TOML");
    let ways = scenario["vary"]["way"].as_table().expect("an axis");
    assert_eq!(ways.len(), 10, "two stations, four homes; two sources beyond Boise");
    for (way, case) in ways {
        let written = case["links"]["internet"]["delay"].as_str().expect("a delay");
        let delay_ms = written.parse::<Duration>().expect("a time").as_ms_f64();
        let km = distance_km(way);
        let wanted_ms = km * ONE_WAY_MS_PER_KM;
        let off_ms = (delay_ms - wanted_ms).abs();
        assert!(
            off_ms <= DELAY_OFF_MS_MAX,
            "{way}: {written}, not {wanted_ms:.3} ms of {km:.1} km"
        );

        let line = text.lines().find(|line| line.starts_with(&format!("{way} =")));
        let stated = line.and_then(|line| line.rsplit_once("# ")).expect("a distance").1;
        let stated_km: f64 =
            stated.trim_end_matches(" km").parse().expect("a number of kilometres");
        assert!((stated_km - km).abs() <= DISTANCE_OFF_KM_MAX, "{way}: {stated}, not {km:.1} km");
    }
}
