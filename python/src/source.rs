//! Scenarios from Python: files, text, dictionaries.

use crate::error::{Raise, error};
use midhop_workbench::Source as Inner;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::path::PathBuf;
use toml::{Table, Value};

/// A scenario, read but not resolved.
#[pyclass(frozen, module = "midhop._native")]
#[derive(Clone)]
pub struct Source(pub Inner);

#[pymethods]
impl Source {
    /// The scenario in a file.
    #[staticmethod]
    fn file(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Inner::file(&path).map(Self).raise(py)
    }

    /// The scenario in a text; the files that it names lie in `directory`.
    #[staticmethod]
    fn text(text: String, directory: PathBuf) -> Self {
        Self(Inner { name: "<text>".to_owned(), text, directory })
    }

    /// A text that errors call `name`.
    #[staticmethod]
    fn named(name: String, text: String) -> Self {
        Self(Inner { name, text, directory: PathBuf::new() })
    }

    /// The scenario in a dictionary, which is written as TOML first: errors show a line of that.
    #[staticmethod]
    fn dict(table: &Bound<'_, PyDict>, directory: PathBuf) -> PyResult<Self> {
        let text = toml::to_string(&read_table(table, "")?).map_err(|it| {
            error(table.py(), "the scenario cannot be written as TOML", None, vec![it.to_string()])
        })?;
        Ok(Self(Inner { name: "<dict>".to_owned(), text, directory }))
    }

    /// What errors call it.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Its text.
    #[getter]
    fn toml(&self) -> &str {
        &self.0.text
    }
}

/// A value in the form that `--set KEY=VALUE` takes.
pub fn assignment(key: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(format!("{key}={}", written(value, key)?))
}

/// A value on one line. A string is treated as on the command line: what is not valid TOML is text.
pub fn written(value: &Bound<'_, PyAny>, key: &str) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_str()?.to_owned());
    }
    let value = read(value, key)?;
    // TOML's printer does not accept a value alone; a table inside prints on one line.
    Ok(value.to_string())
}

fn read_table(table: &Bound<'_, PyDict>, key: &str) -> PyResult<Table> {
    let mut read_table = Table::new();
    for (name, value) in table.iter() {
        let Ok(name) = name.cast::<PyString>() else {
            let hint = Some("write it as a string");
            return Err(error(table.py(), &format!("a key of `{key}` is no string"), hint, vec![]));
        };
        let name = name.to_str()?;
        let here = if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        read_table.insert(name.to_owned(), read(&value, &here)?);
    }
    Ok(read_table)
}

fn read(value: &Bound<'_, PyAny>, key: &str) -> PyResult<Value> {
    // A bool is an int to Python.
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Value::Boolean(flag.is_true()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::String(text.to_str()?.to_owned()));
    }
    if let Ok(number) = value.cast::<PyInt>() {
        return number.extract().map(Value::Integer).map_err(|_| {
            error(value.py(), &format!("`{key}` is too large a number for TOML"), None, vec![])
        });
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Value::Float(number.value()));
    }
    if let Ok(table) = value.cast::<PyDict>() {
        return read_table(table, key).map(Value::Table);
    }
    if value.cast::<PyList>().is_ok() || value.cast::<PyTuple>().is_ok() {
        let items: PyResult<_> = value.try_iter()?.map(|item| read(&item?, key)).collect();
        return items.map(Value::Array);
    }
    // Numbers of NumPy and the like are no subclasses, but `item` gives their value.
    if let Ok(number) = value.call_method0("item")
        && !number.is(value)
    {
        return read(&number, key);
    }
    let kind = value.get_type().name()?.to_string();
    let hint = match kind.as_str() {
        "NoneType" => "leave the key out",
        _ => "a scenario has strings, numbers, booleans, lists and tables",
    };
    Err(error(value.py(), &format!("`{key}` is a {kind}, which TOML has not"), Some(hint), vec![]))
}
