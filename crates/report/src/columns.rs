//! Figures in columns, for files that other programs read: CSV and Parquet.

use crate::machine::WriteError;
use crate::parquet_file;

/// What a column holds, one per row.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Words.
    Text(Vec<Option<String>>),
    /// Measured.
    Number(Vec<Option<f64>>),
    /// Counted.
    Count(Vec<Option<u64>>),
    /// Yes or no.
    Flag(Vec<bool>),
}

impl Values {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Number(values) => values.len(),
            Self::Count(values) => values.len(),
            Self::Flag(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shown(&self, row: usize) -> String {
        fn word<T: ToString>(values: &[Option<T>], row: usize) -> String {
            values.get(row).and_then(Option::as_ref).map_or_else(String::new, T::to_string)
        }
        match self {
            Self::Text(values) => word(values, row),
            Self::Number(values) => word(values, row),
            Self::Count(values) => word(values, row),
            Self::Flag(values) => values.get(row).map_or_else(String::new, bool::to_string),
        }
    }
}

/// A column and its name, which carries the unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The name.
    pub name: String,
    /// One value per row.
    pub values: Values,
}

/// A table for other programs.
///
/// Invariant: all columns have as many rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Columns(Vec<Column>);

impl Columns {
    /// Adds a column.
    pub(crate) fn push(&mut self, name: impl Into<String>, values: Values) {
        debug_assert!(self.0.first().is_none_or(|first| first.values.len() == values.len()));
        self.0.push(Column { name: name.into(), values });
    }

    /// Adds a column of labels: numbers where all of them are some.
    pub(crate) fn push_labels(&mut self, name: impl Into<String>, labels: Vec<Option<String>>) {
        let number = |label: &Option<String>| match label {
            None => Some(None),
            Some(label) => label.parse::<f64>().ok().filter(|it| it.is_finite()).map(Some),
        };
        let numbers: Option<Vec<Option<f64>>> = labels.iter().map(number).collect();
        self.push(name, numbers.map_or(Values::Text(labels), Values::Number));
    }

    /// The columns in their order.
    pub fn columns(&self) -> &[Column] {
        &self.0
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.0.first().map_or(0, |column| column.values.len())
    }

    /// As CSV, with a header; what is not known is empty.
    ///
    /// # Errors
    /// When the writer refuses, which text does not make it do.
    pub fn csv(&self) -> Result<String, WriteError> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(self.0.iter().map(|column| &column.name))?;
        for row in 0..self.rows() {
            writer.write_record(self.0.iter().map(|column| column.values.shown(row)))?;
        }
        let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
        Ok(String::from_utf8(bytes)?)
    }

    /// As a Parquet file; what is not known is null.
    ///
    /// # Errors
    /// When the writer refuses, which columns of this kind do not make it do.
    pub fn parquet(&self) -> Result<Vec<u8>, WriteError> {
        Ok(parquet_file::write(self)?)
    }
}
