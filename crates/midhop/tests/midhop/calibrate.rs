//! `midhop calibrate`: a recording and a preset, and which inputs are refused.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn recording(name: &str) -> String {
    let place =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/measured/starlink-leocc");
    place.join(name).display().to_string()
}

fn calibrate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_midhop"));
    command.arg("calibrate").args(arguments).output().expect("midhop starts")
}

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("calibrate-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a directory");
    path
}

#[test]
fn the_recording_that_comes_with_the_repository_is_held_against_presets() {
    let (rate, delay) = (recording("rate.csv"), recording("delay.txt"));
    let picture = directory("picture").join("starlink.svg");
    let shown = picture.display().to_string();
    let found = |preset: &str| {
        let output = calibrate(&[&rate, &delay, preset, "--seeds", "5", "--json", "--out", &shown]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let distance = |found: &Value, name: &str| {
        let models = found["models"].as_array().expect("models");
        let model = models.iter().find(|model| model["name"] == name).expect("a model");
        model["distance"].as_f64().expect("a number")
    };
    let starlink = found("starlink");
    // The outages of the recording are at 8.7 s and every 15 s after it.
    let phase = starlink["recording"]["grid"]["phase_s"].as_f64().expect("a grid");
    assert!((phase - 8.7).abs() <= 0.3, "{phase}");
    let rate_median = starlink["recording"]["rate_bit_per_s"]["p50"].as_f64().expect("a median");
    assert!((rate_median / 48.5e6 - 1.0).abs() < 0.02, "{rate_median}");
    let fitted = found("starlink-leocc");
    assert!(distance(&fitted, "preset") < distance(&starlink, "preset") / 2.0, "{fitted}");
    assert_eq!(distance(&fitted, "fixed"), distance(&starlink, "fixed"));
    let picture = fs::read_to_string(&picture).expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
    assert!(picture.matches("<polyline").count() > 20, "{}", picture.len());
    let output = calibrate(&[&rate, &delay, "starlink", "--seeds", "2"]);
    let table = String::from_utf8(output.stdout).expect("text");
    for words in [
        "distance from the half that judges",
        "fitted to the first half",
        "leaves open",
        "every 15 s",
    ] {
        assert!(table.contains(words), "{words}\n{table}");
    }
}

#[test]
fn what_cannot_be_read_is_one_error_with_its_line_and_a_hint() {
    let directory = directory("refused");
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let delay = recording("delay.txt");
    let broken = write("broken.txt", "12\n13\nfourteen\n12\n");
    let short = write("short.txt", "12\n13\n12\n");
    for (arguments, words) in [
        (vec![broken.as_str(), "starlink"], "broken.txt, line 3"),
        (vec![short.as_str(), "starlink"], "each half must last"),
        (vec![delay.as_str(), "starling"], "did you mean \"starlink\"?"),
        (vec!["nowhere.csv", "starlink"], "cannot read nowhere.csv"),
        (vec![delay.as_str(), "starlink", "--direction", "left"], "write down or up"),
    ] {
        let output = calibrate(&arguments);
        let errors = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{words}: {errors}");
        assert!(output.stdout.is_empty());
    }
}
