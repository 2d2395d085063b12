//! The directories of records.

use midhop_campaign::try_directory;
use midhop_failure::Failure;
use std::path::Path;

/// Makes a directory for records and checks it: better refused now than after an hour of runs.
///
/// # Errors
/// When no record can be written there.
pub fn check_place(directory: &Path) -> Result<(), Failure> {
    try_directory(directory).map_err(|error| {
        Failure::usage(format!("no records can be written to {}", directory.display()))
            .because(error)
            .hint("give another directory with --out, or make room in this one")
    })
}
