//! Plans that another process runs, and the results that it sends back.
//!
//! Runs of one cell differ only in their number and their seed, so a batch has each cell's plan once. Records come back
//! without their plans: the sender of the batch has them.

use crate::error::{Raise, error};
use midhop_campaign::{Build, Executor};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_failure::Failure;
use midhop_units::Seed;
use midhop_workbench::Simulator;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Plans for another process.
#[derive(Debug, Serialize, Deserialize)]
struct Batch {
    /// The build that is to run them.
    build: String,
    series: bool,
    cells: Vec<CellRuns>,
}

/// Runs of one cell.
#[derive(Debug, Serialize, Deserialize)]
struct CellRuns {
    plan: Plan,
    /// The number and the seed of each.
    runs: Vec<(u32, Seed)>,
}

/// The results of a batch.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// One for each run, in the order of the batch.
    pub runs: Vec<Answered>,
}

/// The result of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answered {
    /// The plan's number.
    pub number: u32,
    /// What was measured, without the plan.
    pub record: Option<Record>,
    /// Why there is no record.
    pub error: Option<String>,
}

/// `plans` for another process. Each plan is in a group. Plans of one group with the same axes are in one cell.
pub fn written(py: Python<'_>, plans: &[(&str, &Plan)], series: bool) -> PyResult<Vec<u8>> {
    let mut cells: Vec<CellRuns> = Vec::new();
    let mut last = None;
    for &(group, plan) in plans {
        let run = (plan.number, plan.seed);
        match cells.last_mut() {
            // Plans of a group with the same axes differ only in the seed.
            Some(cell) if last == Some(group) && cell.plan.axes == plan.axes => cell.runs.push(run),
            _ => {
                let plan = Plan { number: 0, seed: Seed(0), ..plan.clone() };
                cells.push(CellRuns { plan, runs: vec![run] });
            }
        }
        last = Some(group);
    }
    let batch = Batch { build: build(py)?, series, cells };
    serde_json::to_vec(&batch)
        .map_err(|it| error(py, "a batch cannot be written", None, vec![it.to_string()]))
}

/// The results that another process has sent.
pub fn read(py: Python<'_>, answer: &[u8]) -> PyResult<Answer> {
    serde_json::from_slice(answer)
        .map_err(|it| error(py, "a batch's answer cannot be read", None, vec![it.to_string()]))
}

/// Runs a batch of plans that another process has written, and gives what comes of it.
#[pyfunction]
pub fn run_batch<'py>(py: Python<'py>, batch: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let batch: Batch = serde_json::from_slice(batch).map_err(|it| {
        let hint = "install the same wheel of midhop on every node";
        error(py, "the batch cannot be read", Some(hint), vec![it.to_string()])
    })?;
    if batch.build != build(py)? {
        let hint = "install the same wheel of midhop on every node";
        return Err(error(py, "the driver has another build of midhop", Some(hint), vec![]));
    }
    let answer = py.detach(|| serde_json::to_vec(&ran(batch)));
    let answer = answer
        .map_err(|it| error(py, "an answer cannot be written", None, vec![it.to_string()]))?;
    Ok(PyBytes::new(py, &answer))
}

fn ran(batch: Batch) -> Answer {
    let never = AtomicBool::new(false);
    let simulator = Simulator { curves: batch.series, ..Simulator::unwatched() };
    let mut answer = Answer { runs: Vec::new() };
    for CellRuns { plan, runs } in batch.cells {
        for (number, seed) in runs {
            let plan = Plan { number, seed, ..plan.clone() };
            let (record, error) = match simulator.run(&plan, &never) {
                Ok(record) => (Some(Record { plan: serde_json::Value::Null, ..record }), None),
                Err(error) => (None, Some(error.to_string())),
            };
            answer.runs.push(Answered { number, record, error });
        }
    }
    answer
}

/// What tells this build of the package from any other.
#[pyfunction]
pub fn build(py: Python<'_>) -> PyResult<String> {
    own_build(py).map(|it| it.to_string())
}

/// The build of the package: that of its extension module.
pub fn own_build(py: Python<'_>) -> PyResult<Build> {
    static BUILD: PyOnceLock<Build> = PyOnceLock::new();
    let found = || -> PyResult<Build> {
        let file: PathBuf = py.import("midhop._native")?.getattr("__file__")?.extract()?;
        let read = Build::of(&file);
        read.map_err(|it| Failure::run("cannot read the package's own file").because(it)).raise(py)
    };
    BUILD.get_or_try_init(py, found).cloned()
}
