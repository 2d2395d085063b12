//! A study's figures beside ours, and its claims, for a terminal.

use crate::terminal::{frame, plain};
use comfy_table::{CellAlignment, Table};
use midhop_experiment::study::{
    CellValue, Claim, Figure, Judgement, Measured, Study, Verdict, Whose,
};
use std::fmt::Write as _;

/// Every figure of `study` as a table, published beside ours, then every claim.
pub fn study(study: &Study, measured: &Measured, judgements: &[Judgement]) -> String {
    let mut text = format!("{}\n{}\n", plain(&study.title), plain(&study.source));
    for figure in &study.figures {
        let cells = measured.cells(&figure.name);
        if cells.is_empty() {
            continue;
        }
        let unit = figure.metric.unit();
        let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
        let level = study.confidence * 100.0;
        let _ = writeln!(text, "\n{}{unit} (± {level} %)", plain(&figure.shows));
        let table = match &figure.columns {
            Some(axis) => grid(figure, cells, axis, study.confidence),
            None => list(figure, cells, study.confidence),
        };
        text.push_str(&table.trim_fmt());
        text.push('\n');
    }
    if !judgements.is_empty() {
        text.push('\n');
        text.push_str(&claims(judgements).trim_fmt());
        text.push('\n');
        for judgement in judgements.iter().filter(|it| it.verdict == Verdict::Departs) {
            let why = judgement.claim.departs.as_deref().unwrap_or_default();
            let _ = writeln!(text, "* {}: {}", plain(&judgement.claim.says), plain(why));
        }
    }
    text
}

/// What a verdict is called.
pub fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Fails => "DOES NOT HOLD",
        Verdict::Departs => "does not hold*",
        Verdict::Open => "cannot be told",
    }
}

/// One line for each cell.
fn list(figure: &Figure, cells: &[CellValue], level: f64) -> Table {
    let axes: Vec<&String> =
        cells[0].cell.keys().filter(|axis| !figure.at.contains_key(*axis)).collect();
    let mut table = framed();
    let mut header: Vec<String> = axes.iter().map(|axis| plain(axis)).collect();
    let published = !figure.published.is_empty();
    if published {
        header.push("published".to_owned());
    }
    header.push("here".to_owned());
    if published {
        header.push("here/published".to_owned());
    }
    header.push("of limit\n%".to_owned());
    let numbers = header.len() - axes.len();
    table.set_header(header);
    let digits = Digits::of(cells);
    for value in cells {
        let mut row: Vec<String> = axes.iter().map(|axis| plain(&value.cell[*axis])).collect();
        let found = figure
            .published
            .iter()
            .find(|published| published.at.iter().all(|(k, v)| value.cell.get(k) == Some(v)));
        if published {
            row.push(found.map_or_else(dash, |found| found.value.to_string()));
        }
        row.push(digits.show(value, level));
        if published {
            let share = found.zip(value.estimate(level));
            row.push(share.map_or_else(dash, |(published, ours)| {
                format!("{:.2}", ours.mean / published.value)
            }));
        }
        row.push(mean(&value.efficiencies).map_or_else(dash, |it| format!("{:.1}", it * 100.0)));
        table.add_row(row);
    }
    align(&mut table, axes.len(), numbers);
    table
}

/// One column for each case of `axis`, with the share of the limit in brackets.
fn grid(figure: &Figure, cells: &[CellValue], axis: &str, level: f64) -> Table {
    let rows: Vec<&String> = cells[0]
        .cell
        .keys()
        .filter(|name| *name != axis && !figure.at.contains_key(*name))
        .collect();
    let mut columns: Vec<&str> = Vec::new();
    let mut places: Vec<Vec<&String>> = Vec::new();
    for value in cells {
        let column = value.cell.get(axis).map_or("", String::as_str);
        let place = rows.iter().map(|name| &value.cell[*name]).collect();
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let mut table = framed();
    let mut header: Vec<String> = rows.iter().map(|name| plain(name)).collect();
    header.extend(columns.iter().map(|label| plain(&format!("{axis} {label}"))));
    table.set_header(header);
    let digits = Digits::of(cells);
    for place in &places {
        let mut row: Vec<String> = place.iter().map(|label| plain(label)).collect();
        for column in &columns {
            let value = cells.iter().find(|value| {
                value.cell.get(axis).is_some_and(|label| label == column)
                    && rows
                        .iter()
                        .zip(place)
                        .all(|(name, label)| value.cell.get(*name) == Some(*label))
            });
            row.push(value.map_or_else(dash, |value| {
                let share = mean(&value.efficiencies)
                    .map_or_else(String::new, |share| format!(" ({:.0} %)", share * 100.0));
                format!("{}{share}", digits.show(value, level))
            }));
        }
        table.add_row(row);
    }
    align(&mut table, rows.len(), columns.len());
    table
}

fn claims(judgements: &[Judgement]) -> Table {
    let mut table = framed();
    table.set_header(["verdict", "claim", "wanted", "here"]);
    for Judgement { claim, verdict, found, wanted } in judgements {
        table.add_row([
            verdict_name(*verdict).to_owned(),
            plain(&spoken(claim)),
            plain(wanted),
            plain(found),
        ]);
    }
    table
}

fn spoken(claim: &Claim) -> String {
    match (&claim.by, &claim.place) {
        (Whose::Ours, _) => format!("(ours) {}", claim.says),
        (Whose::Study, Some(place)) => format!("{} ({place})", claim.says),
        (Whose::Study, None) => claim.says.clone(),
    }
}

/// How many decimals the values of a table have.
struct Digits(usize);

impl Digits {
    fn of(cells: &[CellValue]) -> Self {
        let most = cells.iter().filter_map(|cell| mean(&cell.values)).fold(0.0, f64::max);
        Self(match most {
            most if most >= 100.0 => 1,
            most if most >= 10.0 => 2,
            _ => 3,
        })
    }

    fn show(&self, value: &CellValue, level: f64) -> String {
        let digits = self.0;
        match value.estimate(level) {
            Some(estimate) => match estimate.margin {
                Some(margin) if margin > 0.0 => {
                    format!("{:.digits$} ± {margin:.digits$}", estimate.mean)
                }
                _ => format!("{:.digits$}", estimate.mean),
            },
            None => {
                format!("– ({} of {} runs)", value.values.len(), value.values.len() + value.missing)
            }
        }
    }
}

fn framed() -> Table {
    let mut table = Table::new();
    frame(&mut table, 120);
    table
}

fn align(table: &mut Table, first: usize, count: usize) {
    for column in table.column_iter_mut().skip(first).take(count) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn dash() -> String {
    "–".to_owned()
}
