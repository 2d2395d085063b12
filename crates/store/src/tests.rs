//! What is found again, and what is not.

use super::*;
use midhop_experiment::Scenario;
use midhop_experiment::record::{Environment, SCHEMA, Series, Validity};
use std::fs;
use tempfile::TempDir;

const SCENARIO: &str = r#"title = "a file over a link"
duration = "20 s"
seeds = 2
[nodes]
client = {}
server = {}
[links.link]
between = ["client", "server"]
rate = "20 Mbit/s"
[transfers.file]
from = "server"
to = "client"
bytes = "100 kB"
[vary]
"links.link.rate" = ["20 Mbit/s", "10 Mbit/s"]
twice = { one = {}, other = {} }
"#;

/// Two rates, two cases that are the same, two seeds.
fn plans() -> Vec<Plan> {
    Scenario::parse("s.toml", SCENARIO).and_then(|it| it.plans()).expect("a scenario")
}

fn record(plan: &Plan) -> Record {
    Record {
        schema: SCHEMA,
        title: plan.title.clone(),
        cell: plan.cell(),
        seed: plan.seed,
        plan: plan.to_json().expect("JSON"),
        environment: Environment::default(),
        validity: Validity::default(),
        transfers: Vec::new(),
        links: Vec::new(),
        legs: Vec::new(),
        traffic: Vec::new(),
        nodes: Vec::new(),
        series: vec![Series {
            quantity: "goodput".to_owned(),
            place: "file".to_owned(),
            flow: None,
            unit: "Mbit/s".to_owned(),
            time_s: vec![0.1],
            value: vec![3.0],
        }],
    }
}

fn build(name: &str) -> Build {
    Build(name.to_owned())
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn a_key_is_of_what_would_run() {
    let plans = plans();
    let keys: Vec<Key> = plans.iter().map(|plan| Key::of(plan).expect("a key")).collect();
    // The last axis changes fastest, then come the seeds: rate 20 one, 20 other, 10 one, 10 other.
    assert_eq!((&keys[0], &keys[1]), (&keys[2], &keys[3]), "an axis that changes nothing");
    assert_eq!(keys[4..6], keys[6..8]);
    let mut distinct = keys.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 4, "two rates with two seeds");
}

#[test]
fn a_build_is_its_files_content() {
    let directory = directory();
    let place = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("written");
        Build::of(&path).expect("read")
    };
    assert_eq!(place("one", "program"), place("copy", "program"));
    assert_ne!(place("one", "program"), place("other", "programme"));
    let missing = directory.path().join("none");
    assert!(Build::of(&missing).unwrap_err().to_string().contains("none"));
}

#[test]
fn lines_are_found_by_every_plan_that_is_theirs_and_no_other_builds() {
    let directory = directory();
    let path = directory.path().join("records.jsonl");
    let plans = plans();
    let keys: Vec<Key> = plans.iter().map(|plan| Key::of(plan).expect("a key")).collect();
    let empty = Lines::open(&path, build("ours")).expect("opened");
    assert!(!empty.has(&keys[0]));
    empty.keep(&mut record(&plans[0]), &keys[0]).expect("kept");
    empty.keep(&mut record(&plans[1]), &keys[1]).expect("kept");
    // As if a crash had cut the last line short.
    let text = fs::read_to_string(&path).expect("written");
    fs::write(&path, &text[..text.len() - 20]).expect("cut");
    let ours = Lines::open(&path, build("ours")).expect("opened");
    // Asked twice, and by the case that is the same.
    for plan in [0, 0, 2] {
        let found = ours.get(&plans[plan], &keys[plan]).expect("kept");
        assert!(found.series.is_empty() && found.plan.is_null());
        assert_eq!(found.cell, plans[plan].cell());
    }
    assert!(!ours.has(&keys[1]) && ours.get(&plans[4], &keys[4]).is_none());
    ours.keep(&mut record(&plans[1]), &keys[1]).expect("kept");
    let again = Lines::open(&path, build("ours")).expect("opened");
    assert!(again.has(&keys[0]) && again.has(&keys[1]), "the cut line swallows none");
    let other = Lines::open(&path, build("other")).expect("opened");
    assert!(keys.iter().all(|key| !other.has(key)));
}

#[test]
fn files_keep_plans_apart_and_give_way_to_another_build() {
    let directory = directory();
    let plans = plans();
    let key = |plan: &Plan| Key::of(plan).expect("a key");
    let store = |name: &str| Files::new(directory.path(), build(name));
    let ours = store("ours");
    for plan in &plans {
        assert_eq!(
            ours.get(plan, &key(plan)).is_some(),
            plan.number % 4 >= 2,
            "one, then the other"
        );
        ours.keep(&mut record(plan), plan, &key(plan)).expect("kept");
    }
    let names = || -> Vec<String> {
        let entries = fs::read_dir(directory.path()).expect("listed");
        entries
            .map(|entry| entry.expect("listed").file_name().to_string_lossy().into_owned())
            .collect()
    };
    assert_eq!(names().len(), 4, "{:?}", names());
    // Numbers say nothing: the same plan stands elsewhere in another scenario.
    let moved = Plan { number: 77, ..plans[0].clone() };
    let found = ours.get(&moved, &key(&moved)).expect("kept");
    assert_eq!((&found.cell, found.series.len()), (&plans[0].cell(), 1));
    let other = store("other");
    assert_eq!(other.get(&plans[0], &key(&plans[0])), None);
    other.keep(&mut record(&plans[0]), &plans[0], &key(&plans[0])).expect("kept");
    assert!(other.get(&plans[0], &key(&plans[0])).is_some());
    assert_eq!(ours.get(&plans[0], &key(&plans[0])), None);
    assert!(names().iter().all(|name| name.ends_with(".json")));
    let nowhere = Files::new(&directory.path().join("none"), build("ours"));
    let error = nowhere.keep(&mut record(&plans[0]), &plans[0], &key(&plans[0])).unwrap_err();
    assert!(error.to_string().starts_with("cannot write"), "{error}");
}
