//! The study `starlink-as-measured`, with recorded links: its files are built into the program.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NAME: &str = "starlink-as-measured";

/// Runs `midhop reproduce` in a place without the study's files.
fn reproduce(study: &str, more: &[&str]) -> Output {
    let elsewhere = tempfile::tempdir().expect("a directory");
    Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args(["reproduce", study, "--in", "sim", "--json"])
        .args(more)
        .current_dir(elsewhere.path())
        .output()
        .expect("the program starts")
}

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 2)), "{errors}");
    assert!(!errors.contains("invalid: "), "{errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn study() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies").join(NAME)
}

#[test]
fn its_short_form_runs_and_nothing_is_above_what_was_drawn() {
    let value = json(&reproduce(NAME, &["--quick"]));
    assert_eq!(value["runs"], value["finished"]);
    let figures = value["figures"].as_array().expect("figures");
    let shares: Vec<f64> = figures
        .iter()
        .filter(|figure| figure["figure"] == "down-share")
        .map(|figure| figure["here"]["mean"].as_f64().expect("a share"))
        .collect();
    // Two links, two setups.
    assert_eq!(shares.len(), 4, "{figures:?}");
    assert!(shares.iter().all(|share| (50.0..=100.0).contains(share)), "{shares:?}");
    let waits = figures.iter().filter(|figure| figure["figure"] == "down-queueing-p95");
    assert!(waits.clone().count() == 4 && waits.clone().all(|it| !it["here"].is_null()));
}

/// The recording can be read from the program, from the repository and from a copy of it, with the
/// same results.
#[test]
fn the_same_recording_gives_the_same_wherever_it_is_read() {
    let cell = ["--quick", "--seeds", "2", "--cell", "page:link=second,begins=1-s,setup=pair"];
    let figures = |study: &str| {
        let mut value = json(&reproduce(study, &cell));
        assert_eq!(value["runs"], 2);
        value["figures"].take().to_string()
    };
    let shipped = figures(NAME);
    assert!(shipped.contains("page-time"), "{shipped}");
    assert_eq!(shipped, figures(NAME));
    assert_eq!(shipped, figures(study().to_str().expect("UTF-8")));
}

#[test]
fn a_recording_that_is_missing_empty_or_too_short_is_one_error() {
    let place = tempfile::tempdir().expect("a directory");
    for file in fs::read_dir(study()).expect("listed") {
        let from = file.expect("listed").path();
        fs::copy(&from, place.path().join(from.file_name().expect("a name"))).expect("copied");
    }
    let recording = place.path().join("delay.txt");
    let refused = |what: &str| {
        let output = reproduce(place.path().to_str().expect("UTF-8"), &["--quick"]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert!(errors.contains(what), "{errors}");
        assert_eq!(errors.matches("error: ").count(), 1, "{errors}");
        assert!(output.stdout.is_empty());
    };
    fs::write(&recording, "12\n11\n".repeat(3_500)).expect("written");
    refused("this recording lasts 10 s, a run up to 58 s");
    refused("hint: make `duration` shorter, or write `repeat = \"10 s\"`");
    fs::write(&recording, "").expect("written");
    refused("delay.txt, it is empty: is this the whole recording?");
    fs::remove_file(&recording).expect("removed");
    refused("delay.txt: No such file");
    refused("hint: ");
}
