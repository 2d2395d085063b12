//! The interface of a store of records, and its errors.

use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A store of records, so that finished runs need not be repeated.
pub trait Store: Sync {
    /// The record of `plan`, if it is stored, complete, and counts.
    fn finished(&self, plan: &Plan) -> Option<Record>;

    /// Stores the record of `plan`, and writes the key of its plan and the build into it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn keep(&self, plan: &Plan, record: &mut Record) -> Result<(), StoreError>;
}

/// Why records could not be stored or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file or a directory cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    Place {
        /// What was tried.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// JSON cannot represent a plan or a record.
    #[error("cannot print {what}")]
    Print {
        /// Which of the two.
        what: &'static str,
        /// JSON's error.
        source: serde_json::Error,
    },
}

/// Makes `directory` and checks whether a record can be written there: better refused now than
/// after an hour of runs.
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

/// An error at a path.
pub(crate) fn at(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Place { what, path: path.to_owned(), source }
}

/// A record as that of `plan`, whose cell may have had other names when it ran.
pub(crate) fn of_plan(record: Record, plan: &Plan) -> Record {
    Record { cell: plan.cell(), ..record }
}
