//! Compares a study's results in both places: the simulator and the laboratory.

use super::{Reproduction, Seeds};
use crate::escape::html as text;
use crate::phrases::count;
use midhop_experiment::Scenario;
use midhop_experiment::metrics::median;
use midhop_study::{CellValue, Estimate, Figure, Measured, Place};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The results of a study in the other place.
#[derive(Debug, Clone, Copy)]
pub struct Beside<'a> {
    /// The other place.
    pub place: Place,
    /// The results of all runs there.
    pub measured: &'a Measured,
    /// Its scenarios by name, with the study's settings for that place.
    pub scenarios: &'a BTreeMap<String, Scenario>,
    /// The seeds of each scenario and cell there.
    pub seeds: &'a Seeds,
    /// Whether there is a page of its own beside this one.
    pub page: bool,
}

/// The result of a cell in the other place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Other<'a> {
    pub(super) value: &'a CellValue,
    /// None where a run is missing.
    pub(super) estimate: Option<Estimate>,
    /// The ratio of laboratory to simulator; none where one of them is zero.
    pub(super) ratio: Option<Estimate>,
}

impl Reproduction<'_> {
    /// The result of the cell of `here` in the other place, if it ran there too.
    pub(super) fn other(&self, figure: &Figure, here: &CellValue) -> Option<Other<'_>> {
        let beside = self.beside?;
        let value = beside.measured.cell(&figure.name, &here.cell)?;
        let level = self.study.confidence;
        let estimate = value.estimate(level);
        let pair = here.estimate(level).zip(estimate);
        let ratio = pair.and_then(|(here, there)| match beside.place {
            Place::Lab => there.over(here),
            Place::Sim => here.over(there),
        });
        Some(Other { value, estimate, ratio })
    }
}

/// The name of a place in the head of a column.
pub(super) fn name(place: Place) -> &'static str {
    match place {
        Place::Sim => "simulator",
        Place::Lab => "laboratory",
    }
}

/// The name of the ratio on a page and in its columns.
pub(super) const RATIO: &str = "lab / sim";

/// `ratio` with its interval, for a table.
pub(super) fn shown(ratio: Estimate) -> String {
    match ratio.margin.filter(|margin| *margin > 0.0) {
        Some(margin) => format!("{:.2} ± {margin:.2}", ratio.mean),
        None => format!("{:.2}", ratio.mean),
    }
}

/// How close both are, figure by figure; empty where no cell has run in both.
pub(super) fn section(run: &Reproduction<'_>) -> String {
    let Some(beside) = run.beside else { return String::new() };
    let mut rows = String::new();
    for figure in &run.study.figures {
        let cells = run.measured.cells(&figure.name);
        let ratios: Vec<Estimate> =
            cells.iter().filter_map(|cell| run.other(figure, cell)?.ratio).collect();
        let mut means: Vec<f64> = ratios.iter().map(|it| it.mean).collect();
        means.sort_by(f64::total_cmp);
        let (Some(least), Some(most), Some(middle)) = (means.first(), means.last(), median(&means))
        else {
            continue;
        };
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{least:.2}</td>\
             <td class=\"n\">{middle:.2}</td><td class=\"n\">{most:.2}</td><td>{}</td></tr>",
            text(&figure.shows),
            ratios.len(),
            apart(&ratios)
        );
    }
    if rows.is_empty() {
        return rows;
    }
    let there = match beside.page {
        true => format!(
            "<a href=\"{}.html\">{}</a>",
            run.file_name_in(beside.place),
            place(beside.place)
        ),
        false => place(beside.place).to_owned(),
    };
    format!(
        "<section id=\"both\">\n<h2>The simulator beside the laboratory</h2>\n\
         <p class=\"note\">Cells that have run here and in {there}. The quotient is the laboratory over the \
         simulator; a difference is real where its interval leaves out 1, which takes more than one \
         seed.</p>\n<div class=\"scroll\"><table>\n<thead><tr><th>figure</th><th class=\"n\">cells</th>\
         <th class=\"n\">least {RATIO}</th><th class=\"n\">median</th><th class=\"n\">greatest</th>\
         <th>differ</th></tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n</section>\n"
    )
}

/// The number of ratios whose interval does not contain 1.
fn apart(ratios: &[Estimate]) -> String {
    let decided: Vec<bool> =
        ratios.iter().filter_map(|it| Some((it.mean - 1.0).abs() > it.margin?)).collect();
    let real = decided.iter().filter(|it| **it).count();
    match decided.len() {
        0 => "cannot be told from one seed".to_owned(),
        all if all == ratios.len() => format!("{real} of {all}"),
        all => format!("{real} of {}", count(all, "cell") + " with several seeds"),
    }
}

/// The place of a run, in words.
pub(super) fn place(place: Place) -> &'static str {
    match place {
        Place::Sim => "the simulator, in virtual time",
        Place::Lab => "the laboratory: real kernels on emulated links",
    }
}
