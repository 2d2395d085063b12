//! What a store of records is, and what may go wrong with one.

use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where records are kept, so that what has run need not run again.
pub trait Store: Sync {
    /// The record of `plan`, if it is there, whole, and counts.
    fn finished(&self, plan: &Plan) -> Option<Record>;

    /// Keeps the record of `plan`, and writes into it which plan it is of and which build made it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn keep(&self, plan: &Plan, record: &mut Record) -> Result<(), StoreError>;
}

/// Why records could not be kept or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file or a directory cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    Place {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A plan or a record has what JSON cannot express.
    #[error("cannot print {what}")]
    Print {
        /// Which of them.
        what: &'static str,
        /// JSON's error.
        source: serde_json::Error,
    },
}

/// Makes `directory` and tries whether a record can be written there: better refused now than after an hour of runs.
///
/// # Errors
/// When it cannot.
pub fn try_directory(directory: &Path) -> io::Result<()> {
    let trial = directory.join(format!("trial-{}.new", std::process::id()));
    let tried =
        fs::create_dir_all(directory).and_then(|()| fs::write(&trial, "a record would go here\n"));
    let _ = fs::remove_file(&trial);
    tried
}

/// What has become of a place.
pub(crate) fn at(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Place { what, path: path.to_owned(), source }
}

/// A record as that of `plan`, whose cell may have been called something else when it ran.
pub(crate) fn of_plan(record: Record, plan: &Plan) -> Record {
    Record { cell: plan.cell(), ..record }
}
