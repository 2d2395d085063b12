//! A scenario's runs: here on all processors, or by other processes, and the records that are kept.

use crate::batch;
use crate::error::Raise;
use crate::records::{Records, check_confidence};
use crate::source::{Source, assignment, written};
use crate::work::Work;
use midhop_campaign::{Lines, Origin, Store, StoreError, without_bulk};
use midhop_experiment::Plan;
use midhop_experiment::record::{Record, Runner};
use midhop_failure::Failure;
use midhop_workbench::{Changes, check_place, write_tables};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// All runs of a scenario, and what there is of their records.
#[pyclass(frozen, module = "midhop._native")]
pub struct Campaign {
    plans: Vec<Plan>,
    out: Option<PathBuf>,
    /// Whether records in memory keep curves and plan.
    whole: bool,
    work: Work<Record>,
    /// The records in the order of their plans, once they have been asked for.
    there: OnceLock<Arc<Vec<Record>>>,
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
        let mut store: Option<Box<dyn Store + Send>> = None;
        if let Some(out) = &out {
            check_place(out).raise(py)?;
            let origin = Origin::new(Runner::Sim, batch::own_build(py)?);
            let opened = py.detach(|| Lines::open(&out.join("records.jsonl"), origin));
            store = Some(Box::new(opened.map_err(unkept).raise(py)?));
        }
        // The records of the store are as it keeps them.
        let work = Work::of(&plans, store, series, |_, record| record);
        Ok(Self { plans, out, whole, work, there: OnceLock::new() })
    }

    /// How many runs there are in all.
    fn __len__(&self) -> usize {
        self.plans.len()
    }

    /// The numbers of the runs that have no record yet.
    fn left(&self) -> Vec<usize> {
        self.work.left()
    }

    /// What runs cost, only compared with each other.
    fn weights(&self, places: Vec<usize>) -> Vec<u64> {
        self.work.weights(&self.plans, &places)
    }

    /// Runs what is left, `jobs` at a time; calls `watch` with how many are over, and of how many.
    #[pyo3(signature = (jobs = None, watch = None))]
    fn run(
        &self,
        py: Python<'_>,
        jobs: Option<usize>,
        watch: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.work.run(py, &self.plans, jobs, watch.as_ref(), |_, record| self.held(record))
    }

    /// The runs at `places`, for a process that calls `run_batch`.
    fn batch<'py>(&self, py: Python<'py>, places: Vec<usize>) -> PyResult<Bound<'py, PyBytes>> {
        self.work.batch(py, &self.plans, &places, |_| "")
    }

    /// Keeps what such a process answered.
    fn accept(&self, py: Python<'_>, answer: &[u8]) -> PyResult<()> {
        self.work.accept(py, &self.plans, answer, |_, record| self.held(record))
    }

    /// Notes why the runs at `places` have no record.
    fn fail(&self, places: Vec<usize>, why: &str) {
        self.work.fail(&self.plans, &places, why);
    }

    /// Why some runs have no record, or some records are not kept.
    #[getter]
    fn failures(&self) -> Vec<String> {
        self.work.failures()
    }

    /// The records that there are, in the order of their plans. Nothing is run after that.
    fn records(&self) -> Records {
        Records::shared(self.there())
    }

    /// Writes the tables of runs and cells beside the records. Nothing is run after that.
    fn write_tables(&self, py: Python<'_>, confidence: f64) -> PyResult<()> {
        check_confidence(py, confidence)?;
        let Some(out) = &self.out else { return Ok(()) };
        let records = self.there();
        py.detach(|| write_tables(out, &records, confidence)).raise(py)
    }
}

impl Campaign {
    /// Takes the results out of the work, so that there is no second copy: there may be a hundred thousand.
    fn there(&self) -> Arc<Vec<Record>> {
        let take = || Arc::new(self.work.take_results().into_iter().flatten().collect());
        self.there.get_or_init(take).clone()
    }

    fn held(&self, record: Record) -> Record {
        if self.whole { record } else { without_bulk(record) }
    }
}

/// A change: a text as on the command line, or a key and the value that `written` converts.
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
