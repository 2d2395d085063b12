//! Reads records from files, and measurements without a scenario, which become records.

use crate::scenario::{Changes, Source};
use midhop_experiment::measured::{Measured, MeasuredError, limit_by, number_runs};
use midhop_experiment::record::{Record, Runner, SCHEMA};
use midhop_failure::Failure;
use midhop_study::Place;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The maximum depth below a named directory at which records are searched.
const DEPTH_MAX: usize = 4;

/// A hint on where records are.
pub const WHERE_RECORDS_ARE: &str = "records are what `midhop lab run --out DIR` writes and `midhop lab run --json` prints; \
     `midhop meter run --json`, `midhop meter link --json` and `iperf3 --json` will do too";

/// The kind of a JSON value.
#[derive(Debug)]
pub enum Found {
    /// A record of a run.
    Record(Box<Record>),
    /// A measurement without a scenario.
    Measured(Measured),
}

impl Found {
    /// The values in `text`, which is called `name`, one after another. With `among_others`, JSON
    /// of other kinds is skipped.
    ///
    /// # Errors
    /// When it is no JSON, something else, or damaged.
    pub fn all(name: &str, text: &str, among_others: bool) -> Result<Vec<Self>, Failure> {
        let mut all = Vec::new();
        for value in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
            let raw = match value {
                Ok(raw) => raw.get(),
                Err(_) if among_others => return Ok(all),
                Err(error) => return Err(no_json(name, text, &error)),
            };
            if let Some(measured) = Measured::parse(raw).map_err(|it| refused(name, &it))? {
                all.push(Self::Measured(measured));
                continue;
            }
            let marks = match serde_json::from_str::<Marks>(raw) {
                Ok(marks) => marks,
                Err(_) if among_others => return Ok(all),
                Err(error) => {
                    let message = format!("{name} is not a record: {error}");
                    return Err(Failure::usage(message).hint(WHERE_RECORDS_ARE));
                }
            };
            if marks.schema != SCHEMA {
                return Err(Failure::usage(format!(
                    "{name} is a record of version {}, this midhop reads version {SCHEMA}",
                    marks.schema
                ))
                .hint("run the scenario again, or read the record with the midhop that wrote it"));
            }
            let record = serde_json::from_str(raw).map_err(|error| {
                Failure::usage(format!("{name} is a damaged record: {error}"))
                    .hint("run that cell again, or move the file away")
            })?;
            all.push(Self::Record(Box::new(record)));
        }
        Ok(all)
    }

    /// Converts it to a record.
    ///
    /// # Errors
    /// When its numbers are not possible.
    pub fn into_record(self, name: &str) -> Result<Record, Failure> {
        match self {
            Self::Record(record) => Ok(*record),
            Self::Measured(measured) => measured.into_record().map_err(|it| refused(name, &it)),
        }
    }
}

/// The text of a file of records.
///
/// # Errors
/// When it cannot be read.
pub fn text_of(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(format!("cannot read {}: {error}", file.display())).hint(WHERE_RECORDS_ARE)
    })
}

/// Records from several places.
#[derive(Debug, Default)]
pub struct Gathered {
    records: Vec<Record>,
    notes: Vec<String>,
}

impl Gathered {
    /// Adds the records in `text`, which is called `name`.
    ///
    /// # Errors
    /// As [`Found::all`].
    pub fn add_text(&mut self, name: &str, text: &str, among_others: bool) -> Result<(), Failure> {
        for found in Found::all(name, text, among_others)? {
            if let Found::Measured(measured) = &found {
                self.notes.extend(measured.warnings().iter().map(|it| format!("{name}: {it}")));
            }
            self.records.push(found.into_record(name)?);
        }
        Ok(())
    }

    /// Adds the records in a file, or in and below a directory. There, everything at or below `but`
    /// is left out; neither `but` nor `place` may then have a symbolic link in its path.
    ///
    /// # Errors
    /// When something cannot be read, and as [`Found::all`].
    pub fn add_place(&mut self, place: &Path, but: Option<&Path>) -> Result<(), Failure> {
        if !place.is_dir() {
            return self.add_file(place, false);
        }
        let wanted = |file: &PathBuf| but.is_none_or(|but| !file.starts_with(but));
        for file in files_of_records(place)?.into_iter().filter(wanted) {
            self.add_file(&file, true)?;
        }
        Ok(())
    }

    fn add_file(&mut self, file: &Path, among_others: bool) -> Result<(), Failure> {
        let text = text_of(file)?;
        self.add_text(&file.display().to_string(), &text, among_others)
    }

    /// What measurements do not show, as sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The records in the order of their plans. Those without a seed are numbered.
    pub fn into_records(self) -> Vec<Record> {
        let mut records = self.records;
        records.sort_by_cached_key(|record| {
            let number = record.plan.get("number").and_then(serde_json::Value::as_u64);
            (record.title.clone(), Place::of(record), Runner::of(record), number)
        });
        number_runs(&mut records);
        records
    }
}

/// Compares measurements without a scenario with the limit of the scenario in `source`, or of the
/// link that was measured.
///
/// # Errors
/// When it is neither, has more than one cell, or has no such transfer; when no record is a
/// measurement without a scenario.
pub fn limit_records(source: &Source, records: &mut [Record]) -> Result<(), Failure> {
    let name = &source.name;
    if records.iter().all(|record| Runner::of(record).runs_plans()) {
        return Err(Failure::usage("a limit is for what was measured without a scenario")
            .hint("runs of scenarios have their limits; leave it out"));
    }
    let plan = match Measured::parse(&source.text) {
        Ok(Some(Measured::Link(link))) => link.plan().map_err(|it| refused(name, &it))?,
        Ok(Some(_)) => {
            return Err(Failure::usage(format!("{name} is no measurement of a link"))
                .hint("`midhop meter link HOST --json` prints one; a scenario will do too"));
        }
        Ok(None) => {
            let plans = source.scenario(Changes::default())?.plans().map_err(Failure::from)?;
            let [plan] = <[_; 1]>::try_from(plans).map_err(|plans| {
                Failure::usage(format!("{name} has {} cells, a limit needs one", plans.len()))
                    .hint("write a scenario without [vary] and with `seeds = 1`")
            })?;
            plan
        }
        Err(error) => return Err(refused(name, &error)),
    };
    limit_by(&plan, records).map_err(|without| {
        let has: Vec<&str> = plan.transfers.iter().map(|it| it.name.as_str()).collect();
        Failure::usage(format!("{name} has no transfer like \"{}\"", without.join("\", \""))).hint(
            format!(
                "it has \"{}\"; a transfer of the same name is taken first",
                has.join("\", \"")
            ),
        )
    })
}

fn refused(name: &str, error: &MeasuredError) -> Failure {
    Failure::usage(format!("{name} is {error}")).hint(error.hint())
}

/// Why a text is not JSON, with a possible cause.
fn no_json(name: &str, text: &str, error: &serde_json::Error) -> Failure {
    if error.is_eof() && !text.trim().is_empty() {
        return Failure::usage(format!("{name} is cut short: {error}"))
            .hint("let the program that writes it come to its end, and give the file then");
    }
    let failure = Failure::usage(format!("{name} is not a record: {error}"));
    if text.contains("iperf Done") || text.contains("[ ID] Interval") {
        return failure.hint("it looks like iperf3's text: run it again with --json");
    }
    failure.hint(WHERE_RECORDS_ARE)
}

/// The properties that distinguish a record from other JSON, in any version.
#[derive(Deserialize)]
struct Marks {
    schema: u32,
    #[serde(rename = "transfers")]
    _transfers: IgnoredAny,
    #[serde(rename = "validity")]
    _validity: IgnoredAny,
}

/// Every `.json` and `.jsonl` file below `directory`, ordered by name.
fn files_of_records(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    let mut directories = vec![(directory.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        let unlisted = |error: std::io::Error| {
            Failure::run(format!("cannot list {}", directory.display())).because(error)
        };
        for entry in std::fs::read_dir(&directory).map_err(unlisted)? {
            let entry = entry.map_err(unlisted)?;
            let kind = entry.file_type().map_err(unlisted)?;
            let path = entry.path();
            let json = |extension: &OsStr| extension == "json" || extension == "jsonl";
            if kind.is_dir() && depth < DEPTH_MAX {
                directories.push((path, depth + 1));
            } else if !kind.is_dir() && path.extension().is_some_and(json) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
