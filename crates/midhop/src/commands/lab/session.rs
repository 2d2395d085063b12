//! Runs plans in an isolated process, with progress, each record kept the moment it is there.

use super::pace::{Batch, batches};
use super::progress::{LabProgress, expected};
use crate::commands::own_program;
use crate::commands::records::{check_place, finished, judge, write_record};
use crate::commands::sim::batch::processors;
use crate::failure;
use anyhow::Context;
use midhop_experiment::plan::Plan;
use midhop_experiment::record::Record;
use midhop_testbed::isolation::{self, Isolation};
use midhop_testbed::lab::Links;
use midhop_testbed::runner::{Event, RunError, RunOptions, late, run_all};
use midhop_testbed::signals::Interrupts;
use midhop_testbed::state::StateDir;
use midhop_units::Duration;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a run is run alone before a late record is kept: what makes it late then is not its company.
const ATTEMPTS_ALONE: u32 = 3;

/// How plans are run.
pub struct Session {
    /// Each record goes to a file of its own in this directory.
    pub out: Option<PathBuf>,
    /// Runs at a time; as many as the machine carries where it does not say.
    pub jobs: Option<usize>,
    /// Lateness that makes a run invalid where 1 % of the round trip is less.
    pub lateness: Duration,
    /// Takes from `out` what an earlier session has finished on this kernel, where it was valid.
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
}

impl Isolated {
    /// Runs all of `plans` with progress, `jobs` at a time, or where it does not say how many as many as the
    /// machine carries. A run that was late is run again, with half as many beside it each time and in the
    /// end alone. `keep` gets each record that is to stay the moment it is there, so that what is finished
    /// survives whatever comes; what it says is told.
    pub fn run(
        &self,
        plans: &[Plan],
        jobs: Option<usize>,
        lateness: Duration,
        interrupts: &Interrupts,
        keep: impl Fn(&Plan, &Record) -> Option<String> + Sync,
    ) -> Vec<Result<Record, RunError>> {
        let batches = batches(plans, jobs, processors());
        let progress = LabProgress::new(time(plans, &batches));
        let mut results: Vec<Option<Result<Record, RunError>>> =
            plans.iter().map(|_| None).collect();
        let is_late = |plan: &Plan, record: &Record| late(plan, record, lateness);
        for Batch { mut at_once, mut places } in batches {
            let mut alone = 0;
            while !places.is_empty() && !interrupts.flag().load(Ordering::Relaxed) {
                alone += u32::from(at_once == 1);
                let last = alone == ATTEMPTS_ALONE;
                let chosen: Vec<Plan> = places.iter().map(|place| plans[*place].clone()).collect();
                let keep = |plan: &Plan, record: &Record| {
                    if is_late(plan, record) && !last { None } else { keep(plan, record) }
                };
                let ran = self.batch(&chosen, at_once, lateness, interrupts, &progress, keep);
                let mut again = Vec::new();
                for (place, ran) in places.into_iter().zip(ran) {
                    if ran.as_ref().is_ok_and(|record| is_late(&plans[place], record)) {
                        again.push(place);
                    }
                    results[place] = Some(ran);
                }
                if last {
                    break;
                }
                at_once = (at_once / 2).max(1);
                if !again.is_empty() && !interrupts.flag().load(Ordering::Relaxed) {
                    let (late, ran) = (again.len(), chosen.len());
                    let company = if at_once == 1 { "alone" } else { "fewer at a time" };
                    progress.say(&format!("{late} of {ran} runs were late: again, {company}"));
                }
                places = again;
            }
        }
        progress.end();
        results.into_iter().map(|it| it.unwrap_or(Err(RunError::Interrupted))).collect()
    }

    fn batch(
        &self,
        plans: &[Plan],
        jobs: usize,
        lateness: Duration,
        interrupts: &Interrupts,
        progress: &LabProgress,
        keep: impl Fn(&Plan, &Record) -> Option<String> + Sync,
    ) -> Vec<Result<Record, RunError>> {
        let options = RunOptions {
            scratch: self.isolation.state.clone(),
            program: self.program.clone(),
            jobs,
            privileged: self.isolation.privileged,
            links: Links::Emulated,
            lateness,
        };
        progress.begin(plans, jobs);
        run_all(plans, &options, interrupts.flag(), |event| match event {
            Event::Started(plan) => progress.started(plan),
            Event::Finished(plan, result) => {
                if let Some(said) = result.as_ref().ok().and_then(|record| keep(plan, record)) {
                    progress.say(&said);
                }
                progress.finished(plan, result);
            }
            _ => {}
        })
    }
}

/// About how long `plans` take in these batches.
fn time(plans: &[Plan], batches: &[Batch]) -> std::time::Duration {
    let of = |batch: &Batch| {
        let expected = batch.places.iter().map(|place| expected(&plans[*place]));
        let sum: std::time::Duration = expected.clone().sum();
        let shared = sum / u32::try_from(batch.at_once).unwrap_or(u32::MAX).max(1);
        shared.max(expected.max().unwrap_or_default())
    };
    batches.iter().map(of).sum()
}

/// About how long `plans` take, and how many of them go at once at most.
pub fn outlook(plans: &[Plan], jobs: Option<usize>) -> (std::time::Duration, usize) {
    let batches = batches(plans, jobs, processors());
    let most = batches.iter().map(|batch| batch.at_once.min(batch.places.len())).max();
    (time(plans, &batches), most.unwrap_or(1))
}

impl Session {
    /// Runs those of `plans` that are not there already.
    pub fn run(&self, plans: &[Plan], inside: &Isolated) -> anyhow::Result<Ran> {
        if let Some(directory) = &self.out {
            check_place(directory)?;
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let kept: Vec<Option<Record>> = plans.iter().map(|plan| self.kept(plan)).collect();
        let left: Vec<Plan> = plans
            .iter()
            .zip(&kept)
            .filter(|(_, kept)| kept.is_none())
            .map(|(p, _)| p.clone())
            .collect();
        if left.len() < plans.len() {
            eprintln!("{} of {} runs are there already", plans.len() - left.len(), plans.len());
        }
        let unwritten = AtomicUsize::new(0);
        let write = |plan: &Plan, record: &Record| {
            let error = write_record(self.out.as_ref()?, plan, record).err()?;
            unwritten.fetch_add(1, Ordering::Relaxed);
            Some(format!("error: {error:#}"))
        };
        let ran = inside.run(&left, self.jobs, self.lateness, &interrupts, write);
        let mut ran = ran.into_iter();
        let results = kept
            .into_iter()
            .map(|kept| kept.map_or_else(|| ran.next().unwrap_or(Err(RunError::Interrupted)), Ok))
            .collect();
        Ok(Ran { results, unwritten: unwritten.into_inner() })
    }

    /// What need not be run again.
    fn kept(&self, plan: &Plan) -> Option<Record> {
        let directory = self.out.as_deref().filter(|_| self.resume)?;
        let record = finished(directory, plan)?;
        let kernel = nix::sys::utsname::uname().ok()?;
        let kernel = kernel.release().to_str()?;
        let same = record.environment.versions.get("linux").is_some_and(|it| it == kernel);
        (same && record.validity.is_valid()).then_some(record)
    }
}

/// What became of a session: each plan's in its place.
pub struct Ran {
    /// The records, and why there are none.
    pub results: Vec<Result<Record, RunError>>,
    /// How many records could not be written.
    unwritten: usize,
}

impl Ran {
    /// Says on standard error what went wrong, and gives the exit code.
    pub fn judge(&self, plans: &[Plan]) -> ExitCode {
        let code = judge(plans, &self.results, |error| matches!(error, RunError::Interrupted));
        if self.unwritten == 0 {
            return code;
        }
        eprintln!("error: {} of {} records were not written", self.unwritten, plans.len());
        ExitCode::from(failure::RUN)
    }
}
