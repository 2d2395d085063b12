//! Compares the same cells in several places: simulated and measured results.

use crate::axes::{Axes, Axis, Role};
use crate::escape::html as text;
use crate::number;
use crate::runs::{list_faults, state};
use crate::summary::{Row, rows};
use crate::terminal::{Notes, drawn, frame, plain, unbroken};
use comfy_table::{CellAlignment, Table};
use midhop_experiment::record::{Record, Runner};
use std::fmt::Write as _;

/// The places of `records`, without repetition, in the order of [`Runner`].
pub(crate) fn places(records: &[Record]) -> Vec<Runner> {
    let mut places: Vec<Runner> = records.iter().map(Runner::of).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// One cell and transfer, with the result of each place.
struct Line {
    /// The columns before the figures.
    at: Vec<String>,
    /// Shape: one per place.
    rows: Vec<Option<Row>>,
}

/// All lines, and the axes of their first cells.
struct Beside {
    places: Vec<Runner>,
    shown: Vec<Axis>,
    lines: Vec<Line>,
}

impl Beside {
    fn of(records: &[Record]) -> Self {
        let axes = Axes::of(records);
        let shown: Vec<Axis> = [Role::Condition, Role::Configuration]
            .into_iter()
            .flat_map(|role| axes.of_role(role))
            .cloned()
            .collect();
        let places = places(records);
        let mut lines: Vec<Line> = Vec::new();
        let mut all = rows(records);
        let names = crate::phrases::distinct(all.iter().map(|row| row.transfer.clone()));
        // Sorted by the axes of all places: a single place may lack some of the labels.
        all.sort_by_cached_key(|row| {
            let order = |role| axes.order(&row.cell, role);
            let name = names.iter().position(|known| *known == row.transfer);
            (order(Role::Workload), name, order(Role::Condition), order(Role::Configuration))
        });
        for row in all {
            let place = places.iter().position(|place| *place == row.place).unwrap_or(0);
            let mut at = vec![row.transfer.clone()];
            at.extend(
                shown
                    .iter()
                    .map(|axis| row.cell.get(&axis.key).cloned().unwrap_or_else(|| "–".to_owned())),
            );
            let line = match lines.iter_mut().find(|line| line.at == at) {
                Some(line) => line,
                None => {
                    lines.push(Line { at, rows: places.iter().map(|_| None).collect() });
                    let last = lines.len() - 1;
                    &mut lines[last]
                }
            };
            line.rows[place] = Some(row);
        }
        Self { places, shown, lines }
    }

    fn decimals(&self, figure: impl Fn(&Row) -> Option<midhop_study::Estimate>) -> usize {
        let rows = self.lines.iter().flat_map(|line| line.rows.iter().flatten());
        number::decimals(rows.filter_map(figure).map(|it| it.mean))
    }

    /// The figures of a line: goodput in each place, time in each, share of the limit in each.
    fn figures(&self, line: &Line) -> Vec<String> {
        let goodput = self.decimals(|row| row.goodput_mbit_per_s);
        let time = self.decimals(|row| row.time_s);
        let none = || "–".to_owned();
        let each = |figure: &dyn Fn(&Row) -> String| -> Vec<String> {
            line.rows.iter().map(|row| row.as_ref().map_or_else(none, figure)).collect()
        };
        let mut figures = each(&|row| number::estimate(row.goodput_mbit_per_s, 1.0, goodput, ""));
        figures.extend(each(&|row| {
            number::estimate(row.time_s, 1.0, time, if row.is_complete() { "" } else { ">" })
        }));
        figures.extend(each(&|row| number::estimate(row.efficiency, 100.0, 0, "")));
        figures
    }
}

/// The table for a terminal with `columns`: one line per cell and transfer that ran in each place,
/// with all figures. Where none did, one table for each place.
pub fn beside_table(records: &[Record], columns: u16) -> String {
    let mut beside = Beside::of(records);
    let all = beside.lines.len();
    let is_everywhere = |line: &Line| line.rows.iter().all(Option::is_some);
    if beside.lines.iter().any(is_everywhere) {
        beside.lines.retain(is_everywhere);
    }
    let left_out = match all - beside.lines.len() {
        0 => String::new(),
        count => format!("{count} of {all} lines are left out: they ran in one place only.\n"),
    };
    if beside.lines.is_empty() {
        return "no transfers in these records\n".to_owned();
    }
    let mut table = Table::new();
    frame(&mut table, columns);
    let mut header = vec!["transfer".to_owned()];
    header.extend(beside.shown.iter().map(|axis| plain(&axis.name)));
    for unit in ["Mbit/s", "s", "% of limit"] {
        header.extend(beside.places.iter().map(|place| format!("{}\n{unit}", place.verb())));
    }
    header.push("state".to_owned());
    table.set_header(header);
    let mut notes = Notes::default();
    let mut above: &[String] = &[];
    for line in &beside.lines {
        // Labels that are the same as in the line above are left blank, up to the first difference.
        let same = line.at.iter().zip(above).take_while(|(here, there)| here == there).count();
        let same = same.min(line.at.len() - 1);
        let mut cells: Vec<String> = line.at.iter().map(|word| unbroken(word)).collect();
        cells[..same].iter_mut().for_each(String::clear);
        cells.extend(beside.figures(line));
        let states: Vec<String> = line
            .rows
            .iter()
            .flatten()
            .map(|row| notes.state(row))
            .filter(|it| it != "ok")
            .collect();
        let missing = line.rows.iter().any(Option::is_none);
        cells.push(match (states.is_empty(), missing) {
            (true, false) => "ok".to_owned(),
            (true, true) => "–".to_owned(),
            _ => crate::phrases::distinct(states.into_iter()).join(", "),
        });
        table.add_row(cells);
        above = &line.at;
    }
    let first = 1 + beside.shown.len();
    for column in table.column_iter_mut().skip(first).take(3 * beside.places.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let title = records.first().map_or_else(String::new, |record| plain(&record.title));
    format!("{title}\n{}{}{left_out}{EXPLANATION}", drawn(table), notes.numbered())
}

const EXPLANATION: &str =
    "of limit: the shortest time that physics allows for these bytes / the time that they took.\n";

/// Appends the table to the page; nothing where all records are from one place.
pub(crate) fn section(page: &mut String, records: &[Record]) {
    let beside = Beside::of(records);
    page.push_str("<section id=\"beside\">\n<h2>Side by side</h2>\n");
    page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th>Transfer</th>");
    for axis in &beside.shown {
        let _ = write!(page, "<th title=\"{}\">{}</th>", text(&axis.key), text(&axis.name));
    }
    for unit in ["Mbit/s", "s", "% of limit"] {
        for place in &beside.places {
            let _ = write!(page, "<th class=\"n\">{}<br><small>{unit}</small></th>", title(*place));
        }
    }
    page.push_str("<th>State</th></tr></thead>\n<tbody>\n");
    let mut faults: Vec<&str> = Vec::new();
    let mut above: Option<&[String]> = None;
    for line in &beside.lines {
        let group = &line.at[..line.at.len().saturating_sub(1).max(1)];
        let class = if above == Some(group) { "" } else { " class=\"first\"" };
        above = Some(group);
        let _ = write!(page, "<tr{class}>");
        for word in &line.at {
            let _ = write!(page, "<td>{}</td>", text(word));
        }
        for figure in beside.figures(line) {
            let _ = write!(page, "<td class=\"n\">{}</td>", text(&figure));
        }
        let states = line.rows.iter().flatten().map(|row| state(row, &mut faults));
        let states = crate::phrases::distinct(states.filter(|it| it != "ok"));
        let states = if states.is_empty() { "ok".to_owned() } else { states.join(", ") };
        let _ = writeln!(page, "<td>{states}</td></tr>");
    }
    page.push_str("</tbody></table></div>\n");
    list_faults(page, &faults);
    page.push_str(
        "<p class=\"note\">Of limit: the shortest time that physics allows for these bytes, over the \
         time that they took. –: not run there.</p>\n</section>\n",
    );
}

/// The kind of a place's figures, for the beginning of a heading.
pub(crate) fn title(place: Runner) -> String {
    let verb = place.verb();
    let mut letters = verb.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
