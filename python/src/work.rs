//! Plans that run here or in other processes, and their results: shared by sweeps and studies.

use crate::batch;
use crate::error::error;
use crate::progress::{Notes, watched};
use midhop_campaign::pace::Batch;
use midhop_campaign::{Campaign, Resumed, Store};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_workbench::{Simulator, processors, weight};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A result for each of some plans, whose places are their numbers.
pub struct Work<K> {
    store: Option<Box<dyn Store + Send>>,
    /// Whether records come with their curves over time.
    series: bool,
    state: Mutex<State<K>>,
}

struct State<K> {
    /// In the order of the plans.
    results: Vec<Option<K>>,
    /// Why some results are missing, or not stored.
    failures: Vec<String>,
}

impl<K: Send> Work<K> {
    /// The results that `store` has of `plans`, each converted by `read`. New records are kept there, if anywhere.
    pub fn of(
        plans: &[Plan],
        store: Option<Box<dyn Store + Send>>,
        series: bool,
        read: impl Fn(&Plan, Record) -> K,
    ) -> Self {
        let there = |plan| Some(read(plan, store.as_deref()?.finished(plan)?));
        let results = plans.iter().map(there).collect();
        Self { store, series, state: Mutex::new(State { results, failures: Vec::new() }) }
    }

    /// The places of the runs without a result.
    pub fn left(&self) -> Vec<usize> {
        let state = self.state();
        let results = state.results.iter().enumerate();
        results.filter(|(_, result)| result.is_none()).map(|(place, _)| place).collect()
    }

    /// The cost of runs, only relative to each other.
    pub fn weights(&self, plans: &[Plan], places: &[usize]) -> Vec<u64> {
        places.iter().filter_map(|place| plans.get(*place)).map(weight).collect()
    }

    /// Runs the remaining plans, `jobs` at a time; calls `watch` with how many are over, and of how many.
    pub fn run(
        &self,
        py: Python<'_>,
        plans: &[Plan],
        jobs: Option<usize>,
        watch: Option<&Bound<'_, PyAny>>,
        read: impl Fn(&Plan, Record) -> K + Sync,
    ) -> PyResult<()> {
        if jobs == Some(0) {
            return Err(error(py, "`jobs` must be at least 1", None, vec![]));
        }
        let jobs = jobs.unwrap_or_else(processors);
        let store = self.store.as_deref().map(|it| it as &dyn Store);
        let simulator = Simulator { curves: self.series, ..Simulator::unwatched() };
        let (stop, notes) = (AtomicBool::new(false), Notes::default());
        let there = std::mem::take(&mut self.state().results);
        let resumed = Resumed::with(plans, there.into_iter().map(|it| it.map(Some)).collect());
        let left = resumed.left();
        let batches = vec![Batch::whole(&left, jobs)];
        let whole = left.len();
        let (ran, raised) = watched(py, &stop, &notes, whole, watch, || {
            let campaign = Campaign {
                executor: &simulator,
                store,
                repeats: None,
                stop: &stop,
                observer: &notes,
            };
            campaign.run(resumed, batches, |plan, outcome| Some(read(plan, outcome.ok()?)))
        });
        let mut state = self.state();
        state.results = ran.results;
        state.failures.extend(notes.taken());
        raised
    }

    /// The runs at `places`, for a process that calls `run_batch`. Plans of one `group` differ if their axes differ.
    pub fn batch<'py, 'p>(
        &self,
        py: Python<'py>,
        plans: &'p [Plan],
        places: &[usize],
        group: impl Fn(usize) -> &'p str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let chosen: Vec<(&str, &Plan)> =
            places.iter().filter_map(|&place| Some((group(place), plans.get(place)?))).collect();
        Ok(PyBytes::new(py, &batch::written(py, &chosen, self.series)?))
    }

    /// Keeps the results of such a process.
    pub fn accept(
        &self,
        py: Python<'_>,
        plans: &[Plan],
        answer: &[u8],
        read: impl Fn(&Plan, Record) -> K,
    ) -> PyResult<()> {
        for answered in batch::read(py, answer)?.runs {
            let place = answered.number as usize;
            let Some(plan) = plans.get(place) else { continue };
            let Some(mut record) = answered.record else {
                let why = answered.error.unwrap_or_default();
                self.state().failures.push(format!("{}: {why}", plan.label()));
                continue;
            };
            record.plan = plan.to_json().map_err(|it| unwritable(py, &it))?;
            let kept = self.store.as_deref().map(|store| store.keep(plan, &mut record));
            if let Some(Err(it)) = kept {
                let cause =
                    std::error::Error::source(&it).map_or_else(String::new, |it| format!(": {it}"));
                self.state().failures.push(format!("{it}{cause}"));
            }
            let result = read(plan, record);
            if let Some(slot) = self.state().results.get_mut(place) {
                *slot = Some(result);
            }
        }
        Ok(())
    }

    /// Notes why the runs at `places` have no result.
    pub fn fail(&self, plans: &[Plan], places: &[usize], why: &str) {
        let labels = places.iter().filter_map(|place| plans.get(*place)).map(Plan::label);
        let failures = labels.map(|label| format!("{label}: {why}")).collect::<Vec<_>>();
        self.state().failures.extend(failures);
    }

    /// Why some runs have no result, or some records are not kept.
    pub fn failures(&self) -> Vec<String> {
        self.state().failures.clone()
    }

    /// Calls `look` with the results in the order of the plans.
    pub fn with_results<T>(&self, look: impl FnOnce(&[Option<K>]) -> T) -> T {
        look(&self.state().results)
    }

    /// Takes the results out, in the order of the plans.
    pub fn take_results(&self) -> Vec<Option<K>> {
        std::mem::take(&mut self.state().results)
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unwritable(py: Python<'_>, it: &serde_json::Error) -> PyErr {
    error(py, "a plan cannot be written", None, vec![it.to_string()])
}
