//! A scenario's runs: here on all processors, or by other processes, with what is kept of them.

use crate::batch;
use crate::error::{Raise, error};
use crate::progress::{Notes, watched};
use crate::records::{Records, check_confidence};
use crate::source::{Source, assignment, written};
use midhop_campaign::pace::Batch;
use midhop_campaign::{Campaign as Inner, Lines, Origin, Resumed, Store, StoreError, without_bulk};
use midhop_experiment::Plan;
use midhop_experiment::record::{Record, Runner};
use midhop_failure::Failure;
use midhop_workbench::{Changes, Simulator, check_place, processors, weight, write_tables};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All runs of a scenario, and what there is of their records.
#[pyclass(frozen, module = "midhop._native")]
pub struct Campaign {
    plans: Vec<Plan>,
    out: Option<PathBuf>,
    store: Option<Lines>,
    /// Whether records keep their curves over time.
    series: bool,
    /// Whether records in memory keep curves and plan.
    whole: bool,
    state: Mutex<State>,
}

struct State {
    /// In the order of the plans.
    results: Vec<Option<Record>>,
    /// Why some are not there.
    failures: Vec<String>,
}

#[pymethods]
impl Campaign {
    /// Resolves the runs of `source`. With `out`, records are kept there, and those that are there count.
    #[expect(clippy::too_many_arguments, reason = "keywords to those who call it")]
    #[new]
    #[pyo3(signature = (source, *, set, vary, seeds, out, series, whole))]
    fn new(
        py: Python<'_>,
        source: &Source,
        set: Vec<Bound<'_, PyAny>>,
        vary: Vec<Bound<'_, PyAny>>,
        seeds: Option<u32>,
        out: Option<PathBuf>,
        series: bool,
        whole: bool,
    ) -> PyResult<Self> {
        let set: PyResult<Vec<String>> = set.iter().map(|it| change(it, assignment)).collect();
        let mut set = set?;
        set.extend(seeds.map(|seeds| format!("seeds={seeds}")));
        let vary: PyResult<Vec<String>> = vary.iter().map(|it| change(it, varied)).collect();
        let vary = vary?;
        let source = &source.0;
        let plans =
            py.detach(|| source.simulable_plans(Changes { set: &set, vary: &vary })).raise(py)?;
        let mut store = None;
        if let Some(out) = &out {
            check_place(out).raise(py)?;
            let origin = Origin::new(Runner::Sim, batch::own_build(py)?);
            let opened = py.detach(|| Lines::open(&out.join("records.jsonl"), origin));
            store = Some(opened.map_err(unkept).raise(py)?);
        }
        let there = |plan: &Plan| store.as_ref().and_then(|store| store.finished(plan));
        let results = plans.iter().map(there).collect();
        let state = Mutex::new(State { results, failures: Vec::new() });
        Ok(Self { plans, out, store, series, whole, state })
    }

    /// How many runs there are in all.
    fn __len__(&self) -> usize {
        self.plans.len()
    }

    /// The numbers of the runs that have no record yet.
    fn left(&self) -> Vec<usize> {
        let state = self.state();
        (0..self.plans.len()).filter(|place| state.results[*place].is_none()).collect()
    }

    /// What runs cost, only compared with each other.
    fn weights(&self, places: Vec<usize>) -> Vec<u64> {
        places.into_iter().filter_map(|place| self.plans.get(place)).map(weight).collect()
    }

    /// Runs what is left, `jobs` at a time; calls `watch` with how many are over, and of how many.
    #[pyo3(signature = (jobs = None, watch = None))]
    fn run(
        &self,
        py: Python<'_>,
        jobs: Option<usize>,
        watch: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if jobs == Some(0) {
            return Err(error(py, "`jobs` must be at least 1", None, vec![]));
        }
        let jobs = jobs.unwrap_or_else(processors);
        let store = self.store.as_ref().map(|it| it as &dyn Store);
        let simulator = Simulator { curves: self.series, ..Simulator::unwatched() };
        let (stop, notes) = (AtomicBool::new(false), Notes::default());
        let resumed = Resumed::of(&self.plans, store, |_, record| Some(record));
        let left = resumed.left();
        let batches = vec![Batch::whole(&left, jobs)];
        let whole = left.len();
        let (ran, raised) = watched(py, &stop, &notes, whole, watch.as_ref(), || {
            let campaign =
                Inner { executor: &simulator, store, repeats: None, stop: &stop, observer: &notes };
            campaign.run(resumed, batches, |_, outcome| Some(self.held(outcome.ok()?)))
        });
        let mut state = self.state();
        state.results = ran.results;
        state.failures.extend(notes.taken());
        raised
    }

    /// The runs at `places`, for a process that calls `run_batch`.
    fn batch<'py>(&self, py: Python<'py>, places: Vec<usize>) -> PyResult<Bound<'py, PyBytes>> {
        let plans: Vec<&Plan> = places.iter().filter_map(|place| self.plans.get(*place)).collect();
        Ok(PyBytes::new(py, &batch::written(py, &plans, self.series)?))
    }

    /// Keeps what such a process answered.
    fn accept(&self, py: Python<'_>, answer: &[u8]) -> PyResult<()> {
        for answered in batch::read(py, answer)?.runs {
            let place = answered.number as usize;
            let Some(plan) = self.plans.get(place) else { continue };
            let Some(mut record) = answered.record else {
                let why = answered.error.unwrap_or_default();
                self.state().failures.push(format!("{}: {why}", plan.label()));
                continue;
            };
            record.plan = plan.to_json().map_err(|it| unwritable(py, &it))?;
            let kept = self.store.as_ref().map(|store| store.keep(plan, &mut record));
            if let Some(Err(it)) = kept {
                let cause =
                    std::error::Error::source(&it).map_or_else(String::new, |it| format!(": {it}"));
                self.state().failures.push(format!("{it}{cause}"));
            }
            let held = self.held(record);
            self.state().results[place] = Some(held);
        }
        Ok(())
    }

    /// Notes why the runs at `places` have no record.
    fn fail(&self, places: Vec<usize>, why: &str) {
        let labels = places.iter().filter_map(|place| self.plans.get(*place)).map(Plan::label);
        let failures = labels.map(|label| format!("{label}: {why}")).collect::<Vec<_>>();
        self.state().failures.extend(failures);
    }

    /// Why some runs have no record, or some records are not kept.
    #[getter]
    fn failures(&self) -> Vec<String> {
        self.state().failures.clone()
    }

    /// The records that there are, in the order of their plans.
    fn records(&self) -> Records {
        Records::of(self.state().results.iter().flatten().cloned())
    }

    /// Writes the tables of runs and cells beside the records.
    fn write_tables(&self, py: Python<'_>, confidence: f64) -> PyResult<()> {
        check_confidence(py, confidence)?;
        let Some(out) = &self.out else { return Ok(()) };
        let records: Vec<Record> = self.state().results.iter().flatten().cloned().collect();
        py.detach(|| write_tables(out, &records, confidence)).raise(py)
    }
}

impl Campaign {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, record: Record) -> Record {
        if self.whole { record } else { without_bulk(record) }
    }
}

/// What is changed: as the command line has it, or a key and what `written` makes of its value.
fn change(
    change: &Bound<'_, PyAny>,
    written: impl Fn(&str, &Bound<'_, PyAny>) -> PyResult<String>,
) -> PyResult<String> {
    if let Ok(text) = change.cast::<PyString>() {
        return Ok(text.to_str()?.to_owned());
    }
    let (key, value): (String, Bound<'_, PyAny>) = change.extract()?;
    written(&key, &value)
}

/// Values as `--vary KEY=VALUE,…` takes them.
fn varied(key: &str, values: &Bound<'_, PyAny>) -> PyResult<String> {
    let parted = |value: Bound<'_, PyAny>| {
        let text = written(&value, key)?;
        // A string with a comma in it is one value.
        let one = text.contains(',') && value.cast::<PyString>().is_ok();
        Ok(if one { toml::Value::String(text).to_string() } else { text })
    };
    let values: PyResult<Vec<String>> = values.try_iter()?.map(|value| parted(value?)).collect();
    Ok(format!("{key}={}", values?.join(",")))
}

fn unkept(it: StoreError) -> Failure {
    Failure::run("the records cannot be kept").because(it)
}

fn unwritable(py: Python<'_>, it: &serde_json::Error) -> PyErr {
    error(py, "a plan cannot be written", None, vec![it.to_string()])
}
