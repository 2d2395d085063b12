//! What all runs gave, figure by figure and cell by cell.

use super::{Cell, Figure, covers};
use crate::metrics::Summary;
use crate::record::Record;
use serde::Serialize;
use std::collections::BTreeMap;

/// A mean and how far it may be off either way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the interval; none of a single run.
    pub margin: Option<f64>,
    /// How many runs.
    pub runs: usize,
}

impl Estimate {
    /// The estimate from `samples` at a confidence of `level`; none without samples.
    pub fn of(samples: &[f64], level: f64) -> Option<Self> {
        let summary = Summary::of(samples)?;
        Some(Self { mean: summary.mean, margin: summary.margin(level), runs: summary.count })
    }

    /// This over that, with relative margins added in quadrature.
    pub(super) fn over(self, that: Self) -> Option<Self> {
        (that.mean > 0.0 && self.mean > 0.0).then(|| {
            let mean = self.mean / that.mean;
            let share = |estimate: Self| estimate.margin.map(|margin| margin / estimate.mean);
            let margin = share(self).zip(share(that)).map(|(a, b)| mean * a.hypot(b));
            Self { mean, margin, runs: self.runs.min(that.runs) }
        })
    }

    /// This without that, with margins added in quadrature.
    pub(super) fn minus(self, that: Self) -> Self {
        let margin = self.margin.zip(that.margin).map(|(a, b)| a.hypot(b));
        Self { mean: self.mean - that.mean, margin, runs: self.runs.min(that.runs) }
    }
}

/// What the runs of one cell gave for one figure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CellValue {
    /// The cell.
    pub cell: Cell,
    /// One for each run that has it.
    pub values: Vec<f64>,
    /// Ideal over measured time of the same runs.
    pub efficiencies: Vec<f64>,
    /// Runs that did not give the figure.
    pub missing: usize,
}

impl CellValue {
    /// The estimate; none where a run is missing or there was none.
    pub fn estimate(&self, level: f64) -> Option<Estimate> {
        (self.missing == 0).then(|| Estimate::of(&self.values, level)).flatten()
    }
}

/// What one run gave: a value and an efficiency for each figure of its scenario.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    cell: Cell,
    figures: Vec<(String, Option<f64>, Option<f64>)>,
}

impl Reading {
    /// A reading of one figure without a record.
    #[cfg(test)]
    pub(super) fn given(cell: Cell, figure: &str, value: Option<f64>) -> Self {
        Self { cell, figures: vec![(figure.to_owned(), value, None)] }
    }

    /// Reads from a record all figures of `figures` that belong to `scenario` and its cell.
    pub fn of(scenario: &str, record: &Record, figures: &[Figure]) -> Self {
        let here = figures
            .iter()
            .filter(|figure| figure.scenario == scenario && covers(&record.cell, &figure.at));
        Self {
            cell: record.cell.clone(),
            figures: here
                .map(|figure| (figure.name.clone(), figure.read(record), figure.efficiency(record)))
                .collect(),
        }
    }
}

/// What all runs gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measured {
    figures: BTreeMap<String, Vec<CellValue>>,
}

impl Measured {
    /// Adds a run. Runs are added in the order of the scenario, which becomes that of the cells.
    pub fn add(&mut self, reading: Reading) {
        for (name, value, efficiency) in reading.figures {
            let cells = self.figures.entry(name).or_default();
            let place = cells.iter().position(|known| known.cell == reading.cell);
            let place = place.unwrap_or_else(|| {
                cells.push(CellValue { cell: reading.cell.clone(), ..CellValue::default() });
                cells.len() - 1
            });
            match value.filter(|value| value.is_finite()) {
                Some(value) => cells[place].values.push(value),
                None => cells[place].missing += 1,
            }
            cells[place].efficiencies.extend(efficiency);
        }
    }

    /// The cells of a figure that have run.
    pub fn cells(&self, figure: &str) -> &[CellValue] {
        self.figures.get(figure).map(Vec::as_slice).unwrap_or_default()
    }

    /// The one cell of `figure` that stands at `at`.
    pub fn cell(&self, figure: &str, at: &Cell) -> Option<&CellValue> {
        let mut fitting = self.cells(figure).iter().filter(|known| covers(&known.cell, at));
        let cell = fitting.next()?;
        fitting.next().is_none().then_some(cell)
    }
}
