//! The state of the sender over a link: its window and its round trips.
//!
//! The sender over a link depends on the path of the data: it is the last proxy before the link
//! that splits connections, otherwise the transfer's own sender.

use midhop_experiment::plan::{Crossing, Plan};
use midhop_experiment::record::{Record, Series, TransferResult};
use midhop_units::Duration;

/// The time whose samples count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Its beginning.
    pub from: Duration,
    /// Its end.
    pub until: Option<Duration>,
}

impl Span {
    /// The mean of the samples of `series` within it; none without one.
    pub(crate) fn mean(self, series: &Series) -> Option<f64> {
        let within = self.samples(series);
        let (count, sum) =
            within.fold((0, 0.0), |(count, sum), (_, value)| (count + 1, sum + value));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// The samples of `series` within it: times in seconds, and values.
    pub(crate) fn samples(self, series: &Series) -> impl Iterator<Item = (f64, f64)> {
        let until = self.until.map_or(f64::INFINITY, Duration::as_s_f64);
        let span = self.from.as_s_f64()..until;
        let samples = series.time_s.iter().copied().zip(series.value.iter().copied());
        samples.filter(move |(time, _)| span.contains(time))
    }
}

/// The mean congestion window of the sender over `link`, summed over its connections. Unit: bytes.
pub(crate) fn window(
    record: &Record,
    transfer: &TransferResult,
    link: Option<&str>,
    span: Span,
) -> Option<f64> {
    let means = means(record, transfer, link, "cwnd", span);
    (!means.is_empty()).then(|| means.iter().sum())
}

/// The mean smoothed round trip of the sender over `link`, over its connections. Unit: ms.
pub(crate) fn round_trip(
    record: &Record,
    transfer: &TransferResult,
    link: Option<&str>,
    span: Span,
) -> Option<f64> {
    let means = means(record, transfer, link, "rtt", span);
    (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64)
}

/// The mean of each curve of `quantity` of the sender over `link`: one for a proxy, one for each
/// connection of the transfer's own sender.
fn means(
    record: &Record,
    transfer: &TransferResult,
    link: Option<&str>,
    quantity: &str,
    span: Span,
) -> Vec<f64> {
    let leg = link.and_then(|link| leg_before(record, transfer, link));
    let of_sender = |series: &&Series| match &leg {
        Some(leg) => series.place == *leg && series.flow.is_none(),
        None => series.place == transfer.name && series.flow.is_some(),
    };
    let curves = record.series.iter().filter(|series| series.quantity == quantity);
    curves.filter(of_sender).filter_map(|series| span.mean(series)).collect()
}

/// The leg of the last proxy that sends the data of `transfer` towards `link`, by its name in
/// curves.
fn leg_before(record: &Record, transfer: &TransferResult, link: &str) -> Option<String> {
    let plan = Plan::from_json(&record.plan).ok()?;
    let route = &plan.transfer(&transfer.name)?.route;
    let last = route.iter().position(|crossing| crossing.link == link)?;
    let leg = |crossing: &Crossing| {
        let [node, _] = plan.ends(crossing)?;
        let on_it = record.legs.iter().find(|leg| leg.node == node && leg.link == crossing.link);
        on_it.map(|leg| leg.place())
    };
    route[..=last].iter().rev().find_map(leg)
}
