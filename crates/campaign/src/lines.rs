//! All records in one file, one JSON object a line, each written at once.
//!
//! The file contains complete records. In memory, where there may be thousands, they are without
//! their curves and their plans.

use crate::key::Key;
use crate::origin::Origin;
use crate::store::{Store, StoreError, at, of_plan};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A file of records.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: Mutex<File>,
    origin: Origin,
    /// The records in the file when it was opened.
    kept: BTreeMap<Key, Record>,
}

impl Lines {
    /// Reads the records that count for `origin`, and opens the file for more. A line that a crash
    /// has cut short is ignored.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn open(path: &Path, origin: Origin) -> Result<Self, StoreError> {
        let mut options = OpenOptions::new();
        let options = options.read(true).append(true).create(true);
        let mut file = options.open(path).map_err(at(path, "open"))?;
        let mut kept = BTreeMap::new();
        let mut ends_with_newline = true;
        for line in BufReader::new(&file).split(b'\n') {
            let line = line.map_err(at(path, "read"))?;
            let text = String::from_utf8(line).unwrap_or_default();
            ends_with_newline = text.is_empty() || text.ends_with('}');
            let Ok(record) = Record::from_json(&text) else { continue };
            if let Some(key) = origin.key(&record) {
                kept.insert(key, without_bulk(record));
            }
        }
        if !ends_with_newline {
            writeln!(file).map_err(at(path, "write"))?;
        }
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), origin, kept })
    }
}

impl Store for Lines {
    /// The record in the file when it was opened, without curves and plan.
    fn finished(&self, plan: &Plan) -> Option<Record> {
        let key = Key::of(plan).ok()?;
        Some(of_plan(self.kept.get(&key)?.clone(), plan))
    }

    /// Appends it to the file.
    fn keep(&self, plan: &Plan, record: &mut Record) -> Result<(), StoreError> {
        self.origin.sign(record, &Key::of(plan)?);
        let text =
            record.to_json().map_err(|source| StoreError::Print { what: "a record", source })?;
        // At once and in one write, so that finished records survive any interruption.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all((text + "\n").as_bytes()).map_err(at(&self.path, "write"))
    }
}

/// A record in the form for memory, where there may be thousands: without curves and plan.
pub fn without_bulk(mut record: Record) -> Record {
    record.series = Vec::new();
    record.plan = serde_json::Value::Null;
    record
}
