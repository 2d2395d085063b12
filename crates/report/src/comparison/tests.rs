//! Which cells are compared, and which differences are real.

use super::*;
use crate::comparison_table;
use midhop_experiment::record::{Environment, SCHEMA, Validity};
use midhop_units::{Bytes, Duration, Rate, Seed};

fn record(cell: &[(&str, &str)], seed: u64, kbit: u64) -> Record {
    let label = |&(axis, label): &(&str, &str)| (axis.to_owned(), label.to_owned());
    Record {
        schema: SCHEMA,
        title: "compared".to_owned(),
        cell: cell.iter().map(label).collect(),
        seed: Seed(seed),
        plan: serde_json::Value::Null,
        environment: Environment::default(),
        validity: Validity::default(),
        transfers: vec![TransferResult {
            name: "file".to_owned(),
            complete: true,
            took: Duration::from_s_f64(8_000.0 / kbit as f64),
            bytes: Bytes::new(1_000_000),
            goodput: Rate::from_bits_per_s(kbit * 1000),
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

fn seeds(cell: &[(&str, &str)], kbit: &[u64]) -> Vec<Record> {
    kbit.iter().zip(1..).map(|(&kbit, seed)| record(cell, seed, kbit)).collect()
}

#[test]
fn cells_meet_by_their_labels_and_seeds_make_intervals() {
    let a = [
        seeds(&[("loss", "0 %"), ("flows", "1")], &[9000, 9010, 8990]),
        seeds(&[("loss", "1 %"), ("flows", "1")], &[1000, 1500, 2000]),
        seeds(&[("loss", "5 %"), ("flows", "4")], &[1000]),
    ]
    .concat();
    let b = [
        seeds(&[("loss", "1 %"), ("flows", "1")], &[1600, 1100, 1900]),
        seeds(&[("loss", "0 %"), ("flows", "1")], &[6000, 6010, 5990]),
    ]
    .concat();
    let found = compare(&a, &b);
    assert_eq!(found.lines.len(), 2);
    let clean = &found.lines[0];
    assert_eq!(clean.cell["loss"], "0 %");
    assert!(clean.goodput.ratio.is_some_and(|ratio| (ratio - 1.5).abs() < 1e-3), "{clean:?}");
    assert_eq!((clean.goodput.real, clean.goodput.runs), (Some(true), [3, 3]));
    let time = clean.time.as_ref().and_then(|time| time.ratio).expect("complete on both sides");
    assert!((time - 1.0 / 1.5).abs() < 1e-3, "{time}");
    let [low, high] = found.lines[1].goodput.interval.expect("three seeds each");
    assert!(low < 1.0 && high > 1.0 && found.lines[1].goodput.real == Some(false));
    assert_eq!(found.alone, [vec!["file, flows 4, loss 5 %".to_owned()], vec![]]);
    let summary = found.summary.expect("two lines");
    assert_eq!((summary.lines, summary.real, summary.real_beyond_15_percent), (2, 1, 1));
    assert_eq!((summary.within_5_percent, summary.within_15_percent), (0.5, 0.5));
    let table = comparison_table(&found, ["sim", "lab"], 120);
    for words in ["A: sim", "B: lab", "1.500", "only in A: file", "Real differences: 1"] {
        assert!(table.contains(words), "{words} in:\n{table}");
    }
}

#[test]
fn what_distinguishes_the_sides_does_not_part_their_cells() {
    let a = [
        seeds(&[("cc", "bbr"), ("loss", "0")], &[9000]),
        seeds(&[("cc", "bbr"), ("loss", "1")], &[8000]),
    ];
    let b = [
        seeds(&[("cc", "reno"), ("loss", "0")], &[9000]),
        seeds(&[("cc", "reno"), ("loss", "1")], &[800]),
    ];
    let found = compare(&a.concat(), &b.concat());
    assert_eq!(found.lines.len(), 2);
    assert_eq!(
        (found.throughout[0]["cc"].as_str(), found.throughout[1]["cc"].as_str()),
        ("bbr", "reno")
    );
    assert_eq!((found.lines[1].goodput.interval, found.lines[1].goodput.real), (None, None));
    assert!(comparison_table(&found, ["x", "y"], 120).contains("needs more than one run"));
}

#[test]
fn what_is_not_valid_or_stood_still_is_left_out() {
    let cell = [("loss", "0")];
    let mut a = [seeds(&cell, &[9000, 9000]), seeds(&[("loss", "1")], &[0])].concat();
    let b = [seeds(&cell, &[9000, 100]), seeds(&[("loss", "1")], &[500])].concat();
    let mut marked = b.clone();
    marked[1].validity.faults.push("late".to_owned());
    let found = compare(&a, &marked);
    assert_eq!(found.invalid, [0, 1]);
    assert_eq!(found.lines[0].goodput.ratio, Some(1.0));
    assert_eq!(found.lines[1].goodput.ratio, None);
    assert_eq!(found.summary.map(|summary| summary.lines), Some(1));
    a.iter_mut().for_each(|record| record.validity.faults.push("late".to_owned()));
    let none = compare(&a, &b);
    assert!(none.lines.is_empty() && none.summary.is_none());
    assert!(comparison_table(&none, ["x", "y"], 120).contains("Nothing to compare"));
}

fn ran_in(runner: &str, records: Vec<Record>) -> Vec<Record> {
    let mut records = records;
    records.iter_mut().for_each(|it| it.environment.runner = runner.to_owned());
    records
}

fn titled(title: &str, records: Vec<Record>) -> Vec<Record> {
    records.into_iter().map(|record| Record { title: title.to_owned(), ..record }).collect()
}

#[test]
fn simulator_and_laboratory_meet_where_each_side_is_of_one_and_are_never_averaged() {
    let cells = |kbit: u64| {
        [seeds(&[("loss", "0")], &[kbit, kbit]), seeds(&[("loss", "1")], &[kbit / 2, kbit / 2])]
            .concat()
    };
    let (sim, lab) = (ran_in("sim", cells(8000)), ran_in("lab", cells(4000)));
    let across = compare(&sim, &lab);
    let ratios = |found: &Comparison| {
        found
            .lines
            .iter()
            .map(|it| it.goodput.ratio.map(|it| (it * 1e3).round() / 1e3))
            .collect::<Vec<_>>()
    };
    assert_eq!(ratios(&across), [Some(2.0), Some(2.0)]);
    assert!(across.lines.iter().all(|line| line.place.is_none()));
    assert!(comparison_table(&across, ["x", "y"], 120).starts_with("A: x, in the simulator\n"));
    // Yesterday and today, each of both places.
    let both = [sim.clone(), lab.clone()].concat();
    let kinds = compare(&both, &both);
    let means: Vec<_> =
        kinds.lines.iter().map(|it| (it.place.map(Runner::name), it.goodput.means[0])).collect();
    assert_eq!(
        means,
        [(Some("sim"), 8.0), (Some("sim"), 4.0), (Some("lab"), 4.0), (Some("lab"), 2.0)]
    );
    assert_eq!(ratios(&kinds), [Some(1.0); 4]);
    let table = comparison_table(&kinds, ["x", "y"], 120);
    for words in ["A: x, in the simulator and in the laboratory", "\nin the laboratory\n"] {
        assert!(table.contains(words), "{words} in:\n{table}");
    }
    // Where only one side has both, the records that the other lacks are listed alone.
    let part = compare(&both, &lab);
    assert_eq!(ratios(&part), [Some(1.0), Some(1.0)]);
    let alone = ["file, loss 0, in the simulator", "file, loss 1, in the simulator"];
    assert_eq!(part.alone, [alone.map(str::to_owned).to_vec(), vec![]]);
}

#[test]
fn cells_of_several_scenarios_meet_their_own_only() {
    let cell = [("loss", "0")];
    let [one, two] = [("one", 8000), ("two", 1000)]
        .map(|(title, kbit)| titled(title, seeds(&cell, &[kbit, kbit])));
    let both = [one.clone(), two.clone()].concat();
    let found = compare(&both, &both);
    let means: Vec<_> =
        found.lines.iter().map(|it| (it.scenario.as_deref(), it.goodput.means)).collect();
    assert_eq!(means, [(Some("one"), [8.0, 8.0]), (Some("two"), [1.0, 1.0])]);
    let part = compare(&two, &both);
    assert_eq!((part.lines.len(), part.lines[0].goodput.means), (1, [1.0, 1.0]));
    assert_eq!(part.alone[1], ["file, of \"one\""]);
    // One compared with the other, where the user selects that.
    let across = compare(&one, &two);
    assert_eq!(across.lines[0].goodput.ratio.map(f64::round), Some(8.0));
    assert!(
        comparison_table(&across, ["x", "y"], 120).contains("B: y, in the laboratory, \"two\"")
    );
}

#[test]
fn columns_have_what_lines_have() {
    let a = [seeds(&[("loss", "1 %")], &[1000, 1500, 2000]), seeds(&[("loss", "0 %")], &[9000])];
    let b = [seeds(&[("loss", "1 %")], &[100, 150, 200]), seeds(&[("loss", "0 %")], &[9000])];
    let found = compare(&a.concat(), &b.concat());
    let csv = found.csv().expect("CSV");
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some(
            "title,place,cell.loss,cell.loss_fraction,transfer,\
             goodput_mbit_per_s.a.mean,goodput_mbit_per_s.a.runs,goodput_mbit_per_s.b.mean,goodput_mbit_per_s.b.runs,\
             goodput_mbit_per_s.ratio,goodput_mbit_per_s.ratio.low,goodput_mbit_per_s.ratio.high,goodput_mbit_per_s.real,\
             time_s.a.mean,time_s.a.runs,time_s.b.mean,time_s.b.runs,\
             time_s.ratio,time_s.ratio.low,time_s.ratio.high,time_s.real"
        )
    );
    let lossy: Vec<&str> = lines.next().expect("a line").split(',').collect();
    assert_eq!(lossy[2..9], ["1 %", "0.01", "file", "1.5", "3", "0.15", "3"]);
    assert!(lossy[9].parse::<f64>().is_ok_and(|ratio| (ratio - 10.0).abs() < 1e-9), "{csv}");
    assert_eq!(lossy[12], "true");
    let clean: Vec<&str> = lines.next().expect("a line").split(',').collect();
    assert_eq!((clean[4], &clean[9..13]), ("file", &["1", "", "", "false"][..]), "{csv}");
}

#[test]
fn a_line_without_a_time_has_no_columns_of_it() {
    let mut late = seeds(&[], &[1000]);
    late[0].transfers[0].complete = false;
    let found = compare(&late, &seeds(&[], &[1000]));
    let csv = found.csv().expect("CSV");
    assert!(csv.ends_with(",1,1,1,1,1,,,false,,,,,,,,false\n"), "{csv}");
}
