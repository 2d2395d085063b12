//! What both references do with a scenario: run its cells, keep their records, go on where an earlier call stopped.

use super::super::arguments;
use super::super::records::{
    Unwritten, check_place, finished, judge, print, warn_of_others, write_record,
};
use super::super::scenario::ScenarioArguments;
use super::super::sim::batch::{each, processors};
use anyhow::Context;
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_testbed::signals::Interrupts;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of both.
#[derive(Debug, clap::Args)]
pub(super) struct ReferenceBatch {
    #[command(flatten)]
    scenario: ScenarioArguments,
    /// Write each record to a file of its own in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run only what --out has no valid record of yet, made by the same reference
    #[arg(long, requires = "out")]
    resume: bool,
    /// Print the records, one JSON object a line, instead of the table
    #[arg(long)]
    json: bool,
    /// Runs at a time; all processors when not given
    #[arg(long, value_name = "N", default_value_t = processors(), value_parser = arguments::jobs)]
    jobs: usize,
    /// Run each cell with this many seeds, whatever the scenario says
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
}

/// Why one run has no record.
pub(super) trait RunError: std::error::Error + Send {
    /// Somebody asked to stop before it ended, or before it began.
    fn interrupted() -> Self;
    /// Whether it is that.
    fn is_interruption(&self) -> bool;
}

impl ReferenceBatch {
    /// The plans of all cells.
    pub(super) fn plans(&self) -> anyhow::Result<Vec<Plan>> {
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        self.scenario.plans(&seeds)
    }

    /// Runs `plans`, but for those whose record is there and `is_own`. Exit code 1 when a run failed or was not valid.
    pub(super) fn run<E: RunError>(
        self,
        plans: &[Plan],
        is_own: impl Fn(&Record) -> bool,
        run_one: impl Fn(&Plan, &Interrupts) -> Result<Record, E> + Sync,
    ) -> anyhow::Result<ExitCode> {
        if let Some(directory) = &self.out {
            check_place(directory)?;
            warn_of_others(directory, plans);
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let resumed = self.out.as_deref().filter(|_| self.resume);
        let kept = |plan: &Plan| {
            let record = finished(resumed?, plan)?;
            (record.validity.is_valid() && is_own(&record)).then_some(record)
        };
        let kept: Vec<Option<Record>> = plans.iter().map(kept).collect();
        let left: Vec<&Plan> =
            plans.iter().zip(&kept).filter(|(_, it)| it.is_none()).map(|(plan, _)| plan).collect();
        if left.len() < plans.len() {
            eprintln!("{} of {} runs are there already", plans.len() - left.len(), plans.len());
        }
        let unwritten = Unwritten::default();
        let ran = each(&left, self.jobs, &interrupts, |plan, progress| {
            let result = run_one(plan, &interrupts);
            let failed = result.as_ref().err().filter(|error| !error.is_interruption());
            progress.finished(plan, failed.map(|error| error as _));
            if let (Some(directory), Ok(record)) = (&self.out, &result) {
                unwritten.note(write_record(directory, plan, record));
            }
            result
        });
        let mut ran = ran.into_iter().map(|it| it.unwrap_or_else(|| Err(E::interrupted())));
        let mut next = || ran.next().unwrap_or_else(|| Err(E::interrupted()));
        let results: Vec<_> = kept.into_iter().map(|it| it.map_or_else(&mut next, Ok)).collect();
        let code = unwritten.judge(judge(plans, &results, E::is_interruption));
        print(&results.into_iter().flatten().collect::<Vec<_>>(), self.json)?;
        Ok(code)
    }
}
