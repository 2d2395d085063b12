//! `midhop reproduce` as a user meets it, and the studies that come with it.

use midhop_experiment::Scenario;
use midhop_experiment::record::Record;
use midhop_experiment::study::{Study, Whose};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

fn midhop(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_midhop"))
        .arg("reproduce")
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn studies() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies")
}

/// Every directory below `studies/`, by its name.
fn directories() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(studies()).expect("studies/ is there");
    let paths = entries.map(|entry| entry.expect("listed").path()).filter(|path| path.is_dir());
    let named = paths.map(|path| {
        (path.file_name().expect("a name").to_string_lossy().into_owned(), path.clone())
    });
    named.collect()
}

#[test]
fn every_study_parses_and_names_only_cells_that_it_has() {
    for (name, directory) in directories() {
        let read = |file: &str| {
            fs::read_to_string(directory.join(file))
                .unwrap_or_else(|e| panic!("{name}/{file}: {e}"))
        };
        assert!(!read("README.md").is_empty());
        let study = Study::parse(&name, &read("study.toml")).unwrap_or_else(|e| panic!("{e}"));
        let scenario = |file: &String| {
            let scenario = Scenario::parse(file, &read(&format!("{file}.toml")));
            let scenario = scenario.unwrap_or_else(|e| panic!("{name}: {e}"));
            scenario.plans().unwrap_or_else(|e| panic!("{name}: {e}"));
            (file.clone(), scenario.positions())
        };
        let cells: BTreeMap<_, _> = study.scenarios.iter().map(scenario).collect();
        study.check(&cells).unwrap_or_else(|what| panic!("{name}: {what}"));
        for claim in study.claims.iter().filter(|claim| claim.by == Whose::Study) {
            let bounded = claim.within.or(claim.at_least).or(claim.at_most).is_some();
            assert!(!bounded || claim.basis.is_some(), "{name}: {}: whose bounds?", claim.says);
        }
        for figure in &study.figures {
            let judged = figure.within.or(figure.off).is_some()
                && figure.published.iter().any(|it| it.calibrates.is_none());
            assert!(!judged || figure.tolerance.is_some(), "{name}: {}: why so far?", figure.name);
        }
        for files in fs::read_dir(&directory).expect("listed") {
            let path = files.expect("listed").path();
            let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let ours = path.extension().is_some_and(|it| it == "toml") && stem != "study";
            assert!(!ours || study.scenarios.contains(&stem), "{name}: {stem}.toml is never run");
        }
    }
}

#[test]
fn every_study_comes_with_the_program() {
    let refused = midhop(&["no-such-study"]);
    assert_eq!(refused.status.code(), Some(64));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    for (name, _) in directories() {
        assert!(text.contains(&name), "{name} is not among: {text}");
    }
}

#[test]
fn the_flows_of_the_geo_emulator_are_reproduced() {
    let output = midhop(&["pepsal-multiflow", "--in", "sim", "--quick", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["runs"], value["finished"]);
    let claims = value["claims"].as_array().expect("claims");
    let holding = claims.iter().filter(|claim| claim["verdict"] == "holds").count();
    assert!(holding > 0, "{claims:?}");
    assert!(claims.iter().all(|claim| claim["verdict"] != "fails"), "{claims:?}");
}

/// The fleet that the placement study prints cannot see the places that it prints.
#[test]
fn the_fleet_of_the_placement_study_is_refused_with_the_reason() {
    let scenario = studies().join("ntn-placement/moving.toml");
    let mut arguments = vec!["sim".to_owned(), "run".to_owned(), scenario.display().to_string()];
    for link in ["user", "isl", "feeder"] {
        arguments.extend([
            "--set".to_owned(),
            format!("links.{link}.orbit.constellation=onboard-study"),
        ]);
    }
    let output = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args(&arguments)
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains("never rises above 20° at 51.399°N 10.536°E"), "{errors}");
    assert!(errors.contains("47.5° north and south"), "{errors}");
}

#[test]
fn what_an_earlier_call_has_finished_is_not_run_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().to_str().expect("UTF-8");
    let study = studies().join("pepsal-multiflow");
    let run = || {
        let study = study.to_str().expect("UTF-8");
        let output = midhop(&[study, "--quick", "--seeds", "1", "--out", out]);
        let text = String::from_utf8(output.stdout).expect("text");
        // All but the time that it took.
        text.rsplit_once(" in ").expect("a last line").0.to_owned()
    };
    let first = run();
    let records = directory.path().join("pepsal-multiflow");
    let written = || -> BTreeMap<PathBuf, SystemTime> {
        let entries = fs::read_dir(&records).expect("records").map(|entry| entry.expect("listed"));
        let modified =
            |path: &Path| fs::metadata(path).and_then(|it| it.modified()).expect("a file");
        entries.map(|entry| (entry.path(), modified(&entry.path()))).collect()
    };
    let before = written();
    assert_eq!(run(), first);
    assert_eq!(written(), before);
    // A record that another build has made, with other figures, is no record of this one's.
    let path = before.keys().next().expect("a record");
    let mut record = Record::from_json(&fs::read_to_string(path).expect("a record")).expect("JSON");
    record.environment.versions.insert("build".to_owned(), "another".to_owned());
    record.transfers.iter_mut().for_each(|transfer| transfer.complete = false);
    fs::write(path, record.to_json().expect("JSON")).expect("written");
    assert_eq!(run(), first);
    let after = written();
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert!(before.iter().all(|(known, then)| (after[known] != *then) == (known == path)));
}

#[test]
fn the_lab_is_refused() {
    let output = midhop(&["pepsal-multiflow", "--in", "lab"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("simulator only"));
}
