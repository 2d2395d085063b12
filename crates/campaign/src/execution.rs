//! Runs the rest of a campaign.

use crate::attempt::Attempt;
use crate::pace::Batch;
use crate::queue::each;
use crate::resumed::Resumed;
use crate::store::{Store, StoreError};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A runner of plans: the simulator, the laboratory, a reference.
pub trait Executor: Sync {
    /// Why a run has no record.
    type Error: Error + Send;

    /// Runs one plan, until `stop` is set. It begins and ends in one thread.
    ///
    /// # Errors
    /// When there is no record.
    fn run(&self, plan: &Plan, stop: &AtomicBool) -> Result<Record, Self::Error>;

    /// The cost of a run, only for comparison with other runs.
    fn cost(&self, plan: &Plan) -> u64;

    /// Whether a run was late, so that it may be in time with fewer parallel runs.
    fn is_late(&self, _plan: &Plan, _record: &Record) -> bool {
        false
    }

    /// The error of a run that never began because of an interruption.
    fn interrupted() -> Self::Error;

    /// Whether a run has no record only because of an interruption.
    fn is_interruption(error: &Self::Error) -> bool;
}

/// The receiver of a campaign's events, on any thread.
pub trait Observer: Sync {
    /// The runs of `plans` are next, `at_once` of them in parallel.
    fn begin(&self, _plans: &[&Plan], _at_once: usize) {}

    /// A run has begun.
    fn started(&self, _plan: &Plan) {}

    /// A run is over; `failed` is why it has no record, unless it was interrupted.
    fn finished(&self, plan: &Plan, failed: Option<&dyn fmt::Display>);

    /// A run has a record, which is late or not; [`Observer::finished`] follows.
    fn recorded(&self, _plan: &Plan, _record: &Record, _is_late: bool) {}

    /// A record could not be stored.
    fn unwritten(&self, error: &StoreError);

    /// `late` of the runs that `ran` were late and are repeated, `at_once` in parallel.
    fn again(&self, _late: usize, _ran: usize, _at_once: usize) {}

    /// So many runs were late each time, and are not repeated.
    fn stays_late(&self, _late: usize) {}
}

/// A campaign.
pub struct Campaign<'c, E> {
    /// The runner of its plans.
    pub executor: &'c E,
    /// The store of records, if any.
    pub store: Option<&'c dyn Store>,
    /// How often late runs are repeated at most; none: until they have been late a few times when
    /// run alone.
    pub repeats: Option<u32>,
    /// Set by an interruption.
    pub stop: &'c AtomicBool,
    /// The receiver of its events.
    pub observer: &'c dyn Observer,
}

/// The results of a campaign.
#[derive(Debug)]
pub struct Ran<K> {
    /// In the order of the plans.
    pub results: Vec<K>,
    /// How many records could not be stored. A full disk ends no run.
    pub unwritten: usize,
}

impl<E: Executor> Campaign<'_, E> {
    /// Runs the rest of `resumed` in `batches`, whose indices are those of [`Resumed::left`]. A
    /// late run is repeated, each time with half as many parallel runs, and finally alone. Each
    /// record is stored at once, so that finished runs survive any interruption, and `read` makes a
    /// result from it. The record of a later attempt replaces that of an earlier one.
    pub fn run<K: Send>(
        &self,
        resumed: Resumed<'_, K>,
        batches: Vec<Batch>,
        read: impl Fn(&Plan, Result<Record, E::Error>) -> K + Sync,
    ) -> Ran<K> {
        let (left, mut results) = (resumed.places(), resumed.results);
        let plans = resumed.plans;
        let unwritten = AtomicUsize::new(0);
        for Batch { at_once, mut places } in batches {
            let mut attempt = Attempt::first(at_once, self.repeats);
            while !places.is_empty() && !self.is_stopped() {
                let chosen: Vec<&Plan> = places.iter().map(|place| &plans[left[*place]]).collect();
                self.observer.begin(&chosen, attempt.at_once);
                let costs: Vec<u64> = chosen.iter().map(|plan| self.executor.cost(plan)).collect();
                let ran = each(&costs, attempt.at_once, self.stop, |at| {
                    self.one(chosen[at], attempt, &unwritten, &read)
                });
                let mut again = Vec::new();
                for (place, ran) in places.into_iter().zip(ran) {
                    let Some((is_late, value)) = ran else { continue };
                    if is_late {
                        again.push(place);
                    }
                    results[left[place]] = Some(value);
                }
                if attempt.is_last() {
                    if !again.is_empty() && !self.is_stopped() {
                        self.observer.stays_late(again.len());
                    }
                    break;
                }
                attempt = attempt.next();
                if !again.is_empty() && !self.is_stopped() {
                    self.observer.again(again.len(), chosen.len(), attempt.at_once);
                }
                places = again;
            }
        }
        let never = |plan| read(plan, Err(E::interrupted()));
        let all = plans.iter().zip(results).map(|(plan, it)| it.unwrap_or_else(|| never(plan)));
        Ran { results: all.collect(), unwritten: unwritten.into_inner() }
    }

    /// One run: returns whether it was late, and its result. A late record is stored after the last
    /// attempt only.
    fn one<K>(
        &self,
        plan: &Plan,
        attempt: Attempt,
        unwritten: &AtomicUsize,
        read: &impl Fn(&Plan, Result<Record, E::Error>) -> K,
    ) -> (bool, K) {
        self.observer.started(plan);
        let mut outcome = self.executor.run(plan, self.stop);
        let mut is_late = false;
        if let Ok(record) = &mut outcome {
            is_late = self.executor.is_late(plan, record);
            if (!is_late || attempt.is_last())
                && let Some(Err(error)) = self.store.map(|store| store.keep(plan, record))
            {
                unwritten.fetch_add(1, Ordering::Relaxed);
                self.observer.unwritten(&error);
            }
            self.observer.recorded(plan, record, is_late);
        }
        let failed = outcome.as_ref().err().filter(|error| !E::is_interruption(error));
        self.observer.finished(plan, failed.map(|error| error as &dyn fmt::Display));
        (is_late, read(plan, outcome))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
