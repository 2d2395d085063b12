//! The table for a terminal: plain text without colours, so that its output in a pipe is the same.

use crate::axes::{Axes, Role, magnitude};
use crate::facts;
use crate::number;
use crate::phrases::distinct;
use crate::summary::{Row, gaps, rows, run, sets};
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle, Width,
};
use midhop_experiment::record::{Record, Runner};
use std::fmt::Write as _;

/// The table at 100 columns: one row per cell and transfer, with notes below it. Records of several
/// scenarios or places give one table each, under its title and place.
pub fn table(records: &[Record]) -> String {
    table_in(records, 100)
}

/// The table wrapped to `columns` characters, or wider where its words need it: none is ever split.
///
/// Times are in seconds, rates in Mbit/s, both as mean ± 95 % interval when several seeds ran. A
/// transfer that did not finish is shown with a bound. Each invalid run is marked, with the reason
/// below.
pub fn table_in(records: &[Record], columns: u16) -> String {
    if records.is_empty() {
        return table_of_one("", records, columns);
    }
    let tables: Vec<String> =
        sets(records).map(|records| table_of_one(&head(records), records, columns)).collect();
    tables.join("\n")
}

/// The heading of a table: its scenario, and the kind of its figures, with the version of an
/// external program.
fn head(records: &[Record]) -> String {
    let runner = Runner::of(&records[0]);
    let versions = records.iter().filter_map(|it| it.environment.versions.get(runner.name()));
    let versions = distinct(versions.cloned()).join(" and ");
    let head = format!("{}, {} {versions}", records[0].title, runner.verb());
    head.trim_end().to_owned()
}

/// The notes on a measurement without a plan: the link, as far as it is known, and lost datagrams.
fn measured(records: &[Record]) -> String {
    let mut text = String::new();
    let own = || records.iter().filter(|record| !Runner::of(record).runs_plans());
    for link in distinct(own().flat_map(facts::links_of)) {
        let _ = writeln!(text, "link: {}", plain(&link));
    }
    let several = own().count() > 1;
    for record in own() {
        for link in record.links.iter().filter(|link| link.packets_in > 0) {
            let lost = link.packets_in - link.packets_out.min(link.packets_in);
            let percent = lost as f64 / link.packets_in as f64 * 100.0;
            let run = if several { format!(", {}", run(record)) } else { String::new() };
            let direction = plain(&link.direction);
            let of = link.packets_in;
            let _ =
                writeln!(text, "{direction}{run}: {lost} of {of} datagrams lost ({percent:.2} %)");
        }
    }
    text
}

fn table_of_one(head: &str, records: &[Record], columns: u16) -> String {
    let rows = rows(records);
    if rows.is_empty() {
        return "no transfers in these records\n".to_owned();
    }
    let axes = Axes::of(records);
    let mut text = plain(head) + "\n";
    let fixed: Vec<String> = axes
        .of_role(Role::Constant)
        .flat_map(|axis| axis.labels.iter().map(|label| format!("{} {label}", axis.name)))
        .collect();
    if !fixed.is_empty() {
        let _ = writeln!(text, "throughout: {}", plain(&fixed.join(", ")));
    }
    text.push_str(&measured(records));
    let mut notes = Notes::default();
    let shown: Vec<_> = [Role::Condition, Role::Configuration]
        .into_iter()
        .flat_map(|role| axes.of_role(role))
        .collect();
    let mut table = Table::new();
    frame(&mut table, columns);
    let mut header = vec!["transfer".to_owned()];
    header.extend(shown.iter().map(|axis| plain(&axis.name)));
    let proxied = rows.iter().any(|row| row.proxy_retransmissions.is_some());
    let mut figures = vec!["goodput\nMbit/s", "time\ns", "of limit\n%", "resent"];
    figures.extend(proxied.then_some("by proxy"));
    header.extend(figures.iter().chain(&["state"]).map(|name| (*name).to_owned()));
    table.set_header(header);
    let digits = Digits::of(&rows);
    let mut above: Vec<String> = Vec::new();
    for row in &rows {
        let mut place = vec![plain(&row.transfer)];
        place.extend(shown.iter().map(|axis| {
            row.cell.get(&axis.key).map_or_else(|| "–".to_owned(), |label| unbroken(label))
        }));
        // Labels that are the same as in the row above are left blank, up to the first difference.
        let same = place.iter().zip(&above).take_while(|(here, there)| here == there).count();
        let same = same.min(place.len() - 1);
        let mut cells: Vec<String> = place
            .iter()
            .enumerate()
            .map(|(column, label)| if column < same { String::new() } else { label.clone() })
            .collect();
        cells.extend(digits.figures(row).into_iter().take(figures.len()));
        cells.push(notes.state(row));
        table.add_row(cells);
        above = place;
    }
    let first_figure = 1 + shown.len();
    for column in table.column_iter_mut().skip(first_figure).take(figures.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    text.push_str(&drawn(table));
    text.push_str(&notes.text(&rows, keep_step(records, &rows)));
    if records.iter().any(|record| !record.links.is_empty() && !Runner::of(record).runs_plans()) {
        text.push_str("datagrams: what arrived of them, over UDP and without TCP.\n");
    }
    if let Some(gaps) = gaps(records) {
        text.push_str(&plain(&gaps));
        text.push('\n');
    }
    text
}

/// Whether simulated flows run in parallel without any randomness: their packets may arrive in the
/// same order for a whole run (the phase effects of Floyd and Jacobson, 1992).
fn keep_step(records: &[Record], rows: &[Row]) -> bool {
    let flows = |record: &Record| record.transfers.iter().map(|it| it.flows.len()).sum::<usize>();
    rows.iter()
        .filter(|row| row.place == Runner::Sim && row.counted > 1 && !row.has_spread())
        .any(|row| records.iter().any(|record| record.cell == row.cell && flows(record) > 1))
}

/// Decimals of each column.
struct Digits {
    goodput: usize,
    time: usize,
}

impl Digits {
    fn of(rows: &[Row]) -> Self {
        let mean =
            |estimate: Option<midhop_study::Estimate>| estimate.map_or(0.0, |found| found.mean);
        Self {
            goodput: number::decimals(rows.iter().map(|row| mean(row.goodput_mbit_per_s))),
            time: number::decimals(rows.iter().map(|row| mean(row.time_s))),
        }
    }

    fn figures(&self, row: &Row) -> [String; 5] {
        let at_least = if row.is_complete() { "" } else { ">" };
        [
            number::estimate(row.goodput_mbit_per_s, 1.0, self.goodput, ""),
            number::estimate(row.time_s, 1.0, self.time, at_least),
            number::estimate(row.efficiency, 100.0, 1, ""),
            number::estimate(row.retransmissions, 1.0, 0, ""),
            number::estimate(row.proxy_retransmissions, 1.0, 0, ""),
        ]
    }
}

/// The numbered remarks under the table.
#[derive(Default)]
pub(crate) struct Notes(Vec<String>);

impl Notes {
    /// The mark of `row`, with the numbers of the remarks that explain it.
    pub(crate) fn state(&mut self, row: &Row) -> String {
        let mut words = Vec::new();
        let runs = row.seeds.len();
        match runs - row.valid {
            0 => {}
            _ if runs == 1 => words.push("INVALID".to_owned()),
            invalid => words.push(format!("{invalid}/{runs} INVALID")),
        }
        match row.counted - row.complete {
            0 => {}
            _ if row.counted == 1 => words.push("incomplete".to_owned()),
            missing => words.push(format!("{missing}/{} incomplete", row.counted)),
        }
        if words.is_empty() {
            words.push("ok".to_owned());
        }
        for fault in &row.faults {
            let place = self.0.iter().position(|known| known == fault).unwrap_or_else(|| {
                self.0.push(fault.clone());
                self.0.len() - 1
            });
            words.push(format!("[{}]", place + 1));
        }
        words.join(" ")
    }

    /// The numbered remarks.
    pub(crate) fn numbered(&self) -> String {
        let mut text = String::new();
        for (place, fault) in self.0.iter().enumerate() {
            let _ = writeln!(text, "[{}] {}", place + 1, plain(fault));
        }
        text
    }

    fn text(&self, rows: &[Row], keep_step: bool) -> String {
        let mut text = self.numbered();
        if rows.iter().any(|row| row.valid > 0 && row.valid < row.seeds.len()) {
            text.push_str("Invalid runs are left out of the means of their row.\n");
        }
        if rows.iter().any(|row| !row.is_complete()) {
            text.push_str(
                "incomplete: not everything had arrived when the run ended; the time is a lower bound, \
                 the other\nfigures are those of what did arrive.\n",
            );
        }
        let seeds = rows.iter().map(|row| row.counted).max().unwrap_or(0);
        let planned = rows.iter().any(|row| row.place.runs_plans());
        if seeds > 1 && rows.iter().any(Row::has_spread) {
            let each = if planned { "seeds" } else { "runs" };
            let _ = writeln!(
                text,
                "±: 95 % confidence interval of the mean over up to {seeds} {each}."
            );
        }
        if planned && rows.iter().any(|row| row.counted > 1 && !row.has_spread()) {
            text.push_str("Several seeds and no ±: no randomness, every seed gave the same.\n");
            if keep_step {
                text.push_str(
                    "Flows that fill a queue together may keep step there, and one of them gets too much: some jitter \
                     on one\nlink ends that.\n",
                );
            }
        }
        if planned || rows.iter().any(|row| row.efficiency.is_some()) {
            text.push_str(
                "of limit: the shortest time that physics allows for these bytes / the time that they took.\n",
            );
        } else {
            text.push_str(
                "of limit: not known without --limit SCENARIO, or a link that was measured.\n",
            );
        }
        text.push_str(
            "resent: segments, by the transfer's own sender, which behind a proxy is that of its own leg only.\n",
        );
        if rows.iter().any(|row| row.proxy_retransmissions.is_some()) {
            text.push_str(
                "by proxy: segments resent by the proxies of the run, on all their legs.\n",
            );
        }
        text
    }
}

/// `text` without control characters, so that a title cannot control the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The table style: horizontal rules above and below the header and under the last row.
pub(crate) fn frame(table: &mut Table, columns: u16) {
    let rule = LineStyle::none().fill('─').junction('─');
    let style = TableStyle::new().top_border(rule).header_separator(rule).bottom_border(rule);
    table.load_style(style);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(columns);
}

/// A label of an axis; a number and its unit stay together.
pub(crate) fn unbroken(label: &str) -> String {
    let label = plain(label);
    if magnitude(&label).is_some() { label.replace(' ', "\u{a0}") } else { label }
}

/// The table as text. Where words would be split, columns move closer together; then each is as
/// wide as its longest word, regardless of the table's width. A word must not be split: parts of a
/// figure would be another figure. A non-breaking space does not separate words.
pub(crate) fn drawn(mut table: Table) -> String {
    let mut words: Vec<Vec<String>> = vec![Vec::new(); table.column_iter().count()];
    let rows = table.row_iter().chain(table.header());
    for (column, cell) in rows.flat_map(|row| row.cell_iter().enumerate()) {
        let content = cell.content();
        let found = content.split([' ', '\n']).filter(|word| !word.is_empty()).map(str::to_owned);
        if let Some(known) = words.get_mut(column) {
            known.extend(found);
        }
    }
    let is_whole = |text: &str| words.iter().flatten().all(|word| text.contains(word));
    let mut text = table.trim_fmt();
    if !is_whole(&text) {
        for column in table.column_iter_mut() {
            column.set_padding((0, 0));
        }
        text = table.trim_fmt();
    }
    if !is_whole(&text) {
        for (column, words) in table.column_iter_mut().zip(&words) {
            let longest = words.iter().map(|word| word.chars().count()).max().unwrap_or(0);
            let width = u16::try_from(longest).unwrap_or(u16::MAX);
            let width = width.saturating_add(column.padding_width());
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
        }
        text = table.trim_fmt();
    }
    text.replace('\u{a0}', " ") + "\n"
}
