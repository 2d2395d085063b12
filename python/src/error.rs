//! Failures as the package's one exception.

use midhop_failure::{Failure, USAGE};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::error::Error as _;

/// `midhop.Error` with the message, what caused it, and the hint of `failure`.
pub fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    let mut causes = Vec::new();
    let mut cause = failure.source();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    made(py, (failure.to_string(), failure.hint_text(), causes, failure.code()))
}

/// `midhop.Error` for a caller's mistake.
pub fn error(py: Python<'_>, message: &str, hint: Option<&str>, causes: Vec<String>) -> PyErr {
    made(py, (message.to_owned(), hint, causes, USAGE))
}

fn made(py: Python<'_>, arguments: (String, Option<&str>, Vec<String>, u8)) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "midhop._errors", "Error");
    match class.and_then(|class| class.call1(arguments)) {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// The result of a call, with failures raised as exceptions.
pub trait Raise<T> {
    /// The value, or the exception.
    fn raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Failure>> Raise<T> for Result<T, E> {
    fn raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error.into()))
    }
}
