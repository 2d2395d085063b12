//! The tables of a sweep as files.

use midhop_experiment::record::Record;
use midhop_failure::Failure;
use midhop_report::{Columns, WriteError};
use std::fs;
use std::path::Path;

/// Writes `runs` and `cells`, as CSV and as Parquet, into `directory`, each completely or not at
/// all; intervals of means have the confidence `level`.
///
/// # Errors
/// When one cannot be written.
pub fn write_tables(directory: &Path, records: &[Record], level: f64) -> Result<(), Failure> {
    let tables =
        [("runs", midhop_report::runs(records)), ("cells", midhop_report::cells(records, level))];
    for (name, columns) in tables {
        let csv = columns.csv().map_err(unprintable)?;
        put(directory, &format!("{name}.csv"), csv.as_bytes())?;
        let parquet = Columns::parquet(&columns).map_err(unprintable)?;
        put(directory, &format!("{name}.parquet"), &parquet)?;
    }
    Ok(())
}

fn unprintable(error: WriteError) -> Failure {
    Failure::run("cannot print the tables").because(error)
}

fn put(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let (path, draft) = (directory.join(name), directory.join(format!("{name}.new")));
    fs::write(&draft, bytes)
        .and_then(|()| fs::rename(&draft, &path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })
        .map_err(|error| Failure::run(format!("cannot write {}", path.display())).because(error))
}
