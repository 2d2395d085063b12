//! What tells curves and bars apart on pages: enough of it for every picture, and none of it twice.

mod synthetic;

use midhop_experiment::Scenario;
use midhop_experiment::record::Record;
use midhop_experiment::study::{Measured, Place, Reading, Study};
use midhop_report::{Reproduction, Seeds, study_page};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The styles as pages have them.
fn styles() -> Value {
    let text = include_str!("../assets/styles.js");
    let (_, list) = text.split_once("const styles = ").expect("the list");
    serde_json::from_str(list.trim_end().trim_end_matches(';')).expect("JSON")
}

/// A dash as it looks: over as many pixels as a sample in a legend has, a line or none.
fn drawn(dash: &Value) -> Vec<bool> {
    let steps: Vec<u64> = match dash.as_array() {
        None => vec![1, 0],
        Some(steps) => steps.iter().map(|it| it.as_u64().expect("a length")).collect(),
    };
    let line = steps.iter().enumerate().cycle();
    let pixels = line.flat_map(|(at, &step)| std::iter::repeat_n(at % 2 == 0, step as usize));
    pixels.take(34).collect()
}

/// Each of colour, dash, marker and pattern alone tells configurations apart, so that a page is read in grey,
/// and by whoever sees colours otherwise.
#[test]
fn no_two_styles_share_anything() {
    let styles = styles();
    let count = styles["dashes"].as_array().expect("dashes").len();
    for kind in ["light", "dark", "dashes", "markers", "patterns"] {
        let list = styles[kind].as_array().expect(kind);
        assert_eq!(list.len(), count, "{kind}");
        for (at, one) in list.iter().enumerate() {
            assert!(!list[..at].contains(one), "{kind}: {one} is there twice");
        }
    }
    let dashes: Vec<Vec<bool>> =
        styles["dashes"].as_array().expect("dashes").iter().map(drawn).collect();
    for (at, one) in dashes.iter().enumerate() {
        for other in &dashes[..at] {
            let apart = one.iter().zip(other).filter(|(one, other)| one != other).count();
            assert!(apart >= 8, "dashes are alike: {one:?} {other:?}");
        }
    }
    // What a stripe looks like is how it turns and how wide it is, whatever it is called.
    for list in [&styles["markers"], &styles["patterns"]] {
        for one in list.as_array().expect("a list") {
            let shape = one.get("symbol").or(one.get(0)).and_then(Value::as_str);
            assert!(shape.is_some(), "{one}");
        }
    }
}

const STUDY: &str = r#"
title = "Many proxies"
source = "Synthetic sample"
scenarios = ["many"]
[[figures]]
name = "file"
shows = "File"
scenario = "many"
metric = "goodput"
"#;

/// The data of a page whose one figure has `setups`, in both cases of a condition.
fn pictures(setups: usize, along: &str) -> Value {
    let setup = |at: usize| format!("s{at} = {{ \"tcp.initial_window\" = {} }}\n", at + 1);
    let cases: String = (0..setups).map(setup).collect();
    let text = format!(
        "title = \"t\"\nduration = \"9 s\"\n[nodes]\na = {{}}\nb = {{}}\n[links.l]\n\
         between = [\"a\", \"b\"]\nrate = \"9 Mbit/s\"\ndelay = \"9 ms\"\n[transfers.file]\nfrom = \"b\"\n\
         to = \"a\"\nbytes = \"1 MB\"\n[vary]\n\"links.l.delay\" = [{along}]\n[vary.setup]\n{cases}"
    );
    let study = Study::parse("study.toml", STUDY).expect("a study");
    let scenario = Scenario::parse("many.toml", &text).expect("a scenario");
    let first = synthetic::records(1).into_iter().find(|it| it.cell["load"] == "file");
    let first = first.expect("a record of a file");
    let mut measured = Measured::default();
    for cell in scenario.positions() {
        let record = Record { cell, ..first.clone() };
        measured.add(Reading::of("many", &record, &study.figures));
    }
    let scenarios = BTreeMap::from([("many".to_owned(), scenario)]);
    let page = study_page(&Reproduction {
        name: "many",
        study: &study,
        scenarios: &scenarios,
        measured: &measured,
        judgements: &[],
        place: Place::Sim,
        quick: false,
        runs: 1,
        finished: 1,
        faults: &[],
        left_out: &[],
        took: Duration::from_secs(1),
        seeds: &Seeds::new(),
        environment: None,
        traces: &[],
        command: "midhop reproduce many",
        beside: None,
    });
    let page = page.expect("a page");
    let data = page.split("id=\"figures\">").nth(1).and_then(|it| it.split("</script>").next());
    serde_json::from_str(data.expect("data")).expect("JSON")
}

#[test]
fn no_picture_has_more_configurations_than_there_are_styles() {
    let styles = styles()["dashes"].as_array().expect("dashes").len();
    let lists = ["\"9 ms\", \"19 ms\"", "\"9 ms\", \"19 ms\", \"29 ms\""];
    for (setups, along) in [8, 12, 13, 30].into_iter().flat_map(|n| lists.map(|it| (n, it))) {
        let data = pictures(setups, along);
        let plots = data["plots"].as_array().expect("pictures");
        let counts: Vec<usize> =
            plots.iter().map(|it| it["series"].as_array().expect("series").len()).collect();
        assert_eq!(counts.iter().sum::<usize>(), setups, "{setups} with {along}: {counts:?}");
        assert_eq!(counts.len(), setups.div_ceil(styles), "{setups} with {along}: {counts:?}");
        assert!(counts.iter().all(|count| *count <= styles), "{setups} with {along}: {counts:?}");
    }
    let data = pictures(13, lists[0]);
    let titles: Vec<&str> = data["plots"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|it| it["title"].as_str())
        .collect();
    assert_eq!(titles, ["File; s0 to s6", "File; s7 to s12"]);
}
