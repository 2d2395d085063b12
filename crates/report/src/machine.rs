//! The figures for programs: columns per run and per cell, or JSON with both.

use crate::axes::Axes;
use crate::columns::{Columns, Values};
use crate::summary::{Row, faults, phases, proxy_retransmissions, retransmissions, rows, rows_at};
use midhop_experiment::record::{LimitResult, PhaseTimes, Record, Runner, TransferResult};
use midhop_study::Estimate;
use midhop_units::Duration;
#[cfg(feature = "schema")]
use schemars::generate::SchemaSettings;
#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use std::collections::BTreeMap;

/// Why records could not be written for a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The CSV writer failed.
    #[error("cannot write the table as CSV")]
    Csv(#[from] csv::Error),
    /// The JSON writer failed.
    #[error("cannot write the figures as JSON")]
    Json(#[from] serde_json::Error),
    /// The Parquet writer failed.
    #[error("cannot write the table as Parquet")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// The output of the CSV writer is not UTF-8.
    #[error("the CSV text is not UTF-8")]
    Utf8(#[from] std::string::FromUtf8Error),
}

/// One line per run and transfer, not averaged, with a header; units are in the names. Each
/// `vary` axis is a column `cell.<axis>`.
///
/// # Errors
/// When the writer fails, which text does not cause.
pub fn csv(records: &[Record]) -> Result<String, WriteError> {
    runs(records).csv()
}

/// One row per run and transfer, not averaged; units are in the names. Each `vary` axis is a column
/// `cell.<axis>`.
pub fn runs(records: &[Record]) -> Columns {
    let all: Vec<(&Record, &TransferResult)> = records
        .iter()
        .flat_map(|record| record.transfers.iter().map(move |transfer| (record, transfer)))
        .collect();
    let text = |value: &dyn Fn(&Record, &TransferResult) -> String| {
        Values::Text(all.iter().map(|(record, transfer)| Some(value(record, transfer))).collect())
    };
    let number = |value: &dyn Fn(&TransferResult) -> Option<f64>| {
        Values::Number(all.iter().map(|(_, transfer)| value(transfer)).collect())
    };
    let count = |value: &dyn Fn(&Record, &TransferResult) -> Option<u64>| {
        Values::Count(all.iter().map(|(record, transfer)| value(record, transfer)).collect())
    };
    let flag = |value: &dyn Fn(&Record, &TransferResult) -> bool| {
        Values::Flag(all.iter().map(|(record, transfer)| value(record, transfer)).collect())
    };
    let limit = |value: &dyn Fn(&LimitResult) -> f64| {
        number(&|transfer| transfer.limit.as_ref().map(value))
    };
    let mut columns = Columns::default();
    columns.push("title", text(&|record, _| record.title.clone()));
    columns.push("place", text(&|record, _| Runner::of(record).name().to_owned()));
    columns.push("seed", count(&|record, _| Some(record.seed.0)));
    for axis in &Axes::of(records).all {
        let label = |(record, _): &(&Record, _)| record.cell.get(&axis.key).cloned();
        let labels = all.iter().map(label).collect();
        columns.push_labels(&format!("cell.{}", axis.key), labels);
    }
    columns.push("transfer", text(&|_, transfer| transfer.name.clone()));
    columns.push("complete", flag(&|_, transfer| transfer.complete));
    columns.push("valid", flag(&|record, transfer| faults(record, transfer).is_empty()));
    columns.push("bytes", count(&|_, transfer| Some(transfer.bytes.get())));
    columns.push("goodput_mbit_per_s", number(&|transfer| Some(transfer.goodput.mbit_per_s())));
    columns.push("time_s", number(&|transfer| Some(transfer.took.as_s_f64())));
    columns.push("efficiency", limit(&|limit| limit.efficiency));
    columns.push("limit_goodput_mbit_per_s", limit(&|limit| limit.goodput.mbit_per_s()));
    columns.push("limit_time_s", limit(&|limit| limit.time.as_s_f64()));
    columns.push("retransmissions", count(&|_, transfer| Some(retransmissions(transfer))));
    columns.push("proxy_retransmissions", count(&|record, _| proxy_retransmissions(record)));
    type Phase = (&'static str, fn(&PhaseTimes) -> Duration);
    const PHASES: [Phase; 4] = [
        ("slow_start_s", |phases| phases.slow_start),
        ("avoidance_s", |phases| phases.avoidance),
        ("recovery_s", |phases| phases.recovery),
        ("loss_s", |phases| phases.loss),
    ];
    for (name, phase) in PHASES {
        let time = |transfer: &TransferResult| Some(phase(&phases(transfer)?).as_s_f64());
        columns.push(name, number(&time));
    }
    columns.push("flows", count(&|_, transfer| Some(transfer.flows.len() as u64)));
    columns.push("objects", count(&|_, transfer| Some(transfer.objects.len() as u64)));
    columns.push("faults", text(&|record, transfer| faults(record, transfer).join("; ")));
    columns
}

/// One row per scenario, place, cell and transfer: means over seeds, and around them intervals at a confidence of
/// `level` (0.95, 0.98). The half-width of an interval is null for a single run.
pub fn cells(records: &[Record], level: f64) -> Columns {
    let rows = rows_at(records, level);
    let count = |value: &dyn Fn(&Row) -> usize| {
        Values::Count(rows.iter().map(|row| Some(value(row) as u64)).collect())
    };
    let mut columns = Columns::default();
    let text = |value: &dyn Fn(&Row) -> &str| {
        Values::Text(rows.iter().map(|row| Some(value(row).to_owned())).collect())
    };
    columns.push("title", text(&|row| &row.title));
    columns.push("place", text(&|row| row.place.name()));
    for axis in &Axes::of(records).all {
        let labels = rows.iter().map(|row| row.cell.get(&axis.key).cloned()).collect();
        columns.push_labels(&format!("cell.{}", axis.key), labels);
    }
    columns.push("transfer", text(&|row| &row.transfer));
    columns.push("runs", count(&|row| row.seeds.len()));
    columns.push("valid", count(&|row| row.valid));
    columns.push("complete", count(&|row| row.complete));
    columns.push("confidence", Values::Number(rows.iter().map(|_| Some(level)).collect()));
    type Figure = (&'static str, fn(&Row) -> Option<Estimate>);
    const FIGURES: [Figure; 5] = [
        ("goodput_mbit_per_s", |row| row.goodput_mbit_per_s),
        ("time_s", |row| row.time_s),
        ("efficiency", |row| row.efficiency),
        ("retransmissions", |row| row.retransmissions),
        ("proxy_retransmissions", |row| row.proxy_retransmissions),
    ];
    for (name, figure) in FIGURES {
        let mean = rows.iter().map(|row| figure(row).map(|found| found.mean)).collect();
        let half = rows.iter().map(|row| figure(row)?.margin).collect();
        columns.push(format!("{name}.mean"), Values::Number(mean));
        columns.push(format!("{name}.half_width"), Values::Number(half));
    }
    let limit = rows.iter().map(|row| row.limit_goodput_mbit_per_s).collect();
    columns.push("limit_goodput_mbit_per_s", Values::Number(limit));
    columns
}

/// The version of the output of `midhop report --json`.
const VERSION: u32 = 2;

/// The output of `midhop report --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReportFigures {
    /// The version of this format.
    schema: u32,
    /// One entry for each cell and transfer: means over seeds.
    summary: Vec<Row>,
    /// One entry for each run and transfer, not averaged.
    runs: Vec<RunFigures>,
}

/// One transfer of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct RunFigures {
    /// The scenario's title.
    title: String,
    /// The place of the run (simulator, laboratory, …).
    place: Runner,
    /// The cell's position: axis → label, as in the scenario.
    cell: BTreeMap<String, String>,
    /// The seed of all random draws; for a measurement without a scenario, its number.
    seed: u64,
    /// The transfer's name.
    transfer: String,
    /// Whether all requested data arrived before the run's end.
    complete: bool,
    /// The faults of the run, one sentence each; empty if the run is valid.
    faults: Vec<String>,
    /// Payload that was delivered.
    bytes: u64,
    /// Goodput: delivered payload over time, for all flows together.
    goodput_bit_per_s: u64,
    /// Time from the first SYN to the last byte.
    time_s: f64,
    /// Efficiency: the shortest possible time over the measured one, for the delivered bytes; none without a limit.
    efficiency: Option<f64>,
    /// The maximum goodput of the path for a long transfer; none if unknown.
    limit_goodput_bit_per_s: Option<u64>,
    /// The minimum time of the transfer on this path; none if unknown.
    limit_time_s: Option<f64>,
    /// Segments that the transfer's own sender retransmitted, for all flows together.
    retransmissions: u64,
    /// Segments that proxies on the path retransmitted, on all their legs and for all transfers of the run; none without
    /// a proxy, or if it was not observed.
    proxy_retransmissions: Option<u64>,
    /// The number of its connections.
    flows: usize,
    /// The number of objects if the transfer is a page; otherwise 0.
    objects: usize,
}

impl ReportFigures {
    /// The JSON Schema: every key and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> Schema {
        let mut schema = schema_of::<Self>();
        let version =
            schema.pointer_mut("/properties/schema").and_then(serde_json::Value::as_object_mut);
        if let Some(version) = version {
            version.insert("const".to_owned(), VERSION.into());
        }
        schema
    }

    fn of(records: &[Record]) -> Self {
        let of = |record: &Record, transfer: &TransferResult| {
            let limit = transfer.limit.as_ref();
            RunFigures {
                title: record.title.clone(),
                place: Runner::of(record),
                cell: record.cell.clone(),
                seed: record.seed.0,
                transfer: transfer.name.clone(),
                complete: transfer.complete,
                faults: faults(record, transfer),
                bytes: transfer.bytes.get(),
                goodput_bit_per_s: transfer.goodput.bits_per_s(),
                time_s: transfer.took.as_s_f64(),
                efficiency: limit.map(|limit| limit.efficiency),
                limit_goodput_bit_per_s: limit.map(|limit| limit.goodput.bits_per_s()),
                limit_time_s: limit.map(|limit| limit.time.as_s_f64()),
                retransmissions: retransmissions(transfer),
                proxy_retransmissions: proxy_retransmissions(record),
                flows: transfer.flows.len(),
                objects: transfer.objects.len(),
            }
        };
        let runs = records
            .iter()
            .flat_map(|record| record.transfers.iter().map(move |transfer| of(record, transfer)))
            .collect();
        Self { schema: VERSION, summary: rows(records), runs }
    }
}

/// The JSON Schema of a type's written form.
#[cfg(feature = "schema")]
pub(crate) fn schema_of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::default().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}

/// [`ReportFigures`] of records, as text.
///
/// # Errors
/// When the writer fails, which only numbers that JSON cannot represent cause.
pub fn json(records: &[Record]) -> Result<String, WriteError> {
    // Converted to a value first, whose keys are in alphabetical order.
    let all = serde_json::to_value(ReportFigures::of(records))?;
    let mut text = serde_json::to_string_pretty(&all)?;
    text.push('\n');
    Ok(text)
}
