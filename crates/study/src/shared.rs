//! How much of a shared link a transfer gets, and how much it leaves to others.
//!
//! An *equal part* is the limit of the path divided by the number of flows that are entitled to it:
//! those of the transfer, and those of cross traffic that sends all the time over the same
//! narrowest link in the same direction. Flows of a tunnel count individually, however few
//! connections carry them.

use midhop_experiment::plan::{Plan, TransferPlan};
use midhop_experiment::record::{LinkResult, Record, Series, TransferResult};
use midhop_units::Duration;

/// The equal part of one flow on the path of `transfer`. Unit: Mbit/s.
fn equal_part(plan: &Plan, transfer: &TransferPlan) -> Option<f64> {
    let others: u32 = plan.rivals(transfer).map(|(_, flows)| flows).sum();
    let all = f64::from(transfer.work.flows().max(1)) + f64::from(others);
    Some(transfer.limit.as_ref()?.goodput.mbit_per_s() / all)
}

/// A transfer's goodput, in Mbit/s, relative to the equal parts of its flows. Unit: percent.
pub(crate) fn share(record: &Record, transfer: &TransferResult, goodput: f64) -> Option<f64> {
    let plan = Plan::from_json(&record.plan).ok()?;
    let planned = plan.transfer(&transfer.name)?;
    let part = equal_part(&plan, planned)? * f64::from(planned.work.flows().max(1));
    (part > 0.0).then(|| goodput / part * 100.0)
}

/// What others received while the transfer ran, between `from` and `until`, relative to their equal
/// parts. Unit: percent. None where there are none, or their arrivals were not recorded.
pub(crate) fn share_of_others(
    record: &Record,
    transfer: &TransferResult,
    from: Duration,
    until: Option<Duration>,
) -> Option<f64> {
    let plan = Plan::from_json(&record.plan).ok()?;
    let planned = plan.transfer(&transfer.name)?;
    let [began, ended] = [
        transfer.flows.iter().map(|flow| flow.start).min()?,
        transfer.flows.iter().map(|flow| flow.end).max()?,
    ];
    let from = began.max(from).as_s_f64();
    let until = until.map_or(ended, |until| ended.min(until)).as_s_f64();
    let (mut got, mut flows) = (0.0, 0);
    for (traffic, count) in plan.rivals(planned) {
        let named = |it: &&Series| it.quantity == "goodput" && it.place == traffic.name;
        got += mean(record.series.iter().find(named)?, from, until)?;
        flows += count;
    }
    let parts = equal_part(&plan, planned)? * f64::from(flows);
    (parts > 0.0).then(|| got / parts * 100.0)
}

/// The mean of `series` from `from` to `until`; each sample is the mean since the one before. Unit
/// of these: seconds.
fn mean(series: &Series, from: f64, until: f64) -> Option<f64> {
    let (mut sum, mut before) = (0.0, 0.0);
    for (&time, &value) in series.time_s.iter().zip(&series.value) {
        sum += value * (time.min(until) - f64::max(before, from)).max(0.0);
        before = time;
    }
    (until > from).then(|| sum / (until - from))
}

/// The part of `resent`, in percent of what had to be sent, that the losses on `link` do not
/// explain: they explain p / (1 − p), where p is the share of packets that the link dropped in the
/// direction of the data. Unit: percent.
pub(crate) fn excess(
    record: &Record,
    transfer: &TransferResult,
    link: &str,
    resent: f64,
) -> Option<f64> {
    let own = on_the_way(record, transfer, link)?;
    let dropped: u64 = own.drops.values().sum();
    let kept = own.packets_in.saturating_sub(dropped);
    (kept > 0).then(|| resent - dropped as f64 / kept as f64 * 100.0)
}

/// The packets on `link` in the direction of the transfer's data.
pub(crate) fn on_the_way<'r>(
    record: &'r Record,
    transfer: &TransferResult,
    link: &str,
) -> Option<&'r LinkResult> {
    let plan = Plan::from_json(&record.plan).ok()?;
    let route = &plan.transfer(&transfer.name)?.route;
    let direction = route.iter().find(|crossing| crossing.link == link)?.direction.name();
    record.links.iter().find(|it| it.name == link && it.direction == direction)
}
