//! Records on standard output: as a table, or as JSON for the next program.

use anyhow::Context;
use midhop_experiment::record::Record;
use std::io::{self, Write};

/// Prints records, one JSON object a line, or as a table.
pub fn print(records: &[Record], json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        for record in records {
            serde_json::to_writer(&mut out, record).context("cannot print a record")?;
            writeln!(out)?;
        }
    } else if !records.is_empty() {
        writeln!(out, "{}", midhop_report::table(records).trim_end())?;
    }
    Ok(out.flush()?)
}
