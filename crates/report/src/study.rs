//! Prints a study's published figures, our results and its claims on a terminal.

use crate::terminal::{drawn, frame, plain};
use comfy_table::{CellAlignment, Table};
use midhop_study::{
    Cell, CellValue, Claim, Figure, Judgement, Measured, Metric, Missed, Study, Verdict, Whose,
};
use std::fmt::Write as _;

/// Every figure of `study` as a table with published values and ours, then every claim; goals are a
/// table only where a line has enough `columns`.
pub fn study(study: &Study, measured: &Measured, judgements: &[Judgement], columns: u16) -> String {
    let mut text = format!("{}\n{}", plain(&study.title), wrapped("", &study.source));
    for figure in &study.figures {
        let cells = measured.cells(&figure.name);
        if cells.is_empty() {
            continue;
        }
        let unit = figure.unit();
        let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
        let level = study.confidence * 100.0;
        text.push('\n');
        text.push_str(&wrapped("", &format!("{}{unit} (± {level} %)", figure.shows)));
        let grid = figure.columns.as_ref().and_then(|axis| grid(cells, axis, study.confidence));
        let table = grid.unwrap_or_else(|| list(figure, measured, study));
        text.push_str(&drawn(table));
        remarks(&mut text, figure, measured, study.level_of_points(measured));
    }
    if !judgements.is_empty() {
        text.push('\n');
        if study.goals {
            text.push_str(&goals(study, measured, judgements, columns));
        } else {
            text.push_str(&claims(judgements));
        }
        for judgement in judgements.iter().filter(|it| it.verdict == Verdict::Departs) {
            let why = judgement.claim.departs.as_deref().unwrap_or_default();
            text.push_str(&wrapped("* ", &format!("{}: {why}", judgement.claim.says)));
        }
    }
    text
}

/// Remarks on a table: the sources of its tolerances, choices made to match a figure, and reasons
/// why one is not matched.
fn remarks(text: &mut String, figure: &Figure, measured: &Measured, level: f64) {
    if let Some(tolerance) = &figure.tolerance {
        text.push_str(&wrapped("± ", tolerance));
    }
    for Explanation { verdict, why, places } in explanations(figure, measured, level) {
        let mark = if verdict == Verdict::Calibrated { "= " } else { "* " };
        let labels = |at: &&Cell| at.values().map(String::as_str).collect::<Vec<_>>().join(" ");
        let places: Vec<String> = places.iter().map(labels).collect();
        text.push_str(&wrapped(mark, &format!("{}: {why}", places.join(", "))));
    }
}

/// Published figures for which the study's file gives the same reason.
#[derive(Debug)]
pub(crate) struct Explanation<'f> {
    /// Their verdict.
    pub(crate) verdict: Verdict,
    /// The reason in the file.
    pub(crate) why: &'f str,
    /// Their cells.
    pub(crate) places: Vec<&'f Cell>,
}

/// The choices made to match figures, and the reasons why some are not matched.
pub(crate) fn explanations<'f>(
    figure: &'f Figure,
    measured: &Measured,
    level: f64,
) -> Vec<Explanation<'f>> {
    let mut explanations: Vec<Explanation<'f>> = Vec::new();
    for published in &figure.published {
        let verdict = figure.judge(published, measured, level);
        let (verdict, why) = match verdict {
            Some(it @ Verdict::Calibrated) => (it, &published.calibrates),
            Some(it @ Verdict::Departs) => (it, &published.departs),
            _ => continue,
        };
        let why = why.as_deref().unwrap_or_default();
        match explanations.iter_mut().find(|known| (known.verdict, known.why) == (verdict, why)) {
            Some(known) => known.places.push(&published.at),
            None => explanations.push(Explanation { verdict, why, places: vec![&published.at] }),
        }
    }
    explanations
}

/// `words` after `mark`, wrapped to the width of the tables.
fn wrapped(mark: &str, words: &str) -> String {
    let words = plain(words);
    let (mut text, mut line) = (String::new(), mark.to_owned());
    let mut used = 0;
    for word in words.split_whitespace() {
        if used > 0 && line.chars().count() + 1 + word.chars().count() > usize::from(COLUMNS) {
            let _ = writeln!(text, "{line}");
            (line, used) = (" ".repeat(mark.chars().count()), 0);
        }
        if used > 0 {
            line.push(' ');
        }
        line.push_str(word);
        used += 1;
    }
    let _ = writeln!(text, "{line}");
    text
}

/// The cells of a row, which must not be broken across lines.
fn unbroken(row: Vec<String>) -> Vec<String> {
    row.into_iter().map(|cell| cell.replace(' ', "\u{a0}")).collect()
}

/// The name of a verdict.
pub fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Fails => "DOES NOT HOLD",
        Verdict::Departs => "does not hold*",
        Verdict::Open => "cannot be told",
        Verdict::Calibrated => "calibrated=",
    }
}

/// One line for each cell, with a verdict where a value is published and judged.
fn list(figure: &Figure, measured: &Measured, study: &Study) -> Table {
    let (level, judged_at) = (study.confidence, study.level_of_points(measured));
    let cells = measured.cells(&figure.name);
    let axes: Vec<&String> = cells[0]
        .cell
        .keys()
        .filter(|axis| cells.iter().any(|other| other.cell[*axis] != cells[0].cell[*axis]))
        .collect();
    let mut table = framed();
    let mut header: Vec<String> = axes.iter().map(|axis| plain(axis)).collect();
    let published = !figure.published.is_empty();
    if published {
        header.push("published".to_owned());
    }
    header.extend(["here", "limit\n%"].map(str::to_owned));
    if published {
        header.extend(["ratio", "verdict"].map(str::to_owned));
    }
    let numbers = header.len() - axes.len() - usize::from(published);
    table.set_header(header);
    let digits = Digits::of(cells);
    let mut above: Vec<String> = Vec::new();
    for value in cells {
        let place: Vec<String> = axes.iter().map(|axis| plain(&value.cell[*axis])).collect();
        let mut row = unlike(&place, &above);
        above = place;
        let found = figure
            .published
            .iter()
            .find(|published| published.at.iter().all(|(k, v)| value.cell.get(k) == Some(v)));
        if published {
            row.push(found.map_or_else(dash, |found| match figure.allowance(found.value) {
                Some(off) => format!("{} ± {}", found.value, short(off)),
                None => found.value.to_string(),
            }));
        }
        row.push(digits.show(value, level));
        row.push(mean(&value.efficiencies).map_or_else(dash, |it| format!("{:.1}", it * 100.0)));
        if published {
            let share = found.filter(|it| it.value != 0.0).zip(value.estimate(level));
            row.push(share.map_or_else(dash, |(published, ours)| {
                format!("{:.2}", ours.mean / published.value)
            }));
            let verdict = found.and_then(|found| figure.judge(found, measured, judged_at));
            row.push(verdict.map_or_else(String::new, |it| verdict_name(it).to_owned()));
        }
        table.add_row(unbroken(row));
    }
    align(&mut table, axes.len(), numbers);
    table
}

/// The labels of a row, blank up to the first difference from the row above.
fn unlike(place: &[String], above: &[String]) -> Vec<String> {
    let same = place.iter().zip(above).take_while(|(here, there)| here == there).count();
    let same = same.min(place.len().saturating_sub(1));
    let shown = |(column, label): (usize, &String)| {
        if column < same { String::new() } else { label.clone() }
    };
    place.iter().enumerate().map(shown).collect()
}

/// One column for each case of `axis`, with the share of the limit in brackets. None where a line
/// has no room for them even with margins and shares below their values.
fn grid(cells: &[CellValue], axis: &str, level: f64) -> Option<Table> {
    let rows: Vec<&String> = cells[0]
        .cell
        .keys()
        .filter(|name| *name != axis)
        .filter(|name| cells.iter().any(|other| other.cell[*name] != cells[0].cell[*name]))
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
    let mut header: Vec<String> = rows.iter().map(|name| plain(name)).collect();
    header.extend(columns.iter().map(|label| format!("{}\n{}", plain(axis), plain(label))));
    let mut lines = vec![header];
    let digits = Digits::of(cells);
    let mut above: Vec<String> = Vec::new();
    for place in &places {
        let labels: Vec<String> = place.iter().map(|label| plain(label)).collect();
        let mut row = unlike(&labels, &above);
        above = labels;
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
                    .map_or_else(String::new, |share| format!(" ({:.0}\u{a0}%)", share * 100.0));
                format!("{}{share}", digits.show(value, level))
            }));
        }
        lines.push(unbroken(row));
    }
    let mut lines = fitted(lines, rows.len())?;
    let mut table = framed();
    table.set_header(lines.remove(0));
    table.add_rows(lines);
    align(&mut table, rows.len(), columns.len());
    Some(table)
}

/// The cells of a table, its header first, fitted to a line: margins, and then shares, move below
/// their values where necessary. None where that is not enough.
fn fitted(mut lines: Vec<Vec<String>>, labels: usize) -> Option<Vec<Vec<String>>> {
    let columns = usize::from(COLUMNS);
    for mark in ["\u{a0}±", "\u{a0}("] {
        if width(&lines, labels) <= columns {
            break;
        }
        let below = mark.replace('\u{a0}', "\n");
        for cell in lines.iter_mut().skip(1).flat_map(|line| &mut line[labels..]) {
            *cell = cell.replace(mark, &below);
        }
    }
    (width(&lines, labels) <= columns).then_some(lines)
}

/// The width of a table whose first columns are labels, with the spacing that [`align`] adds.
fn width(lines: &[Vec<String>], labels: usize) -> usize {
    let longest = |cell: &String| cell.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let of_column = |column: usize| {
        let widest = lines.iter().map(|line| longest(&line[column])).max().unwrap_or(0);
        widest + 1 + usize::from(column >= labels)
    };
    (0..lines[0].len()).map(of_column).sum()
}

/// Two or three lines for each claim: its verdict, its text, the expectation and the result.
fn claims(judgements: &[Judgement]) -> String {
    let mut text = String::new();
    for Judgement { claim, verdict, found, wanted, missed } in judgements {
        let mark = format!("{:15} ", verdict_name(*verdict));
        text.push_str(&wrapped(&mark, &spoken(claim)));
        let why = match &claim.untold {
            Some(why) => format!("the text does not tell: {why}"),
            None => format!("wanted {wanted}; here {found}"),
        };
        text.push_str(&wrapped(&" ".repeat(16), &why));
        text.push_str(&missing(missed, 16));
    }
    text
}

/// The cases in which a claim about every one fails, one per line.
fn missing(missed: &[Missed], indent: usize) -> String {
    let line = |it: &Missed| {
        let mark = format!("{}{:15} ", " ".repeat(indent), verdict_name(it.verdict));
        let at: Vec<String> = it.at.iter().map(|(axis, label)| format!("{axis} {label}")).collect();
        wrapped(&mark, &format!("{}: {}", at.join(", "), it.found))
    };
    missed.iter().map(line).collect()
}

/// Each goal with at least one run, missed goals first: the values of others, the goal, ours, and
/// the physical limit.
fn goals(study: &Study, measured: &Measured, judgements: &[Judgement], columns: u16) -> String {
    let mut ordered: Vec<&Judgement> = judgements.iter().collect();
    // Missed goals are the most important ones for readers.
    ordered.sort_by_key(|it| match it.verdict {
        Verdict::Fails | Verdict::Departs => 0,
        Verdict::Open => 1,
        Verdict::Holds | Verdict::Calibrated => 2,
    });
    let mut text = String::new();
    for Judgement { claim, missed, .. } in ordered.iter().filter(|it| !it.missed.is_empty()) {
        text.push_str(&wrapped("", &format!("{}, by case:", claim.says)));
        text.push_str(&missing(missed, 4));
    }
    let goals: Vec<Goal> =
        ordered.into_iter().filter_map(|it| Goal::of(it, study, measured)).collect();
    if columns < COLUMNS_OF_GOALS {
        text.extend(goals.iter().map(Goal::lines));
    } else {
        text.push_str(&drawn(goal_table(&goals)));
    }
    let left_out = judgements.len() - goals.len();
    if left_out > 0 {
        let _ = writeln!(text, "{left_out} more goals: nothing of them has run");
    }
    text
}

/// A goal and its result, in words.
struct Goal {
    claim: String,
    unit: &'static str,
    published: Option<String>,
    wanted: Option<String>,
    ours: String,
    limit: Option<String>,
    /// Of the limit. Unit: percent.
    share: Option<String>,
    verdict: &'static str,
}

impl Goal {
    /// The result of a claim; none where it has no runs.
    fn of(judgement: &Judgement, study: &Study, measured: &Measured) -> Option<Self> {
        let Judgement { claim, verdict, found, .. } = judgement;
        let at = |value: &CellValue| claim.at.iter().all(|(k, v)| value.cell.get(k) == Some(v));
        let cells: Vec<_> = measured.cells(claim.figure()).iter().filter(|it| at(it)).collect();
        let first = cells.first()?;
        let figure = study.figure(claim.figure());
        let metric = figure.map(|figure| figure.metric);
        // A ratio, or a goal about several cells, has no single limit.
        let alone = (claim.of.is_none() && cells.len() == 1).then_some(first);
        let limit = alone.and_then(|cell| mean(&cell.limits));
        let ours = alone.and_then(|cell| cell.estimate(study.confidence));
        let share = limit.zip(ours).map(|(limit, ours)| match metric {
            Some(Metric::Time) => limit / ours.mean,
            _ => ours.mean / limit,
        });
        let bound = |sign: &str, bound: Option<f64>| bound.map(|it| format!("{sign} {it}"));
        Some(Self {
            claim: claim.says.clone(),
            unit: figure.filter(|_| claim.of.is_none()).map_or("", Figure::unit),
            published: claim.published.map(|published| published.to_string()),
            wanted: bound("≥", claim.at_least).or_else(|| bound("≤", claim.at_most)),
            ours: found.clone(),
            limit: limit.map(|limit| format!("{limit:.1}")),
            share: share.map(|share| format!("{:.1}", share * 100.0)),
            verdict: verdict_name(*verdict),
        })
    }

    /// For narrow terminals: the text, and below it the figures.
    fn lines(&self) -> String {
        let mut figures = format!("{} {}", self.ours, self.unit).trim_end().to_owned();
        for (name, value) in [("wanted", &self.wanted), ("published", &self.published)] {
            if let Some(value) = value {
                let _ = write!(figures, ", {name} {value}");
            }
        }
        if let Some(limit) = &self.limit {
            let _ = write!(figures, ", limit {limit}");
        }
        if let Some(share) = &self.share {
            let _ = write!(figures, " ({share} % of it)");
        }
        let mark = format!("{:15} ", self.verdict);
        wrapped(&mark, &self.claim) + &wrapped(&" ".repeat(16), &figures)
    }
}

/// One line for each goal.
fn goal_table(goals: &[Goal]) -> Table {
    let mut table = Table::new();
    frame(&mut table, COLUMNS_OF_GOALS);
    let header = ["goal", "unit", "published", "wanted", "ours", "limit", "of limit\n%", "verdict"];
    table.set_header(header);
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(dash);
    for goal in goals {
        let mut row = unbroken(vec![
            goal.unit.to_owned(),
            or_dash(&goal.published),
            or_dash(&goal.wanted),
            goal.ours.clone(),
            or_dash(&goal.limit),
            or_dash(&goal.share),
            goal.verdict.to_owned(),
        ]);
        row.insert(0, plain(&goal.claim));
        table.add_row(row);
    }
    align(&mut table, 2, 5);
    table
}

fn spoken(claim: &Claim) -> String {
    match (&claim.by, &claim.place) {
        (Whose::Ours, _) => format!("(ours) {}", claim.says),
        (Whose::Study, Some(place)) => format!("{} ({place})", claim.says),
        (Whose::Study, None) => claim.says.clone(),
    }
}

/// The number of decimals of a table's values.
struct Digits(usize);

impl Digits {
    fn of(cells: &[CellValue]) -> Self {
        let most = cells.iter().filter_map(|cell| mean(&cell.values)).fold(0.0, f64::max);
        Self(match most {
            most if most >= 10.0 => 1,
            most if most >= 1.5 => 2,
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

/// The minimum width of a terminal.
const COLUMNS: u16 = 80;
/// The width of the table of goals.
const COLUMNS_OF_GOALS: u16 = 120;

fn framed() -> Table {
    let mut table = Table::new();
    frame(&mut table, COLUMNS);
    table
}

fn align(table: &mut Table, first: usize, count: usize) {
    for (place, column) in table.column_iter_mut().enumerate() {
        let number = place >= first && place < first + count;
        column.set_padding((u16::from(place >= first), 1));
        column.set_cell_alignment(if number { CellAlignment::Right } else { CellAlignment::Left });
    }
}

/// Two digits, without decimals where they are not significant.
pub(crate) fn short(value: f64) -> String {
    let decimals = usize::from(value < 10.0);
    let text = format!("{value:.decimals$}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn dash() -> String {
    "–".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_a_grid_is_cut() {
        let cell = |text: &str| text.replace(' ', "\u{a0}");
        let table = |columns: usize, value: &str| {
            let line = |label: &str, value: String| {
                let mut line = vec![label.to_owned()];
                line.resize(1 + columns, value);
                line
            };
            let lines =
                vec![line("queue", "variant\nhybla-plus".to_owned()), line("50", cell(value))];
            fitted(lines, 1).map(|mut lines| lines.remove(1).remove(1))
        };
        assert_eq!(table(5, "4.37 ± 0.09"), Some(cell("4.37 ± 0.09")));
        assert_eq!(table(6, "4.37 ± 0.09"), Some("4.37\n±\u{a0}0.09".to_owned()));
        let three = Some("4.37\n±\u{a0}0.09\n(35\u{a0}%)".to_owned());
        assert_eq!(table(6, "4.37 ± 0.09 (35 %)"), three);
        assert_eq!(table(7, "4.37"), None);
    }

    #[test]
    fn goals_fit_a_narrow_terminal() {
        let goal = Goal {
            claim:
                "20 MB, 10 Mbit/s, 540 ms, source 1 to 250 ms away: share of the limit at every \
                   distance"
                    .to_owned(),
            unit: "%",
            published: Some("0.46".to_owned()),
            wanted: Some("≥ 96.8".to_owned()),
            ours: "89.7 to 99.2".to_owned(),
            limit: Some("100.0".to_owned()),
            share: Some("96.1".to_owned()),
            verdict: verdict_name(Verdict::Fails),
        };
        let text = goal.lines();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["DOES NOT HOLD 20 MB", "89.7 to 99.2 %", "wanted ≥ 96.8", "(96.1 % of it)"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let wide = drawn(goal_table(&[goal]));
        assert!(wide.lines().all(|line| line.chars().count() <= 120), "{wide}");
    }
}
