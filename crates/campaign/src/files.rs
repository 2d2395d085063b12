//! One file for each record.

use crate::key::Key;
use crate::origin::Origin;
use crate::store::{Store, StoreError, at, of_plan};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use std::fs;
use std::path::{Path, PathBuf};

/// The naming of records' files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By the plan's number, `0007.json`: for the plans of one scenario, in their order.
    ByNumber,
    /// By the plan's key: runs of other scenarios in the same directory replace no record.
    ByKey,
}

/// A directory of records.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    origin: Origin,
    naming: Naming,
}

impl Files {
    /// The records of `origin` in `directory`, which exists.
    pub fn new(directory: &Path, origin: Origin, naming: Naming) -> Self {
        Self { directory: directory.to_owned(), origin, naming }
    }

    /// Whether there is a file for `plan`, of any origin: faster than [`Store::finished`].
    pub fn holds(&self, plan: &Plan) -> bool {
        Key::of(plan).is_ok_and(|key| self.path(plan, &key).is_file())
    }

    /// The number of numbered records in the directory that those of `plans` will not replace: a
    /// later reader of the directory reads them too.
    pub fn others(&self, plans: &[Plan]) -> usize {
        self.numbered().into_iter().filter(|(number, _)| *number >= plans.len()).count()
    }

    /// Removes the numbered records, and nothing else.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub fn clear(&self) -> Result<(), StoreError> {
        for (_, path) in self.numbered() {
            fs::remove_file(&path).map_err(at(&path, "remove"))?;
        }
        Ok(())
    }

    /// The numbered records, each with its number.
    fn numbered(&self) -> Vec<(usize, PathBuf)> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let number = |path: &Path| path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok();
        entries.map(|it| it.path()).filter_map(|path| Some((number(&path)?, path))).collect()
    }

    fn path(&self, plan: &Plan, key: &Key) -> PathBuf {
        let name = match self.naming {
            Naming::ByNumber => format!("{:04}.json", plan.number),
            Naming::ByKey => format!("{key}.json"),
        };
        self.directory.join(name)
    }
}

impl Store for Files {
    fn finished(&self, plan: &Plan) -> Option<Record> {
        let key = Key::of(plan).ok()?;
        let text = fs::read_to_string(self.path(plan, &key)).ok()?;
        let record = Record::from_json(&text).ok()?;
        (self.origin.key(&record) == Some(key)).then(|| of_plan(record, plan))
    }

    /// Written completely or not at all; a record of another origin is replaced.
    fn keep(&self, plan: &Plan, record: &mut Record) -> Result<(), StoreError> {
        let key = Key::of(plan)?;
        self.origin.sign(record, &key);
        let text = serde_json::to_vec_pretty(record)
            .map_err(|source| StoreError::Print { what: "a record", source })?;
        let path = self.path(plan, &key);
        let draft = match self.naming {
            Naming::ByNumber => path.with_extension("json.new"),
            // Another thread or process may write a plan with the same key at the same time.
            Naming::ByKey => {
                path.with_extension(format!("{}-{}.new", std::process::id(), plan.number))
            }
        };
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &path))
            .inspect_err(|_| {
                let _ = fs::remove_file(&draft);
            })
            .map_err(at(&path, "write"))
    }
}
