//! `midhop sim sweep`.
//!
//! The directory of a sweep contains
//! - `records.jsonl`: one record a line, written as soon as it exists; `midhop report` reads it;
//! - `runs.csv`, `runs.parquet`: one row per run and transfer;
//! - `cells.csv`, `cells.parquet`: one row per cell and transfer, means with confidence intervals.
//!
//! A sweep that continues in a directory runs only what is missing there. A record counts when it
//! has the plan that would be run and was made by the same build of this program.

use super::batch::run_all;
use super::engine;
use crate::commands::records::{announce, judge, judge_unwritten, print};
use crate::commands::scenario::ScenarioArguments;
use crate::commands::{arguments, go_on, origin, output};
use crate::failure;
use anyhow::Context;
use midhop_campaign::{Executor, Lines, Resumed, without_bulk};
use midhop_experiment::record::Record;
use midhop_testbed::signals::Interrupts;
use midhop_workbench::{Simulator, check_place, processors, write_tables};
use std::ffi::OsString;
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
    /// The directory for the results; an interrupted sweep continues from there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print the records instead of the table, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Parallel runs; if not given, one per processor
    #[arg(long, value_name = "N", value_parser = arguments::jobs)]
    jobs: Option<usize>,
    /// What runs it instead of this machine's processors: `ray` for a Ray cluster (one on this
    /// machine or the one that RAY_ADDRESS names, otherwise a new one), or the address of a
    /// cluster, ray://HOST:PORT. It needs the Python package
    #[arg(long, value_name = "ENGINE", value_parser = engine::Engine::parse)]
    engine: Option<engine::Engine>,
    /// Run each cell with this many seeds, instead of the scenario's number
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Confidence of the intervals around means
    #[arg(long, value_name = "LEVEL", default_value_t = midhop_study::LEVEL, value_parser = arguments::confidence)]
    confidence: f64,
    /// Keep the curves over time in the records; without it, a record holds only its results
    #[arg(long)]
    series: bool,
}

impl Sweep {
    /// Runs what is missing. Exit code 1 when a run failed or was not valid.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(engine) = &self.engine {
            return Err(engine.take_over(self.arguments()));
        }
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        let plans = self.scenario.simulable_plans(&self.vary, &seeds)?;
        check_place(&self.out)?;
        let store = Lines::open(&self.out.join("records.jsonl"), origin::simulated()?)?;
        let resumed = Resumed::of(&plans, Some(&store), |_, record| Ok(record));
        announce(&resumed, &plans);
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let simulator = Simulator { curves: self.series, ..Simulator::unwatched() };
        let jobs = self.jobs.unwrap_or_else(processors);
        let ran = run_all(&simulator, resumed, jobs, &interrupts, Some(&store), |_, outcome| {
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

    /// The command line by which the Python package runs the same sweep.
    fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec![self.scenario.file.clone().into()];
        let mut option = |name: &str, value: OsString| all.extend([name.into(), value]);
        option("--out", self.out.clone().into());
        for (name, assignments) in [("--set", self.scenario.set()), ("--vary", &self.vary)] {
            assignments.iter().for_each(|it| option(name, it.into()));
        }
        let seeds = self.seeds.map(|it| it.to_string());
        let jobs = self.jobs.map(|it| it.to_string());
        for (name, value) in [("--seeds", seeds), ("--jobs", jobs)] {
            value.into_iter().for_each(|it| option(name, it.into()));
        }
        option("--confidence", self.confidence.to_string().into());
        option("--columns", output::columns().to_string().into());
        let flags = [("--series", self.series), ("--json", self.json)];
        all.extend(flags.into_iter().filter(|(_, given)| *given).map(|(name, _)| name.into()));
        all
    }

    fn write_tables(&self, records: &[Record]) -> anyhow::Result<()> {
        write_tables(&self.out, records, self.confidence)?;
        eprintln!("wrote runs and cells as CSV and Parquet to {}", self.out.display());
        Ok(())
    }
}
