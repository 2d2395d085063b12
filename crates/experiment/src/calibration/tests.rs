//! Compares recordings of known models with these models.

use super::*;
use midhop_path::recorded::{RateSample, RecordedFormat};
use midhop_path::{DirectionSpec, presets};

/// A recording of a known model.
fn recorded(spec: &DirectionSpec, span_s: u64) -> Recording {
    let span = Duration::from_s(span_s);
    let all =
        model::realisations(spec, Direction::Down, span, 1, [true, true, true]).expect("a plan");
    let seen = &all[0];
    let bin = Duration::from_s_f64(portrait::RATE_BIN_S);
    let down = (0..).zip(&seen.rate).map(|(at, rate)| RateSample {
        begin: bin * at,
        end: bin * (at + 1),
        bit_per_s: *rate,
    });
    let step = Duration::from_s_f64(portrait::PROBE_S);
    let delays = (0..).zip(&seen.delay).map(|(at, s)| (step * at, Duration::from_s_f64(*s)));
    Recording {
        format: RecordedFormat::Csv,
        down: down.collect(),
        up: Vec::new(),
        delays: delays.collect(),
        halved: false,
        losses: seen.losses.clone(),
    }
}

fn named<'c>(calibration: &'c Calibration, name: &str) -> &'c Model {
    calibration.models.iter().find(|model| model.name == name).expect("a model")
}

#[test]
fn a_preset_is_near_itself_and_a_fixed_link_is_not() {
    let starlink = presets::find("starlink").expect("a preset");
    let recording = recorded(&starlink.down, 900);
    let found = Calibration::of(&[recording], &starlink, Direction::Down, 20).expect("long enough");
    let (own, fixed) = (named(&found, "preset").distance, named(&found, "fixed").distance);
    assert!(own < 0.1 && own < fixed / 2.0, "{own} {fixed}");
    // Boundaries are at 12 s of each period, and samples begin at 30 s.
    let grid = found.recording.grid.as_ref().expect("a grid");
    assert!((grid.phase.as_s_f64() - 12.0).abs() < 0.2, "{}", grid.phase);
    assert!(grid.boundaries > 50 && grid.sharpness > 1.5, "{grid:?}");
    let fit = found.fit.as_ref().expect("a fit");
    assert!((fit.rate.mbit_per_s() / 178.0 - 1.0).abs() < 0.15, "{fit:?}");
    assert!((fit.rate_sigma - 0.25).abs() < 0.08, "{fit:?}");
    assert!((fit.delay.expect("delays").as_ms_f64() - 12.5).abs() < 1.0, "{fit:?}");
    assert!((fit.added_delay_max.as_ms_f64() - 15.0).abs() < 1.5, "{fit:?}");
    assert!(fit.interruption_max <= Duration::from_ms(160), "{fit:?}");
    assert!(named(&found, "fitted").distance < fixed, "{:?}", found.models);
}

#[test]
fn what_has_no_grid_has_none_and_what_is_missing_is_named() {
    let steady = DirectionSpec {
        rate: "20 Mbit/s".parse().ok(),
        delay: "30 ms".parse().ok(),
        ..DirectionSpec::default()
    };
    let mut recording = recorded(&steady, 120);
    recording.losses.clear();
    let preset = presets::find("geo").expect("a preset");
    let found = Calibration::of(&[recording], &preset, Direction::Down, 2).expect("long enough");
    assert_eq!(found.recording.grid, None);
    assert!(named(&found, "fitted").distance < 0.01, "{:?}", found.models);
    // 300 ms instead of 30: nine times the mean too much.
    let preset = named(&found, "preset");
    let delay = preset.parts.iter().find(|part| part.quantity == "delay").expect("delays");
    assert!((delay.distance - 9.0).abs() < 0.1, "{delay:?}");
    let unknown = found.unknown.join("\n");
    for words in ["8 slots", "no losses were recorded", "no grid", "other direction"] {
        assert!(unknown.contains(words), "{words}: {unknown}");
    }
}

#[test]
fn too_short_is_refused_with_a_hint() {
    let preset = presets::find("geo").expect("a preset");
    let recording = recorded(&preset.down, 30);
    let error = Calibration::of(&[recording], &preset, Direction::Down, 2).expect_err("short");
    assert!(error.to_string().contains("30 s") && error.hint().contains("two minutes"), "{error}");
}

#[test]
fn the_distance_is_what_must_be_moved() {
    let move_by = |one: &[f64], other: &[f64]| compare::wasserstein(one, other).expect("values");
    assert!((move_by(&[1.0, 2.0, 3.0], &[2.0, 3.0, 4.0]) - 1.0).abs() < 1e-9);
    assert_eq!(move_by(&[1.0, 5.0], &[1.0, 5.0]), 0.0);
    assert_eq!(compare::wasserstein(&[], &[1.0]), None);
}

#[test]
fn the_fit_is_a_link_of_a_scenario() {
    let starlink = presets::find("starlink").expect("a preset");
    let found = Calibration::of(&[recorded(&starlink.down, 240)], &starlink, Direction::Down, 2);
    let text = found.expect("long enough").fit.expect("a fit").toml();
    let scenario = format!(
        "title = \"x\"\nduration = \"60 s\"\n[nodes]\na = {{}}\nb = {{}}\n[links.l]\nbetween = [\"a\", \"b\"]\n{text}\
         [transfers.t]\nfrom = \"a\"\nto = \"b\"\nbytes = \"1 MB\"\n"
    );
    let plans = crate::Scenario::parse("x", &scenario).and_then(|scenario| scenario.plans());
    assert!(plans.is_ok(), "{plans:?}\n{text}");
}
