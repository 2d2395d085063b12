//! Published studies, run again: here on all processors, or by other processes.

use crate::batch;
use crate::error::{Raise, error};
use crate::records::Records;
use crate::work::Work;
use midhop_campaign::{Files, Naming, Origin, Store, without_bulk};
use midhop_experiment::Plan;
use midhop_experiment::record::{Record, Runner};
use midhop_study::Place;
use midhop_workbench::{Asked, Outcome, Prepared, Read, check_place, find, names};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::time::Instant;

/// The names of the studies that come with the package.
#[pyfunction]
pub fn studies() -> Vec<&'static str> {
    names().collect()
}

/// The runs of a study in virtual time, and what there is of them.
#[pyclass(frozen, module = "midhop._native")]
pub struct StudyRun {
    study: Prepared,
    work: Work<(Read, Record)>,
    began: Instant,
}

#[pymethods]
impl StudyRun {
    /// Resolves the runs of the study called `name`, or that in the directory `name`. With `out`, records are kept below
    /// it, and those that are there count.
    #[new]
    #[pyo3(signature = (name, *, quick, seeds, cells, out))]
    fn new(
        py: Python<'_>,
        name: &str,
        quick: bool,
        seeds: Option<u32>,
        cells: Vec<String>,
        out: Option<PathBuf>,
    ) -> PyResult<Self> {
        let began = Instant::now();
        let asked: Result<Vec<Asked>, String> = cells.iter().map(|it| it.parse()).collect();
        let asked = asked.map_err(|it| error(py, &it, None, vec![]))?;
        let bundle = find(name).raise(py)?;
        let study =
            py.detach(|| Prepared::of(bundle, Place::Sim, quick, seeds, &asked)).raise(py)?;
        let mut store: Option<Box<dyn Store + Send>> = None;
        if let Some(out) = &out {
            let directory = out.join(study.bundle.directory_name());
            check_place(&directory).raise(py)?;
            let origin = Origin::new(Runner::Sim, batch::own_build(py)?);
            store = Some(Box::new(Files::new(&directory, origin, Naming::ByKey)));
        }
        // Figures are read from curves too.
        let work = py.detach(|| {
            Work::of(&study.plans, store, true, |plan, record| held(&study, plan, record))
        });
        Ok(Self { study, work, began })
    }

    /// How many runs there are in all.
    fn __len__(&self) -> usize {
        self.study.plans.len()
    }

    /// The numbers of the runs that have no record yet.
    fn left(&self) -> Vec<usize> {
        self.work.left()
    }

    /// What runs cost, only compared with each other.
    fn weights(&self, places: Vec<usize>) -> Vec<u64> {
        self.work.weights(&self.study.plans, &places)
    }

    /// Runs what is left, `jobs` at a time; calls `watch` with how many are over, and of how many.
    #[pyo3(signature = (jobs = None, watch = None))]
    fn run(
        &self,
        py: Python<'_>,
        jobs: Option<usize>,
        watch: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let read = |plan: &Plan, record| held(&self.study, plan, record);
        self.work.run(py, &self.study.plans, jobs, watch.as_ref(), read)
    }

    /// The runs at `places`, for a process that calls `run_batch`.
    fn batch<'py>(&self, py: Python<'py>, places: Vec<usize>) -> PyResult<Bound<'py, PyBytes>> {
        // Cells of two scenarios may have the same axes.
        let scenario = |place: usize| self.study.scenarios[place].as_str();
        self.work.batch(py, &self.study.plans, &places, scenario)
    }

    /// Keeps what such a process answered.
    fn accept(&self, py: Python<'_>, answer: &[u8]) -> PyResult<()> {
        let read = |plan: &Plan, record| held(&self.study, plan, record);
        self.work.accept(py, &self.study.plans, answer, read)
    }

    /// Notes why the runs at `places` have no record.
    fn fail(&self, places: Vec<usize>, why: &str) {
        self.work.fail(&self.study.plans, &places, why);
    }

    /// Why some runs have no record, or some records are not kept.
    #[getter]
    fn failures(&self) -> Vec<String> {
        self.work.failures()
    }

    /// The records that there are, without plans and curves, in the order of their plans.
    fn records(&self) -> Records {
        self.work.with_results(|results| {
            Records::of(results.iter().flatten().map(|(_, record)| record.clone()))
        })
    }

    /// What came of it. The runs are taken out: this can be asked for once.
    fn outcome(slf: &Bound<'_, Self>) -> StudyOutcome {
        let this = slf.get();
        let (mut readings, mut records) = (Vec::new(), Vec::new());
        for result in this.work.take_results() {
            let (reading, record) = result.unzip();
            readings.push(reading);
            records.extend(record);
        }
        let mut outcome = slf.py().detach(|| Outcome::of(&this.study, readings));
        outcome.took = this.began.elapsed();
        StudyOutcome { run: slf.clone().unbind(), outcome, records }
    }
}

/// What came of a study.
#[pyclass(frozen, module = "midhop._native")]
pub struct StudyOutcome {
    run: Py<StudyRun>,
    outcome: Outcome,
    records: Vec<Record>,
}

#[pymethods]
impl StudyOutcome {
    /// Its figures and claims, as `midhop reproduce --json` prints them.
    fn to_json(&self) -> String {
        self.outcome.to_json(&self.run.get().study).to_string()
    }

    /// The tables that `midhop reproduce` prints, `columns` characters wide.
    fn shown(&self, py: Python<'_>, columns: u16) -> String {
        let Outcome { measured, judgements, .. } = &self.outcome;
        let study = &self.run.get().study.bundle.study;
        py.detach(|| midhop_report::study(study, measured, judgements, columns))
    }

    /// The records, without plans and curves.
    fn records(&self) -> Records {
        Records::of(self.records.iter().cloned())
    }
}

/// The stored parts of a plan's record: what its figures need, and the rest without its bulk.
fn held(study: &Prepared, plan: &Plan, record: Record) -> (Read, Record) {
    (Read::of(study, plan, &record, false), without_bulk(record))
}
