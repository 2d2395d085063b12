//! Runs plans on real kernels in an isolated process, with progress.

use super::progress::LabProgress;
use crate::commands::records::{announce, judge_all_but, judge_unwritten, numbered};
use crate::commands::{origin, own_program};
use midhop_campaign::pace::{batches, time};
use midhop_campaign::{Campaign, Executor, Ran, Resumed, Store};
use midhop_experiment::plan::Plan;
use midhop_experiment::record::Record;
use midhop_testbed::isolation::{self, Isolation};
use midhop_testbed::lab::Links;
use midhop_testbed::runner::{RunError, RunOptions, execute, late, only_late};
use midhop_testbed::signals::Interrupts;
use midhop_testbed::state::StateDir;
use midhop_units::Duration;
use midhop_workbench::processors;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// The load on the machine, and what is reported.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Parallel runs; by default as many as the machine can carry.
    pub jobs: Option<usize>,
    /// The lateness that makes a run invalid, where 1 % of the round trip is less.
    pub lateness: Duration,
    /// How often late runs are repeated at most; none: until they have been late a few times when
    /// run alone.
    pub repeats: Option<u32>,
    /// Whether runs that stay late make the command fail.
    pub must_be_in_time: bool,
    /// Whether each finished run has a line.
    pub lines: bool,
}

/// Options of running plans.
pub struct Session {
    /// The directory in which each record has a file of its own.
    pub out: Option<PathBuf>,
    /// How many runs in parallel, and how often.
    pub pace: Pace,
    /// Whether to use the records in `out` that an earlier session has finished.
    pub resume: bool,
}

/// The process in which plans run. It is isolated, so that the kernel cleans up however it ends.
pub struct Isolated {
    isolation: Isolation,
    program: PathBuf,
}

impl Isolated {
    /// Continues in a child of the calling process, inside namespaces of its own.
    pub fn enter() -> anyhow::Result<Self> {
        let program = own_program()?;
        Ok(Self { program, isolation: isolation::enter(StateDir::create()?)? })
    }

    /// Runs the rest of `resumed` with progress, at the `pace`. Each final record goes to `store`
    /// at once; `read` makes a result from each.
    pub fn run<K: Send>(
        &self,
        resumed: Resumed<'_, K>,
        pace: Pace,
        interrupts: &Interrupts,
        store: Option<&dyn Store>,
        read: impl Fn(&Plan, Result<Record, RunError>) -> K + Sync,
    ) -> Ran<K> {
        let options = RunOptions {
            scratch: self.isolation.state.clone(),
            program: self.program.clone(),
            privileged: self.isolation.privileged,
            links: Links::Emulated,
            lateness: pace.lateness,
        };
        let left = resumed.left();
        let batches = batches(&left, pace.jobs, processors());
        let lines = pace.lines.then_some(left.len());
        let progress = LabProgress::new(time(&left, &batches), lines);
        let stop = interrupts.flag();
        let executor = &Laboratory { options };
        let campaign =
            Campaign { executor, store, repeats: pace.repeats, stop, observer: &progress };
        let ran = campaign.run(resumed, batches, read);
        progress.end();
        ran
    }
}

/// Runs plans on this kernel.
struct Laboratory {
    options: RunOptions,
}

impl Executor for Laboratory {
    type Error = RunError;

    fn run(&self, plan: &Plan, stop: &AtomicBool) -> Result<Record, RunError> {
        execute(plan, &self.options, stop)
    }

    fn cost(&self, plan: &Plan) -> u64 {
        plan.expected_time().as_ns()
    }

    fn is_late(&self, plan: &Plan, record: &Record) -> bool {
        late(plan, record, self.options.lateness)
    }

    fn interrupted() -> RunError {
        RunError::Interrupted
    }

    fn is_interruption(error: &RunError) -> bool {
        matches!(error, RunError::Interrupted)
    }
}

/// An estimate of how long `plans` take, and the maximum number of parallel runs.
pub fn outlook(plans: &[&Plan], jobs: Option<usize>) -> (std::time::Duration, usize) {
    let batches = batches(plans, jobs, processors());
    let most = batches.iter().map(|batch| batch.at_once.min(batch.places.len())).max();
    (time(plans, &batches), most.unwrap_or(1))
}

impl Session {
    /// Runs those of `plans` without a record. Returns their records, and the exit code.
    pub fn run(
        &self,
        plans: &[Plan],
        inside: &Isolated,
        interrupts: &Interrupts,
    ) -> anyhow::Result<(Vec<Record>, ExitCode)> {
        let out = self.out.as_deref();
        let store = out.map(|out| numbered(out, origin::real()?)).transpose()?;
        let store = store.as_ref().map(|it| it as &dyn Store);
        let resumed = Resumed::of(plans, store.filter(|_| self.resume), |_, record| Ok(record));
        announce(&resumed, plans);
        let ran = inside.run(resumed, self.pace, interrupts, store, |_, outcome| outcome);
        let is_borne = |plan: &Plan, record: &Record| {
            !self.pace.must_be_in_time && only_late(plan, record, self.pace.lateness)
        };
        let code = judge_all_but(plans, &ran.results, Laboratory::is_interruption, is_borne);
        let code = judge_unwritten(ran.unwritten, plans, code);
        Ok((ran.results.into_iter().flatten().collect(), code))
    }
}
