//! Simulator and laboratory agree: eight cells of `make truth` in both, within its bounds.
//!
//! In these cells the link decides, not the clock: a queue of twice the path's product never
//! becomes empty under Reno or CUBIC. Real runs that the laboratory itself reports as late are left
//! out, as in `midhop compare`. The bounds are those of the whole matrix, applied to these few
//! cells: the median within 5 %, all but one within 15 %.

use midhop_experiment::Record;
use midhop_experiment::metrics::median;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// How late packets may be. When Reno has halved its window, half of the path's product, 25 ms,
/// still waits in the queue: so little lateness leaves the link as busy as before.
const LATENESS: &str = "10 ms";
/// The effects of a busy machine on a run, which these cells tolerate.
const LATE: [&str; 2] = ["ms late", "before the emulator"];

/// The records of a command: without a proxy and, if there is a daemon, with one; one flow and
/// four.
fn records(command: &str, congestion: &str, more: &[&str]) -> Vec<Record> {
    let state = tempfile::tempdir().expect("a directory");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/matrix.toml");
    let congestion = format!("congestion={congestion}");
    let output = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args([command, "run"])
        .arg(file)
        .args(["--json", "--seeds", "1", "--jobs", "4", "--set", "rtt=50ms"])
        .args(["--set", "link=long-queue", "--set", &congestion])
        .args(if command == "lab" { &["--lateness", LATENESS][..] } else { &[] })
        .args(more)
        .env("MIDHOP_STATE_DIR", state.path())
        .output()
        .expect("midhop runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let read = |line| Record::from_json(line).expect("a record");
    let records: Vec<Record> = text.lines().map(read).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(records.len(), if more.is_empty() { 4 } else { 2 }, "{errors}");
    for fault in records.iter().flat_map(|record| &record.validity.faults) {
        assert!(LATE.iter().any(|late| fault.contains(late)), "{fault}");
    }
    records
}

/// The goodputs of valid runs, by cell.
fn goodputs(records: &[Record]) -> BTreeMap<String, f64> {
    let cell = |record: &&Record| {
        let labels: Vec<String> =
            record.cell.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
        (labels.join(" "), record.transfers[0].goodput.mbit_per_s())
    };
    let valid = records.iter().filter(|record| record.validity.faults.is_empty());
    valid.map(|record| cell(&record)).collect()
}

#[test]
fn cells_that_the_link_decides_are_the_same_in_both() {
    let daemon = Path::new(env!("CARGO_BIN_EXE_midhop")).with_file_name("midhopd");
    let more: &[&str] = if daemon.is_file() {
        &[]
    } else {
        midhop_testkit::skipped(
            "the cells with a proxy: there is no midhopd; cargo build -p midhopd",
        );
        &["--set", "proxy=none"]
    };
    let mut ratios = Vec::new();
    for congestion in ["reno", "cubic"] {
        let simulated = goodputs(&records("sim", congestion, more));
        let real = goodputs(&records("lab", congestion, more));
        for (cell, real) in &real {
            ratios.push((simulated[cell] / real, format!("{cell}: {real} Mbit/s real")));
        }
    }
    if ratios.len() < 2 {
        eprintln!("the machine is too busy to tell: {} real runs were on time", ratios.len());
        return;
    }
    let far = ratios.iter().filter(|(ratio, _)| (ratio - 1.0).abs() > 0.15).count();
    assert!(far <= 1, "{ratios:?}");
    let numbers: Vec<f64> = ratios.iter().map(|(ratio, _)| *ratio).collect();
    let middle = median(&numbers).expect("there are cells");
    assert!((middle - 1.0).abs() <= 0.05, "{ratios:?}");
}
