//! The terminal's table and the formats for programs.

use crate::synthetic;
use insta::assert_snapshot;
use midhop_experiment::Record;
use midhop_report::{csv, json, rows, table, table_in};
use midhop_units::{Duration, Seed};

/// The records of one load at one loss.
fn few(load: &str, loss: &str, seeds: u64) -> Vec<Record> {
    let mut records = synthetic::records(seeds);
    records.retain(|record| {
        record.cell["load"] == load && record.cell["links.satellite.down.loss"] == loss
    });
    records
}

#[test]
fn a_small_table_looks_like_this() {
    let mut records = few("file", "1 %", 1);
    records[1].validity.faults.push("link satellite: p99 lateness 4.1 ms, bound 1 ms".to_owned());
    // Fixed figures, so that the table below does not change with the samples.
    for (record, (took_s, goodput, efficiency, resent)) in records.iter_mut().zip([
        (75.0, 320_000, 0.0216, 21),
        (8.1, 4_938_271, 0.331, 38),
        (5.25, 7_619_047, 0.5091, 0),
        (4.4, 9_090_909, 0.6076, 0),
    ]) {
        let transfer = &mut record.transfers[0];
        transfer.complete = took_s < 75.0;
        transfer.took = Duration::from_s_f64(took_s);
        transfer.goodput = midhop_units::Rate::from_bits_per_s(goodput);
        transfer.flows[0].retransmissions = resent;
        transfer.limit.as_mut().expect("a limit").efficiency = efficiency;
    }
    assert_snapshot!(table(&records));
}

#[test]
fn every_line_fits_a_hundred_columns_and_carries_no_escape() {
    for seeds in [1, 5] {
        let shown = table(&synthetic::records(seeds));
        for line in shown.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        assert!(!shown.contains('\u{1b}'));
    }
    // Narrow terminals wrap inside the cells.
    assert!(table_in(&synthetic::records(5), 60).lines().count() > 60);
}

#[test]
fn no_width_splits_a_word() {
    let whole = ["midhop-hybla-plus", "of limit", "resent", "incomplete"];
    for columns in [10, 60, 80, 1000] {
        let shown = table_in(&few("file", "1 %", 1), columns);
        for word in whole.iter().flat_map(|words| words.split(' ')) {
            assert!(shown.contains(word), "{word} at {columns}: {shown}");
        }
    }
    // Wide enough for everything: one line a row.
    let shown = table_in(&synthetic::records(5), 1000);
    let rows = shown.lines().filter(|line| line.contains(" ± ") && line.contains("ok")).count();
    assert!(rows > 30, "{shown}");
}

#[test]
fn equal_seeds_have_no_interval() {
    let one = few("file", "0 %", 1).swap_remove(0);
    let seeds = |count: u64| -> Vec<Record> {
        (1..=count).map(|seed| Record { seed: Seed(seed), ..one.clone() }).collect()
    };
    let shown = table(&seeds(5));
    assert!(!shown.contains('±') || shown.contains("no ±"), "{shown}");
    assert!(shown.contains("no randomness, every seed gave the same"), "{shown}");
    assert!(!table(&seeds(1)).contains("randomness"));
    assert!(!table(&few("file", "0 %", 3)).contains("randomness"));
}

#[test]
fn simulated_flows_that_may_keep_step_are_named() {
    let mut one = few("file", "0 %", 1).swap_remove(0);
    "sim".clone_into(&mut one.environment.runner);
    let shown = |one: &Record| {
        let seeds = [1, 2].map(|seed| Record { seed: Seed(seed), ..one.clone() });
        table(&seeds).contains("keep step")
    };
    assert!(!shown(&one), "a flow alone");
    let flow = one.transfers[0].flows[0].clone();
    one.transfers[0].flows.push(flow);
    assert!(shown(&one));
    "lab".clone_into(&mut one.environment.runner);
    assert!(!shown(&one), "real packets do not");
}

#[test]
fn both_places_stand_side_by_side() {
    let measured = few("file", "1 %", 1);
    let mut simulated = measured.clone();
    for record in &mut simulated {
        "sim".clone_into(&mut record.environment.runner);
        record.transfers[0].took = Duration::from_s(7);
    }
    simulated.truncate(3);
    let shown = midhop_report::beside_table(&[simulated, measured].concat(), 1000);
    let line = |what: &str| shown.lines().find(|line| line.contains(what)).expect(what).to_owned();
    assert!(line("simulated").contains("measured"), "{shown}");
    assert!(line("midhop-hybla-plus").contains(" 7.00 "), "{shown}");
    assert!(!shown.contains("midhop-bbr"), "only measured: {shown}");
    assert!(shown.contains("1 of 4 lines are left out: they ran in one place only."), "{shown}");
    let alone = midhop_report::beside_table(&few("file", "1 %", 1), 1000);
    assert!(alone.contains("midhop-bbr") && !alone.contains("left out"), "{alone}");
}

#[test]
fn an_incomplete_transfer_shows_a_bound_and_no_interval() {
    let mut records = few("file", "1 %", 3);
    records.truncate(3);
    for (record, complete) in records.iter_mut().zip([true, false, true]) {
        record.transfers[0].complete = complete;
    }
    let rows = rows(&records);
    assert_eq!((rows[0].counted, rows[0].complete), (3, 2));
    let shown = table(&records);
    let line = shown.lines().find(|line| line.contains("1/3 incomplete")).expect("a mark");
    let mean = rows[0].time_s.expect("times").mean;
    assert!(line.contains(&format!("> {mean:.2}")), "{line}");
    assert!(!line.contains(&format!("{mean:.2} ±")), "{line}");
}

#[test]
fn invalid_runs_leave_the_mean_and_are_named() {
    let mut records = few("file", "0 %", 3);
    records.truncate(3);
    let honest = rows(&records[..2])[0].goodput_mbit_per_s;
    records[2].validity.faults.push("the emulator was late".to_owned());
    let rows_now = rows(&records);
    assert_eq!((rows_now[0].valid, rows_now[0].counted), (2, 2));
    assert_eq!(rows_now[0].goodput_mbit_per_s, honest);
    let shown = table(&records);
    assert!(shown.contains("1/3 INVALID [1]"), "{shown}");
    assert!(shown.contains("[1] seed 3: the emulator was late"), "{shown}");
}

#[test]
fn a_run_faster_than_physics_or_with_changed_bytes_is_invalid_whatever_it_reports() {
    let mut record = synthetic::one();
    record.transfers[0].limit.as_mut().expect("a limit").efficiency = 1.02;
    assert!(table(&[record.clone()]).contains("faster than physics allows"));
    assert_eq!(rows(&[record])[0].valid, 0);
    let mut record = synthetic::one();
    record.transfers[0].flows[0].hash_received = Some("0".to_owned());
    assert!(table(&[record]).contains("not the bytes sent"));
}

#[test]
fn cells_without_a_record_and_missing_runs_are_listed() {
    let whole = synthetic::records(2);
    assert!(!table(&whole).contains("Not the whole experiment"));
    let mut part = whole;
    // Both runs of the first cell, one of the second.
    part.drain(..3);
    let shown = table(&part);
    assert!(
        shown.contains("there is no record of: loss 0 %, load page, setup cubic; 1 of 35 rows"),
        "{shown}"
    );
}

#[test]
fn csv_has_one_line_per_run_and_quotes_what_must_be() {
    let mut records = few("page", "0.1 %", 2);
    records[0].title = "a, \"b\"\nc".to_owned();
    records[0].seed = Seed(99);
    let text = csv(&records).expect("CSV");
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().expect("a header").clone();
    let column = |name: &str| header.iter().position(|known| known == name).expect(name);
    let lines: Vec<::csv::StringRecord> =
        reader.records().collect::<Result<_, _>>().expect("lines of equal length");
    assert_eq!(lines.len(), records.len());
    assert_eq!(&lines[0][column("title")], "a, \"b\"\nc");
    assert_eq!(&lines[0][column("seed")], "99");
    for (line, record) in lines.iter().zip(&records) {
        let time: f64 = line[column("time_s")].parse().expect("a number");
        assert_eq!(time, record.transfers[0].took.as_s_f64());
        assert_eq!(&line[column("cell.setup")], record.cell["setup"]);
        let by_proxy: u64 = record.legs.iter().map(|leg| leg.retransmissions).sum();
        let expected = if record.legs.is_empty() { String::new() } else { by_proxy.to_string() };
        assert_eq!(line[column("proxy_retransmissions")], expected);
    }
}

#[test]
fn json_holds_means_and_runs() {
    let records = few("page", "0.1 %", 3);
    let value: serde_json::Value =
        serde_json::from_str(&json(&records).expect("JSON")).expect("valid JSON");
    assert_eq!(value["runs"].as_array().map(Vec::len), Some(12));
    assert_eq!(value["summary"].as_array().map(Vec::len), Some(4));
    let mean = value["summary"][0]["time_s"]["mean"].as_f64().expect("a mean");
    let by_hand: f64 =
        records[..3].iter().map(|record| record.transfers[0].took.as_s_f64()).sum::<f64>() / 3.0;
    assert!((mean - by_hand).abs() < 1e-9);
}

#[test]
fn a_title_cannot_drive_the_terminal() {
    let mut record = synthetic::one();
    record.title = "\u{1b}[31mred\u{7}".to_owned();
    record.validity.faults.push("\u{1b}]0;owned\u{7}".to_owned());
    record.cell.insert("setup".to_owned(), "\u{1b}[2J".to_owned());
    record.transfers[0].name = "\u{1b}[2Jx".to_owned();
    let shown = table(&[record]);
    assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
}
