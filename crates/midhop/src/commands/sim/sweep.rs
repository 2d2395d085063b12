//! `midhop sim sweep`.
//!
//! The directory of a sweep holds
//! - `records.jsonl`: one record a line, the moment it is there; `midhop report` reads it;
//! - `runs.csv`, `runs.parquet`: one row per run and transfer;
//! - `cells.csv`, `cells.parquet`: one row per cell and transfer, means with confidence intervals.
//!
//! A sweep that goes on in a directory runs only what is missing there: a record counts when its plan
//! is the one that would run and the same build of this program made it.

use super::batch::{Simulator, processors, run_all};
use crate::commands::records::{announce, check_place, judge, judge_unwritten, print};
use crate::commands::scenario::ScenarioArguments;
use crate::commands::{arguments, go_on, origin};
use crate::failure;
use anyhow::Context;
use midhop_campaign::{Executor, Lines, Resumed, without_bulk};
use midhop_experiment::record::Record;
use midhop_report::Columns;
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
        let store = Lines::open(&self.out.join("records.jsonl"), origin::simulated()?)?;
        let resumed = Resumed::of(&plans, Some(&store), |_, record| Ok(record));
        announce(&resumed, &plans);
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let simulator = Simulator { curves: self.series, ..Simulator::unwatched() };
        let ran =
            run_all(&simulator, resumed, self.jobs, &interrupts, Some(&store), |_, outcome| {
                outcome.map(without_bulk)
            });
        if interrupts.is_set() {
            go_on::report(Some(&self.out), None);
        }
        let mut code = judge(&plans, &ran.results, Simulator::is_interruption);
        let records: Vec<Record> = ran.results.into_iter().flatten().collect();
        if let Err(error) = self.write_tables(&records) {
            eprintln!("error: {error:#}");
            code = ExitCode::from(failure::RUN);
        }
        print(&records, self.json)?;
        Ok(judge_unwritten(ran.unwritten, &plans, code))
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
