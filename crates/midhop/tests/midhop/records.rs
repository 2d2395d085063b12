//! Output for programs: numbers with the unit in the key, as in the published schema.

use midhop_testkit::{quantities_as_text, refuse_other_keys};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Parts in the form of scenario files: the configuration, and the labels of a scenario's own axes.
const AS_WRITTEN: [&str; 2] = ["plan", "cell"];

/// Checks that `text` is a record by the published schema, without keys that the schema does not
/// name, and without quantities as text.
pub fn assert_published(text: &str) {
    static SCHEMA: OnceLock<jsonschema::Validator> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| {
        let printed = midhop(&["schema", "record"]);
        let mut schema: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
        refuse_other_keys(&mut schema);
        jsonschema::validator_for(&schema).expect("a schema")
    });
    let record: Value = serde_json::from_str(text).expect("JSON");
    let faults: Vec<_> =
        schema.iter_errors(&record).map(|it| format!("{}: {it}", it.instance_path())).collect();
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(quantities_as_text(&record, &AS_WRITTEN), Vec::<String>::new());
}

fn midhop(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios"))
        .output()
        .expect("midhop starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    output
}

fn lines(arguments: &[&str]) -> Vec<String> {
    let output = midhop(&[&["sim", "run", "--json"][..], arguments].concat());
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

fn record_of(arguments: &[&str]) -> Vec<Value> {
    lines(arguments).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The part of a record for which each example is chosen.
const EXAMPLES: [(&[&str], &str); 6] = [
    (&["quick.toml", "--set", "links.link.down.loss=5 %"], "/links/0/drops/loss"),
    (&["quick.toml", "--set", CALLS], "/traffic/0/goodput_bit_per_s"),
    (&["quick.toml", "--set", WEB, "--set", LONGER], "/traffic/0/flow_time_mean_s"),
    (&["tunnel.toml", "--set", "setup=tunnel", "--set", SHORT], "/legs/1/tunnel"),
    (&["tunnel.toml", "--set", "setup=split", "--set", SHORT], "/legs/0/phases/slow_start_s"),
    (
        &["geo-demo.toml", "--set", "load=page", "--set", "setup=pair"],
        "/transfers/0/objects/0/first_byte_s",
    ),
];
const CALLS: &str = "traffic.calls={ kind = \"constant\", from = \"server\", to = \"client\", rate = \"1 Mbit/s\" }";
const WEB: &str =
    "traffic.others={ kind = \"web\", from = \"server\", to = \"client\", sessions = 20 }";
const LONGER: &str = "transfers.file.bytes=10 MB";
const SHORT: &str = "transfers.bulk.seconds=2";

#[test]
fn records_hold_to_their_schema() {
    for (arguments, pointer) in EXAMPLES {
        let lines = lines(&[arguments, &["--seeds", "1"]].concat());
        lines.iter().for_each(|line| assert_published(line));
        let shown = lines.iter().any(|line| {
            let record: Value = serde_json::from_str(line).expect("JSON");
            record.pointer(pointer).is_some_and(|at| !at.is_null())
        });
        assert!(shown, "no {pointer} in {arguments:?}");
    }
}

/// Printed records have no plan and no curves; stored ones have both.
#[test]
fn records_of_sweeps_hold_to_their_schema() {
    let place = tempfile::tempdir().expect("a directory");
    let out = place.path().to_str().expect("a path");
    let swept = ["quick.toml", "--vary", "links.link.loss=0,0.01", "--seeds", "1", "--json"];
    let printed = midhop(&[&["sim", "sweep", "--out", out][..], &swept].concat()).stdout;
    let printed = String::from_utf8(printed).expect("text");
    let kept = std::fs::read_to_string(place.path().join("records.jsonl")).expect("records");
    for (text, has_plan) in [(printed, false), (kept, true)] {
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            assert_published(line);
            let record: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(record["plan"].is_object(), has_plan);
        }
    }
}

#[test]
fn the_schema_refuses_what_is_no_record() {
    let schema: Value =
        serde_json::from_slice(&midhop(&["schema", "record"]).stdout).expect("JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let record = record_of(&["quick.toml"]).swap_remove(0);
    assert!(schema.is_valid(&record));
    let with = |pointer: &str, value: Value| {
        let mut record = record.clone();
        *record.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        record
    };
    for (pointer, value) in [
        ("/schema", json!(1)),
        ("/transfers/0/took_s", json!("270692.8 us")),
        ("/transfers/0/took_s", json!(-1.0)),
        ("/transfers/0/goodput_bit_per_s", json!("14776.898 kbit/s")),
        ("/transfers/0/bytes", json!("500 kB")),
        ("/links/0/span_s", json!(null)),
        ("/environment", json!({})),
    ] {
        assert!(!schema.is_valid(&with(pointer, value.clone())), "{pointer}: {value}");
    }
}

/// The schema that the program prints for `kind`, made to refuse keys that it does not name.
fn published(kind: &str) -> jsonschema::Validator {
    let mut schema = serde_json::from_slice(&midhop(&["schema", kind]).stdout).expect("JSON");
    refuse_other_keys(&mut schema);
    jsonschema::validator_for(&schema).expect("a schema")
}

/// Runs with proxies, pages, cells of several seeds, runs without an end, and measurements with and
/// without a limit.
#[test]
fn reports_and_comparisons_hold_to_their_schemas() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).display().to_string();
    let runs: [(&str, &[&str]); 4] = [
        ("lossy", &["quick.toml", "--set", "links.link.down.loss=1 %", "--seeds", "2"]),
        ("cut", &["quick.toml", "--set", "duration=100 ms"]),
        ("tunnel", &["tunnel.toml", "--set", SHORT, "--seeds", "1"]),
        ("page", &["geo-demo.toml", "--set", "load=page", "--set", "setup=pair", "--seeds", "1"]),
    ];
    for (name, arguments) in runs {
        let out = path(name);
        let command = [&["sim", "run", "--out", &out][..], arguments].concat();
        Command::new(env!("CARGO_BIN_EXE_midhop"))
            .args(command)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios"))
            .output()
            .expect("midhop starts");
    }
    let [lossy, cut, tunnel, page] = runs.map(|(name, _)| path(name));
    let own = ["measured/iperf3.json", "measured/link.json"];
    let [report, compare] = ["report", "compare"].map(published);
    let holds = |schema: &jsonschema::Validator, arguments: &[&str]| -> Value {
        let value: Value = serde_json::from_slice(&midhop(arguments).stdout).expect("JSON");
        let faults: Vec<_> =
            schema.iter_errors(&value).map(|it| format!("{}: {it}", it.instance_path())).collect();
        assert_eq!(faults, Vec::<String>::new(), "{arguments:?}");
        value
    };
    let all = holds(&report, &["report", "--json", &lossy, &cut, &tunnel, &page, own[0], own[1]]);
    let some = |key: &str, fits: &dyn Fn(&Value) -> bool| {
        let runs = all["runs"].as_array().expect("runs");
        assert!(runs.iter().any(|run| fits(&run[key])), "no such {key}: {all}");
    };
    some("complete", &|it| it == false);
    some("proxy_retransmissions", &Value::is_u64);
    some("objects", &|it| it.as_u64() > Some(0));
    some("efficiency", &Value::is_null);
    some("place", &|it| it == "iperf3");
    assert!(!report.is_valid(&json!({})));
    for (pointer, wrong) in [
        ("/schema", json!(1)),
        ("/runs/0/time_s", json!("1 s")),
        ("/runs/0/place", json!("here")),
        ("/summary/0/goodput_bit_per_s", json!(3)),
    ] {
        let mut value = all.clone();
        *value.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = wrong;
        assert!(!report.is_valid(&value), "{pointer}");
    }
    let limited = ["report", "--json", own[0], "--limit", own[1]];
    assert!(holds(&report, &limited)["runs"][0]["efficiency"].is_f64());
    let whole = holds(&compare, &["compare", "--json", &lossy, &lossy]);
    assert!(whole["summary"]["median"].is_f64(), "{whole}");
    let apart = holds(&compare, &["compare", "--json", &tunnel, &page]);
    assert!(apart["alone"][0].as_array().is_some_and(|it| !it.is_empty()), "{apart}");
    holds(&compare, &["compare", "--json", own[0], &cut]);
    let mut wrong = whole;
    wrong["lines"][0]["goodput_bit_per_s"]["means"] = json!(["1 Mbit/s"]);
    assert!(!compare.is_valid(&wrong));
}

/// Other commands' output for programs has no quantity as text either, and the same keys.
#[test]
fn reports_comparisons_and_ways_have_numbers() {
    let place = tempfile::tempdir().expect("a directory");
    let out = place.path().to_str().expect("a path");
    let both = ["quick.toml", "--set", "links.link.down.loss=1 %", "--seeds", "2"];
    midhop(&[&["sim", "run", "--out", out][..], &both].concat());
    let json = |arguments: &[&str]| -> Value {
        let value = serde_json::from_slice(&midhop(arguments).stdout).expect("JSON");
        // The orbit is configuration.
        assert_eq!(quantities_as_text(&value, &["cell", "orbit"]), Vec::<String>::new());
        value
    };
    let record: Value = serde_json::from_str(
        &std::fs::read_to_string(place.path().join("0000.json")).expect("a record"),
    )
    .expect("JSON");
    let report = json(&["report", "--json", out]);
    let goodput = &record["transfers"][0]["goodput_bit_per_s"];
    assert!(goodput.is_u64(), "{record}");
    assert_eq!(&report["runs"][0]["goodput_bit_per_s"], goodput);
    let mean = report["summary"][0]["goodput_bit_per_s"]["mean"].as_f64().expect("a mean");
    let limit = report["summary"][0]["limit_goodput_bit_per_s"].as_f64().expect("a limit");
    assert!(mean > 1e6 && mean < limit, "{report}");
    let comparison = json(&["compare", "--json", out, out]);
    let means = &comparison["lines"][0]["goodput_bit_per_s"]["means"];
    assert!((means[0].as_f64().expect("a mean") / mean - 1.0).abs() < 1e-9, "{comparison}");
    let way = ["--from", "51.4,10.5", "--to", "40.8,-74.0", "--duration", "60s", "--json"];
    let route = json(&[&["orbit", "route", "--constellation", "iridium"][..], &way].concat());
    assert_eq!(route["duration_s"], 60.0);
    assert!(route["delay_min_s"].as_f64().is_some_and(|s| s > 0.02 && s < 0.2), "{route}");
    let pass = ["--at", "51.4,10.5", "--duration", "600s", "--json"];
    let pass = json(&[&["orbit", "pass", "--constellation", "iridium"][..], &pass].concat());
    assert_eq!(pass["duration_s"], 600.0);
    assert!(pass["passes"][0]["set_s"].is_f64(), "{pass}");
}
