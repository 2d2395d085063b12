//! The origin of a record, and whether the record counts.

use crate::key::Key;
use crate::store::{StoreError, at};
use midhop_experiment::record::{Record, Runner};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// The key in a record's versions for the key of its plan.
const PLAN: &str = "plan";
/// The key in a record's versions for the build of the program.
const BUILD: &str = "build";

/// Identifies a build of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build(pub(crate) String);

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

    /// A build from its displayed form; none where the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hash = text.len() == 16 && text.bytes().all(|it| it.is_ascii_hexdigit());
        is_hash.then(|| Self(text.to_owned()))
    }

    /// The build of two programs that work together.
    pub fn and(self, other: &Self) -> Self {
        Self(format!("{}-{}", self.0, other.0))
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The origin of records.
///
/// A record counts as finished when it has the plan that would be run, was made by the same runner
/// and the same build with the same versions of other relevant parts, and is valid. In virtual time
/// an invalid one counts too: a repetition would be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    runner: Runner,
    build: Build,
    /// Part → its version in records; none where records must not have it.
    versions: BTreeMap<String, Option<String>>,
}

impl Origin {
    /// Records of `build`, made by `runner`.
    pub fn new(runner: Runner, build: Build) -> Self {
        Self { runner, build, versions: BTreeMap::new() }
    }

    /// The same with `part` at `version`, as records have it, or without it where that is none.
    pub fn with(mut self, part: &str, version: Option<&str>) -> Self {
        self.versions.insert(part.to_owned(), version.map(str::to_owned));
        self
    }

    /// Writes the key of its plan and the build into `record`.
    pub(crate) fn sign(&self, record: &mut Record, key: &Key) {
        let versions = &mut record.environment.versions;
        versions.insert(PLAN.to_owned(), key.0.clone());
        versions.insert(BUILD.to_owned(), self.build.0.clone());
    }

    /// The key of `record`, if it counts.
    pub(crate) fn key(&self, record: &Record) -> Option<Key> {
        let versions = &record.environment.versions;
        let is_own = Runner::of(record) == self.runner
            && versions.get(BUILD) == Some(&self.build.0)
            && self.versions.iter().all(|(part, version)| versions.get(part) == version.as_ref());
        let counts = is_own && (self.runner == Runner::Sim || record.validity.is_valid());
        versions.get(PLAN).filter(|_| counts).cloned().map(Key)
    }
}
