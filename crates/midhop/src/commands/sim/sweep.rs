//! `midhop sim sweep`.
//!
//! The directory of a sweep holds
//! - `records.jsonl`: one record a line, the moment it is there; `midhop report` reads it;
//! - `runs.csv`, `runs.parquet`: one row per run and transfer;
//! - `cells.csv`, `cells.parquet`: one row per cell and transfer, means with confidence intervals.
//!
//! A sweep that goes on in a directory runs only what is missing there: a record counts when its plan
//! is the one that would run and the same build of this program made it.

use super::batch::{processors, run_all};
use super::check_all;
use crate::commands::arguments;
use crate::commands::records::{Unwritten, check_place, judge, print};
use crate::commands::scenario::ScenarioArguments;
use anyhow::Context;
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_report::Columns;
use midhop_sim::RunError;
use midhop_testbed::signals::Interrupts;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::Xxh3;

/// The name under which a record tells the hash of its plan.
const PLAN: &str = "plan";
/// The name under which a record tells which build of this program made it.
const BUILD: &str = "build";

/// Arguments of `midhop sim sweep`.
#[derive(Debug, clap::Args)]
pub struct Sweep {
    #[command(flatten)]
    scenario: ScenarioArguments,
    /// Vary a key over values (links.satellite.down.loss=0,0.01), or keep some cases of an axis; may be
    /// repeated
    #[arg(long, value_name = "KEY=VALUE,…")]
    vary: Vec<String>,
    /// Where the results go, and what a sweep that was interrupted goes on from
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print the records, one JSON object a line, instead of the table
    #[arg(long)]
    json: bool,
    /// Runs at a time; all processors when not given
    #[arg(long, value_name = "N", default_value_t = processors(), value_parser = arguments::jobs)]
    jobs: usize,
    /// Run each cell with this many seeds, whatever the scenario says
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Confidence of the intervals around means
    #[arg(long, value_name = "LEVEL", default_value_t = midhop_report::LEVEL, value_parser = arguments::confidence)]
    confidence: f64,
    /// Keep the curves over time in the records; without, a record holds only its figures
    #[arg(long)]
    series: bool,
}

impl Sweep {
    /// Runs what is missing. Exit code 1 when a run failed or was not valid.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        let plans = self.scenario.varied_plans(&self.vary, &seeds)?;
        check_all(&plans)?;
        check_place(&self.out)?;
        let build = build_hash()?;
        let hashes: Vec<String> = plans.iter().map(hash).collect::<anyhow::Result<_>>()?;
        let mut store = Store::open(&self.out.join("records.jsonl"), &build)?;
        let missing: Vec<&Plan> = plans
            .iter()
            .zip(&hashes)
            .filter(|(_, hash)| !store.kept.contains_key(*hash))
            .map(|(plan, _)| plan)
            .collect();
        if missing.len() < plans.len() {
            let there = plans.len() - missing.len();
            eprintln!("{there} of {} runs are there already", plans.len());
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let file = Mutex::new(&mut store.file);
        let keep = |plan: &Plan, record: &mut Record| {
            if !self.series {
                record.series.clear();
            }
            let versions = &mut record.environment.versions;
            versions.insert(PLAN.to_owned(), hash(plan)?);
            versions.insert(BUILD.to_owned(), build.clone());
            let line = record.to_json().context("cannot print a record")? + "\n";
            // At once and in one piece, so that what is finished survives whatever comes.
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write_all(line.as_bytes()).context("cannot write a record")
        };
        let unwritten = Unwritten::default();
        let outcomes = run_all(
            &missing,
            self.jobs,
            &interrupts,
            |_| Ok(Vec::new()),
            |plan, outcome| {
                let (mut record, _) = outcome?;
                unwritten.note(keep(plan, &mut record));
                Ok(without_bulk(record))
            },
        );
        let mut fresh = outcomes.into_iter();
        let results: Vec<Result<Record, RunError>> = plans
            .iter()
            .zip(&hashes)
            .map(|(plan, hash)| match store.kept.remove(hash) {
                // Its cell may be called something else by now.
                Some(record) => Ok(Record { cell: plan.cell(), ..record }),
                None => fresh.next().unwrap_or(Err(RunError::Interrupted)),
            })
            .collect();
        let code = judge(&plans, &results, |error| matches!(error, RunError::Interrupted));
        let records: Vec<Record> = results.into_iter().flatten().collect();
        unwritten.note(self.write_tables(&records));
        print(&records, self.json)?;
        Ok(unwritten.judge(code))
    }

    fn write_tables(&self, records: &[Record]) -> anyhow::Result<()> {
        let tables = [
            ("runs", midhop_report::runs(records)),
            ("cells", midhop_report::cells(records, self.confidence)),
        ];
        for (name, columns) in tables {
            let write = |extension: &str, bytes: &[u8]| {
                let path = self.out.join(format!("{name}.{extension}"));
                let draft = self.out.join(format!("{name}.{extension}.new"));
                fs::write(&draft, bytes)
                    .and_then(|()| fs::rename(&draft, &path))
                    .with_context(|| format!("cannot write {}", path.display()))
            };
            write("csv", columns.csv()?.as_bytes())?;
            write("parquet", &Columns::parquet(&columns)?)?;
        }
        eprintln!("wrote runs and cells as CSV and Parquet to {}", self.out.display());
        Ok(())
    }
}

/// The records of a directory.
struct Store {
    file: File,
    /// What is there already, by the hash of its plan; curves and plans are left in the file.
    kept: BTreeMap<String, Record>,
}

impl Store {
    /// Reads what `build` has written, and opens the file for more.
    fn open(path: &Path, build: &str) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot open {}", name()))?;
        let mut kept = BTreeMap::new();
        let mut ends_with_newline = true;
        for line in BufReader::new(&file).split(b'\n') {
            let line = line.with_context(|| format!("cannot read {}", name()))?;
            // What was cut short by a crash is run again.
            let text = String::from_utf8(line).unwrap_or_default();
            ends_with_newline = text.is_empty() || text.ends_with('}');
            let Ok(record) = Record::from_json(&text) else { continue };
            let versions = &record.environment.versions;
            if versions.get(BUILD).is_some_and(|by| by == build)
                && let Some(plan) = versions.get(PLAN).cloned()
            {
                kept.insert(plan, without_bulk(record));
            }
        }
        if !ends_with_newline {
            writeln!(file).with_context(|| format!("cannot write {}", name()))?;
        }
        Ok(Self { file, kept })
    }
}

/// A record as it is held in memory, where there may be thousands.
fn without_bulk(mut record: Record) -> Record {
    record.series = Vec::new();
    record.plan = serde_json::Value::Null;
    record
}

/// What tells one plan from another, whatever its number in its sweep and the names of its axes.
fn hash(plan: &Plan) -> anyhow::Result<String> {
    let plan = Plan { number: 0, seeds: 1, axes: Vec::new(), ..plan.clone() };
    let text = serde_json::to_vec(&plan).context("cannot print a plan")?;
    Ok(format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&text)))
}

/// What tells this build of the program from any other.
fn build_hash() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("cannot find this program's own file")?;
    let read = || {
        let (mut file, mut hasher) = (File::open(&path)?, Xxh3::new());
        let mut buffer = vec![0; 1 << 18];
        loop {
            match file.read(&mut buffer)? {
                0 => return io::Result::Ok(format!("{:016x}", hasher.digest())),
                length => hasher.update(&buffer[..length]),
            }
        }
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}
