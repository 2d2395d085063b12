//! Tables that other libraries read without a copy: the Arrow PyCapsule interface.

use crate::error::error;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use midhop_report::{Columns, Values};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use std::sync::Arc;

/// A table: columns with names, which carry the units.
#[pyclass(frozen, module = "midhop._native")]
pub struct Table {
    columns: Columns,
    batch: RecordBatch,
}

impl Table {
    /// The table of `columns`.
    pub fn of(py: Python<'_>, columns: Columns) -> PyResult<Self> {
        let batch = batch(&columns).map_err(|it| failed(py, &it))?;
        Ok(Self { columns, batch })
    }
}

#[pymethods]
impl Table {
    /// The table as an Arrow stream of one batch, whose buffers are this table's own.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // Only a wish: a reader that wants other types converts them.
        drop(requested_schema);
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema());
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// How many rows there are.
    fn __len__(&self) -> usize {
        self.columns.rows()
    }

    /// The names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<&str> {
        self.columns.columns().iter().map(|it| it.name.as_str()).collect()
    }

    /// The values of a column; what is not known is None.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let Some(column) = self.columns.columns().iter().find(|it| it.name == name) else {
            let hint = format!("there are {}", self.column_names().join(", "));
            return Err(error(py, &format!("no column is called `{name}`"), Some(&hint), vec![]));
        };
        match &column.values {
            Values::Text(values) => PyList::new(py, values),
            Values::Number(values) => PyList::new(py, values),
            Values::Count(values) => PyList::new(py, values),
            Values::Flag(values) => PyList::new(py, values),
        }
    }

    /// The table as CSV, with a header.
    fn to_csv(&self, py: Python<'_>) -> PyResult<String> {
        self.columns.csv().map_err(|it| error(py, &it.to_string(), None, vec![]))
    }

    /// The table as the bytes of a Parquet file.
    fn to_parquet(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        self.columns.parquet().map_err(|it| error(py, &it.to_string(), None, vec![]))
    }

    fn __repr__(&self) -> String {
        format!("Table({} rows: {})", self.__len__(), self.column_names().join(", "))
    }
}

fn failed(py: Python<'_>, it: &ArrowError) -> PyErr {
    error(py, "the table cannot be an Arrow table", None, vec![it.to_string()])
}

/// The types are those of the Parquet files that a sweep writes.
fn batch(columns: &Columns) -> Result<RecordBatch, ArrowError> {
    let whole = |count: &u64| i64::try_from(*count).unwrap_or(i64::MAX);
    let array = |values: &Values| -> ArrayRef {
        match values {
            Values::Text(all) => {
                Arc::new(all.iter().map(Option::as_deref).collect::<StringArray>())
            }
            Values::Number(all) => Arc::new(all.iter().copied().collect::<Float64Array>()),
            Values::Count(all) => {
                Arc::new(all.iter().map(|it| it.as_ref().map(whole)).collect::<Int64Array>())
            }
            Values::Flag(all) => Arc::new(BooleanArray::from(all.clone())),
        }
    };
    let field = |name: &str, values: &Values| match values {
        Values::Text(_) => Field::new(name, DataType::Utf8, true),
        Values::Number(_) => Field::new(name, DataType::Float64, true),
        Values::Count(_) => Field::new(name, DataType::Int64, true),
        Values::Flag(_) => Field::new(name, DataType::Boolean, false),
    };
    let all = columns.columns();
    let schema = Schema::new(all.iter().map(|it| field(&it.name, &it.values)).collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), all.iter().map(|it| array(&it.values)).collect())
}
