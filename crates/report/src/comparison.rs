//! Compares two sets of records, such as those of the simulator and the laboratory, of two days, or
//! of two algorithms.
//!
//! A ratio is that of geometric means over seeds, with an interval from the logarithms (Welch's t;
//! where one side has a single run, the spread of the other is used for both). A difference is
//! *real* where the interval does not contain 1. Two cells are the same where they agree on every
//! axis. An axis with only one label on each side distinguishes the sides, not their cells. The
//! same holds for the scenario, the transfer and the place (simulator or laboratory): where each
//! side has only one, their cells are compared. Where a side has several, each is compared with its
//! own kind, and no mean is taken over two of them.

use crate::columns::{Columns, Values};
use crate::machine::WriteError;
use crate::summary::counted_runs;
use midhop_experiment::metrics::median;
use midhop_experiment::record::{Record, Runner, TransferResult};
use midhop_study::LEVEL;
use midhop_study::statistics::Summary;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// The result of [`compare`], as `midhop compare --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// The labels that all cells of a side share: axis → label. Shape: the first side, the second.
    pub throughout: [BTreeMap<String, String>; 2],
    /// The places of each side's runs (simulator, laboratory). Shape: the first side, the second.
    pub places: [BTreeSet<Runner>; 2],
    /// The titles of each side's scenarios. Shape: the first side, the second.
    pub scenarios: [BTreeSet<String>; 2],
    /// One line per cell and transfer that both sides have, in the order of the first.
    pub lines: Vec<Line>,
    /// Cells and transfers that only one side has, in words. Shape: the first side, the second.
    pub alone: [Vec<String>; 2],
    /// Number of runs that are left out because they are not valid. Shape: the first side, the second.
    pub invalid: [usize; 2],
    /// The summary of all lines; none if no line has a ratio.
    pub summary: Option<Agreement>,
}

/// One transfer in one cell, on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Line {
    /// The title of its scenario; none if each side has only one.
    pub scenario: Option<String>,
    /// The place of its runs; none if each side has only one.
    pub place: Option<Runner>,
    /// The cell's position: axis → label.
    pub cell: BTreeMap<String, String>,
    /// The transfer's name; both names if each side has only one transfer and the names differ.
    pub transfer: String,
    /// Goodput: payload over time, of both sides.
    #[serde(rename = "goodput_bit_per_s", serialize_with = "in_bit_per_s")]
    #[cfg_attr(feature = "schema", schemars(with = "Contrast"))]
    pub goodput: Contrast,
    /// Time from the first SYN to the last byte; none if a run did not deliver everything.
    #[serde(rename = "time_s")]
    pub time: Option<Contrast>,
}

/// Serialises a contrast of rates as bit/s.
fn in_bit_per_s<S: Serializer>(contrast: &Contrast, to: S) -> Result<S::Ok, S::Error> {
    let means = contrast.means.map(|mbit_per_s| mbit_per_s * 1e6);
    Contrast { means, ..contrast.clone() }.serialize(to)
}

/// One quantity on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Contrast {
    /// The means. Unit: Mbit/s, or seconds. Shape: the first side, the second.
    #[cfg_attr(
        feature = "schema",
        schemars(
            description = "The means, in the unit of the key. Shape: the first side, the second."
        )
    )]
    pub means: [f64; 2],
    /// Number of runs in each mean. Shape: the first side, the second.
    pub runs: [usize; 2],
    /// The ratio of the geometric means, first to second; none if one of them is zero.
    pub ratio: Option<f64>,
    /// The ends of the ratio's confidence interval; none if each side has only one run.
    pub interval: Option<[f64; 2]>,
    /// Whether the interval does not contain 1; none without an interval.
    pub real: Option<bool>,
}

/// How well two sides agree in goodput.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Agreement {
    /// Number of lines with a ratio.
    pub lines: usize,
    /// The median of the ratios.
    pub median: f64,
    /// The fraction of the ratios within 5 % of 1. Range: 0 to 1.
    pub within_5_percent: f64,
    /// The fraction of the ratios within 15 % of 1. Range: 0 to 1.
    pub within_15_percent: f64,
    /// Number of lines whose difference is real.
    pub real: usize,
    /// Number of these lines whose ratio is more than 15 % from 1.
    pub real_beyond_15_percent: usize,
    /// The confidence level of the intervals.
    pub confidence: f64,
}

impl Comparison {
    /// One row per line; the names contain the units and the sides, `a` and `b`. Each axis that
    /// distinguishes cells is a column `cell.<axis>`. A difference without an interval is not
    /// `real`.
    pub fn columns(&self) -> Columns {
        let lines = &self.lines;
        let text = |value: &dyn Fn(&Line) -> Option<String>| {
            Values::Text(lines.iter().map(value).collect())
        };
        let mut columns = Columns::default();
        columns.push("title", text(&|line| line.scenario.clone()));
        columns.push("place", text(&|line| line.place.map(|it| it.name().to_owned())));
        let axes: BTreeSet<&String> = lines.iter().flat_map(|line| line.cell.keys()).collect();
        for axis in axes {
            let labels = lines.iter().map(|line| line.cell.get(axis).cloned()).collect();
            columns.push_labels(&format!("cell.{axis}"), labels);
        }
        columns.push("transfer", text(&|line| Some(line.transfer.clone())));
        type Of = (&'static str, fn(&Line) -> Option<&Contrast>);
        const CONTRASTS: [Of; 2] = [
            ("goodput_mbit_per_s", |line| Some(&line.goodput)),
            ("time_s", |line| line.time.as_ref()),
        ];
        for (name, contrast) in CONTRASTS {
            let number = |value: &dyn Fn(&Contrast) -> Option<f64>| {
                Values::Number(lines.iter().map(|line| value(contrast(line)?)).collect())
            };
            for (side, letter) in ["a", "b"].into_iter().enumerate() {
                let count = |line: &Line| Some(contrast(line)?.runs[side] as u64);
                let runs = Values::Count(lines.iter().map(count).collect());
                columns.push(format!("{name}.{letter}.mean"), number(&|it| Some(it.means[side])));
                columns.push(format!("{name}.{letter}.runs"), runs);
            }
            columns.push(format!("{name}.ratio"), number(&|it| it.ratio));
            columns.push(format!("{name}.ratio.low"), number(&|it| Some(it.interval?[0])));
            columns.push(format!("{name}.ratio.high"), number(&|it| Some(it.interval?[1])));
            let real = |line: &Line| contrast(line).is_some_and(|it| it.real == Some(true));
            columns.push(format!("{name}.real"), Values::Flag(lines.iter().map(real).collect()));
        }
        columns
    }

    /// As [`columns`](Self::columns), in CSV with a header.
    ///
    /// # Errors
    /// When the writer fails, which text does not cause.
    pub fn csv(&self) -> Result<String, WriteError> {
        self.columns().csv()
    }

    /// The JSON Schema: every key and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> schemars::Schema {
        crate::machine::schema_of::<Self>()
    }
}

/// Compares two sets of records, with intervals at a confidence of 95 %.
pub fn compare(first: &[Record], second: &[Record]) -> Comparison {
    compare_at(first, second, LEVEL)
}

/// The same with intervals at a confidence of `level`. Range: 0 to 1.
pub fn compare_at(first: &[Record], second: &[Record], level: f64) -> Comparison {
    let throughout = [constants(first), constants(second)];
    let both = [first, second];
    let places = both.map(|side| side.iter().map(Runner::of).collect());
    let scenarios = both.map(|side| side.iter().map(|it| it.title.clone()).collect());
    let transfers = both.map(names);
    let apart = Apart {
        axes: first
            .iter()
            .chain(second)
            .flat_map(|record| record.cell.keys())
            .filter(|axis| !is_constant(first, axis) || !is_constant(second, axis))
            .collect(),
        places: several(&places),
        scenarios: several(&scenarios),
        transfers: several(&transfers) || transfers[0] == transfers[1],
    };
    let sides = both.map(|side| Side::of(side, &apart));
    let mut lines = Vec::new();
    for (key, _) in &sides[0].groups {
        let (Some(runs), Some(others)) = (sides[0].find(key), sides[1].find(key)) else { continue };
        let complete = |runs: &[&TransferResult]| runs.iter().all(|run| run.complete);
        let goodput = |run: &TransferResult| run.goodput.mbit_per_s();
        let time = |run: &TransferResult| run.took.as_s_f64();
        lines.push(Line {
            scenario: key.scenario.clone(),
            place: key.place,
            cell: key.cell.clone(),
            transfer: match &key.transfer {
                Some(transfer) => transfer.clone(),
                None => both_names(both.map(names)),
            },
            goodput: Contrast::of([samples(runs, goodput), samples(others, goodput)], level),
            time: (complete(runs) && complete(others))
                .then(|| Contrast::of([samples(runs, time), samples(others, time)], level)),
        });
    }
    Comparison {
        throughout,
        places,
        scenarios,
        alone: [sides[0].without(&sides[1]), sides[1].without(&sides[0])],
        invalid: [sides[0].invalid, sides[1].invalid],
        summary: Agreement::of(&lines, level),
        lines,
    }
}

/// The properties that distinguish cells.
struct Apart<'r> {
    axes: BTreeSet<&'r String>,
    /// Whether the place does.
    places: bool,
    /// Whether the scenario does.
    scenarios: bool,
    /// Whether the transfer does. If each side has only one transfer, the two are compared even if their names differ.
    transfers: bool,
}

/// The cell, by the properties that distinguish cells, and the transfer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    scenario: Option<String>,
    place: Option<Runner>,
    cell: BTreeMap<String, String>,
    transfer: Option<String>,
}

impl Key {
    fn of(record: &Record, transfer: &TransferResult, apart: &Apart<'_>) -> Self {
        let cell = record.cell.iter().filter(|(axis, _)| apart.axes.contains(axis));
        Self {
            scenario: apart.scenarios.then(|| record.title.clone()),
            place: apart.places.then(|| Runner::of(record)),
            cell: cell.map(|(axis, label)| (axis.clone(), label.clone())).collect(),
            transfer: apart.transfers.then(|| transfer.name.clone()),
        }
    }

    /// In words.
    fn in_words(&self) -> String {
        let mut text = self.transfer.clone().unwrap_or_else(|| "transfer".to_owned());
        for (axis, label) in &self.cell {
            text += &format!(", {axis} {label}");
        }
        if let Some(place) = self.place {
            text += &format!(", {}", place.place());
        }
        if let Some(scenario) = &self.scenario {
            text += &format!(", of \"{scenario}\"");
        }
        text
    }
}

/// The names of a side's transfers.
fn names(side: &[Record]) -> BTreeSet<String> {
    side.iter().flat_map(|record| &record.transfers).map(|it| it.name.clone()).collect()
}

/// The names of two sides that have one each.
fn both_names([first, second]: [BTreeSet<String>; 2]) -> String {
    let names = if first == second { vec![first] } else { vec![first, second] };
    let names = names.into_iter().map(|side| side.into_iter().collect::<String>());
    names.collect::<Vec<_>>().join(" / ")
}

/// Whether a side has more than one.
fn several<T>(sides: &[BTreeSet<T>; 2]) -> bool {
    sides.iter().any(|side| side.len() > 1)
}

/// The runs of one side that are not left out.
struct Side<'r> {
    groups: Vec<(Key, Vec<&'r TransferResult>)>,
    /// The index of each key in the list.
    known: BTreeMap<Key, usize>,
    invalid: usize,
}

impl<'r> Side<'r> {
    fn of(records: &'r [Record], apart: &Apart<'_>) -> Self {
        let mut all: Vec<(Key, Vec<(&Record, &TransferResult)>)> = Vec::new();
        let mut known = BTreeMap::new();
        for record in records {
            for transfer in &record.transfers {
                let key = Key::of(record, transfer, apart);
                let at = *known.entry(key.clone()).or_insert(all.len());
                match all.get_mut(at) {
                    Some((_, runs)) => runs.push((record, transfer)),
                    None => all.push((key, vec![(record, transfer)])),
                }
            }
        }
        let (mut groups, mut invalid) = (Vec::new(), 0);
        for (key, runs) in all {
            let counted = counted_runs(&runs);
            invalid += runs.len() - counted.len();
            groups.push((key, counted));
        }
        Self { groups, known, invalid }
    }

    fn find(&self, key: &Key) -> Option<&[&'r TransferResult]> {
        let (_, runs) = self.groups.get(*self.known.get(key)?)?;
        (!runs.is_empty()).then_some(runs)
    }

    /// What this side has and `other` does not, in words.
    fn without(&self, other: &Self) -> Vec<String> {
        let missing = |(key, runs): &&(Key, Vec<_>)| !runs.is_empty() && other.find(key).is_none();
        self.groups.iter().filter(missing).map(|(key, _)| key.in_words()).collect()
    }
}

fn samples(runs: &[&TransferResult], figure: impl Fn(&TransferResult) -> f64) -> Vec<f64> {
    runs.iter().map(|run| figure(run)).collect()
}

/// The axes with one label throughout.
fn constants(records: &[Record]) -> BTreeMap<String, String> {
    let cells = records.iter().flat_map(|record| &record.cell);
    cells
        .filter(|(axis, _)| is_constant(records, axis))
        .map(|(axis, label)| (axis.clone(), label.clone()))
        .collect()
}

/// Whether the records have the same label on every axis.
fn is_constant(records: &[Record], axis: &str) -> bool {
    let mut labels = records.iter().map(|record| record.cell.get(axis));
    let first = labels.next().flatten();
    labels.all(|label| label == first)
}

impl Contrast {
    fn of(samples: [Vec<f64>; 2], level: f64) -> Self {
        let mean = |side: &[f64]| Summary::of(side).map_or(0.0, |summary| summary.mean);
        let logs = [0, 1].map(|side: usize| -> Option<Summary> {
            let logs: Vec<f64> = samples[side].iter().map(|sample| sample.ln()).collect();
            Summary::of(&logs).filter(|_| logs.iter().all(|log| log.is_finite()))
        });
        let mut contrast = Self {
            means: [mean(&samples[0]), mean(&samples[1])],
            runs: [samples[0].len(), samples[1].len()],
            ratio: None,
            interval: None,
            real: None,
        };
        if let [Some(first), Some(second)] = logs {
            let difference = first.mean - second.mean;
            contrast.ratio = Some(difference.exp());
            if let Some(half) = first.margin_against(&second, level) {
                contrast.interval = Some([(difference - half).exp(), (difference + half).exp()]);
                contrast.real = Some(difference.abs() > half);
            }
        }
        contrast
    }
}

impl Agreement {
    fn of(lines: &[Line], level: f64) -> Option<Self> {
        let ratios: Vec<f64> = lines.iter().filter_map(|line| line.goodput.ratio).collect();
        let off = |ratio: f64| (ratio - 1.0).abs();
        let within = |bound: f64| {
            ratios.iter().filter(|&&ratio| off(ratio) <= bound).count() as f64 / ratios.len() as f64
        };
        let real = || lines.iter().filter(|line| line.goodput.real == Some(true));
        let beyond = |line: &&Line| line.goodput.ratio.is_some_and(|ratio| off(ratio) > 0.15);
        Some(Self {
            lines: ratios.len(),
            median: median(&ratios)?,
            within_5_percent: within(0.05),
            within_15_percent: within(0.15),
            real: real().count(),
            real_beyond_15_percent: real().filter(beyond).count(),
            confidence: level,
        })
    }
}

#[cfg(test)]
mod tests;
