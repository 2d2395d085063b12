//! Compares simulated flows with published formulas.

use crate::number;
use crate::terminal::{drawn, frame, plain};
use comfy_table::{CellAlignment, Table};
use midhop_experiment::law::{self, Expected};
use midhop_experiment::record::Record;
use midhop_study::{Estimate, LEVEL};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One cell: the results of its flows, and the formula's prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Held {
    /// Its position: axis → label.
    pub cell: BTreeMap<String, String>,
    /// The formula's prediction.
    pub expected: Expected,
    /// The goodput of each run after its start. Unit: Mbit/s.
    #[serde(rename = "goodputs_bit_per_s", serialize_with = "in_bit_per_s")]
    pub values: Vec<f64>,
}

/// Serialises rates in Mbit/s as bit/s.
fn in_bit_per_s<S: Serializer>(mbit_per_s: &[f64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(mbit_per_s.iter().map(|rate| rate * 1e6))
}

/// All cells of a scenario.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Formulas {
    /// The cells, in the order of their first runs.
    pub cells: Vec<Held>,
}

impl Formulas {
    /// Adds a run; returns whether a formula applies to it.
    pub fn add(&mut self, record: &Record) -> bool {
        let Some((expected, value)) = law::held(record) else { return false };
        match self.cells.iter_mut().find(|held| held.cell == record.cell) {
            Some(held) => held.values.push(value),
            None => {
                let cell = record.cell.clone();
                self.cells.push(Held { cell, expected, values: vec![value] });
            }
        }
        true
    }

    /// Whether the mean of each judged cell is within its formula's band.
    pub fn agree(&self) -> bool {
        self.judged().all(Held::agrees)
    }

    fn judged(&self) -> impl Iterator<Item = &Held> {
        self.cells.iter().filter(|held| held.expected.is_judged)
    }
}

impl Held {
    /// The ratio of simulated to expected, with an interval at 95 % where there are several runs.
    pub fn ratio(&self) -> Option<Estimate> {
        let expected = self.expected.goodput_mbit_per_s;
        let ratios: Vec<f64> = self.values.iter().map(|value| value / expected).collect();
        Estimate::of(&ratios, LEVEL)
    }

    /// Whether the mean is within the formula's band.
    pub fn agrees(&self) -> bool {
        self.ratio().is_some_and(|ratio| (ratio.mean - 1.0).abs() <= self.expected.law.band())
    }
}

/// The table with `columns`: one line for each cell, the count below it.
pub fn formulas_table(formulas: &Formulas, columns: u16) -> String {
    let Some(first) = formulas.cells.first() else {
        return "no formula speaks of these runs\n".to_owned();
    };
    let axes: Vec<&String> = first.cell.keys().collect();
    let mut table = Table::new();
    frame(&mut table, columns);
    let mut header: Vec<String> =
        axes.iter().map(|axis| plain(axis.rsplit('.').next().unwrap_or(axis))).collect();
    header.extend(
        ["formula", "formula\nMbit/s", "simulated\nMbit/s", "ratio", "± 95 %", "band", "within"]
            .map(str::to_owned),
    );
    table.set_header(header);
    for held in &formulas.cells {
        let Expected { law, goodput_mbit_per_s, is_judged, .. } = held.expected;
        let mean = held.values.iter().sum::<f64>() / held.values.len() as f64;
        let decimals = number::decimals([goodput_mbit_per_s, mean].into_iter());
        let ratio = held.ratio();
        let label = |axis: &&String| held.cell.get(*axis).map_or("–".to_owned(), |it| plain(it));
        let mut cells: Vec<String> = axes.iter().map(label).collect();
        cells.extend([
            law.name().to_owned(),
            format!("{goodput_mbit_per_s:.decimals$}"),
            format!("{mean:.decimals$}"),
            ratio.map_or("–".to_owned(), |ratio| format!("{:.3}", ratio.mean)),
            ratio.and_then(|it| it.margin).map_or("–".to_owned(), |half| format!("{half:.3}")),
            if is_judged { format!("{:.0} %", law.band() * 100.0) } else { "–".to_owned() },
            match is_judged {
                true if held.agrees() => "yes",
                true => "NO",
                false => "–",
            }
            .to_owned(),
        ]);
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(axes.len() + 1).take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = drawn(table);
    let judged = formulas.judged().count();
    let within = formulas.judged().filter(|held| held.agrees()).count();
    let runs = first.values.len();
    let _ = writeln!(
        text,
        "{within} of {judged} cells are within their formula's band; {runs} runs each."
    );
    if judged < formulas.cells.len() {
        text.push_str("–: a loss and more in each window, of which the formula does not speak.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::law::Law;
    use midhop_units::Duration;
    use serde_json::json;

    #[test]
    fn json_has_base_units_in_its_keys() {
        let expected = Expected {
            law: Law::Mathis,
            loss: 0.01,
            rtt: Duration::from_ms(100),
            goodput_mbit_per_s: 1.5,
            is_judged: true,
        };
        let cell = BTreeMap::from([("loss".to_owned(), "1 %".to_owned())]);
        let cells = vec![Held { cell, expected, values: vec![1.25, 1.75] }];
        let wanted = json!({ "cells": [{
            "cell": { "loss": "1 %" },
            "expected": {
                "law": "mathis",
                "loss_ratio": 0.01,
                "rtt_s": 0.1,
                "goodput_bit_per_s": 1_500_000.0,
                "is_judged": true,
            },
            "goodputs_bit_per_s": [1_250_000.0, 1_750_000.0],
        }] });
        assert_eq!(serde_json::to_value(Formulas { cells }).expect("JSON"), wanted);
    }
}
