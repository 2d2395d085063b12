//! The figures of a study as tables for readers without scripts: published, reproduced, ours,
//! limit.

use super::{Reproduction, beside, verdict};
use crate::escape::html as text;
use midhop_study::{CellValue, Figure, Published};
use std::fmt::Write as _;

/// Longer tables are folded.
const ROWS_MAX: usize = 12;

/// The published value for the cell of `value`, if any.
pub(super) fn published<'f>(figure: &'f Figure, value: &CellValue) -> Option<&'f Published> {
    figure.published.iter().find(|published| {
        published.at.iter().all(|(axis, label)| value.cell.get(axis) == Some(label))
    })
}

/// The arithmetic mean; none where there are no values.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The axes of `figure` along which its cells differ, in the order of the scenario.
pub(super) fn axes_of(
    run: &Reproduction<'_>,
    figure: &Figure,
    values: &[&CellValue],
) -> Vec<String> {
    let known = run.scenarios.get(&figure.scenario).map(|it| it.axes()).unwrap_or_default();
    let differs = |axis: &String| {
        let label = |value: &&CellValue| value.cell.get(axis).cloned();
        values.iter().any(|value| label(value) != values.first().and_then(label))
    };
    known.iter().map(|axis| axis.name.clone()).filter(differs).collect()
}

/// The number of decimals for a table, by its greatest value.
fn decimals(values: impl Iterator<Item = f64>) -> usize {
    match values.fold(0.0, f64::max) {
        most if most >= 1000.0 => 0,
        most if most >= 10.0 => 1,
        most if most >= 1.5 => 2,
        _ => 3,
    }
}

/// The table below the pictures of `figure`, with its remarks.
pub(super) fn table(run: &Reproduction<'_>, figure: &Figure) -> String {
    let values: Vec<&CellValue> = run.measured.cells(&figure.name).iter().collect();
    let axes = axes_of(run, figure, &values);
    let (level, judged_at) = (run.study.confidence, run.level_of_points());
    let ours = |value: &CellValue| run.study.is_ours(&value.cell);
    let any_published = values.iter().any(|value| published(figure, value).is_some());
    let any_ours = values.iter().any(|value| ours(value));
    let any_other = values.iter().any(|value| !ours(value));
    let others: Vec<_> = values.iter().map(|value| run.other(figure, value)).collect();
    let place = run.beside.filter(|_| others.iter().any(Option::is_some)).map(|it| it.place);
    let any_limit = values.iter().any(|value| !value.limits.is_empty());
    let digits = decimals(values.iter().filter_map(|value| mean(&value.values)));
    let rows = values.len();
    let mut page = String::new();
    let unit = figure.unit();
    let unit =
        if unit.is_empty() { String::new() } else { format!(" <small>{}</small>", text(unit)) };
    let open = if rows <= ROWS_MAX { " open" } else { "" };
    let _ = write!(
        page,
        "<details class=\"figures\"{open}><summary>{}</summary>\n<div class=\"scroll\"><table>\n\
         <thead><tr>",
        crate::phrases::count(rows, "cell") + " as a table"
    );
    for axis in &axes {
        let _ = write!(page, "<th>{}</th>", text(run.study.axis_name(axis)));
    }
    let mut head = |there: bool, name: &str| {
        if there {
            let _ = write!(page, "<th class=\"n\">{name}</th>");
        }
    };
    // With two places side by side, each column names its place.
    let here = place.map_or_else(String::new, |_| format!("<br>{}", beside::name(run.place)));
    head(any_published, &format!("published{unit}"));
    head(any_other, &format!("reproduced{here}{unit}"));
    head(any_ours, &format!("ours{here}{unit}"));
    if let Some(place) = place {
        head(true, &format!("the same<br>{}{unit}", beside::name(place)));
        head(true, beside::RATIO);
    }
    head(any_limit, &format!("limit{unit}"));
    head(any_published, "over<br>published");
    if any_published {
        page.push_str("<th>verdict</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    let mut above: Option<&String> = None;
    for (value, other) in values.iter().zip(&others) {
        let first = axes.first().and_then(|axis| value.cell.get(axis));
        let class = if axes.len() > 1 && first != above { " class=\"first\"" } else { "" };
        above = first;
        let _ = write!(page, "<tr{class}>");
        for axis in &axes {
            let label = value.cell.get(axis).map_or("–", String::as_str);
            let _ = write!(page, "<td>{}</td>", text(run.study.label_name(axis, label)));
        }
        let theirs = published(figure, value);
        let here = shown(value, level, digits);
        let mut number = |there: bool, words: &str| {
            if there {
                let _ = write!(page, "<td class=\"n\">{words}</td>");
            }
        };
        number(any_published, &theirs.map_or_else(String::new, |it| printed(it, figure)));
        number(any_other, if ours(value) { "" } else { &here });
        number(any_ours, if ours(value) { &here } else { "" });
        let there = other.map_or_else(String::new, |it| shown(it.value, level, digits));
        number(place.is_some(), &there);
        let ratio = other.and_then(|it| it.ratio).map_or_else(String::new, beside::shown);
        number(place.is_some(), &ratio);
        let limit = mean(&value.limits);
        number(any_limit, &limit.map_or_else(dash, |it| format!("{it:.digits$}")));
        let ratio = theirs.filter(|it| it.value != 0.0).zip(value.estimate(level));
        let ratio = ratio
            .map_or_else(String::new, |(theirs, here)| format!("{:.2}", here.mean / theirs.value));
        number(any_published, &ratio);
        if any_published {
            let judged = theirs.and_then(|it| figure.judge(it, run.measured, judged_at));
            let _ = write!(page, "<td>{}</td>", judged.map_or_else(String::new, verdict::mark));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n</details>\n");
    remarks(&mut page, run, figure);
    page
}

/// The published value and the allowed deviation of ours.
fn printed(published: &Published, figure: &Figure) -> String {
    match figure.allowance(published.value) {
        Some(off) => format!("{} ± {}", published.value, crate::study::short(off)),
        None => published.value.to_string(),
    }
}

fn shown(value: &CellValue, level: f64, digits: usize) -> String {
    match value.estimate(level) {
        Some(it) => match it.margin.filter(|margin| *margin > 0.0) {
            Some(margin) => format!("{:.digits$} ± {margin:.digits$}", it.mean),
            None => format!("{:.digits$}", it.mean),
        },
        None => {
            format!("– ({} of {} runs)", value.values.len(), value.values.len() + value.missing)
        }
    }
}

/// The sources of tolerances, choices made to match a figure, and reasons why one is not matched.
fn remarks(page: &mut String, run: &Reproduction<'_>, figure: &Figure) {
    if let Some(tolerance) = &figure.tolerance {
        let _ =
            writeln!(page, "<p class=\"note\">± of what is published: {}.</p>", text(tolerance));
    }
    for explanation in crate::study::explanations(figure, run.measured, run.level_of_points()) {
        let places: Vec<String> = explanation
            .places
            .iter()
            .map(|at| {
                let names = at.iter().map(|(axis, label)| run.study.label_name(axis, label));
                names.collect::<Vec<_>>().join(", ")
            })
            .collect();
        let _ = writeln!(
            page,
            "<p class=\"note\">{} {}: {}.</p>",
            verdict::mark(explanation.verdict),
            text(&places.join("; ")),
            text(explanation.why)
        );
    }
}

fn dash() -> String {
    "–".to_owned()
}
