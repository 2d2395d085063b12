//! Records on standard output: as a table, or as JSON for the next program.

use super::output;
use anyhow::Context;
use midhop_experiment::record::Record;

/// Prints records, one JSON object a line, or as a table.
pub fn print(records: &[Record], json: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    if json {
        for record in records {
            text += &serde_json::to_string(record).context("cannot print a record")?;
            text.push('\n');
        }
    } else if !records.is_empty() {
        text = midhop_report::table(records).trim_end().to_owned() + "\n";
    }
    output::print(&text)
}
