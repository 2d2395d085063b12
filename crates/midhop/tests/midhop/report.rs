//! `midhop report` from a user's view.

use midhop_experiment::record::{Environment, Record, SCHEMA, TransferResult, Validity};
use midhop_units::{Bytes, Duration, Rate, Seed};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn record(number: u64, setup: &str, took_s: u64) -> Record {
    Record {
        schema: SCHEMA,
        title: "Two setups".to_owned(),
        cell: BTreeMap::from([("setup".to_owned(), setup.to_owned())]),
        seed: Seed(1),
        plan: serde_json::json!({ "number": number }),
        environment: Environment::default(),
        validity: Validity::default(),
        transfers: vec![TransferResult {
            name: "file".to_owned(),
            complete: true,
            took: Duration::from_s(took_s),
            bytes: Bytes::new(5_000_000),
            goodput: Rate::of(Bytes::new(5_000_000), Duration::from_s(took_s)),
            limit: None,
            restarts: Default::default(),
            flows: Vec::new(),
            objects: Vec::new(),
        }],
        links: Vec::new(),
        legs: Vec::new(),
        traffic: Vec::new(),
        nodes: Vec::new(),
        handovers: None,
        series: Vec::new(),
    }
}

fn write(directory: &Path, name: &str, record: &Record) {
    let text = serde_json::to_vec(record).expect("a record is JSON");
    std::fs::write(directory.join(name), text).expect("writable");
}

fn midhop(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .arg("report")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that refuses its arguments does not read its input; this test does not check that.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("the program ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The error of a call with wrong usage.
fn refused(arguments: &[&str]) -> String {
    let output = midhop(arguments, "");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    errors
}

#[test]
fn a_directory_becomes_a_table_in_the_order_of_the_plan_and_a_page() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), "a.json", &record(1, "slow", 10));
    write(directory.path(), "b.json", &record(0, "fast", 4));
    std::fs::write(directory.path().join("other.json"), "{\"a\": 1}").expect("writable");
    let page = directory.path().join("report.html");
    let out = midhop(
        &[&directory.path().display().to_string(), "--out", &page.display().to_string()],
        "",
    );
    assert!(out.status.success(), "{}", text(&out.stderr));
    let table = text(&out.stdout);
    let (fast, slow) = (table.find("fast").expect("fast"), table.find("slow").expect("slow"));
    assert!(fast < slow, "{table}");
    assert!(table.contains("4.00") && table.contains("10.00"), "{table}");
    assert!(std::fs::read_to_string(page).expect("a page").contains("<h1>Two setups</h1>"));
}

#[test]
fn records_of_several_scenarios_are_distinguished() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().display().to_string();
    // The same cell and transfer, but of another scenario.
    let other = Record { title: "Another".to_owned(), ..record(0, "fast", 20) };
    write(directory.path(), "a.json", &record(0, "fast", 4));
    write(directory.path(), "b.json", &other);
    let out = midhop(&[&place], "");
    let table = text(&out.stdout);
    let at = |what: &str| table.find(what).unwrap_or_else(|| panic!("{what}: {table}"));
    assert!(at("Another") < at("20.00") && at("20.00") < at("Two setups"), "{table}");
    assert!(at("Two setups") < at("4.00"), "{table}");
    let json = midhop(&[&place, "--json"], "");
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let rows = value["summary"].as_array().expect("rows");
    let means: Vec<_> = rows.iter().map(|row| (&row["title"], &row["time_s"]["mean"])).collect();
    let (one, two) = (serde_json::json!("Another"), serde_json::json!("Two setups"));
    let (twenty, four) = (serde_json::json!(20.0), serde_json::json!(4.0));
    assert_eq!(means, [(&one, &twenty), (&two, &four)]);
    // A page is about one scenario.
    let page = directory.path().join("report.html").display().to_string();
    let errors = refused(&[&place, "--out", &page]);
    assert!(errors.contains("2 scenarios: \"Another\", \"Two setups\""), "{errors}");
    assert!(errors.contains("--only TITLE"), "{errors}");
    let out = midhop(&[&place, "--only", "Another", "--out", &page], "");
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(!text(&out.stdout).contains("Two setups"), "{}", text(&out.stdout));
    assert!(std::fs::read_to_string(page).expect("a page").contains("<h1>Another</h1>"));
    let unknown = refused(&[&place, "--only", "Anothr"]);
    assert!(unknown.contains("there are \"Another\""), "{unknown}");
}

#[test]
fn no_mean_is_taken_over_the_simulator_and_the_laboratory() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().display().to_string();
    // The same cell of one scenario, in both.
    let mut simulated = record(0, "fast", 4);
    simulated.environment.runner = "sim".to_owned();
    let measured = Record { seed: Seed(2), ..record(0, "fast", 20) };
    write(directory.path(), "a.json", &measured);
    write(directory.path(), "b.json", &simulated);
    let table = text(&midhop(&[&place], "").stdout);
    let at = |what: &str| table.find(what).unwrap_or_else(|| panic!("{what}: {table}"));
    assert!(at("Two setups, simulated") < at("4.00"), "{table}");
    assert!(at("4.00") < at("Two setups, measured"), "{table}");
    assert!(at("Two setups, measured") < at("20.00"), "{table}");
    let json = midhop(&[&place, "--json"], "");
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let rows = value["summary"].as_array().expect("rows");
    let means: Vec<_> = rows.iter().map(|row| (&row["place"], &row["time_s"]["mean"])).collect();
    let (sim, lab) = (serde_json::json!("sim"), serde_json::json!("lab"));
    let (four, twenty) = (serde_json::json!(4.0), serde_json::json!(20.0));
    assert_eq!(means, [(&sim, &four), (&lab, &twenty)]);
    let csv = text(&midhop(&[&place, "--csv"], "").stdout);
    assert!(csv.starts_with("title,place,seed,"), "{csv}");
    assert!(csv.contains("\nTwo setups,sim,1,") && csv.contains("\nTwo setups,lab,2,"), "{csv}");
    // A page has both, each under its own heading, unless one is selected.
    let page = directory.path().join("report.html").display().to_string();
    let written = |more: &[&str]| {
        let out = midhop(&[&[place.as_str(), "--out", &page], more].concat(), "");
        assert!(out.status.success(), "{}", text(&out.stderr));
        (text(&out.stdout), std::fs::read_to_string(&page).expect("a page"))
    };
    let (_, both) = written(&[]);
    for heading in ["Side by side", "Simulated: comparison", "Measured: comparison"] {
        assert!(both.contains(&format!("<h2>{heading}</h2>")), "{heading}");
    }
    let (table, one) = written(&["--in", "lab"]);
    assert!(!table.contains("4.00") && !one.contains("Simulated"), "{table}");
    let only = directory.path().join("a.json").display().to_string();
    let nothing = refused(&[&only, "--in", "sim"]);
    assert!(nothing.contains("all of these are of the laboratory"), "{nothing}");
}

#[test]
fn lines_on_standard_input_become_csv_and_json() {
    let lines: String = [record(0, "fast", 4), record(1, "slow", 10)]
        .iter()
        .map(|record| serde_json::to_string(record).expect("JSON") + "\n")
        .collect();
    let csv = midhop(&["-", "--csv"], &lines);
    assert!(csv.status.success(), "{}", text(&csv.stderr));
    assert_eq!(text(&csv.stdout).lines().count(), 3);
    let json = midhop(&["-", "--json"], &lines);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(value["runs"][1]["time_s"], 10.0);
}

#[test]
fn what_is_no_record_is_refused_with_a_hint() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().display().to_string();
    let file = directory.path().join("x.json").display().to_string();
    let refused = |what: &str, expected: &str| {
        let out = midhop(&[what], "");
        assert_eq!(out.status.code(), Some(64), "{}", text(&out.stderr));
        let errors = text(&out.stderr);
        assert!(errors.contains(expected) && errors.contains("hint: "), "{errors}");
        assert_eq!(text(&out.stdout), "");
    };
    refused(&place, "no records found");
    refused(&file, "cannot read");
    std::fs::write(&file, "{").expect("writable");
    refused(&file, "is cut short");
    std::fs::write(&file, "title,place\n").expect("writable");
    refused(&file, "is not a record");
    let older = Record { schema: SCHEMA - 1, ..record(0, "fast", 4) };
    write(directory.path(), "x.json", &older);
    refused(&file, "is a record of version 1, this midhop reads version 2");
    let newer = Record { schema: SCHEMA + 1, ..record(0, "fast", 4) };
    write(directory.path(), "x.json", &newer);
    refused(&file, "is a record of version");
    refused(&place, "is a record of version");
    let mut damaged = serde_json::to_value(record(0, "fast", 4)).expect("JSON");
    damaged["seed"] = "one".into();
    std::fs::write(&file, damaged.to_string()).expect("writable");
    refused(&file, "is a damaged record");
}
