//! The data of pictures for the page's script, which only draws them: all numbers are computed here.

use crate::axes::{Axes, Role};
use crate::beside::places;
use crate::curves;
use crate::phrases::distinct;
use crate::summary::{Row, rows};
use midhop_experiment::record::{Record, Runner};
use serde::Serialize;
use std::collections::BTreeMap;

/// All pictures of a page.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    /// The configurations, in the order of their colours.
    pub(crate) configurations: Vec<String>,
    /// Comparisons.
    pub(crate) bars: Vec<Bars>,
    /// Quantities over time.
    pub(crate) lines: Vec<Lines>,
}

/// One figure per group of conditions, one bar per configuration.
#[derive(Debug, Serialize)]
pub(crate) struct Bars {
    pub(crate) id: String,
    #[serde(skip)]
    pub(crate) place: Runner,
    pub(crate) title: String,
    pub(crate) caption: String,
    /// Name and unit of the vertical axis.
    pub(crate) axis: String,
    pub(crate) unit: String,
    /// One per group of bars.
    pub(crate) conditions: Vec<String>,
    /// The physical limit of each group.
    pub(crate) limits: Vec<Option<f64>>,
    pub(crate) series: Vec<BarSeries>,
}

/// The bars of one configuration.
#[derive(Debug, Serialize)]
pub(crate) struct BarSeries {
    /// Index of the configuration.
    pub(crate) configuration: usize,
    /// Shape: one per condition.
    pub(crate) values: Vec<Option<Bar>>,
}

/// One bar.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Bar {
    pub(crate) value: f64,
    /// Half of the 95 % interval.
    pub(crate) half_width: Option<f64>,
    /// Whether the true value is larger.
    pub(crate) at_least: bool,
    pub(crate) valid: bool,
    /// The additional text of the tooltip.
    pub(crate) note: String,
}

/// One quantity over time: a panel per condition, a curve per configuration and flow.
#[derive(Debug, Serialize)]
pub(crate) struct Lines {
    pub(crate) id: String,
    #[serde(skip)]
    pub(crate) place: Runner,
    /// The part of the page it belongs to.
    pub(crate) section: String,
    pub(crate) title: String,
    pub(crate) caption: String,
    pub(crate) axis: String,
    pub(crate) unit: String,
    /// Whether it is folded away.
    pub(crate) extra: bool,
    /// One per panel.
    pub(crate) panels: Vec<String>,
    /// The physical limit in each panel.
    pub(crate) limits: Vec<Option<f64>>,
    /// Where the time axis ends. Unit: seconds.
    pub(crate) until: f64,
    /// When handovers take place. Unit: seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) handovers: Vec<f64>,
    pub(crate) curves: Vec<Curve>,
}

/// One curve.
#[derive(Debug, Serialize)]
pub(crate) struct Curve {
    /// Index of the configuration.
    pub(crate) configuration: usize,
    /// Index of the panel.
    pub(crate) panel: usize,
    /// The flow, where flows are drawn one by one.
    pub(crate) flow: Option<u32>,
    /// The proxy's leg, in words, where the curve is not of the transfer's own sender.
    pub(crate) leg: Option<String>,
    /// Shape: `[point, (seconds, value)]`.
    pub(crate) points: Vec<[f64; 2]>,
}

impl Figures {
    /// The pictures of `records`: separate ones for each place, in the same colours.
    pub(crate) fn of(records: &[Record]) -> Self {
        let axes = Axes::of(records);
        let configurations = configurations(records, &axes);
        let (mut bars, mut lines) = (Vec::new(), Vec::new());
        let places = places(records);
        for &place in &places {
            let here: Vec<Record> =
                records.iter().filter(|record| Runner::of(record) == place).cloned().collect();
            let rows = rows(&here);
            let mut own_bars = self::bars(&rows, &axes, &configurations);
            let share = places.len();
            let mut own_lines = curves::lines(&here, share, &rows, &axes, &configurations);
            for (id, of) in own_bars
                .iter_mut()
                .map(|it| (&mut it.id, &mut it.place))
                .chain(own_lines.iter_mut().map(|it| (&mut it.id, &mut it.place)))
            {
                if share > 1 {
                    *id = format!("{}-{id}", place.name());
                }
                *of = place;
            }
            bars.extend(own_bars);
            lines.extend(own_lines);
        }
        Self { configurations, bars, lines }
    }
}

/// The configuration's name for `cell`; one name for all where nothing is chosen.
pub(crate) fn configuration(axes: &Axes, cell: &BTreeMap<String, String>) -> String {
    let words = axes.words(cell, Role::Configuration);
    if words.is_empty() { axes.unnamed.to_owned() } else { words }
}

/// The condition's name for `cell`; empty where none varied.
pub(crate) fn condition(axes: &Axes, cell: &BTreeMap<String, String>) -> String {
    axes.words(cell, Role::Condition)
}

/// All configurations in the order of their axes.
fn configurations(records: &[Record], axes: &Axes) -> Vec<String> {
    let mut cells: Vec<_> = records.iter().map(|record| &record.cell).collect();
    cells.sort_by_cached_key(|cell| axes.order(cell, Role::Configuration));
    distinct(cells.into_iter().map(|cell| configuration(axes, cell)))
}

/// One comparison per transfer: time for a page, goodput for the others.
fn bars(rows: &[Row], axes: &Axes, configurations: &[String]) -> Vec<Bars> {
    let transfers = distinct(rows.iter().map(|row| row.transfer.clone()));
    let mut all: Vec<Bars> = transfers
        .iter()
        .enumerate()
        .map(|(place, transfer)| {
            let rows: Vec<&Row> = rows.iter().filter(|row| &row.transfer == transfer).collect();
            one_comparison(format!("bars-{place}"), transfer, &rows, axes, configurations)
        })
        .collect();
    // Figures in seconds come first.
    all.sort_by_key(|bars| bars.unit != "s");
    all
}

fn one_comparison(
    id: String,
    transfer: &str,
    rows: &[&Row],
    axes: &Axes,
    configurations: &[String],
) -> Bars {
    let page = rows.iter().any(|row| row.page);
    let conditions = distinct(rows.iter().map(|row| condition(axes, &row.cell)));
    let under = |name: &String| -> Vec<&Row> {
        rows.iter().copied().filter(|row| &condition(axes, &row.cell) == name).collect()
    };
    let limits = conditions
        .iter()
        .map(|name| {
            let rows = under(name);
            if page { limit_time(&rows) } else { limit_goodput(&rows) }
        })
        .collect::<Vec<Option<f64>>>();
    let series: Vec<BarSeries> = configurations
        .iter()
        .enumerate()
        .map(|(place, configuration_name)| BarSeries {
            configuration: place,
            values: conditions
                .iter()
                .map(|name| {
                    under(name)
                        .into_iter()
                        .find(|row| &configuration(axes, &row.cell) == configuration_name)
                        .and_then(|row| bar(row, page))
                })
                .collect(),
        })
        .filter(|series: &BarSeries| series.values.iter().any(Option::is_some))
        .collect();
    let (title, axis, unit, better) = if page {
        ("time to load the whole page", "time, seconds", "s", "Shorter is better.")
    } else {
        ("goodput", "goodput, Mbit/s", "Mbit/s", "Taller is better.")
    };
    let mut caption = better.to_owned();
    if limits.iter().any(Option::is_some) {
        caption.push_str(" The line across each group is the physical limit.");
    }
    if rows.iter().any(|row| row.counted > 1) {
        let each = if rows.iter().any(|row| row.place.runs_plans()) { "seeds" } else { "runs" };
        caption
            .push_str(&format!(" Whiskers: 95 % confidence interval of the mean over the {each}."));
    }
    if rows.iter().any(|row| !row.is_complete()) {
        caption.push_str(if page {
            " “>”: unfinished when the run ended; the bar shows how long it had been waited for."
        } else {
            " “…”: unfinished when the run ended; the bar shows the rate at which data did arrive."
        });
    }
    Bars {
        id,
        place: Runner::default(),
        title: format!("{transfer}: {title}"),
        caption: format!("{caption} {}", spread(&conditions, &series, configurations, unit)),
        axis: axis.to_owned(),
        unit: unit.to_owned(),
        conditions,
        limits,
        series,
    }
}

fn bar(row: &Row, page: bool) -> Option<Bar> {
    let estimate = if page { row.time_s } else { row.goodput_mbit_per_s }?;
    let percent = row
        .efficiency
        .map_or(String::new(), |share| format!("{:.0} % of the limit", share.mean * 100.0));
    let mut notes = vec![percent];
    if row.counted > 1 {
        let each = if row.place.runs_plans() { "seeds" } else { "runs" };
        notes.push(format!("{} {each}", row.counted));
    }
    if row.valid == 0 {
        notes.push("INVALID".to_owned());
    }
    notes.retain(|note| !note.is_empty());
    Some(Bar {
        value: rounded(estimate.mean),
        half_width: estimate.margin.filter(|_| row.is_complete()).map(rounded),
        at_least: !row.is_complete(),
        valid: row.valid > 0,
        note: notes.join(", "),
    })
}

/// The shortest possible time of a finished run of these rows.
fn limit_time(rows: &[&Row]) -> Option<f64> {
    let finished = rows.iter().filter(|row| row.is_complete());
    finished.filter_map(|row| row.limit_time_s).reduce(f64::min).map(rounded)
}

/// The largest possible goodput of these rows: over the time of a transfer of fixed size, otherwise
/// the path's.
fn limit_goodput(rows: &[&Row]) -> Option<f64> {
    let largest = rows.iter().filter_map(|row| row.limit_goodput_mbit_per_s).reduce(f64::max)?;
    let finished: Vec<&&Row> = rows.iter().filter(|row| row.is_complete()).collect();
    let same_size = finished.windows(2).all(|pair| pair[0].bytes == pair[1].bytes);
    let over_its_time = |row: &&Row| {
        let rate = row.bytes as f64 * 8e-6 / row.limit_time_s?;
        rate.is_finite().then_some(rate.min(largest))
    };
    let over_their_times = finished.into_iter().filter(|_| same_size).filter_map(over_its_time);
    Some(rounded(over_their_times.reduce(f64::max).unwrap_or(largest)))
}

/// The summary of the last group in words: its best and its worst, where both are valid.
fn spread(
    conditions: &[String],
    series: &[BarSeries],
    configurations: &[String],
    unit: &str,
) -> String {
    let Some(last) = conditions.len().checked_sub(1) else { return String::new() };
    let mut known: Vec<(&str, &Bar)> = series
        .iter()
        .filter_map(|series| {
            let bar = series.values.get(last)?.as_ref()?;
            (bar.valid && bar.value > 0.0)
                .then_some((configurations[series.configuration].as_str(), bar))
        })
        .collect();
    known.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
    let (Some(smallest), Some(largest)) = (known.first(), known.last()) else {
        return String::new();
    };
    let apart = |bar: &Bar| bar.half_width.unwrap_or(0.0);
    if known.len() < 2
        || smallest.1.value + apart(smallest.1) >= largest.1.value - apart(largest.1)
        || smallest.1.at_least
    {
        return String::new();
    }
    let place = &conditions[last];
    let place = if place.is_empty() { String::new() } else { format!("At {place}: ") };
    let bound = if largest.1.at_least && unit == "s" { "more than " } else { "" };
    format!(
        "{place}{} {} {unit}, {} {bound}{} {unit}.",
        smallest.0,
        three_digits(smallest.1.value),
        largest.0,
        three_digits(largest.1.value),
    )
}

/// Formats with three significant digits, without an exponent.
pub(crate) fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Rounds to five significant digits, which is finer than any screen and halves the size of the page.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(4 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}
