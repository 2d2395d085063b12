//! Published studies, run again.

use crate::batch;
use crate::error::{Raise, error};
use crate::progress::{Notes, watched};
use crate::records::Records;
use midhop_campaign::pace::Batch;
use midhop_campaign::{Campaign, Files, Naming, Origin, Resumed, Store, without_bulk};
use midhop_experiment::Plan;
use midhop_experiment::record::{Record, Runner};
use midhop_study::Place;
use midhop_workbench::{
    Asked, Outcome, Prepared, Read, Simulator, check_place, find, names, processors,
};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The names of the studies that come with the package.
#[pyfunction]
pub fn studies() -> Vec<&'static str> {
    names().collect()
}

/// A study that has run in virtual time.
#[pyclass(frozen, module = "midhop._native")]
pub struct StudyRun {
    study: Prepared,
    outcome: Outcome,
    records: Vec<Record>,
    failures: Vec<String>,
}

#[pymethods]
impl StudyRun {
    /// Runs the study called `name`, or that in the directory `name`. With `out`, records are kept below it, and those
    /// that are there count.
    #[expect(clippy::too_many_arguments, reason = "keywords to those who call it")]
    #[new]
    #[pyo3(signature = (name, *, quick, seeds, cells, out, jobs, watch))]
    fn new(
        py: Python<'_>,
        name: &str,
        quick: bool,
        seeds: Option<u32>,
        cells: Vec<String>,
        out: Option<PathBuf>,
        jobs: Option<usize>,
        watch: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if jobs == Some(0) {
            return Err(error(py, "`jobs` must be at least 1", None, vec![]));
        }
        let asked: Result<Vec<Asked>, String> = cells.iter().map(|it| it.parse()).collect();
        let asked = asked.map_err(|it| error(py, &it, None, vec![]))?;
        let bundle = find(name).raise(py)?;
        let study =
            py.detach(|| Prepared::of(bundle, Place::Sim, quick, seeds, &asked)).raise(py)?;
        let mut store = None;
        if let Some(out) = &out {
            let own = Path::new(name).file_name().unwrap_or(name.as_ref());
            let directory = out.join(own);
            check_place(&directory).raise(py)?;
            let origin = Origin::new(Runner::Sim, batch::own_build(py)?);
            store = Some(Files::new(&directory, origin, Naming::ByKey));
        }
        let store = store.as_ref().map(|it| it as &dyn Store);
        let read = |plan: &Plan, record: Record| {
            let read = Read::of(&study, plan, &record, false);
            Some((read, without_bulk(record)))
        };
        let began = Instant::now();
        let (stop, notes) = (AtomicBool::new(false), Notes::default());
        let simulator = Simulator::unwatched();
        let resumed = py.detach(|| Resumed::of(&study.plans, store, read));
        let left = resumed.left();
        let batches = vec![Batch::whole(&left, jobs.unwrap_or_else(processors))];
        let whole = left.len();
        let (ran, raised) = watched(py, &stop, &notes, whole, watch.as_ref(), || {
            let campaign = Campaign {
                executor: &simulator,
                store,
                repeats: None,
                stop: &stop,
                observer: &notes,
            };
            campaign.run(resumed, batches, |plan, outcome| read(plan, outcome.ok()?))
        });
        raised?;
        let (mut readings, mut records) = (Vec::new(), Vec::new());
        for result in ran.results {
            let (reading, record) = result.unzip();
            readings.push(reading);
            records.extend(record);
        }
        let mut outcome = py.detach(|| Outcome::of(&study, readings));
        outcome.unwritten = ran.unwritten;
        outcome.took = began.elapsed();
        Ok(Self { study, outcome, records, failures: notes.taken() })
    }

    /// What came of it, as `midhop reproduce --json` prints it.
    fn to_json(&self) -> String {
        self.outcome.to_json(&self.study).to_string()
    }

    /// The tables that `midhop reproduce` prints, `columns` characters wide.
    fn shown(&self, py: Python<'_>, columns: u16) -> String {
        let Outcome { measured, judgements, .. } = &self.outcome;
        py.detach(|| midhop_report::study(&self.study.bundle.study, measured, judgements, columns))
    }

    /// The records, without plans and curves.
    fn records(&self) -> Records {
        Records::of(self.records.iter().cloned())
    }

    /// Why some runs have no record.
    #[getter]
    fn failures(&self) -> Vec<String> {
        self.failures.clone()
    }
}
