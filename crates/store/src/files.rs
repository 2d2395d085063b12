//! One file for each record, named by the key of its plan: whatever else is run into the same directory,
//! no record takes the place of another's.

use crate::{Build, Key, StoreError, at, of_plan};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of records.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    build: Build,
}

impl Files {
    /// The records of `build` in `directory`, which is there.
    pub fn new(directory: &Path, build: Build) -> Self {
        Self { directory: directory.to_owned(), build }
    }

    /// The record of `plan`, whose key is `key`, if it is there and whole.
    pub fn get(&self, plan: &Plan, key: &Key) -> Option<Record> {
        let text = fs::read_to_string(self.path(key)).ok()?;
        let record = Record::from_json(&text).ok()?;
        (self.build.key(&record).as_ref() == Some(key)).then(|| of_plan(record, plan))
    }

    /// Whether there is something for `key`, of whatever build: cheaper to know than [`Files::get`].
    pub fn holds(&self, key: &Key) -> bool {
        self.path(key).is_file()
    }

    /// Writes the record of `plan`, whose key is `key`, whole or not at all; what another build has left
    /// there is gone.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, record: &mut Record, plan: &Plan, key: &Key) -> Result<(), StoreError> {
        self.build.sign(record, key);
        let text = serde_json::to_vec_pretty(record)
            .map_err(|source| StoreError::Print { what: "a record", source })?;
        let path = self.path(key);
        // Another plan with the same key may be at it in another thread, or in another process.
        let draft = format!("{key}.{}-{}.new", std::process::id(), plan.number);
        let draft = self.directory.join(draft);
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &path))
            .inspect_err(|_| {
                let _ = fs::remove_file(&draft);
            })
            .map_err(at(&path, "write"))
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.directory.join(format!("{key}.json"))
    }
}
