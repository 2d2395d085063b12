//! A [`Comparison`] for a terminal.

use crate::comparison::{Comparison, Contrast, Line};
use crate::number;
use crate::terminal::{drawn, frame, plain};
use comfy_table::{CellAlignment, Table};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Maximum number of missing cells that are listed.
const NAMED: usize = 3;

/// The table: one line per cell and transfer, with the constant labels above it and the summary
/// below. The sides are called `names`; a line has `columns`. Where several scenarios or places are
/// distinguished, each has a table.
pub fn comparison_table(comparison: &Comparison, names: [&str; 2], columns: u16) -> String {
    let [first, second] = &comparison.scenarios;
    // Different scenarios are compared only where each side has only one.
    let titled = first.len() == 1 && second.len() == 1 && first != second;
    let mut text = String::new();
    for (side, name) in names.iter().enumerate() {
        let _ = write!(text, "{}: {}", ["A", "B"][side], plain(name));
        let places: Vec<_> = comparison.places[side].iter().map(|it| it.place()).collect();
        let places = places.join(" and ");
        text += &if places.is_empty() { places } else { format!(", {places}") };
        for title in comparison.scenarios[side].iter().filter(|_| titled) {
            let _ = write!(text, ", \"{}\"", plain(title));
        }
        for (axis, label) in &comparison.throughout[side] {
            let _ = write!(text, ", {} {}", plain(axis), plain(label));
        }
        text.push('\n');
    }
    let mut left: Vec<&Line> = comparison.lines.iter().collect();
    while let Some(first) = left.first().copied() {
        let alike = |line: &&Line| line.scenario == first.scenario && line.place == first.place;
        let (table, others): (Vec<&Line>, Vec<&Line>) = left.into_iter().partition(alike);
        let heading = first.scenario.as_deref().map(plain).into_iter();
        let heading = heading.chain(first.place.map(|it| it.place().to_owned()));
        let heading = heading.collect::<Vec<_>>().join(", ");
        if !heading.is_empty() {
            let _ = writeln!(text, "\n{heading}");
        }
        text += &lines(&table, columns);
        left = others;
    }
    text + &remarks(comparison)
}

fn lines(lines: &[&Line], columns: u16) -> String {
    let axes: BTreeSet<&String> = lines.iter().flat_map(|line| line.cell.keys()).collect();
    let timed = lines.iter().any(|line| line.time.is_some());
    let mut header: Vec<String> = vec!["transfer".to_owned()];
    header.extend(axes.iter().map(|axis| plain(axis.rsplit('.').next().unwrap_or(axis))));
    header.extend(["A\nMbit/s", "B\nMbit/s", "A/B", "interval"].map(str::to_owned));
    header.extend(timed.then(|| "A/B\nof time".to_owned()));
    header.push("real".to_owned());
    let mut table = Table::new();
    frame(&mut table, columns);
    table.set_header(header);
    let means = lines.iter().flat_map(|line| line.goodput.means);
    let decimals = number::decimals(means);
    for line in lines {
        let mut cells = vec![plain(&line.transfer)];
        cells.extend(
            axes.iter().map(|axis| line.cell.get(*axis).map_or("–".to_owned(), |l| plain(l))),
        );
        cells.extend(line.goodput.means.map(|mean| format!("{mean:.decimals$}")));
        cells.push(ratio(&line.goodput));
        cells.push(
            line.goodput
                .interval
                .map_or("–".to_owned(), |[low, high]| format!("{low:.2}–{high:.2}")),
        );
        cells.extend(timed.then(|| line.time.as_ref().map_or("–".to_owned(), ratio)));
        cells.push(
            match line.goodput.real {
                Some(true) => "yes",
                Some(false) => "no",
                None => "?",
            }
            .to_owned(),
        );
        table.add_row(cells);
    }
    let first = 1 + axes.len();
    for column in table.column_iter_mut().skip(first).take(4 + usize::from(timed)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    drawn(table)
}

fn ratio(contrast: &Contrast) -> String {
    contrast.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}"))
}

fn remarks(comparison: &Comparison) -> String {
    let mut text = String::new();
    if comparison.places.iter().any(|places| places.len() > 1) {
        text.push_str(
            "Results of several places are there: each is set against its own kind, and never averaged with \
             another.\n",
        );
    }
    for (side, name) in ["A", "B"].into_iter().enumerate() {
        let alone = &comparison.alone[side];
        if !alone.is_empty() {
            let named: Vec<String> = alone.iter().take(NAMED).map(|cell| plain(cell)).collect();
            let more = alone.len() - named.len();
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            let _ = writeln!(text, "only in {name}: {}{more}", named.join("; "));
        }
        if comparison.invalid[side] > 0 {
            let _ = writeln!(
                text,
                "{} results of {name} are left out: their runs are not valid.",
                comparison.invalid[side]
            );
        }
    }
    let Some(summary) = &comparison.summary else {
        return text
            + "Nothing to compare: no cell and transfer has valid results on both sides.\n";
    };
    let _ = writeln!(
        text,
        "A/B of goodput over {} lines: median {:.3}; within 5 %: {:.0} %; within 15 %: {:.0} %.",
        summary.lines,
        summary.median,
        summary.within_5_percent * 100.0,
        summary.within_15_percent * 100.0,
    );
    if comparison.lines.iter().any(|line| line.goodput.real.is_some()) {
        let _ = writeln!(
            text,
            "Real differences: {}, of which {} beyond 15 %. Real: the interval of {:.0} % confidence leaves out 1.",
            summary.real,
            summary.real_beyond_15_percent,
            summary.confidence * 100.0,
        );
    } else {
        text.push_str("Which differences are real needs more than one run of a cell: --seeds 5.\n");
    }
    text
}
