//! Records of many runs.

use crate::error::error;
use crate::record::Record;
use crate::table::Table;
use midhop_experiment::record::Record as Inner;
use pyo3::prelude::*;
use std::sync::Arc;

/// Records in the order of their plans.
#[pyclass(frozen, module = "midhop._native")]
pub struct Records(Arc<Vec<Inner>>);

impl Records {
    /// The records of `records`.
    pub fn of(records: impl IntoIterator<Item = Inner>) -> Self {
        Self::shared(Arc::new(records.into_iter().collect()))
    }

    /// Records that are shared with others.
    pub fn shared(records: Arc<Vec<Inner>>) -> Self {
        Self(records)
    }
}

#[pymethods]
impl Records {
    /// Those of a list.
    #[new]
    fn new(records: Vec<PyRef<'_, Record>>) -> Self {
        Self::of(records.iter().map(|it| it.inner().clone()))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn at(&self, place: usize) -> Option<Record> {
        Record::of(&self.0, place)
    }

    /// One row for each run and transfer.
    fn runs(&self, py: Python<'_>) -> PyResult<Table> {
        let columns = py.detach(|| midhop_report::runs(&self.0));
        Table::of(py, columns)
    }

    /// One row for each cell and transfer: means over seeds with intervals of the `confidence`.
    fn cells(&self, py: Python<'_>, confidence: f64) -> PyResult<Table> {
        check_confidence(py, confidence)?;
        let columns = py.detach(|| midhop_report::cells(&self.0, confidence));
        Table::of(py, columns)
    }

    /// One row for each sample of each curve of each run.
    fn samples(&self, py: Python<'_>) -> PyResult<Table> {
        let columns = py.detach(|| midhop_report::samples(&self.0));
        Table::of(py, columns)
    }

    /// The table that the program prints, `columns` characters wide.
    fn shown(&self, py: Python<'_>, columns: u16) -> String {
        py.detach(|| midhop_report::table_in(&self.0, columns))
    }

    /// The records, one JSON object a line, as `midhop sim run --json` prints them.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        let lines: Result<String, serde_json::Error> =
            self.0.iter().map(|it| it.to_json().map(|line| line + "\n")).collect();
        lines.map_err(|it| {
            error(py, "the records cannot be printed as JSON", None, vec![it.to_string()])
        })
    }
}

/// Refuses an invalid confidence.
pub fn check_confidence(py: Python<'_>, confidence: f64) -> PyResult<()> {
    if confidence > 0.0 && confidence < 1.0 {
        return Ok(());
    }
    let message = format!("a confidence of {confidence}: more than 0 and less than 1");
    Err(error(py, &message, Some("take 0.95 or 0.98"), vec![]))
}
