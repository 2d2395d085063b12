//! Runs plans in virtual time on all cores, with progress.

use super::progress::{SimProgress, weight};
use midhop_campaign::pace::Batch;
use midhop_campaign::{Campaign, Executor, Ran, Resumed, Store};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_sim::watch::Watcher;
use midhop_sim::{Options, RunError};
use midhop_testbed::signals::Interrupts;
use midhop_units::Duration;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How many processors there are to run on.
pub fn processors() -> usize {
    available_parallelism().map_or(1, |count| count.get())
}

/// Those who watch a run.
pub type Watchers = io::Result<Vec<Box<dyn Watcher>>>;

/// Runs plans in virtual time.
pub struct Simulator<'w> {
    /// Who watches the run of a plan.
    pub watch: &'w (dyn Fn(&Plan) -> Watchers + Sync),
    /// Whether records keep their curves over time.
    pub curves: bool,
}

impl Simulator<'_> {
    /// One whose runs nobody watches, and whose records are whole.
    pub fn unwatched() -> Self {
        Self { watch: &|_| Ok(Vec::new()), curves: true }
    }
}

impl Executor for Simulator<'_> {
    type Error = RunError;

    /// One run, and what the wall clock and the machine have to add.
    fn run(&self, plan: &Plan, stop: &AtomicBool) -> Result<Record, RunError> {
        let (began, started) = (Instant::now(), SystemTime::now());
        let interrupted = || stop.load(Ordering::Relaxed);
        let options = Options { interrupted: &interrupted, ..Options::default() };
        let (mut record, _) = midhop_sim::run_watched(plan, &options, (self.watch)(plan)?)?;
        let environment = &mut record.environment;
        environment.processors = u32::try_from(processors()).unwrap_or(u32::MAX);
        environment.started_unix_s =
            started.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
        environment.took = Duration::from(began.elapsed());
        if !self.curves {
            record.series.clear();
        }
        Ok(record)
    }

    fn cost(&self, plan: &Plan) -> u64 {
        weight(plan)
    }

    fn interrupted() -> RunError {
        RunError::Interrupted
    }

    fn is_interruption(error: &RunError) -> bool {
        matches!(error, RunError::Interrupted)
    }
}

/// Runs what is left of `resumed`, at most `jobs` at a time, until all are done or `interrupts` says stop. Each record
/// goes to `store` the moment it is there; `read` makes a result of it, from whatever thread.
pub fn run_all<E: Executor, K: Send>(
    executor: &E,
    resumed: Resumed<'_, K>,
    jobs: usize,
    interrupts: &Interrupts,
    store: Option<&dyn Store>,
    read: impl Fn(&Plan, Result<Record, E::Error>) -> K + Sync,
) -> Ran<K> {
    let left = resumed.left();
    let progress = SimProgress::new(&left);
    let stop = interrupts.flag();
    let campaign = Campaign { executor, store, repeats: None, stop, observer: &progress };
    let ran = campaign.run(resumed, vec![Batch::whole(&left, jobs)], read);
    progress.end();
    ran
}
