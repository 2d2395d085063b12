//! `midhop compare` from a user's view: a scenario simulated twice, compared.

use midhop_experiment::record::Record;
use midhop_units::Rate;
use std::process::{Command, Output};

const SCENARIO: &str = "title = \"compared\"\nduration = \"10 s\"\nseeds = 3\n[nodes]\na = {}\nb = {}\n\
     [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\ndelay = \"20 ms\"\nloss = \"1 %\"\n\
     [transfers.file]\nfrom = \"b\"\nto = \"a\"\nbytes = \"1 MB\"\n\
     [vary]\n\"transfers.file.flows\" = [1, 2]\n";

fn midhop(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_midhop"));
    command.args(arguments).output().expect("the program starts")
}

#[test]
fn two_directories_meet_cell_by_cell() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).display().to_string();
    std::fs::write(path("law.toml"), SCENARIO).expect("written");
    for (name, congestion) in [("cubic", "cubic"), ("reno", "reno")] {
        let set = format!("transfers.file.congestion={congestion}");
        let out = midhop(&["sim", "run", &path("law.toml"), "--set", &set, "--out", &path(name)]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    let same = midhop(&["compare", &path("reno"), &path("reno")]);
    let table = String::from_utf8_lossy(&same.stdout);
    assert!(table.contains("over 2 lines: median 1.000; within 5 %: 100 %"), "{table}");
    assert!(table.contains("Real differences: 0"), "{table}");
    let json = midhop(&["compare", &path("cubic"), &path("reno"), "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(found["lines"].as_array().map(Vec::len), Some(2), "{found}");
    assert_eq!(found["lines"][0]["goodput_bit_per_s"]["runs"], serde_json::json!([3, 3]));
    assert!(found["summary"]["median"].as_f64().is_some_and(|median| median > 0.5), "{found}");
}

/// The records of a study are placed as by `midhop reproduce --out`: the laboratory's below the
/// simulator's.
#[test]
fn the_laboratory_below_the_simulator_is_not_averaged_with_it() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).display().to_string();
    std::fs::write(path("law.toml"), SCENARIO).expect("written");
    let out = midhop(&["sim", "run", &path("law.toml"), "--out", &path("x")]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // The results of kernels: the same, at half the rate.
    std::fs::create_dir(path("x/lab")).expect("made");
    for file in std::fs::read_dir(path("x")).expect("listed") {
        let file = file.expect("listed").path();
        if !file.is_file() {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a record");
        let mut record = Record::from_json(&text).expect("a record");
        record.environment.runner = "lab".to_owned();
        for transfer in &mut record.transfers {
            transfer.goodput = Rate::from_bits_per_s(transfer.goodput.bits_per_s() / 2);
        }
        let to = place.path().join("x/lab").join(file.file_name().expect("a name"));
        std::fs::write(to, record.to_json().expect("JSON")).expect("written");
    }
    let compared = |first: &str, second: &str| -> serde_json::Value {
        let out = midhop(&["compare", &path(first), &path(second), "--json"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).expect("JSON")
    };
    for (first, second, places, ratio) in
        [("x", "x/lab", [["sim"], ["lab"]], 2.0), ("x/lab", "x", [["lab"], ["sim"]], 0.5)]
    {
        let found = compared(first, second);
        assert_eq!(found["places"], serde_json::json!(places));
        let lines = found["lines"].as_array().expect("lines");
        let median = found["summary"]["median"].as_f64().expect("a ratio");
        assert!(lines.len() == 2 && (median - ratio).abs() < 1e-3, "{found}");
        assert_eq!(lines[0]["goodput_bit_per_s"]["runs"], serde_json::json!([3, 3]));
    }
    let whole = compared("x", "x");
    let lines = whole["lines"].as_array().expect("lines");
    let places: Vec<&str> = lines.iter().filter_map(|line| line["place"].as_str()).collect();
    assert_eq!(places.iter().filter(|place| **place == "lab").count(), 2, "{whole}");
    assert_eq!(lines.len(), 4, "{whole}");
    let table = midhop(&["compare", &path("x"), &path("x/lab")]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let head = format!("A: {} without {}, in the simulator", path("x"), path("x/lab"));
    assert!(table.starts_with(&head), "{table}");
    // A side without any records is refused.
    std::fs::create_dir(path("y")).expect("made");
    std::fs::rename(path("x/lab"), path("y/lab")).expect("moved");
    let out = midhop(&["compare", &path("y"), &path("y/lab")]);
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(64), "{errors}");
    assert!(errors.contains("no records found in") && errors.contains("but those of"), "{errors}");
}

#[test]
fn what_cannot_be_compared_is_reported() {
    let place = tempfile::tempdir().expect("a directory");
    let empty = place.path().display().to_string();
    let out = midhop(&["compare", &empty, &empty]);
    assert_eq!(out.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no records found"));
    let out = midhop(&["compare", "-", "-"]);
    assert_eq!(out.status.code(), Some(64));
    let out = midhop(&["compare", &empty, &empty, "--confidence", "95"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("0.95"));
}
