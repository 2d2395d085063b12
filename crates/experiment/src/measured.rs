//! Measurements without a scenario: by `midhop meter run`, by `midhop meter link`, by iperf3.
//!
//! Each becomes a [`Record`], so that reports and comparisons accept it beside runs of scenarios.
//! Such a record has its own [`Runner`], which gives its label. It has no seed and no plan, and so
//! no physical limit, until a plan is given ([`limit_by`]). For a measured link, the plan is the
//! link itself.

mod iperf3;
mod link;
mod run;
mod tables;

pub use iperf3::Iperf3Report;
pub use link::{LinkDirection, LinkReport};
pub use run::{Gap, MeterReport};

use crate::limit::Opener;
use crate::plan::{Plan, TransferPlan};
use crate::record::{Record, Runner};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// The names of `transfers` of a measurement over TCP: towards the client, away from it.
const DOWN: &str = "down";
const UP: &str = "up";
/// The names of those of datagrams.
const DATAGRAMS: [(&str, &str); 2] = [(DOWN, "datagrams down"), (UP, "datagrams up")];

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Measured {
    /// Of `midhop meter run --json`.
    Run(Box<MeterReport>),
    /// Of `midhop meter link --json`.
    Link(Box<LinkReport>),
    /// Of `iperf3 --json`.
    Iperf3(Box<Iperf3Report>),
}

/// Why a measurement cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasuredError {
    /// It looks like the output of a program, and is not.
    #[error("damaged output of {program}: {source}")]
    Damaged {
        /// Whose output it seems to be.
        program: &'static str,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The test ended early.
    #[error("an iperf3 test that ended in an error: {0}")]
    Iperf3Failed(String),
    /// Nothing arrived, or it is not known what arrived.
    #[error("an iperf3 test without results")]
    Iperf3Empty,
    /// It is the output of a server that sent.
    #[error("what an iperf3 server sent; how much of it arrived, only its client knows")]
    Iperf3Sender,
    /// It is a stream of events.
    #[error("iperf3's output of `--json-stream`")]
    Iperf3Stream,
    /// The numbers do not make a valid link.
    #[error("a link that cannot be: {0}")]
    Link(String),
}

impl MeasuredError {
    /// What the user can do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "measure again, or move the file away",
            Self::Iperf3Failed(_) => "run iperf3 again until its test is whole",
            Self::Iperf3Empty => "give the output of a whole test: iperf3 -c HOST --json",
            Self::Iperf3Sender => "give the client's output: iperf3 -c HOST --json",
            Self::Iperf3Stream => "run iperf3 with --json instead of --json-stream",
            Self::Link(_) => "measure again: midhop meter link HOST --json",
        }
    }
}

/// The keys by which measurements are told apart. Each program's own come first in what it prints.
#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
struct Marks {
    transfer: Option<IgnoredAny>,
    clock_shared: Option<IgnoredAny>,
    pings: Option<IgnoredAny>,
    down: Option<IgnoredAny>,
    start: Option<IgnoredAny>,
    intervals: Option<IgnoredAny>,
    event: Option<IgnoredAny>,
    data: Option<IgnoredAny>,
}

impl Measured {
    /// Reads the output of any of the programs; none where it is something else.
    ///
    /// # Errors
    /// When it is the output of one of them, but damaged, or that of a test that failed.
    pub fn parse(json: &str) -> Result<Option<Self>, MeasuredError> {
        let Ok(marks) = serde_json::from_str::<Marks>(json) else { return Ok(None) };
        let damaged = |program| move |source| MeasuredError::Damaged { program, source };
        Ok(if marks.transfer.is_some() && marks.clock_shared.is_some() {
            let report = serde_json::from_str(json).map_err(damaged("midhop meter run"))?;
            Some(Self::Run(Box::new(report)))
        } else if marks.pings.is_some() && marks.down.is_some() {
            let report = serde_json::from_str(json).map_err(damaged("midhop meter link"))?;
            Some(Self::Link(Box::new(report)))
        } else if marks.start.is_some() && marks.intervals.is_some() {
            let report: Iperf3Report = serde_json::from_str(json).map_err(damaged("iperf3"))?;
            Some(Self::Iperf3(Box::new(report.whole()?)))
        } else if marks.event.is_some() && marks.data.is_some() {
            return Err(MeasuredError::Iperf3Stream);
        } else {
            None
        })
    }

    /// What the numbers do not show, as sentences.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Run(report) => &report.warnings,
            Self::Link(report) => &report.warnings,
            Self::Iperf3(_) => &[],
        }
    }

    /// The measurement as a record.
    ///
    /// # Errors
    /// When its numbers are not possible.
    pub fn into_record(self) -> Result<Record, MeasuredError> {
        match self {
            Self::Run(report) => Ok(report.into_record()),
            Self::Link(report) => report.into_record(),
            Self::Iperf3(report) => report.into_record(),
        }
    }
}

/// Numbers the `records` without a seed, each kind from 1; the number takes the seed's place.
pub fn number_runs(records: &mut [Record]) {
    let mut counts = BTreeMap::new();
    for record in records.iter_mut().filter(|record| !Runner::of(record).runs_plans()) {
        let kind = (record.title.clone(), Runner::of(record), record.cell.clone());
        let count = counts.entry(kind).or_insert(0);
        *count += 1;
        record.seed = midhop_units::Seed(*count);
    }
}

/// Compares transfers that were measured without a scenario with the physical limit of `plan`: each
/// with the transfer of its name, or else with the only one of the same direction. A record that
/// was run from a plan keeps its own limit.
///
/// # Errors
/// The names of the transfers for which the plan has none.
pub fn limit_by(plan: &Plan, records: &mut [Record]) -> Result<(), Vec<String>> {
    let mut without = Vec::new();
    for record in records.iter_mut().filter(|record| !Runner::of(record).runs_plans()) {
        for transfer in &mut record.transfers {
            if is_of_datagrams(&transfer.name) {
                continue;
            }
            match planned(plan, &transfer.name) {
                Some(planned) => {
                    let (bytes, took) = (transfer.bytes, transfer.took);
                    transfer.limit = planned.limit_result(transfer.complete, bytes, took);
                }
                None => without.push(transfer.name.clone()),
            }
        }
        if let Ok(json) = plan.to_json() {
            record.plan = json;
        }
    }
    without.sort();
    without.dedup();
    if without.is_empty() { Ok(()) } else { Err(without) }
}

/// Whether datagrams without TCP were sent; no limit is known for them.
fn is_of_datagrams(name: &str) -> bool {
    DATAGRAMS.iter().any(|(_, datagrams)| *datagrams == name)
}

/// The transfer of `plan` with which one called `name` is compared.
fn planned<'p>(plan: &'p Plan, name: &str) -> Option<&'p TransferPlan> {
    let opens = match name {
        DOWN => Some(Opener::To),
        UP => Some(Opener::From),
        _ => None,
    };
    let fits = |it: &&TransferPlan| opens.is_none_or(|opens| it.opens == opens);
    let mut fitting = plan.transfers.iter().filter(fits);
    let only = fitting.next().filter(|_| fitting.next().is_none());
    plan.transfer(name).or(only)
}

/// The JSON Schema of a type's written form.
#[cfg(feature = "schema")]
fn schema_of<T: schemars::JsonSchema>() -> schemars::Schema {
    let settings = schemars::generate::SchemaSettings::default().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}
