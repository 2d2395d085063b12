//! `midhop sim run`.

use super::batch::{processors, run_all};
use crate::commands::lab::ScenarioArguments;
use crate::commands::lab::session::{judge, write_record};
use crate::commands::records::print;
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::Plan;
use midhop_sim::RunError;
use midhop_testbed::signals::Interrupts;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `midhop sim run`.
#[derive(Debug, clap::Args)]
pub struct Run {
    #[command(flatten)]
    scenario: ScenarioArguments,
    /// Write each record to a file of its own in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the records, one JSON object a line, instead of the table
    #[arg(long)]
    json: bool,
    /// Runs at a time; all processors when not given
    #[arg(long, value_name = "N", default_value_t = processors())]
    jobs: usize,
    /// Run each cell with this many seeds, whatever the scenario says
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
}

impl Run {
    /// Runs all cells. Exit code 1 when a run failed or was not valid.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.jobs == 0 {
            return Err(Failure::usage("no run at a time is none at all")
                .hint("give --jobs at least 1")
                .into());
        }
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        let plans = self.scenario.plans(&seeds)?;
        for plan in &plans {
            midhop_sim::check(plan)
                .map_err(|error| Failure::usage(format!("{}: {error}", plan.label())))?;
        }
        if let Some(directory) = &self.out {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let all: Vec<&Plan> = plans.iter().collect();
        let outcomes = run_all(&all, self.jobs, &interrupts, |plan, outcome| {
            let record = match outcome {
                Ok((record, _)) => record,
                Err(error) => return Ok(Err(error)),
            };
            // At once, so that what is finished survives whatever comes.
            if let Some(directory) = &self.out {
                write_record(directory, plan, &record)?;
            }
            anyhow::Ok(Ok(record))
        });
        let results = outcomes.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let code = judge(&plans, &results, |error| matches!(error, RunError::Interrupted));
        print(&results.into_iter().flatten().collect::<Vec<_>>(), self.json)?;
        Ok(code)
    }
}
