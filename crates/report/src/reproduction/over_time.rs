//! Runs over time: which runs a page has, their names, and the frame in which they are drawn.

use super::plot::is_choice;
use super::run_cell::{RunCell, spoken};
use super::{Reproduction, Trace};
use midhop_study::Cell;
use serde::Serialize;
use std::fmt::Write as _;

/// Cells that a page shows over time: some 10 kB each.
const TRACES_MAX: usize = 64;

/// A run over time and the name of its cell.
#[derive(Debug, Serialize)]
pub(super) struct Traced<'a> {
    title: String,
    /// The command that repeats it.
    command: String,
    /// The position of its cell, in the order of the scenario.
    at: Vec<Position>,
    #[serde(flatten)]
    trace: &'a Trace,
}

/// The position of a cell on one axis.
#[derive(Debug, Serialize)]
struct Position {
    /// The axis in the scenario.
    axis: String,
    /// The name of the quantity or choice.
    name: String,
    /// The label among those of the axis.
    label: String,
    /// The label alone, in words.
    words: String,
}

/// The runs on the page of `run`.
pub(super) fn traced<'a>(run: &Reproduction<'a>) -> Vec<Traced<'a>> {
    let traced = |trace: &'a Trace| {
        let cell = RunCell::of(run, &trace.scenario, &trace.cell);
        let position = |[axis, label]: &[String; 2]| Position {
            axis: axis.clone(),
            name: run.study.axis_name(axis).to_owned(),
            label: run.study.label_name(axis, label).to_owned(),
            words: spoken(run, axis, label),
        };
        let at = cell.place.iter().map(position).collect();
        Traced { title: cell.title(run), command: cell.command, at, trace }
    };
    chosen(run).into_iter().map(traced).collect()
}

/// Selects some of the runs, spread over all of them, where all would make the page too large. Runs
/// that differ only in choices stay together, since readers compare them.
fn chosen<'a>(run: &Reproduction<'a>) -> Vec<&'a Trace> {
    let mut families: Vec<(&str, Cell, Vec<&Trace>)> = Vec::new();
    for trace in run.traces {
        let axes = run.scenarios.get(&trace.scenario).map(|it| it.axes()).unwrap_or_default();
        let mut world = trace.cell.clone();
        world.retain(|name, _| !axes.iter().any(|axis| axis.name == *name && is_choice(axis)));
        let known = families.iter_mut().find(|it| (it.0, &it.1) == (&trace.scenario, &world));
        match known {
            Some((.., family)) => family.push(trace),
            None => families.push((&trace.scenario, world, vec![trace])),
        }
    }
    let spread = |count: usize| {
        let some = (0..count).map(|at| &families[at * families.len() / count]);
        some.flat_map(|(.., family)| family.iter().copied()).collect::<Vec<_>>()
    };
    let most = (1..=families.len()).rev().map(spread).find(|it| it.len() <= TRACES_MAX);
    most.unwrap_or_else(|| run.traces.iter().take(TRACES_MAX).collect())
}

/// The frame of the picture, with its controls.
pub(super) fn section(page: &mut String, run: &Reproduction<'_>) {
    page.push_str("<section id=\"time\">\n<h2>Over time</h2>\n");
    if run.traces.is_empty() {
        page.push_str("<p>These records hold no samples over time.</p>\n</section>\n");
        return;
    }
    let (all, shown) = (run.traces.len(), chosen(run).len());
    let which = if shown < all {
        format!(
            "Of {shown} of {all} cells one run each (one that is not here is shown when it is run alone, by its \
             command with <code>--report DIR</code>)"
        )
    } else {
        "One run of each cell".to_owned()
    };
    let _ = writeln!(
        page,
        "<p class=\"note\">{which}, that of its first seed: what arrived, the windows and round trips of the \
         sender and of proxies that send on what it sent, what each was doing about its window, and the \
         fullest queue. All cells along an axis, such as each configuration, can be laid over each other.</p>"
    );
    page.push_str(
        "\
         <div class=\"choose\"><label>Cell <select id=\"cell\"></select></label> \
         <label>beside <select id=\"beside\"></select></label> \
         <label hidden>of each the sender <select id=\"sender\"></select></label></div>\n\
         <figure id=\"trace\" class=\"study\">\n<div class=\"head\"><h4></h4>\
         <span class=\"save\">Save as <button type=\"button\" data-save=\"svg\">SVG</button>\
         <button type=\"button\" data-save=\"png\">PNG</button>\
         <button type=\"button\" data-csv>CSV</button></span></div>\n\
         <div class=\"plot\" role=\"img\" aria-label=\"runs over time\"></div>\n\
         <figcaption></figcaption>\n</figure>\n</section>\n",
    );
}
