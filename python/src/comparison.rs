//! Two sets of records side by side.

use crate::error::{Raise, error};
use crate::record::Record;
use crate::records::{Records, check_confidence};
use crate::table::Table;
use midhop_experiment::record::Record as InnerRecord;
use midhop_workbench::{Gathered, Side};
use pyo3::prelude::*;
use std::path::PathBuf;

/// What a comparison found.
#[pyclass(frozen, module = "midhop._native")]
pub struct Comparison {
    found: midhop_report::Comparison,
    names: [String; 2],
}

#[pymethods]
impl Comparison {
    /// Compares two sets of records, which are called `names`, with intervals of the `confidence`.
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "Python hands over what it has made")]
    fn new(
        py: Python<'_>,
        first: Vec<PyRef<'_, Record>>,
        second: Vec<PyRef<'_, Record>>,
        names: [String; 2],
        confidence: f64,
    ) -> PyResult<Self> {
        check_confidence(py, confidence)?;
        let own = |side: &[PyRef<'_, Record>]| -> Vec<InnerRecord> {
            side.iter().map(|it| it.inner().clone()).collect()
        };
        let (first, second) = (own(&first), own(&second));
        let found = py.detach(|| midhop_report::compare_at(&first, &second, confidence));
        Ok(Self { found, names })
    }

    /// It as `midhop compare --json` prints it.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        serde_json::to_string(&self.found).map_err(|it| {
            error(py, "the comparison cannot be printed as JSON", None, vec![it.to_string()])
        })
    }

    /// The table that the program prints, `columns` characters wide.
    fn shown(&self, py: Python<'_>, columns: u16) -> String {
        let [first, second] = &self.names;
        py.detach(|| midhop_report::comparison_table(&self.found, [first, second], columns))
    }

    /// One row for each line.
    fn table(&self, py: Python<'_>) -> PyResult<Table> {
        Table::of(py, self.found.columns())
    }
}

/// The records of one side of a comparison, by the place where they lie: what it is called, and what measurements among
/// them do not show. `other` is the place of the other side, where it is one.
#[pyfunction]
pub fn side(
    py: Python<'_>,
    own: PathBuf,
    other: Option<PathBuf>,
) -> PyResult<(Records, String, Vec<String>)> {
    let side = Side::of(&own, other.as_deref().unwrap_or(&own));
    let mut gathered = Gathered::default();
    py.detach(|| side.gather(&mut gathered)).raise(py)?;
    let notes = gathered.notes().to_vec();
    let records = side.records(gathered).raise(py)?;
    Ok((Records::of(records), side.name, notes))
}
