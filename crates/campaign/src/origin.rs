//! What made a record, and whether that counts.

use crate::key::Key;
use crate::store::{StoreError, at};
use midhop_experiment::record::{Record, Runner};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// The name under which a record has the key of its plan.
const PLAN: &str = "plan";
/// The name under which a record has the build of the program that made it.
const BUILD: &str = "build";

/// What tells one build of a program from any other.
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

    /// A build as it is displayed; none where the text is none.
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

/// What makes records.
///
/// A record counts as finished when its plan is the one that would run, the same runner and the same build made it
/// with the same versions of what else matters, and it is valid. In virtual time an invalid one counts too: run again,
/// it would be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    runner: Runner,
    build: Build,
    /// Part → its version in records; none where records do not have it.
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

    /// Writes into `record` which plan it is of and which build made it.
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
