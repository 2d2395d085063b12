//! Groups runs of the same cell into one row per transfer.

use crate::axes::{Axes, Role};
use midhop_experiment::record::{PhaseTimes, Record, Runner, TransferResult};
use midhop_study::{Estimate, LEVEL};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// One transfer in one cell of the experiment, over all its seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    /// The scenario's title.
    pub title: String,
    /// The place of the runs (simulator, laboratory, …).
    pub place: Runner,
    /// The cell's position: axis → label, as in the scenario.
    pub cell: BTreeMap<String, String>,
    /// The transfer's name.
    pub transfer: String,
    /// The seeds that ran.
    pub seeds: Vec<u64>,
    /// Number of runs that count: the valid ones, or all if none is valid.
    pub counted: usize,
    /// Number of valid runs.
    pub valid: usize,
    /// Number of runs that count and delivered everything.
    pub complete: usize,
    /// Goodput: delivered payload over time. Unit: Mbit/s.
    #[serde(rename = "goodput_bit_per_s", serialize_with = "written_in_bit_per_s")]
    #[cfg_attr(
        feature = "schema",
        schemars(
            with = "Option<Written>",
            description = "Payload that arrived over the time it took."
        )
    )]
    pub goodput_mbit_per_s: Option<Estimate>,
    /// Time from the first SYN to the last byte. Unit: seconds. A lower bound where `complete < counted`.
    #[serde(serialize_with = "written")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Written>"))]
    pub time_s: Option<Estimate>,
    /// Efficiency: the shortest possible time over the measured one, for the delivered bytes. Range: 0 to 1 in a correct run.
    #[serde(serialize_with = "written")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Written>"))]
    pub efficiency: Option<Estimate>,
    /// Segments that the transfer's own sender retransmitted, for all flows together.
    #[serde(serialize_with = "written")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Written>"))]
    pub retransmissions: Option<Estimate>,
    /// Segments that proxies on the path retransmitted, on all their legs and for all transfers of
    /// the run. None without a proxy, or if it was not observed.
    #[serde(serialize_with = "written")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Written>"))]
    pub proxy_retransmissions: Option<Estimate>,
    /// Payload delivered in the first run that counts. Unit: bytes.
    pub bytes: u64,
    /// The minimum time of the transfer on this path. Unit: seconds.
    pub limit_time_s: Option<f64>,
    /// The maximum goodput of the path for a long transfer. Unit: Mbit/s.
    #[serde(rename = "limit_goodput_bit_per_s", serialize_with = "in_bit_per_s")]
    #[cfg_attr(
        feature = "schema",
        schemars(description = "The largest goodput that the path allows over a long transfer.")
    )]
    pub limit_goodput_mbit_per_s: Option<f64>,
    /// Whether the transfer is a page of objects.
    pub page: bool,
    /// The faults of the runs: one sentence each, with the seed of the run.
    pub faults: Vec<String>,
}

/// An estimate as `midhop report --json` writes it.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Estimate"))]
struct Written {
    /// The mean.
    mean: f64,
    /// Half the width of the confidence interval; none for a single sample.
    half_width: Option<f64>,
    /// Number of runs.
    samples: usize,
}

/// Writes an estimate.
fn written<S: Serializer>(estimate: &Option<Estimate>, to: S) -> Result<S::Ok, S::Error> {
    written_times(1.0, estimate, to)
}

/// An estimate of a rate in Mbit/s.
fn written_in_bit_per_s<S: Serializer>(
    estimate: &Option<Estimate>,
    to: S,
) -> Result<S::Ok, S::Error> {
    written_times(1e6, estimate, to)
}

fn written_times<S: Serializer>(
    scale: f64,
    estimate: &Option<Estimate>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let written = |it: Estimate| Written {
        mean: it.mean * scale,
        half_width: it.margin.map(|half| half * scale),
        samples: it.runs,
    };
    estimate.map(written).serialize(to)
}

/// A rate in Mbit/s.
fn in_bit_per_s<S: Serializer>(mbit_per_s: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    mbit_per_s.map(|rate| rate * 1e6).serialize(to)
}

impl Row {
    /// Whether every counted run delivered everything.
    pub fn is_complete(&self) -> bool {
        self.complete == self.counted
    }

    /// Whether the seeds differ in any figure: without randomness they do not.
    pub(crate) fn has_spread(&self) -> bool {
        let figures = [self.goodput_mbit_per_s, self.time_s, self.efficiency, self.retransmissions];
        figures.into_iter().flatten().any(|figure| figure.margin.is_some_and(|half| half > 0.0))
    }
}

/// Missing runs: cells without any, and cells with fewer runs than others. One sentence, or none.
///
/// Measurements without a plan are no experiment: nothing is missing in them.
pub(crate) fn gaps(records: &[Record]) -> Option<String> {
    const NAMED: usize = 3;
    let planned: Vec<Record> =
        records.iter().filter(|record| Runner::of(record).runs_plans()).cloned().collect();
    let records = &planned[..];
    if records.is_empty() {
        return None;
    }
    let missing = Axes::of(records).missing(records);
    let rows = rows(records);
    let most = rows.iter().map(|row| row.seeds.len()).max().unwrap_or(0);
    let fewer = rows.iter().filter(|row| row.seeds.len() < most).count();
    let mut parts = Vec::new();
    if !missing.is_empty() {
        let more = missing.len().saturating_sub(NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let named: Vec<&str> = missing.iter().take(NAMED).map(String::as_str).collect();
        parts.push(format!("there is no record of: {}{more}", named.join("; ")));
    }
    if fewer > 0 {
        parts.push(format!("{fewer} of {} rows have fewer than {most} runs", rows.len()));
    }
    (!parts.is_empty()).then(|| format!("Not the whole experiment: {}.", parts.join("; ")))
}

/// The records of each scenario, by its title, in each place, each as one contiguous slice. Cells
/// and transfers of different scenarios may have the same names without being comparable, and no
/// mean is taken over the simulator and the laboratory.
pub(crate) fn sets(records: &[Record]) -> impl Iterator<Item = &[Record]> {
    records.chunk_by(|one, other| one.title == other.title && Runner::of(one) == Runner::of(other))
}

/// One row per cell and transfer of each scenario and place, in the order for comparisons:
/// transfer, conditions, configurations.
pub fn rows(records: &[Record]) -> Vec<Row> {
    rows_at(records, LEVEL)
}

/// The same with intervals at a confidence of `level`. Range: 0 to 1.
pub fn rows_at(records: &[Record], level: f64) -> Vec<Row> {
    sets(records).flat_map(|records| rows_of_one(records, level)).collect()
}

fn rows_of_one(records: &[Record], level: f64) -> Vec<Row> {
    let axes = Axes::of(records);
    // Cells keep the order of the records, and so the author's order of cases.
    let mut groups: Vec<Group<'_>> = Vec::new();
    for record in records {
        for transfer in &record.transfers {
            let found = groups
                .iter_mut()
                .find(|(cell, name, _)| *cell == &record.cell && *name == transfer.name);
            match found {
                Some((_, _, runs)) => runs.push((record, transfer)),
                None => groups.push((&record.cell, &transfer.name, vec![(record, transfer)])),
            }
        }
    }
    let mut names: Vec<&str> = Vec::new();
    for (_, name, _) in &groups {
        if !names.contains(name) {
            names.push(name);
        }
    }
    groups.sort_by_cached_key(|(cell, name, _)| {
        let place = names.iter().position(|known| known == name);
        let order = |role| axes.order(cell, role);
        (order(Role::Workload), place, order(Role::Condition), order(Role::Configuration))
    });
    groups.into_iter().map(|(cell, name, runs)| row(cell, name, &runs, level)).collect()
}

/// Cell, transfer, and the runs of both.
type Group<'a> = (&'a BTreeMap<String, String>, &'a str, Vec<(&'a Record, &'a TransferResult)>);

/// The faults of one transfer of one run, except that it is incomplete: the run's own faults, and
/// contradictions in the figures.
pub(crate) fn faults(record: &Record, transfer: &TransferResult) -> Vec<String> {
    let mut faults = record.validity.faults.clone();
    for flow in &transfer.flows {
        if let (Some(sent), Some(received)) = (&flow.hash_sent, &flow.hash_received)
            && sent != received
        {
            faults.push(format!("flow {}: the bytes received are not the bytes sent", flow.id));
        }
    }
    if let Some(limit) = transfer
        .limit
        .as_ref()
        // A limit from outside, such as that of a measured link, is not known as exactly.
        .filter(|limit| limit.efficiency > 1.0 || !limit.efficiency.is_finite())
        .filter(|_| Runner::of(record).runs_plans())
    {
        faults.push(format!(
            "efficiency {:.1} %: faster than physics allows, so the measurement is wrong",
            limit.efficiency * 100.0
        ));
    }
    faults
}

/// The transfers of the runs that count: the valid ones.
pub(crate) fn counted_runs<'a>(runs: &[(&Record, &'a TransferResult)]) -> Vec<&'a TransferResult> {
    let valid =
        |(record, transfer): &&(&Record, &TransferResult)| faults(record, transfer).is_empty();
    runs.iter().filter(valid).map(|&(_, transfer)| transfer).collect()
}

/// The limit of several runs: their common one or, where a link's draws differ, their mean.
fn common(limits: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let first = limits.clone().next()?;
    if limits.clone().all(|limit| limit == first) {
        return Some(first);
    }
    let count = limits.clone().count();
    Some(limits.sum::<f64>() / count as f64)
}

fn row(
    cell: &BTreeMap<String, String>,
    name: &str,
    runs: &[(&Record, &TransferResult)],
    level: f64,
) -> Row {
    let judged: Vec<(&Record, &TransferResult, Vec<String>)> = runs
        .iter()
        .map(|&(record, transfer)| (record, transfer, faults(record, transfer)))
        .collect();
    let valid = judged.iter().filter(|(_, _, faults)| faults.is_empty()).count();
    let (sources, counted): (Vec<&Record>, Vec<&TransferResult>) = judged
        .iter()
        .filter(|(_, _, faults)| valid == 0 || faults.is_empty())
        .map(|&(record, transfer, _)| (record, transfer))
        .unzip();
    let over = |figure: &dyn Fn(&TransferResult) -> Option<f64>| {
        let samples: Option<Vec<f64>> = counted.iter().map(|transfer| figure(transfer)).collect();
        samples.and_then(|samples| Estimate::of(&samples, level))
    };
    let by_proxies: Option<Vec<f64>> = sources
        .iter()
        .map(|record| proxy_retransmissions(record).map(|segments| segments as f64))
        .collect();
    let limits = || counted.iter().filter_map(|transfer| transfer.limit.as_ref());
    Row {
        title: runs.first().map_or_else(String::new, |(record, _)| record.title.clone()),
        place: runs.first().map_or_else(Runner::default, |(record, _)| Runner::of(record)),
        cell: cell.clone(),
        transfer: name.to_owned(),
        seeds: runs.iter().map(|(record, _)| record.seed.0).collect(),
        counted: counted.len(),
        valid,
        complete: counted.iter().filter(|transfer| transfer.complete).count(),
        goodput_mbit_per_s: over(&|transfer| Some(transfer.goodput.mbit_per_s())),
        time_s: over(&|transfer| Some(transfer.took.as_s_f64())),
        efficiency: over(&|transfer| transfer.limit.as_ref().map(|limit| limit.efficiency)),
        retransmissions: over(&|transfer| Some(retransmissions(transfer) as f64)),
        proxy_retransmissions: by_proxies.and_then(|samples| Estimate::of(&samples, level)),
        bytes: counted.first().map_or(0, |transfer| transfer.bytes.get()),
        limit_time_s: common(limits().map(|limit| limit.time.as_s_f64())),
        limit_goodput_mbit_per_s: common(limits().map(|limit| limit.goodput.mbit_per_s())),
        page: counted.iter().any(|transfer| !transfer.objects.is_empty()),
        faults: judged
            .iter()
            .flat_map(|(record, _, faults)| {
                faults.iter().map(|fault| format!("{}: {fault}", run(record)))
            })
            .collect(),
    }
}

/// The name of a record among the runs of its cell: its seed, or its number where nothing was
/// drawn.
pub(crate) fn run(record: &Record) -> String {
    let word = if Runner::of(record).runs_plans() { "seed" } else { "run" };
    format!("{word} {}", record.seed)
}

/// Retransmissions of the transfer's sender, for all flows together.
pub(crate) fn retransmissions(transfer: &TransferResult) -> u64 {
    transfer.flows.iter().map(|flow| flow.retransmissions).sum()
}

/// The time in each phase of the transfer's senders, for all flows together; none where it was not
/// observed.
pub(crate) fn phases(transfer: &TransferResult) -> Option<PhaseTimes> {
    let known = transfer.flows.iter().filter_map(|flow| flow.phases);
    known.reduce(|mut sum, phases| {
        sum += phases;
        sum
    })
}

/// Retransmissions of a run's proxies, for all legs together; none where no proxy was watched.
pub(crate) fn proxy_retransmissions(record: &Record) -> Option<u64> {
    let legs = &record.legs;
    (!legs.is_empty()).then(|| legs.iter().map(|leg| leg.retransmissions).sum())
}
