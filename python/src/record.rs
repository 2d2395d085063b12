//! A record as an object.

use crate::error::error;
use crate::flow::{Curve, Link, Transfer};
use crate::table::Table;
use midhop_experiment::record::Record as Inner;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

/// What one run measured.
#[pyclass(frozen, module = "midhop._native")]
#[derive(Clone)]
pub struct Record {
    /// The records that it is one of.
    all: Arc<Vec<Inner>>,
    place: usize,
}

impl Record {
    /// A record alone.
    pub fn alone(record: Inner) -> Self {
        Self { all: Arc::new(vec![record]), place: 0 }
    }

    /// The record at `place` of `all`.
    pub fn of(all: &Arc<Vec<Inner>>, place: usize) -> Option<Self> {
        (place < all.len()).then(|| Self { all: all.clone(), place })
    }

    /// The record itself.
    pub fn inner(&self) -> &Inner {
        &self.all[self.place]
    }

    fn parsed<'py>(
        &self,
        py: Python<'py>,
        part: &impl serde::Serialize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(part).map_err(|it| unprintable(py, &it))?;
        py.import("json")?.call_method1("loads", (text,))
    }
}

#[pymethods]
impl Record {
    /// A record as `to_json` and the program write it.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let read = Inner::from_json(text);
        read.map(Self::alone).map_err(|it| error(py, &it.to_string(), Some(it.hint()), vec![]))
    }

    /// The title of the scenario.
    #[getter]
    fn title(&self) -> &str {
        &self.inner().title
    }

    /// Where the run stands on each axis that varies: axis to label.
    #[getter]
    fn cell(&self) -> BTreeMap<String, String> {
        self.inner().cell.clone()
    }

    /// The seed of every random draw in the run.
    #[getter]
    fn seed(&self) -> u64 {
        self.inner().seed.0
    }

    /// Whether its figures may be believed.
    #[getter]
    fn valid(&self) -> bool {
        self.inner().validity.is_valid()
    }

    /// One sentence for each thing that went wrong; empty in a valid run.
    #[getter]
    fn faults(&self) -> Vec<String> {
        self.inner().validity.faults.clone()
    }

    /// The plan, every default visible; None in the records of a sweep that does not keep it.
    #[getter]
    fn plan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parsed(py, &self.inner().plan)
    }

    /// What ran it, when, and how long that took: all in which two runs of one plan may differ.
    #[getter]
    fn environment<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parsed(py, &self.inner().environment)
    }

    /// What each transfer achieved, in the order of their names.
    #[getter]
    fn transfers(&self) -> Vec<Transfer> {
        self.inner().transfers.iter().cloned().map(Transfer).collect()
    }

    /// The transfer called `name`.
    fn transfer(&self, py: Python<'_>, name: &str) -> PyResult<Transfer> {
        let found = self.inner().transfers.iter().find(|it| it.name == name).cloned();
        found.map(Transfer).ok_or_else(|| {
            let names: Vec<&str> =
                self.inner().transfers.iter().map(|it| it.name.as_str()).collect();
            let hint = format!("there are {}", names.join(", "));
            error(py, &format!("no transfer is called `{name}`"), Some(&hint), vec![])
        })
    }

    /// What each direction of each link did.
    #[getter]
    fn links(&self) -> Vec<Link> {
        self.inner().links.iter().cloned().map(Link).collect()
    }

    /// What was sampled over time; empty in the records of a sweep that does not keep it.
    #[getter]
    fn curves(&self) -> Vec<Curve> {
        self.inner().series.iter().cloned().map(Curve).collect()
    }

    /// One row for each transfer.
    fn table(&self, py: Python<'_>) -> PyResult<Table> {
        Table::of(py, midhop_report::runs(slice::from_ref(self.inner())))
    }

    /// One row for each sample of each curve.
    fn samples(&self, py: Python<'_>) -> PyResult<Table> {
        Table::of(py, midhop_report::samples(slice::from_ref(self.inner())))
    }

    /// The record on one line, as `midhop sim run --json` prints it.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        self.inner().to_json().map_err(|it| unprintable(py, &it))
    }

    /// The record as dictionaries and lists.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.parsed(py, self.inner())
    }

    /// Draws a quantity over time with matplotlib, and gives the axes.
    #[pyo3(signature = (quantity = "goodput", *, ax = None))]
    fn plot<'py>(
        slf: &Bound<'py, Self>,
        quantity: &str,
        ax: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("midhop._plot")?.call_method1("curves", (slf, quantity, ax))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().inner() == self.inner())
    }

    fn __hash__(&self) -> u64 {
        self.inner().seed.0
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let text = slf.get().to_json(py)?;
        Ok((slf.get_type().getattr("from_json")?, PyTuple::new(py, [text])?))
    }

    fn __repr__(&self) -> String {
        let it = self.inner();
        let cell: Vec<String> =
            it.cell.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
        let state = if it.validity.is_valid() { "" } else { ", invalid" };
        format!("Record({:?}, {{{}}}, seed {}{state})", it.title, cell.join(", "), it.seed.0)
    }
}

fn unprintable(py: Python<'_>, it: &serde_json::Error) -> PyErr {
    error(py, "the record cannot be printed as JSON", None, vec![it.to_string()])
}
