//! Records kept in a directory, so that what has run need not run again.
//!
//! A record counts when its plan is the one that would run and the same build of the program made it;
//! what another build made is run again. [`Key`] tells plans apart and [`Build`] builds; both stand in the
//! record. Two ways to keep records: [`Lines`], all in one file, for runs by the thousand without their
//! curves, and [`Files`], one file each, named by its key.
//!
//! Plans that differ in nothing but their place in a sweep have one key and one record. Invariant: a
//! record that is read here has the cell of the plan that it was asked for with.

mod files;
mod lines;

pub use files::Files;
pub use lines::{Lines, without_bulk};

use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The name under which a record tells the key of its plan.
const PLAN: &str = "plan";
/// The name under which a record tells which build of the program made it.
const BUILD: &str = "build";

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
        /// What the system says.
        source: io::Error,
    },
    /// A plan or a record has what JSON cannot say.
    #[error("cannot print {what}")]
    Print {
        /// Which of them.
        what: &'static str,
        /// What JSON says.
        source: serde_json::Error,
    },
}

/// What tells one plan from another, whatever its number in its sweep, how many seeds its cell has, and
/// what its axes are called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// The key of a plan.
    ///
    /// # Errors
    /// When the plan has what JSON cannot say.
    pub fn of(plan: &Plan) -> Result<Self, StoreError> {
        let plan = Plan { number: 0, seeds: 1, axes: Vec::new(), ..plan.clone() };
        let text = serde_json::to_vec(&plan)
            .map_err(|source| StoreError::Print { what: "a plan", source })?;
        Ok(Self(format!("{:032x}", xxh3_128(&text))))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What tells one build of a program from any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build(String);

impl Build {
    /// The build of the program in the file `program`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(program: &Path) -> Result<Self, StoreError> {
        let read = || {
            let (mut file, mut hasher) = (File::open(program)?, Xxh3::new());
            let mut buffer = vec![0; 1 << 18];
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(Self(format!("{:016x}", hasher.digest()))),
                    length => hasher.update(&buffer[..length]),
                }
            }
        };
        read().map_err(at(program, "read"))
    }

    /// The build of two programs that work together.
    pub fn and(self, other: &Self) -> Self {
        Self(format!("{}-{}", self.0, other.0))
    }

    /// Writes into `record` which plan it is of and which build made it.
    fn sign(&self, record: &mut Record, key: &Key) {
        let versions = &mut record.environment.versions;
        versions.insert(PLAN.to_owned(), key.0.clone());
        versions.insert(BUILD.to_owned(), self.0.clone());
    }

    /// The key of `record`, if this build made it.
    fn key(&self, record: &Record) -> Option<Key> {
        let versions = &record.environment.versions;
        let made = versions.get(BUILD).is_some_and(|by| *by == self.0);
        versions.get(PLAN).filter(|_| made).cloned().map(Key)
    }
}

/// What has become of a place.
fn at(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Place { what, path: path.to_owned(), source }
}

/// A record as that of `plan`, whose cell may have been called something else when it ran.
fn of_plan(record: Record, plan: &Plan) -> Record {
    Record { cell: plan.cell(), ..record }
}

#[cfg(test)]
mod tests;
