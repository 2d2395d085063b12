//! A study's figures in columns, for files that other programs read.

use super::{Reproduction, table, verdict};
use crate::columns::{Columns, Values};
use midhop_study::{CellValue, Figure};
use std::collections::BTreeSet;

/// One row per figure and cell; units are in a column of their own. Each axis is a column
/// `cell.<axis>`.
pub fn study_columns(run: &Reproduction<'_>) -> Columns {
    let rows: Vec<(&Figure, &CellValue)> = run
        .study
        .figures
        .iter()
        .flat_map(|figure| run.measured.cells(&figure.name).iter().map(move |cell| (figure, cell)))
        .collect();
    of_cells(run, &rows)
}

/// The same for some cells of some figures.
pub(super) fn of_cells(run: &Reproduction<'_>, rows: &[(&Figure, &CellValue)]) -> Columns {
    let level = run.study.confidence;
    let text = |value: &dyn Fn(&Figure, &CellValue) -> Option<String>| {
        Values::Text(rows.iter().map(|(figure, cell)| value(figure, cell)).collect())
    };
    let number = |value: &dyn Fn(&Figure, &CellValue) -> Option<f64>| {
        Values::Number(rows.iter().map(|(figure, cell)| value(figure, cell)).collect())
    };
    let count = |value: &dyn Fn(&CellValue) -> usize| {
        Values::Count(rows.iter().map(|(_, cell)| Some(value(cell) as u64)).collect())
    };
    let mut columns = Columns::default();
    columns.push("study", text(&|_, _| Some(run.name.to_owned())));
    columns.push("figure", text(&|figure, _| Some(figure.name.clone())));
    columns.push("scenario", text(&|figure, _| Some(figure.scenario.clone())));
    columns.push("unit", text(&|figure, _| Some(figure.unit().to_owned())));
    let axes: BTreeSet<&String> = rows.iter().flat_map(|(_, cell)| cell.cell.keys()).collect();
    for axis in axes {
        let labels = rows.iter().map(|(_, cell)| cell.cell.get(axis).cloned()).collect();
        columns.push_labels(&format!("cell.{axis}"), labels);
    }
    let ours = rows.iter().map(|(_, cell)| run.study.is_ours(&cell.cell)).collect();
    columns.push("ours", Values::Flag(ours));
    let published =
        |figure: &Figure, cell: &CellValue| table::published(figure, cell).map(|it| it.value);
    columns.push("published", number(&published));
    columns.push("allowed", number(&|figure, cell| figure.allowance(published(figure, cell)?)));
    columns.push("mean", number(&|_, cell| cell.estimate(level).map(|it| it.mean)));
    columns.push("margin", number(&|_, cell| cell.estimate(level)?.margin));
    columns.push("confidence", number(&|_, _| Some(level)));
    columns.push("runs", count(&|cell| cell.values.len()));
    columns.push("missing", count(&|cell| cell.missing));
    columns.push("limit", number(&|_, cell| table::mean(&cell.limits)));
    let judged_at = run.level_of_points();
    let judged = |figure: &Figure, cell: &CellValue| {
        figure.judge(table::published(figure, cell)?, run.measured, judged_at)
    };
    columns.push(
        "verdict",
        text(&|figure, cell| judged(figure, cell).map(|it| verdict::class(it).to_owned())),
    );
    let values = |_: &Figure, cell: &CellValue| Some(joined(&cell.values));
    columns.push("values", text(&values));
    if let Some(place) = run.beside.map(|it| it.place.name()) {
        let mut there =
            |what: &str, values: Values| columns.push(format!("{place}.{what}"), values);
        let other = |figure: &Figure, cell: &CellValue| run.other(figure, cell);
        there("mean", number(&|figure, cell| Some(other(figure, cell)?.estimate?.mean)));
        there("margin", number(&|figure, cell| other(figure, cell)?.estimate?.margin));
        there("values", text(&|figure, cell| Some(joined(&other(figure, cell)?.value.values))));
        columns
            .push("lab_over_sim", number(&|figure, cell| Some(other(figure, cell)?.ratio?.mean)));
        columns.push(
            "lab_over_sim.margin",
            number(&|figure, cell| other(figure, cell)?.ratio?.margin),
        );
    }
    columns
}

fn joined(values: &[f64]) -> String {
    values.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")
}
