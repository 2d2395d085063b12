//! Runs plans in virtual time on all cores, with progress.

use super::progress::SimProgress;
use midhop_campaign::pace::Batch;
use midhop_campaign::{Campaign, Executor, Ran, Resumed, Store};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_testbed::signals::Interrupts;

/// Runs the rest of `resumed`, at most `jobs` at a time, until all are done or `interrupts` is set.
/// Each record goes to `store` at once; `read` makes a result from it, on any thread.
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
