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

/// How hard the machine is driven, and what is reported of it.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Runs at a time; as many as the machine carries where it does not say.
    pub jobs: Option<usize>,
    /// Lateness that makes a run invalid where 1 % of the round trip is less.
    pub lateness: Duration,
    /// How often late runs are run again at most; none: until they have been late alone a few times.
    pub repeats: Option<u32>,
    /// Whether runs that stay late fail the command.
    pub must_be_in_time: bool,
    /// Whether each finished run has a line.
    pub lines: bool,
}

/// How plans are run.
pub struct Session {
    /// Each record goes to a file of its own in this directory.
    pub out: Option<PathBuf>,
    /// How many at once, and how often.
    pub pace: Pace,
    /// Takes from `out` what an earlier session has finished.
    pub resume: bool,
}

/// The process that plans run in: isolated, so that whatever ends it, the kernel cleans up.
pub struct Isolated {
    isolation: Isolation,
    program: PathBuf,
}

impl Isolated {
    /// Goes on in a child of the calling process, inside namespaces of its own.
    pub fn enter() -> anyhow::Result<Self> {
        let program = own_program()?;
        Ok(Self { program, isolation: isolation::enter(StateDir::create()?)? })
    }

    /// Runs what is left of `resumed` with progress, at the `pace`. Each record that stays goes to `store` the moment it is there; `read` makes a result of each.
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

/// About how long `plans` take, and how many of them go at once at most.
pub fn outlook(plans: &[&Plan], jobs: Option<usize>) -> (std::time::Duration, usize) {
    let batches = batches(plans, jobs, processors());
    let most = batches.iter().map(|batch| batch.at_once.min(batch.places.len())).max();
    (time(plans, &batches), most.unwrap_or(1))
}

impl Session {
    /// Runs those of `plans` that are not there already. Gives their records, and the exit code.
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
