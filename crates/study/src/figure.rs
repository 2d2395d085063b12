//! The values that are read from a record: one number for each run.

use crate::cell::Cell;
use crate::claim::{Bounds, Verdict};
use crate::measured::Measured;
use crate::queueing;
use crate::sender::{self, Span};
use crate::shared;
use midhop_experiment::limit::Handshake;
use midhop_experiment::metrics;
use midhop_experiment::plan::{Crossing, Direction, Plan, TransferPlan};
use midhop_experiment::record::{LegResult, PhaseTimes, Record, Series, TransferResult};
use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize};

/// The payload of a full segment, for counting segments in bytes.
const SEGMENT_BYTES: f64 = 1448.0;
/// The share of its limit that a transfer has to reach to end its start.
const STARTED_SHARE: f64 = 0.9;

/// One metric of one transfer, over the cells of one scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The name by which claims refer to it.
    pub name: String,
    /// What it shows, in a line.
    pub shows: String,
    /// The scenario from which it comes.
    pub scenario: String,
    /// The transfer; default: the first of the record.
    pub transfer: Option<String>,
    /// The link, for metrics of a link.
    pub link: Option<String>,
    /// The metric.
    pub metric: Metric,
    /// The beginning of the span, for metrics over a span. Default: the run's start.
    #[serde(default)]
    pub from: Duration,
    /// The end of the span, for metrics over a span. Default: the run's end.
    pub until: Option<Duration>,
    /// Which cells: all at these positions.
    #[serde(default)]
    pub at: Cell,
    /// Which statistic of a cell's runs it shows.
    #[serde(default)]
    pub take: Take,
    /// The cells at these positions are the divisors: every other cell is divided by the one that
    /// differs from it in nothing else. A quotient has no unit and no limit.
    pub relative_to: Option<Cell>,
    /// The axis whose cases are the columns of its table. Default: one line for each cell.
    pub columns: Option<String>,
    /// A figure of the same scenario. Each run of this figure is also drawn over it, with two
    /// logarithmic axes. Both figures show the mean, and neither is a quotient.
    pub against: Option<String>,
    /// The values that the study published, and where.
    #[serde(default)]
    pub published: Vec<Published>,
    /// How far our value may be from the published one, as a share of the published one.
    pub within: Option<f64>,
    /// The same in the unit of the metric. Without `within` and `off`, no value of `published` is
    /// judged.
    pub off: Option<f64>,
    /// The reason for the tolerance: where `within` or `off` comes from.
    pub tolerance: Option<String>,
}

/// A value that the study published.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The cell it belongs to.
    pub at: Cell,
    /// The value, in the unit of the metric.
    pub value: f64,
    /// The study's name for the cell.
    pub called: Option<String>,
    /// Which of our parameters was chosen to meet it: then there is nothing to judge.
    pub calibrates: Option<String>,
    /// Why our value differs, if that is known and explained: then it is no fault.
    pub departs: Option<String>,
}

/// Which statistic of a cell's runs a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Take {
    /// Their mean.
    #[default]
    Mean,
    /// The greatest of them. Its interval is that of the mean of the greatest of as many runs, as
    /// if runs were distributed normally.
    Greatest,
}

/// A quantity that is read from a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Time from the first SYN to the last byte; none for an incomplete transfer.
    Time,
    /// Payload over that time.
    Goodput,
    /// The same in thousands of bytes per second.
    GoodputKb,
    /// The sum of the flows' goodput, each over its own time.
    FlowsKb,
    /// Payload that arrives from `from` to `until`, divided by that span.
    Span,
    /// The same for all transfers together.
    SpanOfAll,
    /// How long after the first SYN the goodput first reaches nine tenths of its limit, and stays for
    /// another sample.
    Start,
    /// Ideal time divided by measured time.
    Efficiency,
    /// Goodput divided by the rate of the narrowest link (effective over provisioned bandwidth).
    Epb,
    /// How evenly the flows share the path: Jain's index.
    Jain,
    /// Segments that were retransmitted over `link` (by the proxies on it, otherwise by the
    /// sender), plus the segments of data that arrived and was discarded because its transfer
    /// began again. They are divided by the segments that the payload needs: that of the transfer
    /// or, if they carried more, that of everything that the same proxies carried.
    Resent,
    /// What was retransmitted over `link`, as for `resent`, beyond what the losses there account
    /// for.
    Excess,
    /// Goodput, or the payload that arrives from `from` to `until` divided by that span. It is
    /// divided by what the transfer's flows would get if they had parts equal to those of all flows
    /// of cross traffic that send all the time over the path's narrowest link.
    Share,
    /// What those flows of cross traffic got while the transfer ran, from `from` to `until`,
    /// divided by their equal parts; on kernels only.
    ShareOfOthers,
    /// Packets that `link` dropped in the direction of the data, divided by those that entered it
    /// in this direction.
    Dropped,
    /// The mean queue before `link` in the direction of the data, from `from` to `until`.
    Queue,
    /// The queueing delay before `link` in the direction of the data: the median of samples from
    /// `from` to `until`.
    QueueingMedian,
    /// The 95th percentile of it.
    QueueingP95,
    /// The mean of the data that the sender had sent and that were not cumulatively acknowledged;
    /// in virtual time only.
    OutstandingMean,
    /// The maximum of it.
    OutstandingMax,
    /// The mean congestion window of the sender over `link`, from `from` to `until`: all
    /// connections of the last proxy before the link together, or without one that of the
    /// transfer's own sender.
    Window,
    /// The mean smoothed round-trip time of this sender.
    RoundTrip,
    /// The longest time that a flow waited for payload in the second from a handover on: the median
    /// over flows and handovers.
    StallMedian,
    /// The 99th percentile of it.
    StallP99,
    /// The state of flows that moved to another proxy, including copies made before the handover.
    State,
    /// Flows that were broken off, divided by all flows.
    Broken,
    /// How often a file or object began again because its connection was cut short.
    Restarts,
    /// The share of time that the sender over `link` (the proxies on it; the transfer's own sender
    /// if no link is named) spent in slow start or in what its algorithm has instead. Only time
    /// with data in flight counts.
    SlowStart,
    /// The same for congestion avoidance: the sender follows its algorithm's law.
    Avoidance,
    /// The same for repairing losses without a timeout, or reducing the window for a mark.
    Recovery,
    /// The same for the recovery from a retransmission timeout.
    Timeout,
}

impl Metric {
    /// The unit of its values.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Time | Self::Start | Self::StallMedian | Self::StallP99 => "s",
            Self::Goodput | Self::Span | Self::SpanOfAll => "Mbit/s",
            Self::GoodputKb | Self::FlowsKb => "kB/s",
            Self::OutstandingMean
            | Self::OutstandingMax
            | Self::Queue
            | Self::Window
            | Self::State => "kB",
            Self::RoundTrip | Self::QueueingMedian | Self::QueueingP95 => "ms",
            Self::Jain | Self::Restarts => "",
            Self::Efficiency | Self::Epb | Self::Resent | Self::Dropped | Self::Broken => "%",
            Self::Excess | Self::Share | Self::ShareOfOthers => "%",
            Self::SlowStart | Self::Avoidance | Self::Recovery | Self::Timeout => "%",
        }
    }
}

impl Figure {
    /// The value of this figure in `record`; none where the run has none.
    pub fn read(&self, record: &Record) -> Option<f64> {
        let transfer = self.transfer_of(record)?;
        match self.metric {
            Metric::Time => transfer.complete.then(|| transfer.took.as_s_f64()),
            Metric::Goodput => Some(transfer.goodput.mbit_per_s()),
            Metric::GoodputKb => Some(kb_per_s(transfer.goodput)),
            Metric::FlowsKb => Some(transfer.flows.iter().map(|flow| kb_per_s(flow.goodput)).sum()),
            Metric::Span => self.span(record, transfer),
            Metric::SpanOfAll => record.transfers.iter().map(|it| self.span(record, it)).sum(),
            Metric::Start => {
                let series = series(record, "goodput", &transfer.name, None)?;
                let capacity = transfer.limit.as_ref()?.goodput.mbit_per_s();
                let start = began(transfer)?;
                let reached = metrics::start_up_time(series, start, capacity, STARTED_SHARE)?;
                Some(reached.as_s_f64())
            }
            Metric::Efficiency => Some(transfer.limit.as_ref()?.efficiency * 100.0),
            Metric::Epb => {
                let plan = Plan::from_json(&record.plan).ok()?;
                let sold = provisioned(&plan, plan.transfer(&transfer.name)?)?;
                metrics::epb_ratio(transfer.goodput, sold).map(|share| share * 100.0)
            }
            Metric::Jain => {
                let shares: Vec<f64> =
                    transfer.flows.iter().map(|flow| kb_per_s(flow.goodput)).collect();
                metrics::jain_index(&shares)
            }
            Metric::Resent => self.resent(record, transfer),
            Metric::Excess => {
                let link = self.link.as_deref()?;
                shared::excess(record, transfer, link, self.resent(record, transfer)?)
            }
            Metric::Share => {
                let whole = self.from.is_zero() && self.until.is_none();
                let goodput = whole.then(|| transfer.goodput.mbit_per_s());
                shared::share(record, transfer, goodput.or_else(|| self.span(record, transfer))?)
            }
            Metric::ShareOfOthers => {
                shared::share_of_others(record, transfer, self.from, self.until)
            }
            Metric::Dropped => self.dropped(record, transfer),
            Metric::Queue => {
                let (_, _, queue) = self.queue(record, transfer)?;
                self.spanned().mean(queue).map(|bytes| bytes / 1e3)
            }
            Metric::QueueingMedian => self.queueing(record, transfer, 0.5),
            Metric::QueueingP95 => self.queueing(record, transfer, 0.95),
            Metric::OutstandingMean => {
                let values = &series(record, "outstanding", &transfer.name, Some(0))?.value;
                Some(values.iter().sum::<f64>() / values.len() as f64 / 1e3)
            }
            Metric::OutstandingMax => {
                let values = &series(record, "outstanding", &transfer.name, Some(0))?.value;
                values.iter().copied().reduce(f64::max).map(|most| most / 1e3)
            }
            Metric::Window => {
                let window = sender::window(record, transfer, self.link.as_deref(), self.spanned());
                window.map(|bytes| bytes / 1e3)
            }
            Metric::RoundTrip => {
                sender::round_trip(record, transfer, self.link.as_deref(), self.spanned())
            }
            Metric::StallMedian => Some(record.handovers.as_ref()?.stalls.p50.as_s_f64()),
            Metric::StallP99 => Some(record.handovers.as_ref()?.stalls.p99.as_s_f64()),
            Metric::State => Some(record.handovers.as_ref()?.state_bytes.get() as f64 / 1e3),
            Metric::Broken => {
                let broken = transfer.flows.iter().filter(|flow| flow.error.is_some()).count();
                Some(broken as f64 / transfer.flows.len().max(1) as f64 * 100.0)
            }
            Metric::Restarts => Some(transfer.restarts.count.into()),
            Metric::SlowStart => self.phase_share(record, transfer, |phases| phases.slow_start),
            Metric::Avoidance => self.phase_share(record, transfer, |phases| phases.avoidance),
            Metric::Recovery => self.phase_share(record, transfer, |phases| phases.recovery),
            Metric::Timeout => self.phase_share(record, transfer, |phases| phases.loss),
        }
    }

    /// The unit of its values.
    pub fn unit(&self) -> &'static str {
        if self.relative_to.is_some() { "" } else { self.metric.unit() }
    }

    /// Whether it can be drawn over another figure: each of its runs has its own value, and their
    /// mean is the result.
    pub(crate) fn is_of_runs(&self) -> bool {
        self.relative_to.is_none() && self.take == Take::Mean
    }

    /// The allowed difference from `value`, in the unit of the metric; none where nothing is
    /// judged.
    pub fn allowance(&self, value: f64) -> Option<f64> {
        self.off.or_else(|| self.within.map(|share| share * value))
    }

    /// The verdict on `published` for `measured`; none where it is only shown.
    pub fn judge(&self, published: &Published, measured: &Measured, level: f64) -> Option<Verdict> {
        if published.calibrates.is_some() {
            return Some(Verdict::Calibrated);
        }
        let off = self.allowance(published.value)?;
        let bounds = Bounds { low: published.value - off, high: published.value + off };
        let ours = measured.cell(&self.name, &published.at).and_then(|cell| cell.estimate(level));
        Some(ours.map_or(Verdict::Open, |ours| bounds.judge(ours)).unless(&published.departs))
    }

    /// The ratio of ideal to measured time of the same transfer, where the figure is a mean. Range:
    /// 0 to 1.
    pub fn efficiency(&self, record: &Record) -> Option<f64> {
        let of_one = self.metric != Metric::SpanOfAll;
        if self.relative_to.is_some() || self.take != Take::Mean || !of_one {
            return None;
        }
        Some(self.transfer_of(record)?.limit.as_ref()?.efficiency)
    }

    /// The physical limit of this figure in the run of `record`, in the unit of the metric; none
    /// where there is none.
    pub fn limit(&self, record: &Record) -> Option<f64> {
        if self.relative_to.is_some() {
            return None;
        }
        let transfer = self.transfer_of(record)?;
        let limit = transfer.limit.as_ref()?;
        match self.metric {
            Metric::Time => transfer.complete.then(|| limit.time.as_s_f64()),
            Metric::Goodput => Some(limit.goodput.mbit_per_s()),
            Metric::GoodputKb | Metric::FlowsKb => Some(kb_per_s(limit.goodput)),
            Metric::Efficiency => Some(100.0),
            Metric::Epb => {
                let plan = Plan::from_json(&record.plan).ok()?;
                let sold = provisioned(&plan, plan.transfer(&transfer.name)?)?;
                let goodput = Rate::of(transfer.bytes, limit.time);
                metrics::epb_ratio(goodput, sold).map(|share| share * 100.0)
            }
            Metric::Span if limit.drawn.is_some() => {
                let plan = Plan::from_json(&record.plan).ok()?;
                let planned = plan.transfer(&transfer.name)?;
                let path = plan.drawn_path(planned)?;
                let ended = transfer.flows.iter().map(|flow| flow.end).max();
                let until = self.until.or(ended)?;
                let [before, all] = [self.from, until].map(|at| path.carries(planned.start, at));
                let moved = all.saturating_sub(before);
                Some(Rate::of(moved, until.saturating_sub(self.from)).mbit_per_s())
            }
            Metric::Span if self.from.is_zero() => {
                let plan = Plan::from_json(&record.plan).ok()?;
                let planned = plan.transfer(&transfer.name)?;
                let sending = self.until?.saturating_sub(planned.start);
                if sending.is_zero() {
                    return None;
                }
                let mean = planned.limit.as_ref()?.mean(planned.opens);
                let moved = mean.average(sending, Handshake::Spared).bytes_in(sending);
                Some(Rate::of(moved, self.until?).mbit_per_s())
            }
            Metric::Span => Some(limit.goodput.mbit_per_s()),
            _ => None,
        }
    }

    fn transfer_of<'r>(&self, record: &'r Record) -> Option<&'r TransferResult> {
        match &self.transfer {
            Some(name) => record.transfers.iter().find(|transfer| transfer.name == *name),
            None => record.transfers.first(),
        }
    }

    /// The mean of the goodput's samples within the span; after the last one, the goodput counts as
    /// zero.
    fn span(&self, record: &Record, transfer: &TransferResult) -> Option<f64> {
        let series = series(record, "goodput", &transfer.name, None)?;
        let from = self.from.as_s_f64();
        let until = self.until.map_or(f64::INFINITY, |until| until.as_s_f64());
        let last = *series.time_s.last()?;
        let end = if until.is_finite() { until } else { last };
        let mut moved = 0.0;
        let mut before = span_start(series, transfer);
        for (&time, &value) in series.time_s.iter().zip(&series.value) {
            let within = time.min(end) - before.max(from);
            moved += value * within.max(0.0);
            before = time;
        }
        (end > from).then(|| moved / (end - from))
    }

    fn resent(&self, record: &Record, transfer: &TransferResult) -> Option<f64> {
        let link = self.link.as_deref();
        let legs = record.legs.iter().filter(|leg| link.is_none_or(|link| leg.link == link));
        let legs: Vec<&LegResult> = legs.collect();
        let discarded = transfer.restarts.discarded;
        let (again, needed) = if legs.is_empty() {
            (transfer.flows.iter().map(|flow| flow.retransmissions).sum(), transfer.bytes)
        } else {
            let carried: Bytes = legs.iter().map(|leg| leg.bytes).sum();
            let again: u64 = legs.iter().map(|leg| leg.retransmissions).sum();
            (again, carried.saturating_sub(discarded).max(transfer.bytes))
        };
        let segments = |bytes: Bytes| bytes.get() as f64 / SEGMENT_BYTES;
        let again = again as f64 + segments(discarded);
        (needed > Bytes::ZERO).then(|| again / segments(needed) * 100.0)
    }

    /// The share of `phase` in the senders' time; none where one of them was not watched.
    fn phase_share(
        &self,
        record: &Record,
        transfer: &TransferResult,
        phase: fn(PhaseTimes) -> Duration,
    ) -> Option<f64> {
        let watched: Vec<Option<PhaseTimes>> = match &self.link {
            Some(link) => {
                let on_it = record.legs.iter().filter(|leg| leg.link == *link);
                on_it.map(|leg| leg.phases).collect()
            }
            None => transfer.flows.iter().map(|flow| flow.phases).collect(),
        };
        let mut times = PhaseTimes::default();
        for phases in watched {
            times += phases?;
        }
        let total = times.total().as_s_f64();
        (total > 0.0).then(|| phase(times).as_s_f64() / total * 100.0)
    }

    /// The plan, the figure's link on the path of `transfer`, and its queue over time.
    fn queue<'r>(
        &self,
        record: &'r Record,
        transfer: &TransferResult,
    ) -> Option<(Plan, Crossing, &'r Series)> {
        let plan = Plan::from_json(&record.plan).ok()?;
        let mut route = plan.transfer(&transfer.name)?.route.iter();
        let crossing = route.find(|crossing| Some(&crossing.link) == self.link.as_ref())?.clone();
        let place = format!("{}.{}", crossing.link, crossing.direction.name());
        let queue = series(record, "queue", &place, None)?;
        Some((plan, crossing, queue))
    }

    fn queueing(&self, record: &Record, transfer: &TransferResult, share: f64) -> Option<f64> {
        let (plan, crossing, queue) = self.queue(record, transfer)?;
        queueing::quantile(&plan, &crossing, queue, self.spanned(), share)
    }

    fn spanned(&self) -> Span {
        Span { from: self.from, until: self.until }
    }

    fn dropped(&self, record: &Record, transfer: &TransferResult) -> Option<f64> {
        let own = shared::on_the_way(record, transfer, self.link.as_deref()?)?;
        let dropped: u64 = own.drops.values().sum();
        (own.packets_in > 0).then(|| dropped as f64 / own.packets_in as f64 * 100.0)
    }
}

/// The rate of the narrowest link on the path of `transfer`.
fn provisioned(plan: &Plan, transfer: &TransferPlan) -> Option<Rate> {
    let at = &transfer.limit.as_ref()?.bottleneck;
    let link = plan.link(&at.link)?;
    match at.direction {
        Direction::Down => link.down.rate_max(),
        Direction::Up => link.up.rate_max(),
    }
}

/// When the first SYN was sent.
fn began(transfer: &TransferResult) -> Option<Duration> {
    transfer.flows.iter().map(|flow| flow.start).min()
}

/// The beginning of the interval over which the first sample of `series` is the mean: samples come
/// at equal intervals, except the last, which may come sooner. Unit: seconds.
fn span_start(series: &Series, transfer: &TransferResult) -> f64 {
    let widest = series.time_s.windows(2).map(|pair| pair[1] - pair[0]).reduce(f64::max);
    let first = series.time_s.first().copied().unwrap_or_default();
    let start = match widest {
        Some(interval) => first - interval,
        None => began(transfer).map_or(0.0, Duration::as_s_f64),
    };
    start.max(0.0).min(first)
}

fn kb_per_s(rate: Rate) -> f64 {
    rate.bits_per_s() as f64 / 8e3
}

fn series<'r>(
    record: &'r Record,
    quantity: &str,
    place: &str,
    flow: Option<u32>,
) -> Option<&'r Series> {
    record
        .series
        .iter()
        .find(|series| series.quantity == quantity && series.place == place && series.flow == flow)
        .filter(|series| !series.value.is_empty())
}
