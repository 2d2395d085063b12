//! The common part of both references: runs the cells of a scenario, keeps their records, and
//! continues where an earlier call stopped.

use super::super::records::{announce, judge, judge_unwritten, numbered, print, warn_of_others};
use super::super::scenario::ScenarioArguments;
use super::super::sim::batch::run_all;
use super::super::{arguments, go_on};
use anyhow::Context;
use midhop_campaign::{Executor, Origin, Resumed, Store};
use midhop_experiment::Plan;
use midhop_testbed::signals::Interrupts;
use midhop_workbench::processors;
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
    /// Run only plans of which --out has no valid record yet, made by the same reference and this
    /// build of midhop
    #[arg(long, requires = "out")]
    resume: bool,
    /// Print the records instead of the table, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Parallel runs; if not given, one per processor
    #[arg(long, value_name = "N", default_value_t = processors(), value_parser = arguments::jobs)]
    jobs: usize,
    /// Run each cell with this many seeds, instead of the scenario's number
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
}

impl ReferenceBatch {
    /// The plans of all cells.
    pub(super) fn plans(&self) -> anyhow::Result<Vec<Plan>> {
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        self.scenario.plans(&seeds)
    }

    /// Runs those of `plans` without a record. Exit code 1 when a run failed or was not valid.
    pub(super) fn run<E: Executor>(
        self,
        plans: &[Plan],
        origin: Origin,
        executor: &E,
    ) -> anyhow::Result<ExitCode> {
        let out = self.out.as_deref();
        let store = out.map(|out| numbered(out, origin)).transpose()?;
        if let Some((directory, store)) = out.zip(store.as_ref()) {
            warn_of_others(directory, store, plans);
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let store = store.as_ref().map(|it| it as &dyn Store);
        let resumed = Resumed::of(plans, store.filter(|_| self.resume), |_, record| Ok(record));
        announce(&resumed, plans);
        let ran = run_all(executor, resumed, self.jobs, &interrupts, store, |_, outcome| outcome);
        if interrupts.is_set() {
            go_on::report(self.out.as_deref(), Some("--resume"));
        }
        let code = judge(plans, &ran.results, E::is_interruption);
        let code = judge_unwritten(ran.unwritten, plans, code);
        print(&ran.results.into_iter().flatten().collect::<Vec<_>>(), self.json)?;
        Ok(code)
    }
}
