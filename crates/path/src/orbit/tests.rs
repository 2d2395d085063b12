//! Whole constellations: what can be seen, which paths they offer, what is refused.

use super::*;
use crate::delay::LinkDelay;
use crate::orbit::earth::{LIGHT_KM_S, coverage_deg, period_s};
use crate::orbit::isl::IslKind;
use crate::orbit::journey::Hop;
use crate::orbit::passes::{gaps, passes};
use crate::orbit::sky::{Sky, Way, WayDelay};
use crate::orbit::vector::Vector;
use midhop_units::Duration;

const GERMANY: [f64; 2] = [51.4, 10.5];
const NEW_YORK: [f64; 2] = [40.8, -74.0];

fn orbit(text: &str) -> OrbitSpec {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn between(constellation: &str, from: [f64; 2], to: [f64; 2]) -> OrbitSpec {
    orbit(&format!("constellation = {constellation:?}\nfrom = {from:?}\nto = {to:?}"))
}

fn follow(spec: &OrbitSpec, seconds: u64) -> Result<Journey, OrbitError> {
    let (plan, constellation) = spec.resolve()?;
    plan.follow(&constellation, Duration::from_s(seconds), &mut |_| {})
}

fn preset(name: &str) -> Constellation {
    presets::find(name).expect("a preset").constellation()
}

#[test]
fn every_preset_flies_and_names_its_source() {
    for preset in presets::all() {
        let constellation = preset.constellation();
        assert_eq!(constellation.len(), preset.satellites() as usize);
        for (shell, rules) in &preset.shells {
            assert!(shell.check().is_ok() && rules.check().is_ok(), "{}", preset.name);
        }
        assert!(!preset.source.is_empty() && !preset.description.is_empty());
        assert_eq!(presets::find(preset.name), Some(preset));
    }
}

#[test]
fn iridium_has_four_links_each_and_three_at_its_seam() {
    let iridium = preset("iridium");
    assert_eq!(iridium.len(), 66);
    let count = |kind| iridium.isls().iter().filter(|isl| isl.kind == kind).count();
    assert_eq!(count(IslKind::Intraplane), 66);
    assert_eq!(count(IslKind::Interplane), 55);
    for satellite in 0..66 {
        let at_seam = !(11..55).contains(&satellite);
        assert_eq!(iridium.links(satellite).len(), if at_seam { 3 } else { 4 }, "{satellite}");
    }
    let across = |ends: [u32; 2]| ends.iter().any(|end| *end < 11) && ends.iter().any(|e| *e >= 55);
    assert!(!iridium.isls().iter().any(|isl| across(isl.ends)), "a link across the seam");
    assert!(iridium.seams().is_empty());
}

#[test]
fn deltas_close_and_teledesic_reaches_over_its_seam() {
    let starlink = preset("starlink-1");
    assert!((0..1584).all(|satellite| starlink.links(satellite).len() == 4));
    // The shift from the last plane to the first is no longer than between any two planes.
    let sky = starlink.positions(0.0);
    let place = |number: u32| sky[number as usize].expect("a place");
    let lengths = starlink.isls().iter().filter(|isl| isl.kind == IslKind::Interplane);
    let lengths: Vec<f64> =
        lengths.map(|isl| place(isl.ends[0]).distance(place(isl.ends[1]))).collect();
    assert_eq!(lengths.len(), 1584);
    let (shortest, longest) =
        lengths.iter().fold((f64::MAX, 0.0), |(s, l): (f64, f64), d| (s.min(*d), l.max(*d)));
    assert!(shortest > 100.0 && longest < 1500.0, "{shortest} to {longest} km");

    let teledesic = preset("teledesic");
    let inner = 5 * 24..6 * 24;
    assert!(inner.clone().all(|satellite| teledesic.links(satellite).len() == 8));
    assert_eq!(teledesic.links(0).len(), 6, "two planes on one side only");
    let sky = Sky::new(&teledesic, 0.0);
    let joined = (11 * 24..12 * 24)
        .filter(|last| sky.neighbours(*last).any(|(other, _)| other < 24))
        .count();
    // Satellites nearer to a pole than 60° have no active links: a third of the plane.
    assert_eq!(joined, 16);
}

#[test]
fn iridium_is_seen_from_every_latitude_at_any_time() {
    let iridium = preset("iridium");
    let sites: Vec<_> = (-6..=6)
        .flat_map(|latitude| {
            (0..12).map(move |longitude| {
                Site::at(f64::from(latitude) * 15.0, f64::from(longitude) * 30.0)
            })
        })
        .map(|site| sky::Station::new(&site, &iridium))
        .collect();
    let period = period_s(780.0);
    for moment in 0..25 {
        let sky = Sky::new(&iridium, period * f64::from(moment) / 25.0);
        for station in &sites {
            assert!(!sky.sightings(station).is_empty(), "{station:?} at {moment}");
        }
    }
}

#[test]
fn passes_last_no_longer_than_geometry_allows_and_leave_the_gaps_they_must() {
    let one = ConstellationSpec::Table(Box::new(ConstellationTable {
        altitude_km: Some(600.0),
        inclination_deg: Some(90.0),
        planes: Some(1),
        satellites: Some(1),
        mask_deg: Some(10.0),
        ..ConstellationTable::default()
    }));
    let spec = OrbitSpec { constellation: one, ..between("iridium", [90.0, 0.0], [90.0, 0.0]) };
    let (_, constellation) = spec.resolve().expect("an orbit");
    // At the pole, every revolution of a polar orbit passes through the zenith.
    let station = sky::Station::new(&spec.from, &constellation);
    let duration = Duration::from_s(24 * 3600);
    let step = Duration::from_s(10);
    let found = passes(&constellation, &station, Duration::ZERO, duration, step, &mut |_| {});
    let (period, covered) = (period_s(600.0), coverage_deg(600.0, 10.0));
    assert_eq!(found.len(), (24.0 * 3600.0 / period).round() as usize);
    for pass in found.iter().filter(|pass| pass.whole) {
        let length = pass.length().as_s_f64();
        assert!((length - covered / 180.0 * period).abs() < 0.005, "{length}");
        assert!(pass.elevation_max_deg > 85.0, "{pass:?}");
    }
    let gaps = gaps(&found, duration);
    let longest = gaps.iter().map(|(begin, end)| *end - *begin).max().expect("a gap").as_s_f64();
    assert!((longest - (1.0 - covered / 180.0) * period).abs() < 0.01, "{longest}");
    assert_eq!(gaps.len(), found.len() + 1);

    // Iridium has no gaps.
    let iridium = preset("iridium");
    let station = sky::Station::new(&Site::at(51.4, 10.5), &iridium);
    let hour = Duration::from_s(3600);
    let found = passes(&iridium, &station, Duration::ZERO, hour, step, &mut |_| {});
    assert!(passes::gaps(&found, hour).is_empty());
    let longest = found.iter().map(|pass| pass.length()).max().expect("a pass");
    assert!(longest <= Duration::from_s(667 + 10), "{longest}");
}

#[test]
fn low_inclinations_are_refused_where_they_cannot_be_seen() {
    let error = follow(&between("onboard-study", GERMANY, NEW_YORK), 60).expect_err("refused");
    assert_eq!(error.key(), "orbit.from");
    let OrbitError::Latitude { latitude_max, .. } = &error else { panic!("{error}") };
    assert!((latitude_max - 47.5).abs() < 0.3, "{latitude_max}");
    let text = error.to_string();
    assert!(text.contains("never rises above 20° at 51.4°N 10.5°E"), "{text}");
    names_the_smallest_that_works(&error, Some("iridium"));
    assert!(text.contains("is \"iridium\" (66 satellites)"), "{text}");
    // New York is far enough south for the second shell.
    assert!(between("onboard-study", NEW_YORK, [0.0, 0.0]).resolve().is_ok());
}

#[test]
fn a_sky_that_stays_empty_is_refused_with_the_next_chance() {
    let lonely = "{ altitude_km = 600.0, inclination_deg = 60.0, planes = 1, satellites = 1 }";
    let spec = orbit(&format!("constellation = {lonely}\nfrom = [51.4, 90]\nto = [51.4, 91]"));
    let error = follow(&spec, 30).expect_err("refused");
    let OrbitError::OutOfSight { key, next: Some(next), best_deg, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*key, "orbit.from");
    assert!(*best_deg < 10.0, "{best_deg}");
    // If the run starts then, a satellite is visible.
    let later = OrbitSpec { start: Some(*next + Duration::from_s(30)), ..spec };
    assert!(follow(&later, 30).is_ok());
}

#[test]
fn a_bent_pipe_serves_neighbours_and_refuses_continents() {
    let journey = follow(&between("oneweb", GERMANY, [48.1, 11.6]), 120).expect("a journey");
    let first = journey.first.expect("a way");
    assert_eq!(first.satellites.len(), 1);
    let Some(delay) = journey.samples[0].1 else { panic!("a delay") };
    assert_eq!(delay.isl, Duration::ZERO);
    // Two hops of 1200 to 1470 km (50° and higher).
    assert!((8.0..=9.9).contains(&delay.total().as_ms_f64()), "{:?}", delay.total());
    let error = follow(&between("oneweb", GERMANY, NEW_YORK), 60).expect_err("refused");
    assert!(matches!(error, OrbitError::Apart { isls: false, .. }), "{error}");
    names_the_smallest_that_works(&error, Some("iridium"));
}

/// The constellation that a refusal offers joins the two places, and none with fewer satellites
/// does.
fn names_the_smallest_that_works(error: &OrbitError, expected: Option<&str>) {
    let (OrbitError::Latitude { works, .. } | OrbitError::Apart { works, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(works.map(|fleet| fleet.name), expected, "{error}");
    for preset in presets::all() {
        let joins = follow(&between(preset.name, GERMANY, NEW_YORK), 5).is_ok();
        let smaller = works.is_none_or(|fleet| preset.satellites() < fleet.satellites);
        let offered = works.is_some_and(|fleet| preset.name == fleet.name);
        assert!(if smaller { !joins } else { joins || !offered }, "{}", preset.name);
    }
}

/// Where no constellation has a satellite above the required elevation, none is offered.
#[test]
fn what_nothing_serves_is_offered_nothing() {
    let up = "{ latitude_deg = 51.4, longitude_deg = 10.5, mask_deg = 89.0 }";
    let spec =
        orbit(&format!("constellation = \"onboard-study\"\nfrom = {up}\nto = [40.8, -74.0]"));
    let error = follow(&spec, 60).expect_err("refused");
    let OrbitError::Latitude { works: None, .. } = &error else { panic!("{error:?}") };
    assert!(error.to_string().contains("no known constellation joins the two"), "{error}");
}

#[test]
fn ways_are_as_short_as_can_be_and_no_shorter() {
    let iridium = preset("iridium");
    let stations =
        [GERMANY, NEW_YORK].map(|[lat, lon]| sky::Station::new(&Site::at(lat, lon), &iridium));
    for minute in 0..20 {
        let sky = Sky::new(&iridium, f64::from(minute) * 60.0);
        let seen = stations.map(|station| sky.sightings(&station));
        let way = sky.quickest(&seen[0], &seen[1]).expect("a way");
        let own = sky.delay(&way, &stations).expect("it works").total();
        // The algorithm of Floyd and Warshall is independent of Dijkstra's.
        let far = Duration::from_s(3600);
        let mut all = vec![vec![far; 66]; 66];
        for (a, row) in (0u32..).zip(&mut all) {
            row[a as usize] = Duration::ZERO;
            for (b, hop) in sky.neighbours(a) {
                row[b as usize] = hop;
            }
        }
        for k in 0..66 {
            for a in 0..66 {
                for b in 0..66 {
                    all[a][b] = all[a][b].min(all[a][k] + all[k][b]);
                }
            }
        }
        let best = seen[0].iter().flat_map(|up| {
            let all = &all;
            seen[1].iter().map(move |down| {
                up.delay + all[up.satellite as usize][down.satellite as usize] + down.delay
            })
        });
        assert_eq!(Some(own), best.min(), "minute {minute}");
    }
    let straight = {
        let place = |[lat, lon]: [f64; 2]| Site::at(lat, lon).ground(iridium.figure()).position;
        place(GERMANY).distance(place(NEW_YORK)) / LIGHT_KM_S
    };
    let journey = follow(&between("starlink-1", GERMANY, NEW_YORK), 30).expect("a journey");
    for (_, delay) in &journey.samples {
        let total = delay.expect("a way").total().as_s_f64();
        assert!(total > straight && total < 2.5 * straight, "{total} against {straight}");
    }
}

#[test]
fn a_kept_satellite_is_left_when_it_sinks_below_the_mask() {
    let spec = between("iridium", GERMANY, NEW_YORK);
    let (plan, iridium) = spec.resolve().expect("an orbit");
    let journey = plan.follow(&iridium, Duration::from_s(1200), &mut |_| {}).expect("a journey");
    let user = sky::Station::new(&spec.from, &iridium);
    let handovers: Vec<_> =
        journey.handovers.iter().filter(|handover| handover.hops().contains(&Hop::User)).collect();
    assert!(!handovers.is_empty());
    for handover in handovers {
        let before = handover.before.as_ref().expect("a way").access()[0];
        let seen = |at: Duration| {
            let place = iridium.position(before, at.as_s_f64()).expect("a place");
            user.sights(before, place).is_some()
        };
        assert!(!seen(handover.at), "left too early: {handover:?}");
        assert!(seen(handover.at - Duration::from_ms(1)), "left too late: {handover:?}");
    }
    assert!(journey.gaps().is_empty());
}

#[test]
fn choices_differ_as_documented() {
    let journey = |choice| {
        let spec = between("iridium", GERMANY, NEW_YORK);
        follow(&OrbitSpec { choice: Some(choice), ..spec }, 900).expect("a journey")
    };
    let [keep, highest, shortest] = [Choice::Keep, Choice::Highest, Choice::Shortest].map(journey);
    let ground =
        |journey: &Journey| journey.handovers.iter().filter(|h| h.hops() != [Hop::Isl]).count();
    assert!(ground(&keep) < ground(&highest), "{} {}", ground(&keep), ground(&highest));
    let mean = |journey: &Journey| {
        let total: Duration =
            journey.samples.iter().filter_map(|(_, d)| Some(d.as_ref()?.total())).sum();
        total.as_s_f64() / journey.samples.len() as f64
    };
    assert!(mean(&shortest) < mean(&keep) && mean(&shortest) < mean(&highest));
}

#[test]
fn slots_change_satellites_at_their_moments_only() {
    let journey = follow(&between("starlink-1", GERMANY, [50.1, 8.7]), 240).expect("a journey");
    assert!(!journey.handovers.is_empty());
    for handover in &journey.handovers {
        let since_first = handover.at.as_ns() as i64 - 12_000_000_000;
        assert_eq!(since_first % 15_000_000_000, 0, "{:?}", handover.at);
    }
    let free =
        OrbitSpec { every: Some(Duration::ZERO), ..between("starlink-1", GERMANY, [50.1, 8.7]) };
    let (plan, _) = free.resolve().expect("an orbit");
    assert_eq!((plan.every, plan.first), (None, None));
}

#[test]
fn the_same_orbit_gives_the_same_bits() {
    let spec = between("iridium", GERMANY, NEW_YORK);
    let journey = follow(&spec, 120).expect("a journey");
    assert_eq!(journey, follow(&spec, 120).expect("a journey"));
    // Fixed values, to detect differences of another platform or another version of `libm`.
    let delays: Vec<u64> = [0, 60]
        .map(|at| journey.samples.iter().find(|(time, _)| *time == Duration::from_s(at)))
        .map(|sample| sample.and_then(|(_, delay)| delay.as_ref()).map_or(0, |d| d.total().as_ns()))
        .to_vec();
    assert_eq!(delays, [90_630_970, 93_875_547]);
}

#[test]
fn elements_are_seen_from_the_ellipsoid() {
    let text = elements::tests::VANGUARD;
    let constellation =
        Constellation::from_elements("vanguard", text, None, 10.0).expect("elements");
    let place = constellation.position(0, 0.0).expect("a place");
    // 34.3° inclination and an eccentric orbit: the height is as published, in any axes.
    let published = Vector::new(7022.46529266, -1400.08296755, 0.03995155);
    assert!((place.length() - published.length()).abs() < 1e-4);
    assert!((place.z - published.z).abs() < 1e-4);
    // Seen from directly below, it is in the zenith.
    let longitude = libm::atan2(place.y, place.x).to_degrees();
    let station = sky::Station::new(&Site::at(0.0, longitude), &constellation);
    assert!(station.elevation_deg(place) > 89.9);
    let later = Constellation::from_elements("later", text, Some("2000-06-28T00:00:00Z"), 10.0)
        .expect("elements");
    // The elements are of 2000 day 179.78495062, 18:50:19.733568 on 27 June.
    let then = constellation.position(0, 18_580.266_432).expect("a place");
    assert!(later.position(0, 0.0).expect("a place").distance(then) < 0.001);
}

#[test]
fn ways_chosen_elsewhere_are_replayed() {
    let (plan, iridium) = between("iridium", GERMANY, NEW_YORK).resolve().expect("an orbit");
    let duration = Duration::from_s(300);
    let own = plan.follow(&iridium, duration, &mut |_| {}).expect("a journey");
    let first = std::iter::once((Duration::ZERO, own.first.clone()));
    let later = own.handovers.iter().map(|handover| (handover.at, handover.after.clone()));
    let ways: Vec<_> = first.chain(later).collect();
    assert!(ways.len() > 1, "nothing changes");
    assert_eq!(plan.replay(&iridium, &ways, duration), own);
    // An impossible path is a gap.
    let nonsense = Way { satellites: vec![0, 40] };
    let replayed = plan.replay(&iridium, &[(Duration::ZERO, Some(nonsense))], duration);
    assert_eq!(replayed.gaps(), [(Duration::ZERO, duration)]);
}

#[test]
fn mistakes_are_refused_with_their_key() {
    for (text, key) in [
        ("constellation = \"irridium\"\nfrom = [0, 0]\nto = [0, 1]", "orbit.constellation"),
        ("constellation = \"iridium\"\nfrom = [91, 0]\nto = [0, 1]", "orbit.from"),
        ("constellation = \"iridium\"\nfrom = [0, 0]\nto = [0, 1]\nstep = \"1 ms\"", "orbit.step"),
        ("constellation = \"iridium\"\nfrom = [0, 0]\nto = [0, 1]\nfirst = \"1 s\"", "orbit.every"),
        (
            "constellation = { altitude_km = 550.0 }\nfrom = [0, 0]\nto = [0, 1]",
            "orbit.constellation.inclination_deg",
        ),
        ("constellation = { tle = \"x\" }\nfrom = [0, 0]\nto = [0, 1]", "orbit.constellation.tle"),
        (
            "constellation = { tle = \"x\", planes = 3 }\nfrom = [0, 0]\nto = [0, 1]",
            "orbit.constellation.planes",
        ),
        (
            "constellation = { epoch = \"now\" }\nfrom = [0, 0]\nto = [0, 1]",
            "orbit.constellation.tle",
        ),
    ] {
        let error = orbit(text).resolve().expect_err(text);
        assert_eq!(error.key(), key, "{error}");
    }
    let error = orbit("constellation = \"irridium\"\nfrom = [0, 0]\nto = [0, 1]").resolve();
    assert!(error.expect_err("unknown").to_string().contains("did you mean \"iridium\"?"));
}

#[test]
fn plans_show_their_defaults_and_are_read_back() {
    let (plan, _) = between("starlink-1", GERMANY, NEW_YORK).resolve().expect("an orbit");
    assert_eq!((plan.satellites, plan.choice), (1584, Choice::Keep));
    assert_eq!(plan.every, Some(Duration::from_s(15)));
    assert_eq!(plan.first, Some(Duration::from_s(12)));
    let text = serde_json::to_string(&plan).expect("text");
    assert_eq!(serde_json::from_str::<OrbitPlan>(&text).expect("a plan"), plan);
}

#[test]
fn parts_add_up_to_the_whole() {
    let journey = follow(&between("iridium", GERMANY, NEW_YORK), 60).expect("a journey");
    let first = |part| match journey.delay(part) {
        LinkDelay::Constant(delay) => delay,
        LinkDelay::Trace(trace) => trace.steps[0].1,
    };
    let parts = first(Part::User) + first(Part::Isl) + first(Part::Feeder);
    assert_eq!(parts, first(Part::Whole));
    let way = Way { satellites: vec![1, 2, 3] };
    assert_eq!(way.access(), [1, 3]);
    let delay = WayDelay { user: parts, isl: parts, feeder: parts };
    assert_eq!(delay.total(), parts * 3);
    // Seen from the ground a satellite at 780 km is 780 to 2464 km away (8.2°).
    let slant = earth::slant_range_km(780.0, 8.2);
    let user = first(Part::User).as_s_f64() * LIGHT_KM_S;
    assert!((780.0..=slant + 0.01).contains(&user), "{user} of {slant}");
}
