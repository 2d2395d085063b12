//! `midhop formulas`: compares long simulated flows with published formulas.
//!
//! Standard output carries data only: the table, or JSON with `--json`. Progress goes to standard error.

use super::sim::batch::run_all;
use super::{arguments, output};
use crate::failure::{self, Failure};
use anyhow::Context;
use midhop_campaign::Resumed;
use midhop_experiment::record::Record;
use midhop_experiment::{Plan, Scenario};
use midhop_report::Formulas;
use midhop_testbed::signals::Interrupts;
use midhop_workbench::{Simulator, processors, runnable_plans, supply_files};
use std::path::PathBuf;
use std::process::ExitCode;

/// An expectation was not met.
const UNMET: u8 = 2;
/// The built-in scenario.
const SHIPPED: &str = include_str!("../../../../scenarios/formulas.toml");

/// Arguments of `midhop formulas`.
///
/// Exit codes: 0 every cell is within its formula's band; 1 a run failed or was not valid; 2 a cell is
/// outside; 64 usage.
#[derive(Debug, clap::Args)]
pub struct CheckFormulas {
    /// A scenario of long flows over a lossy path; if not given, the built-in one
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Change a key (transfers.flow.bytes="100 MB") or keep one case of an axis; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Run each cell with this many seeds, instead of the scenario's number
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Parallel runs; if not given, one per processor
    #[arg(long, value_name = "N", default_value_t = processors(), value_parser = arguments::jobs)]
    jobs: usize,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

impl CheckFormulas {
    /// Runs all cells and prints them with their formulas.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let plans = self.plans()?;
        for plan in &plans {
            midhop_sim::check(plan)
                .map_err(|error| Failure::usage(format!("{}: {error}", plan.label())))?;
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let all = Resumed::of(&plans, None, |_, record| Some(record));
        let simulator = Simulator::unwatched();
        let ran = run_all(&simulator, all, self.jobs, &interrupts, None, |_, it| it.ok());
        let results = ran.results;
        let mut cells = Formulas::default();
        let mut missing = 0;
        for (plan, record) in plans.iter().zip(&results) {
            match record {
                Some(record) => missing += usize::from(!add_run(plan, record, &mut cells)),
                None => missing += 1,
            }
        }
        if self.json {
            let text = serde_json::to_string(&cells).context("cannot print the cells")?;
            output::print(&(text + "\n"))?;
        } else {
            output::print(&midhop_report::formulas_table(&cells, output::columns()))?;
        }
        if missing > 0 {
            eprintln!("error: {missing} of {} runs have no result", plans.len());
            return Ok(ExitCode::from(failure::RUN));
        }
        Ok(if cells.agree() { ExitCode::SUCCESS } else { ExitCode::from(UNMET) })
    }

    fn plans(&self) -> anyhow::Result<Vec<Plan>> {
        let (name, text) = match &self.file {
            None => ("formulas.toml".to_owned(), SHIPPED.to_owned()),
            Some(file) => {
                let name = file.display().to_string();
                let text = std::fs::read_to_string(file).map_err(|error| {
                    Failure::usage(format!("cannot read {name}: {error}"))
                        .hint("without a file, the program runs its own")
                })?;
                (name, text)
            }
        };
        let mut scenario = Scenario::parse(&name, &text).map_err(Failure::from)?;
        let seeds = self.seeds.map(|seeds| format!("seeds={seeds}"));
        for assignment in self.set.iter().chain(&seeds) {
            scenario.set(assignment).map_err(Failure::from)?;
        }
        if let Some(file) = &self.file {
            supply_files(&mut scenario, file)?;
        }
        Ok(runnable_plans(&scenario)?)
    }
}

/// Adds a run to its cell; where it cannot be compared with a formula, prints why.
fn add_run(plan: &Plan, record: &Record, cells: &mut Formulas) -> bool {
    for fault in &record.validity.faults {
        eprintln!("invalid: {}: {fault}", plan.label());
    }
    if !record.validity.is_valid() {
        return false;
    }
    let added = cells.add(record);
    if !added {
        eprintln!(
            "error: {}: no formula speaks of it, or its transfer is not complete",
            plan.label()
        );
    }
    added
}
