//! Runs plans on all cores, with progress, each record handed over the moment it is there.

use super::progress::{SimProgress, weight};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_sim::watch::Watcher;
use midhop_sim::{Effort, Options, RunError};
use midhop_testbed::signals::Interrupts;
use midhop_units::Duration;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How many processors there are to run on.
pub fn processors() -> usize {
    available_parallelism().map_or(1, |count| count.get())
}

/// What became of a plan.
pub type RunOutcome = Result<(Record, Effort), RunError>;

/// Those who watch a run.
pub type Watchers = io::Result<Vec<Box<dyn Watcher>>>;

/// Runs `plans`, at most `jobs` at a time and the costliest first, until all are done or
/// `interrupts` says stop. `watch` says who watches a run. `keep` gets each outcome as it comes, from
/// whatever thread, and may make less of it. What it gives back is in the order of `plans`;
/// [`RunError::Interrupted`] stands for those that never began.
pub fn run_all<K: Send>(
    plans: &[&Plan],
    jobs: usize,
    interrupts: &Interrupts,
    watch: impl Fn(&Plan) -> Watchers + Sync,
    keep: impl Fn(&Plan, RunOutcome) -> K + Sync,
) -> Vec<K> {
    let interrupted = || interrupts.flag().load(Ordering::Relaxed);
    let kept = each(plans, jobs, interrupts, |plan, progress| {
        let outcome = run(plan, &interrupted, &watch);
        let failed = outcome.as_ref().err();
        let failed = failed.filter(|error| !matches!(error, RunError::Interrupted));
        progress.finished(plan, failed.map(|error| error as _));
        keep(plan, outcome)
    });
    let never = |plan| keep(plan, Err(RunError::Interrupted));
    plans.iter().zip(kept).map(|(plan, it)| it.unwrap_or_else(|| never(plan))).collect()
}

/// Calls `work` for each of `plans`, at most `jobs` at a time and the costliest first, until all are done or
/// `interrupts` says stop; it tells the progress when one has finished. What it gives is in the order of `plans`,
/// and none for those that never began.
pub fn each<K: Send>(
    plans: &[&Plan],
    jobs: usize,
    interrupts: &Interrupts,
    work: impl Fn(&Plan, &SimProgress) -> K + Sync,
) -> Vec<Option<K>> {
    let mut order: Vec<usize> = (0..plans.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(weight(plans[index])));
    let next = AtomicUsize::new(0);
    let kept: Vec<Mutex<Option<K>>> = plans.iter().map(|_| Mutex::new(None)).collect();
    let progress = SimProgress::new(plans);
    let worker = || {
        while !interrupts.flag().load(Ordering::Relaxed) {
            let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let value = work(plans[index], &progress);
            *kept[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..jobs.clamp(1, plans.len().max(1)) {
            scope.spawn(worker);
        }
        worker();
    });
    progress.end();
    kept.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// One run, and what the wall clock and the machine have to say of it.
fn run(
    plan: &Plan,
    interrupted: &dyn Fn() -> bool,
    watch: &dyn Fn(&Plan) -> Watchers,
) -> RunOutcome {
    let (began, started) = (Instant::now(), SystemTime::now());
    let options = Options { interrupted, ..Options::default() };
    let (mut record, effort) = midhop_sim::run_watched(plan, &options, watch(plan)?)?;
    let environment = &mut record.environment;
    environment.processors = u32::try_from(processors()).unwrap_or(u32::MAX);
    environment.started_unix_s = started.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    environment.took = Duration::from(began.elapsed());
    Ok((record, effort))
}
