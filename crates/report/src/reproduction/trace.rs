//! One run of a cell over time, small enough to keep one for each cell of a study.

use crate::arrivals::{over_a_second, peak};
use crate::curves;
use midhop_experiment::record::{Record, Series};
use midhop_study::Cell;
use midhop_units::Seed;
use serde::Serialize;
use std::collections::BTreeMap;

/// Points of one curve.
const POINTS_MAX: usize = 160;
/// Flows with curves of their own.
const FLOWS_MAX: u32 = 4;
/// The names of the phases, by their number in a record.
const PHASES: [&str; 4] = ["slow start", "avoidance", "fast recovery", "timeout"];

/// A run over time.
#[derive(Debug, Clone, Serialize)]
pub struct Trace {
    pub(super) scenario: String,
    pub(super) cell: Cell,
    pub(super) seed: String,
    panels: Vec<Panel>,
    /// The phases of senders: the transfer's own, then proxies'.
    senders: Vec<Sender>,
    until: f64,
}

/// The phases of one sender.
#[derive(Debug, Clone, Serialize)]
struct Sender {
    name: String,
    /// Whether it is a proxy, on one of its legs.
    leg: bool,
    /// Phase, from, until. Unit: seconds.
    phases: Vec<(&'static str, f64, f64)>,
}

/// One quantity.
#[derive(Debug, Clone, Serialize)]
struct Panel {
    name: String,
    unit: String,
    /// The physical limit.
    limit: Option<f64>,
    curves: Vec<Curve>,
}

#[derive(Debug, Clone, Serialize)]
struct Curve {
    name: String,
    /// Whether it is of a proxy, on one of its legs.
    leg: bool,
    /// Shape: `[point, (seconds, value)]`.
    points: Vec<[f64; 2]>,
}

/// A series and the name of its curve.
struct Named<'r> {
    name: String,
    leg: bool,
    series: &'r Series,
}

impl Trace {
    /// The curves of `record`, a run of `scenario`; none where it has none.
    pub fn of(scenario: &str, record: &Record) -> Option<Self> {
        let transfer = record.transfers.first()?;
        let own = |quantity: &str| -> Vec<Named<'_>> {
            let named = |name, series| Named { name, leg: false, series };
            let here = |it: &&Series| it.quantity == quantity && it.place == transfer.name;
            let all: Vec<&Series> = record.series.iter().filter(here).collect();
            let whole = all.iter().find(|it| it.flow.is_none());
            if let Some(whole) = whole {
                return vec![named(transfer.name.clone(), whole)];
            }
            let several = all.len() > 1;
            let name = |it: &Series| match it.flow.filter(|_| several) {
                Some(flow) => format!("{} [{flow}]", transfer.name),
                None => transfer.name.clone(),
            };
            let few = all.into_iter().filter(|it| it.flow < Some(FLOWS_MAX));
            few.map(|it| named(name(it), it)).collect()
        };
        let legs = |quantity: &str| -> Vec<Named<'_>> {
            let sent = record.legs.iter().filter(|leg| leg.bytes.get() * 2 > transfer.bytes.get());
            let here = |leg: &midhop_experiment::record::LegResult| {
                let place = leg.place();
                let series =
                    record.series.iter().find(|it| it.place == place && it.quantity == quantity)?;
                let name = format!("proxy on {}, to {}", leg.node, leg.link);
                Some(Named { name, leg: true, series })
            };
            sent.filter_map(here).collect()
        };
        let mut panels = Vec::new();
        for (quantity, name) in
            [("goodput", "goodput"), ("cwnd", "congestion window"), ("rtt", "round-trip time")]
        {
            let mut curves = own(quantity);
            curves.extend(legs(quantity));
            let limit = peak(record, transfer);
            let means: Vec<Series> = match quantity {
                "goodput" => curves.iter().map(|it| mean(it.series, limit)).collect(),
                _ => Vec::new(),
            };
            for (curve, mean) in curves.iter_mut().zip(&means) {
                curve.series = mean;
            }
            panels.extend(Panel::of(name, &curves));
        }
        let queues = record.series.iter().filter(|it| it.quantity == "queue");
        let most = |it: &Series| it.value.iter().copied().fold(0.0, f64::max);
        let busiest = queues.max_by(|a, b| most(a).total_cmp(&most(b)));
        panels.extend(busiest.and_then(|series| {
            let name = series.place.clone();
            Panel::of("queue", &[Named { name, leg: false, series }])
        }));
        let limit = transfer.limit.as_ref().map(|it| it.goodput.mbit_per_s());
        for panel in panels.iter_mut().filter(|it| it.unit == "Mbit/s") {
            panel.limit = limit.map(crate::figures::rounded);
        }
        let mut senders = own("phase");
        senders.truncate(1);
        senders.extend(legs("phase"));
        let senders = senders.into_iter().map(|it| Sender {
            name: it.name,
            leg: it.leg,
            phases: phases(it.series),
        });
        let senders = senders.filter(|it| !it.phases.is_empty()).collect();
        let until = panels
            .iter()
            .flat_map(|it| &it.curves)
            .filter_map(|it| it.points.last())
            .fold(0.0, |until: f64, it| until.max(it[0]));
        (until > 0.0).then(|| Self {
            scenario: scenario.to_owned(),
            cell: record.cell.clone(),
            seed: seed(record.seed),
            panels,
            senders,
            until,
        })
    }
}

/// The goodput of `series` as it is drawn.
fn mean(series: &Series, limit: Option<f64>) -> Series {
    let value = over_a_second(&series.time_s, &series.value, limit);
    Series { value, ..series.clone() }
}

fn seed(seed: Seed) -> String {
    seed.to_string()
}

impl Panel {
    fn of(name: &str, curves: &[Named<'_>]) -> Option<Self> {
        let written = &curves.first()?.series.unit;
        let values = curves.iter().flat_map(|it| it.series.value.iter().copied());
        let largest = values.filter(|it| it.is_finite()).fold(0.0, f64::max);
        let (unit, scale) = curves::shown_unit(written, largest);
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let drawn = curves.iter().map(|Named { name, leg, series }| {
            let again = seen.entry(name).or_default();
            *again += 1;
            let name = if *again > 1 { format!("{name} ({again})") } else { name.clone() };
            Curve { name, leg: *leg, points: thinned(series, scale) }
        });
        let curves: Vec<Curve> = drawn.filter(|it| it.points.len() > 1).collect();
        (!curves.is_empty()).then(|| Self { name: name.to_owned(), unit, limit: None, curves })
    }
}

fn thinned(series: &Series, scale: f64) -> Vec<[f64; 2]> {
    crate::downsample::largest_triangles(&series.time_s, &series.value, POINTS_MAX)
        .into_iter()
        .map(|[time, value]| [(time * 1e3).round() / 1e3, crate::figures::rounded(value * scale)])
        .collect()
}

/// Stretches of one phase each.
fn phases(series: &Series) -> Vec<(&'static str, f64, f64)> {
    let steps = series.time_s.windows(2).map(|pair| pair[1] - pair[0]);
    let step = steps.filter(|it| *it > 0.0).fold(f64::INFINITY, f64::min);
    let step = if step.is_finite() { step } else { 0.0 };
    let round = |time: f64| (time * 1e3).round() / 1e3;
    let mut found: Vec<(&'static str, f64, f64)> = Vec::new();
    for (&time, &value) in series.time_s.iter().zip(&series.value) {
        let Some(&name) = PHASES.get(value as usize) else { continue };
        // While nothing is in flight there is no phase, and no sample of one.
        let begin = (time - step).max(0.0);
        match found.last_mut() {
            Some(last) if last.0 == name && begin - last.2 < 1.5 * step => last.2 = round(time),
            _ => found.push((name, round(begin), round(time))),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_stretches_with_gaps_where_nothing_was_on_its_way() {
        let series = Series {
            quantity: "phase".to_owned(),
            place: "file".to_owned(),
            flow: Some(0),
            unit: String::new(),
            time_s: vec![0.2, 0.3, 0.4, 0.5, 2.0, 2.1],
            value: vec![0.0, 0.0, 2.0, 1.0, 1.0, 1.0],
        };
        let expected = [
            ("slow start", 0.1, 0.3),
            ("fast recovery", 0.3, 0.4),
            ("avoidance", 0.4, 0.5),
            ("avoidance", 1.9, 2.1),
        ];
        assert_eq!(phases(&series), expected);
        assert_eq!(phases(&Series { time_s: Vec::new(), value: Vec::new(), ..series }), []);
    }
}
