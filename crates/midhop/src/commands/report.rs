//! `midhop report`: records from files as a table, a page, or figures for programs.

use super::output;
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::measured::{Measured, MeasuredError, limit_by, number_runs};
use midhop_experiment::record::{Record, Runner, SCHEMA};
use midhop_report::Options;
use midhop_study::Place;
use midhop_workbench::{Changes, Source};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How deep below a named directory records are looked for.
const DEPTH_MAX: usize = 4;

const WHERE_RECORDS_ARE: &str = "records are what `midhop lab run --out DIR` writes and `midhop lab run --json` prints; \
     `midhop meter run --json`, `midhop meter link --json` and `iperf3 --json` will do too";

/// Arguments of `midhop report`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Report {
    /// Records, what `midhop meter run --json`, `midhop meter link --json` or `iperf3 --json` printed (JSON, one or one
    /// a line), directories that hold them, or - for standard input
    #[arg(required = true, value_name = "DIR|FILE|-")]
    from: Vec<PathBuf>,
    /// The physical limit of what was measured without a scenario: a scenario, or what `midhop meter link --json` printed
    #[arg(long, value_name = "FILE")]
    limit: Option<PathBuf>,
    /// Only the records of the scenario with this title
    #[arg(long, value_name = "TITLE")]
    only: Option<String>,
    /// Only the records of what ran there
    #[arg(long = "in", value_enum, value_name = "WHERE")]
    place: Option<Where>,
    /// Write one HTML file with pictures, which opens without a network
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Heading of the HTML file; the records' title where none is given
    #[arg(long, value_name = "TEXT", requires = "out")]
    title: Option<String>,
    /// The scenario's file, for the commands in the HTML file that repeat a run
    #[arg(long, value_name = "FILE", requires = "out")]
    scenario: Option<String>,
    /// Print JSON: means per cell, and each run
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: one line per run and transfer
    #[arg(long)]
    csv: bool,
}

/// Where records come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Where {
    /// In virtual time
    Sim,
    /// On real kernels
    Lab,
}

impl Report {
    /// Reads the records, writes the page if asked, prints the rest.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let records = self.wanted()?;
        if let Some(out) = &self.out {
            let mut options = Options::default();
            if let Some(title) = &self.title {
                options = options.titled(title);
            }
            if let Some(scenario) = &self.scenario {
                options = options.from_scenario(scenario);
            }
            let page = midhop_report::html(&records, &options)?;
            std::fs::write(out, page).with_context(|| format!("cannot write {}", out.display()))?;
            eprintln!("wrote {}", out.display());
        }
        let text = if self.json {
            midhop_report::json(&records)?
        } else if self.csv {
            midhop_report::csv(&records)?
        } else {
            midhop_report::table_in(&records, output::columns())
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The records that are asked for. Those of a page are of one scenario: it compares cells, and others only
    /// share names with them.
    fn wanted(&self) -> anyhow::Result<Vec<Record>> {
        let mut records = read_all(&self.from)?;
        if let Some(file) = &self.limit {
            limited(file, &mut records)?;
        }
        if let Some(wanted) = self.place {
            let place = match wanted {
                Where::Sim => Place::Sim,
                Where::Lab => Place::Lab,
            };
            records.retain(|record| Place::of(record) == place);
            if records.is_empty() {
                let message = format!("no record is of {}", told(place));
                let hint = format!("all of these are of {}", told(place.other()));
                return Err(Failure::usage(message).hint(hint).into());
            }
        }
        let titles: BTreeSet<String> =
            records.iter().map(|record| format!("\"{}\"", record.title)).collect();
        let listed = titles.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        if let Some(only) = &self.only {
            records.retain(|record| record.title == *only);
            if records.is_empty() {
                let message = format!("no record is of a scenario with the title \"{only}\"");
                return Err(Failure::usage(message).hint(format!("there are {listed}")).into());
            }
        } else if self.out.is_some() && titles.len() > 1 {
            let message = format!("these are records of {} scenarios: {listed}", titles.len());
            let hint = "--only TITLE makes the page of one; the table shows each by itself";
            return Err(Failure::usage(message).hint(hint).into());
        }
        Ok(records)
    }
}

/// A place in words, with what chooses it.
fn told(place: Place) -> &'static str {
    match place {
        Place::Sim => "the simulator (--in sim)",
        Place::Lab => "the laboratory (--in lab)",
    }
}

/// The records in and below `places`, in the order in which they were planned.
pub(super) fn read_all(places: &[PathBuf]) -> anyhow::Result<Vec<Record>> {
    read_all_but(places, None)
}

/// The same without what lies at or below `but`, which has no link in its path, as the places that are
/// directories must not have then.
pub(super) fn read_all_but(places: &[PathBuf], but: Option<&Path>) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for place in places {
        if place.as_os_str() == "-" {
            let text = io::read_to_string(io::stdin()).context("cannot read standard input")?;
            records.extend(read("standard input", &text, false)?);
        } else if place.is_dir() {
            let wanted = |file: &PathBuf| but.is_none_or(|but| !file.starts_with(but));
            for file in files_of_records(place)?.into_iter().filter(wanted) {
                records.extend(read_file(&file, true)?);
            }
        } else {
            records.extend(read_file(place, false)?);
        }
    }
    if records.is_empty() {
        let message = match (places, but) {
            ([place], Some(but)) => {
                format!("no records found in {} but those of {}", place.display(), but.display())
            }
            _ => "no records found".to_owned(),
        };
        return Err(Failure::usage(message).hint(WHERE_RECORDS_ARE).into());
    }
    records.sort_by_cached_key(|record| {
        let number = record.plan.get("number").and_then(serde_json::Value::as_u64);
        (record.title.clone(), Place::of(record), Runner::of(record), number)
    });
    number_runs(&mut records);
    Ok(records)
}

/// Sets what was measured without a scenario beside what the scenario in `file`, or the link that was measured, allows.
fn limited(file: &Path, records: &mut [Record]) -> anyhow::Result<()> {
    let name = file.display().to_string();
    if records.iter().all(|record| Runner::of(record).runs_plans()) {
        return Err(Failure::usage("--limit is for what was measured without a scenario")
            .hint("runs of scenarios have their limits; leave it out")
            .into());
    }
    let source = Source::file(file)?;
    let plan = match Measured::parse(&source.text) {
        Ok(Some(Measured::Link(link))) => link.plan().map_err(|it| refused(&name, &it))?,
        Ok(Some(_)) => {
            return Err(Failure::usage(format!("{name} is no measurement of a link"))
                .hint("`midhop meter link HOST --json` prints one; a scenario will do too")
                .into());
        }
        Ok(None) => {
            let plans = source.scenario(Changes::default())?.plans().map_err(Failure::from)?;
            let [plan] = <[_; 1]>::try_from(plans).map_err(|plans| {
                Failure::usage(format!("{name} has {} cells, a limit needs one", plans.len()))
                    .hint("write a scenario without [vary] and with `seeds = 1`")
            })?;
            plan
        }
        Err(error) => return Err(refused(&name, &error).into()),
    };
    limit_by(&plan, records).map_err(|without| {
        let has: Vec<&str> = plan.transfers.iter().map(|it| it.name.as_str()).collect();
        Failure::usage(format!("{name} has no transfer like \"{}\"", without.join("\", \""))).hint(
            format!(
                "it has \"{}\"; a transfer of the same name is taken first",
                has.join("\", \"")
            ),
        )
    })?;
    Ok(())
}

fn refused(name: &str, error: &MeasuredError) -> Failure {
    Failure::usage(format!("{name} is {error}")).hint(error.hint())
}

/// Every `.json` and `.jsonl` below `directory`, in the order of their names.
fn files_of_records(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut directories = vec![(directory.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        let listed = std::fs::read_dir(&directory)
            .with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in listed {
            let entry = entry.with_context(|| format!("cannot list {}", directory.display()))?;
            let kind = entry.file_type()?;
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

fn read_file(file: &Path, among_others: bool) -> anyhow::Result<Vec<Record>> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(format!("cannot read {}: {error}", file.display())).hint(WHERE_RECORDS_ARE)
    })?;
    read(&file.display().to_string(), &text, among_others)
}

/// Why a text is no JSON, with what may have become of it.
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

/// What tells a record from other JSON, whatever its version.
#[derive(Deserialize)]
struct Marks {
    schema: u32,
    #[serde(rename = "transfers")]
    _transfers: IgnoredAny,
    #[serde(rename = "validity")]
    _validity: IgnoredAny,
}

/// The records in `text`, one after another. `among_others`: JSON of other kinds is passed over.
fn read(name: &str, text: &str, among_others: bool) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let raw = match value {
            Ok(raw) => raw,
            Err(_) if among_others => return Ok(records),
            Err(error) => return Err(no_json(name, text, &error).into()),
        };
        match Measured::parse(raw.get()).and_then(|it| match it {
            Some(measured) => {
                measured.warnings().iter().for_each(|it| eprintln!("note: {name}: {it}"));
                measured.into_record().map(Some)
            }
            None => Ok(None),
        }) {
            Ok(Some(record)) => {
                records.push(record);
                continue;
            }
            Ok(None) => {}
            Err(error) => return Err(refused(name, &error).into()),
        }
        let marks = match serde_json::from_str::<Marks>(raw.get()) {
            Ok(marks) => marks,
            Err(_) if among_others => return Ok(records),
            Err(error) => {
                return Err(Failure::usage(format!("{name} is not a record: {error}"))
                    .hint(WHERE_RECORDS_ARE)
                    .into());
            }
        };
        if marks.schema != SCHEMA {
            return Err(Failure::usage(format!(
                "{name} is a record of version {}, this midhop reads version {SCHEMA}",
                marks.schema
            ))
            .hint("run the scenario again, or read the record with the midhop that wrote it")
            .into());
        }
        records.push(serde_json::from_str(raw.get()).map_err(|error| {
            Failure::usage(format!("{name} is a damaged record: {error}"))
                .hint("run that cell again, or move the file away")
        })?);
    }
    Ok(records)
}
