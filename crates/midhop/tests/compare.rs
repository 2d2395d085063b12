//! `midhop compare` as a user meets it: a scenario simulated twice, set side by side.

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
    assert_eq!(found["lines"][0]["goodput"]["runs"], serde_json::json!([3, 3]));
    assert!(found["summary"]["median"].as_f64().is_some_and(|median| median > 0.5), "{found}");
}

#[test]
fn what_cannot_be_compared_is_said() {
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
