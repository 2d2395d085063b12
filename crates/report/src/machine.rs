//! The figures for programs: one CSV line per run and transfer, or JSON with the means too.

use crate::axes::Axes;
use crate::summary::{faults, proxy_retransmissions, retransmissions, rows};
use midhop_experiment::record::Record;
use serde_json::{Value, json};

/// Why records could not be written for a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The CSV writer refused.
    #[error("cannot write the table as CSV")]
    Csv(#[from] csv::Error),
    /// The JSON writer refused.
    #[error("cannot write the figures as JSON")]
    Json(#[from] serde_json::Error),
    /// The CSV writer gave bytes that are no text.
    #[error("the CSV text is not UTF-8")]
    Utf8(#[from] std::string::FromUtf8Error),
}

/// One line per run and transfer, nothing averaged, with a header; units are in the names. Each
/// `vary` axis is a column `cell.<axis>`.
///
/// # Errors
/// When the writer refuses, which text does not make it do.
pub fn csv(records: &[Record]) -> Result<String, WriteError> {
    let axes = Axes::of(records);
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut header = vec!["title".to_owned(), "seed".to_owned()];
    header.extend(axes.0.iter().map(|axis| format!("cell.{}", axis.key)));
    header.extend(
        [
            "transfer",
            "complete",
            "valid",
            "bytes",
            "goodput_mbit_per_s",
            "time_s",
            "efficiency",
            "limit_goodput_mbit_per_s",
            "limit_time_s",
            "retransmissions",
            "proxy_retransmissions",
            "flows",
            "objects",
            "faults",
        ]
        .map(str::to_owned),
    );
    writer.write_record(&header)?;
    for record in records {
        for transfer in &record.transfers {
            let faults = faults(record, transfer);
            let limit = transfer.limit.as_ref();
            let optional = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
            let mut line = vec![record.title.clone(), record.seed.to_string()];
            line.extend(
                axes.0.iter().map(|axis| record.cell.get(&axis.key).cloned().unwrap_or_default()),
            );
            line.extend([
                transfer.name.clone(),
                transfer.complete.to_string(),
                faults.is_empty().to_string(),
                transfer.bytes.get().to_string(),
                transfer.goodput.mbit_per_s().to_string(),
                transfer.took.as_s_f64().to_string(),
                optional(limit.map(|limit| limit.efficiency)),
                optional(limit.map(|limit| limit.goodput.mbit_per_s())),
                optional(limit.map(|limit| limit.time.as_s_f64())),
                retransmissions(transfer).to_string(),
                proxy_retransmissions(record).map_or_else(String::new, |count| count.to_string()),
                transfer.flows.len().to_string(),
                transfer.objects.len().to_string(),
                faults.join("; "),
            ]);
            writer.write_record(&line)?;
        }
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8(bytes)?)
}

/// `{"schema": 1, "summary": [rows of means], "runs": [one per run and transfer]}`.
///
/// # Errors
/// When the writer refuses, which numbers that JSON cannot hold do.
pub fn json(records: &[Record]) -> Result<String, WriteError> {
    let runs: Vec<Value> = records
        .iter()
        .flat_map(|record| record.transfers.iter().map(move |transfer| (record, transfer)))
        .map(|(record, transfer)| {
            json!({
                "title": record.title,
                "cell": record.cell,
                "seed": record.seed,
                "transfer": transfer.name,
                "complete": transfer.complete,
                "faults": faults(record, transfer),
                "bytes": transfer.bytes.get(),
                "goodput_mbit_per_s": transfer.goodput.mbit_per_s(),
                "time_s": transfer.took.as_s_f64(),
                "efficiency": transfer.limit.as_ref().map(|limit| limit.efficiency),
                "limit_goodput_mbit_per_s":
                    transfer.limit.as_ref().map(|limit| limit.goodput.mbit_per_s()),
                "limit_time_s": transfer.limit.as_ref().map(|limit| limit.time.as_s_f64()),
                "retransmissions": retransmissions(transfer),
                "proxy_retransmissions": proxy_retransmissions(record),
                "flows": transfer.flows.len(),
                "objects": transfer.objects.len(),
            })
        })
        .collect();
    let all = json!({ "schema": 1, "summary": rows(records), "runs": runs });
    let mut text = serde_json::to_string_pretty(&all)?;
    text.push('\n');
    Ok(text)
}
