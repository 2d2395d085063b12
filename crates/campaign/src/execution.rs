//! Runs what is left of a campaign.

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

/// What runs plans: the simulator, the laboratory, a reference.
pub trait Executor: Sync {
    /// Why a run has no record.
    type Error: Error + Send;

    /// Runs one plan, until `stop` is set. It begins and ends in one thread.
    ///
    /// # Errors
    /// When there is no record.
    fn run(&self, plan: &Plan, stop: &AtomicBool) -> Result<Record, Self::Error>;

    /// What a run costs, only compared with other runs.
    fn cost(&self, plan: &Plan) -> u64;

    /// Whether a run was late, so that with less beside it it may be in time.
    fn is_late(&self, _plan: &Plan, _record: &Record) -> bool {
        false
    }

    /// The error of a run that never began because somebody asked to stop.
    fn interrupted() -> Self::Error;

    /// Whether a run has no record only because somebody asked to stop.
    fn is_interruption(error: &Self::Error) -> bool;
}

/// Who is notified of what happens, from whatever thread.
pub trait Observer: Sync {
    /// The runs of `plans` are next, so many of them at once.
    fn begin(&self, _plans: &[&Plan], _at_once: usize) {}

    /// A run has begun.
    fn started(&self, _plan: &Plan) {}

    /// A run is over; `failed` is why it has no record, unless somebody asked to stop.
    fn finished(&self, plan: &Plan, failed: Option<&dyn fmt::Display>);

    /// A run has a record, which is late or not; [`Observer::finished`] follows.
    fn recorded(&self, _plan: &Plan, _record: &Record, _is_late: bool) {}

    /// A record could not be kept.
    fn unwritten(&self, error: &StoreError);

    /// So many of those that `ran` were late, and run again, so many at once.
    fn again(&self, _late: usize, _ran: usize, _at_once: usize) {}

    /// So many runs were late each time, and are not run again.
    fn stays_late(&self, _late: usize) {}
}

/// A campaign.
pub struct Campaign<'c, E> {
    /// What runs its plans.
    pub executor: &'c E,
    /// Where records are kept, if anywhere.
    pub store: Option<&'c dyn Store>,
    /// How often late runs are run again at most; none: as the machine's pace has it.
    pub repeats: Option<u32>,
    /// Set when somebody asks to stop.
    pub stop: &'c AtomicBool,
    /// Who is notified.
    pub observer: &'c dyn Observer,
}

/// What became of a campaign.
#[derive(Debug)]
pub struct Ran<K> {
    /// Each plan's in its place.
    pub results: Vec<K>,
    /// How many records could not be kept. A full disk ends no run.
    pub unwritten: usize,
}

impl<E: Executor> Campaign<'_, E> {
    /// Runs what is left of `resumed` in `batches`, whose places are those of [`Resumed::left`]. A run that was late is
    /// run again, with half as many beside it each time and in the end alone. Each record is kept the moment it is
    /// there, so that what is finished survives whatever comes, and `read` makes a result of it; a later attempt's
    /// takes the place of an earlier one's.
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

    /// One run: whether it was late, and what is made of it. A late record is kept of the last attempt only.
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
