//! What is compared with what, and which differences count.

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
    let table = comparison_table(&found, ["sim", "lab"]);
    for words in ["A: sim", "B: lab", "1.500", "only in A: file", "Real differences: 1"] {
        assert!(table.contains(words), "{words} in:\n{table}");
    }
}

#[test]
fn what_tells_the_sides_apart_does_not_part_their_cells() {
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
    assert!(comparison_table(&found, ["x", "y"]).contains("needs more than one run"));
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
    assert!(comparison_table(&none, ["x", "y"]).contains("Nothing to compare"));
}
