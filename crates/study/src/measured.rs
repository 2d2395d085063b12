//! The results of all runs, figure by figure and cell by cell.

use crate::cell::{Cell, covers, joined};
use crate::chance;
use crate::estimate::Estimate;
use crate::figure::{Figure, Take};
use crate::part::Place;
use midhop_experiment::plan::Plan;
use midhop_experiment::record::Record;
use std::collections::BTreeMap;

/// The results of one cell for one figure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CellValue {
    /// The cell.
    pub cell: Cell,
    /// One for each run that has it.
    pub values: Vec<f64>,
    /// Ideal over measured time of the same runs.
    pub efficiencies: Vec<f64>,
    /// The physical limits of the figure in the same runs.
    pub limits: Vec<f64>,
    /// Runs without the figure.
    pub missing: usize,
    /// Whether another seed could have given another result.
    pub chance: bool,
    /// The statistic of the values.
    take: Take,
    /// The results of the cell to which this one is relative; none where it is absolute. The
    /// statistic of those results counts as 1.
    over: Option<Box<Self>>,
}

impl CellValue {
    /// The estimate; none where a run is missing or there was none.
    pub fn estimate(&self, level: f64) -> Option<Estimate> {
        let own = self.alone(level)?;
        match &self.over {
            Some(other) => own.over(other.alone(level)?),
            None => Some(own),
        }
    }

    /// The same for its values alone, even where they are relative.
    fn alone(&self, level: f64) -> Option<Estimate> {
        let whole = (self.missing == 0).then_some(&self.values);
        let estimate = match self.take {
            Take::Mean => Estimate::of(whole?, level)?,
            Take::Greatest => Estimate::greatest_of(whole?, level)?,
        };
        Some(if self.chance { estimate } else { estimate.certain() })
    }

    /// The values relative to the result of `other`: each one divided by the statistic of `other`'s
    /// values. None where that is missing or zero.
    fn relative_to(&self, other: &Self) -> Option<Self> {
        let unit = other.alone(0.0)?.mean;
        let in_units = |of: &Self| Self {
            values: of.values.iter().map(|value| value / unit).collect(),
            ..of.clone()
        };
        (unit > 0.0).then(|| Self { over: Some(Box::new(in_units(other))), ..in_units(self) })
    }
}

/// The results of one run: a value and an efficiency for each figure of its scenario.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    cell: Cell,
    /// Whether another seed could have given another result.
    chance: bool,
    figures: Vec<Read>,
}

/// The result of a run for one figure.
#[derive(Debug, Clone, PartialEq, Default)]
struct Read {
    figure: String,
    take: Take,
    value: Option<f64>,
    efficiency: Option<f64>,
    limit: Option<f64>,
}

impl Reading {
    /// A reading of one figure without a record, for a run that depends on chance.
    #[cfg(test)]
    pub(crate) fn given(cell: Cell, figure: &str, value: Option<f64>) -> Self {
        let read = Read { figure: figure.to_owned(), value, ..Read::default() };
        Self { cell, chance: true, figures: vec![read] }
    }

    /// The same for a run that does not depend on chance.
    #[cfg(test)]
    pub(crate) fn certain(cell: Cell, figure: &str, value: f64) -> Self {
        Self { chance: false, ..Self::given(cell, figure, Some(value)) }
    }

    /// Reads from a record all figures of `figures` that belong to `scenario` and its cell.
    pub fn of(scenario: &str, record: &Record, figures: &[Figure]) -> Self {
        let here = figures
            .iter()
            .filter(|figure| figure.scenario == scenario && covers(&record.cell, &figure.at));
        // Kernels never behave in the same way twice.
        let simulated = Place::of(record) == Place::Sim;
        let plan = Plan::from_json(&record.plan).ok().filter(|_| simulated);
        Self {
            cell: record.cell.clone(),
            chance: plan.is_none_or(|plan| chance::has_part_in(&plan)),
            figures: here
                .map(|figure| Read {
                    figure: figure.name.clone(),
                    take: figure.take,
                    value: figure.read(record),
                    efficiency: figure.efficiency(record),
                    limit: figure.limit(record),
                })
                .collect(),
        }
    }
}

/// The results of all runs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measured {
    figures: BTreeMap<String, Vec<CellValue>>,
}

impl Measured {
    /// Adds a run. Runs are added in the order of the scenario, which becomes that of the cells.
    pub fn add(&mut self, reading: Reading) {
        for Read { figure, take, value, efficiency, limit } in reading.figures {
            let cells = self.figures.entry(figure).or_default();
            let place = cells.iter().position(|known| known.cell == reading.cell);
            let place = place.unwrap_or_else(|| {
                let cell = reading.cell.clone();
                cells.push(CellValue { cell, take, ..CellValue::default() });
                cells.len() - 1
            });
            cells[place].chance |= reading.chance;
            match value.filter(|value| value.is_finite()) {
                Some(value) => cells[place].values.push(value),
                None => cells[place].missing += 1,
            }
            cells[place].efficiencies.extend(efficiency);
            cells[place].limits.extend(limit);
        }
    }

    /// Makes the cells of `figures` relative to the cells that they name, once all runs are added.
    /// Those cells themselves are removed, and so are cells that lack one.
    pub fn relate(&mut self, figures: &[Figure]) {
        for figure in figures {
            let (Some(to), Some(cells)) = (&figure.relative_to, self.figures.get_mut(&figure.name))
            else {
                continue;
            };
            let related = |own: &CellValue| {
                let at = joined(&own.cell, to);
                let other = cells.iter().find(|it| it.cell == at && own.cell != at)?;
                own.relative_to(other)
            };
            *cells = cells.iter().filter_map(related).collect();
        }
    }

    /// Removes the figures without a value from any run: they cannot be read in this place.
    pub fn forget_unmeasured(&mut self) {
        self.figures.retain(|_, cells| cells.iter().any(|cell| !cell.values.is_empty()));
    }

    /// The cells of a figure that have run.
    pub fn cells(&self, figure: &str) -> &[CellValue] {
        self.figures.get(figure).map(Vec::as_slice).unwrap_or_default()
    }

    /// The only cell of `figure` with the positions `at`.
    pub fn cell(&self, figure: &str, at: &Cell) -> Option<&CellValue> {
        let mut fitting = self.cells(figure).iter().filter(|known| covers(&known.cell, at));
        let cell = fitting.next()?;
        fitting.next().is_none().then_some(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Summary;

    const ON: [f64; 3] = [30.0, 33.0, 36.0];
    const OFF: [f64; 3] = [9.0, 10.0, 11.0];

    fn cell(pep: &str, flows: &str) -> Cell {
        [("pep", pep), ("flows", flows)].map(|(a, l)| (a.to_owned(), l.to_owned())).into()
    }

    fn figure(more: &str) -> Figure {
        let text = "name = \"f\"\nshows = \"x\"\nscenario = \"s\"\nmetric = \"flows-kb\"\n";
        toml::from_str(&format!("{text}{more}")).expect("a figure")
    }

    /// `ON` and `OFF` of one flow, twice as much of four, and a value of eight without a
    /// counterpart.
    fn related(figure: &Figure) -> Measured {
        let mut measured = Measured::default();
        let mut add = |pep: &str, flows: &str, value: Option<f64>| {
            let mut reading = Reading::given(cell(pep, flows), "f", value);
            reading.figures[0].take = figure.take;
            measured.add(reading);
        };
        for run in 0..3 {
            add("on", "1", Some(ON[run]));
            add("off", "1", Some(OFF[run]));
            add("on", "4", Some(2.0 * ON[run]));
            add("off", "4", Some(2.0 * OFF[run]));
            add("on", "8", Some(5.0));
            add("on", "16", Some(5.0));
            add("off", "16", (run > 0).then_some(5.0));
        }
        measured.relate(std::slice::from_ref(figure));
        measured
    }

    #[test]
    fn a_figure_may_be_of_quotients_with_the_margin_that_claims_have() {
        let figure = figure("relative_to = { pep = \"off\" }");
        assert_eq!((figure.unit(), figure.metric.unit()), ("", "kB/s"));
        let measured = related(&figure);
        let cells: Vec<&Cell> = measured.cells("f").iter().map(|it| &it.cell).collect();
        assert_eq!(
            cells,
            [&cell("on", "1"), &cell("on", "4")],
            "neither those below nor those without"
        );
        let of = |samples: &[f64]| Estimate::of(samples, 0.98).expect("samples");
        let wanted = of(&ON).over(of(&OFF)).expect("a quotient");
        for value in measured.cells("f") {
            let got = value.estimate(0.98).expect("an estimate");
            assert!((got.mean - 3.3).abs() < 1e-9, "{got:?}");
            let [got, wanted] = [got, wanted].map(|it| it.margin.expect("a margin"));
            assert!((got - wanted).abs() < 1e-9 && wanted > 0.1, "{got}, not {wanted}");
        }
        // The result of each run is in the same unit.
        assert_eq!(measured.cells("f")[0].values, [3.0, 3.3, 3.6]);
    }

    #[test]
    fn a_figure_may_be_of_the_greatest_of_several_runs() {
        let figure = figure("take = \"greatest\"");
        let measured = related(&figure);
        let value = measured.cell("f", &cell("on", "1")).expect("a cell");
        let got = value.estimate(0.98).expect("an estimate");
        let summary = Summary::of(&ON).expect("samples");
        assert_eq!((got.mean, got.margin, got.runs), (36.0, summary.margin_of_max(0.98), 3));
        assert_ne!(got.margin, summary.margin(0.98));
        let missing = measured.cell("f", &cell("off", "16")).expect("a cell");
        assert_eq!(
            missing.estimate(0.98),
            None,
            "a run that gave nothing may have been the greatest"
        );
    }
}
