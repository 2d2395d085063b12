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
use crate::commands::records::{Unwritten, check_place, judge, print};
use crate::commands::scenario::ScenarioArguments;
use crate::commands::{arguments, own_program};
use anyhow::Context;
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_report::Columns;
use midhop_sim::RunError;
use midhop_store::{Build, Key, Lines, without_bulk};
use midhop_testbed::signals::Interrupts;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

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
    #[arg(long, value_name = "LEVEL", default_value_t = midhop_study::LEVEL, value_parser = arguments::confidence)]
    confidence: f64,
    /// Keep the curves over time in the records; without, a record holds only its figures
    #[arg(long)]
    series: bool,
}

impl Sweep {
    /// Runs what is missing. Exit code 1 when a run failed or was not valid.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        let plans = self.scenario.simulable_plans(&self.vary, &seeds)?;
        check_place(&self.out)?;
        let program = own_program()?;
        let keys: Vec<Key> = plans.iter().map(Key::of).collect::<Result<_, _>>()?;
        let store = Lines::open(&self.out.join("records.jsonl"), Build::of(&program)?)?;
        let missing: Vec<&Plan> = plans
            .iter()
            .zip(&keys)
            .filter(|(_, key)| !store.has(key))
            .map(|(plan, _)| plan)
            .collect();
        if missing.len() < plans.len() {
            let there = plans.len() - missing.len();
            eprintln!("{there} of {} runs are there already", plans.len());
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let keep = |plan: &Plan, record: &mut Record| -> anyhow::Result<()> {
            if !self.series {
                record.series.clear();
            }
            Ok(store.keep(record, &Key::of(plan)?)?)
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
        // Several plans may have one record; each that had none has run, and has its own outcome.
        let results: Vec<Result<Record, RunError>> = plans
            .iter()
            .zip(&keys)
            .map(|(plan, key)| match store.get(plan, key) {
                Some(record) => Ok(record),
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
                    .inspect_err(|_| {
                        let _ = fs::remove_file(&draft);
                    })
                    .with_context(|| format!("cannot write {}", path.display()))
            };
            write("csv", columns.csv()?.as_bytes())?;
            write("parquet", &Columns::parquet(&columns)?)?;
        }
        eprintln!("wrote runs and cells as CSV and Parquet to {}", self.out.display());
        Ok(())
    }
}
