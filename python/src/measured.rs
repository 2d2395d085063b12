//! Measurements without a scenario, and records in files.

use crate::error::{Raise, error};
use crate::record::Record;
use crate::records::Records;
use crate::source::Source;
use midhop_experiment::measured::{Measured as Inner, number_runs};
use midhop_experiment::record::{Record as InnerRecord, Runner};
use midhop_failure::Failure;
use midhop_workbench::{Found, Gathered, limit_records};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// What one program measured once.
#[pyclass(frozen, module = "midhop._native")]
pub struct Measurement {
    program: &'static str,
    warnings: Vec<String>,
    /// Of a link: the report as JSON, and as midhopd and a scenario take it.
    link: Option<(String, String)>,
    record: Record,
}

#[pymethods]
impl Measurement {
    /// The measurement in `text`, which is called `name`.
    #[new]
    fn new(py: Python<'_>, name: &str, text: &str) -> PyResult<Self> {
        let mut all = Found::all(name, text, false).raise(py)?;
        let (found, more) = (all.pop(), all.len());
        let failure = match found {
            Some(Found::Measured(measured)) if more == 0 => return Self::of(py, name, measured),
            None => Failure::usage(format!("{name} has no measurement"))
                .hint(midhop_workbench::WHERE_RECORDS_ARE),
            Some(_) if more > 0 => Failure::usage(format!("{name} has {} of them", more + 1))
                .hint("midhop.read reads them all"),
            Some(_) => Failure::usage(format!("{name} is the record of a run"))
                .hint("midhop.read and midhop.Record.from_json read records"),
        };
        Err(failure).raise(py)
    }

    /// The program that measured.
    #[getter]
    fn program(&self) -> &'static str {
        self.program
    }

    /// What the numbers do not show, in sentences.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// It as a record.
    #[getter]
    fn record(&self) -> Record {
        self.record.clone()
    }

    /// Of a link: what `midhop meter link --json` prints.
    #[getter]
    fn link_json(&self) -> Option<&str> {
        self.link.as_ref().map(|(json, _)| json.as_str())
    }

    /// Of a link: the leg for midhopd, and the link for a scenario.
    #[getter]
    fn link_toml(&self) -> Option<&str> {
        self.link.as_ref().map(|(_, toml)| toml.as_str())
    }
}

impl Measurement {
    fn of(py: Python<'_>, name: &str, measured: Inner) -> PyResult<Self> {
        let mut link = None;
        let program = match &measured {
            Inner::Run(_) => "midhop meter run",
            Inner::Link(report) => {
                let json = serde_json::to_string(report).map_err(|it| {
                    error(py, "the measurement cannot be printed", None, vec![it.to_string()])
                })?;
                link = Some((json, report.tables()));
                "midhop meter link"
            }
            _ => "iperf3",
        };
        let warnings = measured.warnings().to_vec();
        let record = Found::Measured(measured).into_record(name).raise(py)?;
        Ok(Self { program, warnings, link, record: Record::alone(record) })
    }
}

/// The records in `text`, which is called `name`, and what measurements among them do not show. Where it lies
/// `among_others`, JSON of other kinds is passed over.
#[pyfunction]
pub fn found(
    py: Python<'_>,
    name: &str,
    text: &str,
    among_others: bool,
) -> PyResult<(Vec<Record>, Vec<String>)> {
    let mut gathered = Gathered::default();
    gathered.add_text(name, text, among_others).raise(py)?;
    let notes = gathered.notes().to_vec();
    let records = Arc::new(gathered.into_records());
    Ok(((0..records.len()).filter_map(|at| Record::of(&records, at)).collect(), notes))
}

/// The text of a file of records.
#[pyfunction]
pub fn text_of(py: Python<'_>, file: PathBuf) -> PyResult<String> {
    midhop_workbench::text_of(&file).raise(py)
}

/// Records among which those that were measured without a scenario have numbers in the place of seeds.
#[pyfunction]
pub fn numbered(records: Vec<PyRef<'_, Record>>) -> Records {
    let mut all: Vec<InnerRecord> = records.iter().map(|it| it.inner().clone()).collect();
    number_runs(&mut all);
    Records::of(all)
}

/// Records beside what a scenario of one cell, or a measured link, allows to those that were measured without a scenario.
#[pyfunction]
pub fn limited(
    py: Python<'_>,
    records: Vec<PyRef<'_, Record>>,
    limit: &Source,
) -> PyResult<Records> {
    let mut all: Vec<InnerRecord> = records.iter().map(|it| it.inner().clone()).collect();
    limit_records(&limit.0, &mut all).raise(py)?;
    Ok(Records::of(all))
}

/// Whether a record is of a run of a scenario.
#[pyfunction]
pub fn has_plan(record: &Record) -> bool {
    Runner::of(record.inner()).runs_plans()
}
