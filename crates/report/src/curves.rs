//! Selects the samples of records that are drawn as curves, and their panels, units and numbers of points.

use crate::arrivals::{over_a_second, peak};
use crate::axes::{Axes, Role};
use crate::downsample::largest_triangles;
use crate::figures::{Curve, Lines, condition, configuration, rounded, three_digits};
use crate::handovers;
use crate::phrases::distinct;
use crate::summary::Row;
use midhop_experiment::metrics::median;
use midhop_experiment::record::{LegResult, Record, Runner, Series};
use std::collections::BTreeMap;

/// Maximum number of points of a page, so that it stays within a few megabytes for any experiment.
const POINTS_MAX: usize = 120_000;
/// Maximum number of points of one curve: more than a panel has pixels.
const POINTS_PER_CURVE_MAX: usize = 400;
/// Minimum number of points of a curve.
const POINTS_PER_CURVE_MIN: usize = 24;
/// A figure of a queue that never held more than this is folded. Unit: bytes.
const QUEUE_BYTES_MIN: f64 = 6_000.0;

/// One figure per section, place and quantity; a section is a set of transfers that ran together.
/// The page's points are divided among so many `parts`.
pub(crate) fn lines(
    records: &[Record],
    parts: usize,
    rows: &[Row],
    axes: &Axes,
    configurations: &[String],
) -> Vec<Lines> {
    let drawn = representatives(records, axes);
    let count: usize = drawn.iter().map(|record| record.series.len()).sum();
    let keep =
        (POINTS_MAX / (count * parts).max(1)).clamp(POINTS_PER_CURVE_MIN, POINTS_PER_CURVE_MAX);
    let several_seeds = rows.iter().any(|row| row.seeds.len() > 1);
    let sections = distinct(drawn.iter().map(|record| section(record)));
    let mut figures = Vec::new();
    let mut shown: Vec<Key> = Vec::new();
    for name in &sections {
        let here: Vec<&Record> =
            drawn.iter().copied().filter(|record| &section(record) == name).collect();
        let panels = distinct(here.iter().map(|record| condition(axes, &record.cell)));
        for key in keys(&here) {
            let Some(mut figure) = one_figure(&here, &key, &panels, axes, configurations, keep)
            else {
                continue;
            };
            figure.id = format!("lines-{}", figures.len());
            figure.section.clone_from(name);
            if key.quantity == "goodput" {
                figure.limits = panels
                    .iter()
                    .map(|panel| {
                        rows.iter()
                            .filter(|row| row.transfer == key.place)
                            .filter(|row| &condition(axes, &row.cell) == panel)
                            .find_map(|row| row.limit_goodput_mbit_per_s)
                            .map(rounded)
                    })
                    .collect();
            }
            figures.push(figure);
            shown.push(key);
        }
    }
    align_time(&mut figures);
    for (figure, key) in figures.iter_mut().zip(&shown) {
        figure.handovers = handovers::moments(drawn.iter().map(|it| &it.plan), figure.until);
        figure.caption = caption(key, figure, configurations, several_seeds);
    }
    fold_quiet_queues(&mut figures);
    figures
}

/// The subject of a figure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The sort order: transfers before links, links before proxies, and the most important
    /// quantities first.
    rank: (usize, usize),
    place: String,
    quantity: String,
    of_transfer: bool,
    of_leg: bool,
}

const ORDER: [&str; 9] = [
    "goodput",
    "cwnd",
    "rtt",
    "queue",
    "retransmissions",
    "in_flight",
    "outstanding",
    "delivery_rate",
    "pacing_rate",
];

fn keys(records: &[&Record]) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for record in records {
        // A phase is not a quantity: pages of studies draw it behind the others.
        for series in record.series.iter().filter(|it| it.quantity != "phase") {
            let of_transfer = record.transfers.iter().any(|transfer| transfer.name == series.place);
            let of_leg = record.legs.iter().any(|leg| leg.place() == series.place);
            let place = if of_transfer { 0 } else { 1 + usize::from(of_leg) };
            let order = ORDER.iter().position(|known| *known == series.quantity);
            let key = Key {
                rank: (place, order.unwrap_or(ORDER.len())),
                place: series.place.clone(),
                quantity: series.quantity.clone(),
                of_transfer,
                of_leg: of_leg && !of_transfer,
            };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys.sort();
    keys
}

/// One run per cell: the first valid one, otherwise the first.
fn representatives<'a>(records: &'a [Record], axes: &Axes) -> Vec<&'a Record> {
    let mut cells: Vec<(&BTreeMap<String, String>, &Record)> = Vec::new();
    for record in records {
        match cells.iter_mut().find(|(cell, _)| *cell == &record.cell) {
            Some((_, known)) if !known.validity.is_valid() && record.validity.is_valid() => {
                *known = record;
            }
            Some(_) => {}
            None => cells.push((&record.cell, record)),
        }
    }
    cells.sort_by_cached_key(|(cell, _)| {
        let order = |role| axes.order(cell, role);
        (order(Role::Workload), order(Role::Condition), order(Role::Configuration))
    });
    cells.into_iter().map(|(_, record)| record).collect()
}

fn section(record: &Record) -> String {
    let names: Vec<&str> = record.transfers.iter().map(|transfer| transfer.name.as_str()).collect();
    names.join(", ")
}

fn one_figure(
    records: &[&Record],
    key: &Key,
    panels: &[String],
    axes: &Axes,
    configurations: &[String],
    keep: usize,
) -> Option<Lines> {
    let belongs = |series: &&Series| series.place == key.place && series.quantity == key.quantity;
    let largest = records
        .iter()
        .flat_map(|record| {
            let beside = beside(record, key).map(|(_, series)| series);
            record.series.iter().filter(belongs).chain(beside)
        })
        .flat_map(|series| series.value.iter().copied())
        .filter(|value| value.is_finite())
        .fold(0.0, f64::max);
    let written = records.iter().flat_map(|record| record.series.iter()).find(belongs)?;
    let (unit, scale) = shown_unit(&written.unit, largest);
    let mut curves = Vec::new();
    for record in records {
        let panel = panels.iter().position(|panel| *panel == condition(axes, &record.cell))?;
        let configuration_name = configuration(axes, &record.cell);
        let place = configurations.iter().position(|name| *name == configuration_name)?;
        let all: Vec<&Series> = record.series.iter().filter(belongs).collect();
        let whole: Vec<&Series> =
            all.iter().copied().filter(|series| series.flow.is_none()).collect();
        let is_goodput = key.quantity == "goodput";
        let transfer = record.transfers.iter().find(|it| is_goodput && it.name == key.place);
        let limit = transfer.and_then(|it| peak(record, it));
        let mut push = |flow: Option<u32>, leg: Option<String>, time: &[f64], value: &[f64]| {
            let mean = is_goodput.then(|| over_a_second(time, value, limit));
            let value = mean.as_deref().unwrap_or(value);
            let points: Vec<[f64; 2]> = largest_triangles(time, value, keep)
                .into_iter()
                .map(|[time, value]| [(time * 1e4).round() / 1e4, rounded(value * scale)])
                .collect();
            if !points.is_empty() {
                curves.push(Curve { configuration: place, panel, flow, leg, points });
            }
        };
        if !whole.is_empty() {
            whole.iter().for_each(|series| push(None, None, &series.time_s, &series.value));
        } else if matches!(key.quantity.as_str(), "goodput" | "retransmissions") {
            let (time, value) = total(&all, key.quantity == "retransmissions");
            push(None, None, &time, &value);
        } else {
            all.iter().for_each(|series| push(series.flow, None, &series.time_s, &series.value));
        }
        if let Some((leg, series)) = beside(record, key) {
            push(None, Some(leg), &series.time_s, &series.value);
        }
    }
    if curves.is_empty() {
        return None;
    }
    let name = quantity_name(&key.quantity);
    Some(Lines {
        id: String::new(),
        place: Runner::default(),
        section: String::new(),
        title: format!("{}: {name}", key.place),
        caption: String::new(),
        axis: if unit.is_empty() { name } else { unit.clone() },
        unit,
        extra: key.of_leg || ORDER.iter().take(4).all(|known| *known != key.quantity),
        panels: panels.to_vec(),
        limits: Vec::new(),
        until: 0.0,
        handovers: Vec::new(),
        curves,
    })
}

/// The leg on which a proxy acts as the transfer's sender: its name in words and its samples.
fn beside<'a>(record: &'a Record, key: &Key) -> Option<(String, &'a Series)> {
    if !key.of_transfer || !matches!(key.quantity.as_str(), "cwnd" | "rtt") {
        return None;
    }
    let leg = longest(&record.legs)?;
    let place = leg.place();
    let series = record
        .series
        .iter()
        .find(|series| series.place == place && series.quantity == key.quantity)?;
    Some((format!("{}'s {} leg", leg.node, leg.link), series))
}

/// The leg with the longest round trip. Two proxies may share a link, one at each end: of legs of
/// about the same length, it is the one that sends.
fn longest(legs: &[LegResult]) -> Option<&LegResult> {
    let rtt = |leg: &LegResult| leg.rtt_min.map_or(0.0, |rtt| rtt.as_s_f64());
    let most = legs.iter().map(rtt).fold(0.0, f64::max);
    legs.iter().filter(|leg| rtt(leg) >= 0.9 * most).max_by_key(|leg| leg.bytes)
}

/// The sum of the flows at each moment at which one of them was sampled. A flow counts as zero
/// before its first sample. After its last sample it counts as zero or, where `lasting`, with its
/// last value.
fn total(flows: &[&Series], lasting: bool) -> (Vec<f64>, Vec<f64>) {
    let mut times: Vec<f64> = flows
        .iter()
        .flat_map(|flow| flow.time_s.iter().copied())
        .filter(|t| t.is_finite())
        .collect();
    times.sort_by(f64::total_cmp);
    times.dedup_by(|a, b| (*a - *b).abs() < 1e-3);
    let values = times
        .iter()
        .map(|&now| {
            flows
                .iter()
                .map(|flow| {
                    let next = flow.time_s.partition_point(|&time| time < now - 1e-3);
                    let ended = next >= flow.time_s.len().min(flow.value.len());
                    let begun =
                        next > 0 || flow.time_s.first().is_some_and(|&first| first <= now + 1e-3);
                    match (begun, ended) {
                        (false, _) => 0.0,
                        (true, true) if lasting => flow.value.last().copied().unwrap_or(0.0),
                        (true, true) => 0.0,
                        (true, false) => flow.value[next],
                    }
                })
                .sum()
        })
        .collect();
    (times, values)
}

/// When `curve` ends. Unit: seconds.
fn end(curve: &Curve) -> f64 {
    curve.points.last().map_or(0.0, |point| point[0])
}

/// The end of the time axis: the last sample, unless a straggler would compress all other curves.
fn until(curves: &[Curve]) -> f64 {
    let ends: Vec<f64> = curves.iter().map(end).collect();
    let last = ends.iter().copied().fold(0.0, f64::max);
    match median(&ends) {
        Some(typical) if typical > 0.0 && last > 3.0 * typical => (2.5 * typical).ceil(),
        _ => (last * 10.0).ceil() / 10.0,
    }
}

/// Gives all figures of a section the same time axis, that of its transfers.
fn align_time(figures: &mut [Lines]) {
    let sections = distinct(figures.iter().map(|figure| figure.section.clone()));
    for section in sections {
        let here = || figures.iter().filter(|figure| figure.section == section);
        let about = |goodput: bool| {
            here()
                .filter(|figure| !goodput || figure.title.ends_with(": goodput"))
                .map(|figure| until(&figure.curves))
                .fold(0.0, f64::max)
        };
        let end = if about(true) > 0.0 { about(true) } else { about(false) };
        figures
            .iter_mut()
            .filter(|figure| figure.section == section)
            .for_each(|figure| figure.until = end);
    }
}

/// The names of curves that continue well beyond the axis, with their ends; empty if there are none.
fn beyond(figure: &Lines, configurations: &[String]) -> String {
    let mut late: BTreeMap<usize, f64> = BTreeMap::new();
    for curve in figure.curves.iter().filter(|curve| end(curve) > figure.until * 1.1) {
        let known = late.entry(curve.configuration).or_default();
        *known = known.max(end(curve));
    }
    let names: Vec<String> = late
        .iter()
        .map(|(&place, &end)| format!("{} until {} s", configurations[place], three_digits(end)))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        " The time axis stops at {} s; these curves continue beyond it: {}.",
        figure.until,
        names.join(", ")
    )
}

/// Folds queues that were never full; the busiest stays visible.
fn fold_quiet_queues(figures: &mut [Lines]) {
    let peaks: Vec<Option<(String, f64)>> = figures
        .iter()
        .map(|figure| {
            let queue = figure.title.ends_with(": queue");
            let scale = match figure.unit.as_str() {
                "MB" => 1e6,
                "kB" => 1e3,
                _ => 1.0,
            };
            queue.then(|| {
                let points = figure.curves.iter().flat_map(|curve| &curve.points);
                (figure.section.clone(), points.map(|point| point[1] * scale).fold(0.0, f64::max))
            })
        })
        .collect();
    for (figure, peak) in figures.iter_mut().zip(&peaks) {
        let Some((section, peak)) = peak else { continue };
        let busiest = peaks
            .iter()
            .flatten()
            .filter(|(other, _)| other == section)
            .all(|(_, other)| other <= peak);
        figure.extra = !busiest || *peak < QUEUE_BYTES_MIN;
    }
}

fn quantity_name(quantity: &str) -> String {
    match quantity {
        "goodput" => "goodput",
        "cwnd" => "congestion window of the sender",
        "rtt" => "round-trip time at the sender",
        "queue" => "queue",
        "retransmissions" => "segments sent again so far",
        "in_flight" => "data in flight",
        "outstanding" => "data sent and not acknowledged in sequence",
        "delivery_rate" => "delivery rate",
        "pacing_rate" => "pacing rate",
        other => other,
    }
    .to_owned()
}

/// The unit on the axis, and the factor from the original unit.
pub(crate) fn shown_unit(written: &str, largest: f64) -> (String, f64) {
    let (unit, scale) = match written {
        "B" | "bytes" if largest >= 3e6 => ("MB", 1e-6),
        "B" | "bytes" => ("kB", 1e-3),
        "bit/s" => ("Mbit/s", 1e-6),
        "us" | "µs" => ("ms", 1e-3),
        other => (other, 1.0),
    };
    (unit.to_owned(), scale)
}

fn caption(key: &Key, figure: &Lines, configurations: &[String], several_seeds: bool) -> String {
    let legs = figure.curves.iter().any(|curve| curve.leg.is_some());
    let mut text = match key.quantity.as_str() {
        _ if key.of_leg => {
            "The proxy's connections over this link, seen from the proxy, added up; of \
                            round trips the median."
                .to_owned()
        }
        "cwnd" if legs => "How much a sender allows itself to have under way. Behind a proxy the \
                           transfer's own sender sees only its own leg (faint); beside it stands \
                           the proxy's leg with the longest round trip, its connections added up."
            .to_owned(),
        "rtt" if legs => "What a sender measures from a segment to its acknowledgement. Behind a \
                          proxy the transfer's own sender measures to the proxy and back (faint); \
                          beside it stands the proxy's leg with the longest round trip, the median \
                          of its connections. The rise above the shortest is waiting in queues."
            .to_owned(),
        "goodput" => "Payload that arrived, mean over the second before. What waited for a lost segment \
                      counts when the path can have carried it. Higher is better; a curve that ends \
                      early finished early."
            .to_owned(),
        "cwnd" => "How much the sender allows itself to have under way. Behind a proxy the sender \
                   sees only its own leg."
            .to_owned(),
        "rtt" => "What the sender measures from a segment to its acknowledgement. Behind a proxy: \
                  to the proxy and back. The rise above the shortest is waiting in queues."
            .to_owned(),
        "queue" => "Data waiting in front of this direction of the link. A full queue delays \
                    everybody; an empty one wastes the link."
            .to_owned(),
        _ => String::new(),
    };
    if let Some(limit) = figure.limits.iter().flatten().next() {
        let same = figure.limits.iter().flatten().all(|other| (other - limit).abs() < 0.05);
        text.push_str(" Dashed: the physical limit");
        if same {
            text.push_str(&format!(", {} Mbit/s", three_digits(*limit)));
        }
        text.push('.');
    }
    let above = |curve: &Curve| {
        let limit = figure.limits.get(curve.panel).copied().flatten();
        limit.is_some_and(|limit| curve.points.iter().any(|point| point[1] > limit * 1.02))
    };
    if figure.curves.iter().any(above) {
        text.push_str(" Above it the path was faster than in the mean.");
    }
    text.push_str(&beyond(figure, configurations));
    if !figure.handovers.is_empty() {
        text.push_str(" Dotted lines: handovers.");
    }
    if figure.curves.iter().any(|curve| curve.flow.is_some_and(|flow| flow > 0)) {
        text.push_str(" One curve per connection.");
    }
    if several_seeds {
        text.push_str(" Drawn is one run per configuration, that of the first valid seed.");
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(id: u32, time_s: &[f64], value: &[f64]) -> Series {
        Series {
            quantity: "goodput".into(),
            place: "page".into(),
            flow: Some(id),
            unit: "Mbit/s".into(),
            time_s: time_s.to_vec(),
            value: value.to_vec(),
        }
    }

    #[test]
    fn flows_add_up_only_while_they_live() {
        let (early, late) =
            (flow(0, &[0.1, 0.2], &[1.0, 2.0]), flow(1, &[0.2, 0.3], &[10.0, 20.0]));
        let (time, value) = total(&[&early, &late], false);
        assert_eq!(time, [0.1, 0.2, 0.3]);
        assert_eq!(value, [1.0, 12.0, 20.0]);
        assert_eq!(total(&[&early, &late], true).1, [1.0, 12.0, 22.0]);
    }

    #[test]
    fn a_straggler_does_not_squeeze_the_others() {
        let curve = |end: f64| Curve {
            configuration: 0,
            panel: 0,
            flow: None,
            leg: None,
            points: vec![[0.0, 1.0], [end, 1.0]],
        };
        assert_eq!(until(&[curve(8.0), curve(9.0), curve(10.0)]), 10.0);
        assert_eq!(until(&[curve(8.0), curve(10.0), curve(75.0)]), 25.0);
        assert_eq!(until(&[]), 0.0);
    }

    #[test]
    fn of_two_proxies_on_one_link_the_one_that_sends_is_shown() {
        let leg = |node: &str, link: &str, bytes: u64, rtt_ms: u64| LegResult {
            node: node.to_owned(),
            link: link.to_owned(),
            bytes: midhop_units::Bytes::new(bytes),
            rtt_min: Some(midhop_units::Duration::from_ms(rtt_ms)),
            ..LegResult::default()
        };
        let legs = [
            leg("terminal", "lan", 5_000_000, 1),
            leg("terminal", "satellite", 300, 592),
            leg("gateway", "satellite", 5_000_000, 590),
        ];
        assert_eq!(longest(&legs).map(LegResult::place).as_deref(), Some("gateway.satellite"));
        assert_eq!(longest(&legs[..1]).map(LegResult::place).as_deref(), Some("terminal.lan"));
        assert_eq!(longest(&[]), None);
    }

    #[test]
    fn a_series_with_more_times_than_values_does_not_panic() {
        let broken = flow(0, &[0.1, 0.2, 0.3], &[1.0]);
        assert_eq!(total(&[&broken], false).1, [1.0, 0.0, 0.0]);
    }
}
