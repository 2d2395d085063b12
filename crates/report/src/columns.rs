//! Figures in columns, for files that other programs read: CSV and Parquet.

use crate::machine::WriteError;
use crate::parquet_file;
use midhop_units::{Bytes, Duration, Loss, Rate};

/// The values of a column, one per row.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Words.
    Text(Vec<Option<String>>),
    /// Measured values.
    Number(Vec<Option<f64>>),
    /// Counts.
    Count(Vec<Option<u64>>),
    /// Yes or no.
    Flag(Vec<bool>),
}

impl Values {
    /// The number of rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Number(values) => values.len(),
            Self::Count(values) => values.len(),
            Self::Flag(values) => values.len(),
        }
    }

    /// Whether there are no rows.
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

/// A column and its name, which contains the unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The name.
    pub name: String,
    /// One value per row.
    pub values: Values,
}

/// The labels as numbers, and their unit; none where not all of them are quantities of one kind.
fn quantities(labels: &[Option<String>]) -> Option<(&'static str, Vec<Option<f64>>)> {
    type Kind = (&'static str, fn(&str) -> Option<f64>);
    const KINDS: [Kind; 4] = [
        ("fraction", |label| label.parse().ok().map(Loss::probability)),
        ("mbit_per_s", |label| label.parse().ok().map(Rate::mbit_per_s)),
        ("s", |label| label.parse().ok().map(Duration::as_s_f64)),
        ("bytes", |label| label.parse().ok().map(|bytes: Bytes| bytes.get() as f64)),
    ];
    labels.iter().flatten().next()?;
    KINDS.into_iter().find_map(|(unit, number)| {
        let values = labels.iter().map(|label| match label {
            None => Some(None),
            Some(label) => number(label).map(Some),
        });
        Some((unit, values.collect::<Option<Vec<_>>>()?))
    })
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

    /// Adds a column of labels, which are numbers where all of them are numbers. Where they are
    /// quantities with units, a column of numbers follows, whose name ends in the unit.
    pub(crate) fn push_labels(&mut self, name: &str, labels: Vec<Option<String>>) {
        let number = |label: &Option<String>| match label {
            None => Some(None),
            Some(label) => label.parse::<f64>().ok().filter(|it| it.is_finite()).map(Some),
        };
        let numbers: Option<Vec<Option<f64>>> = labels.iter().map(number).collect();
        let Some(numbers) = numbers else {
            let quantities = quantities(&labels);
            self.push(name, Values::Text(labels));
            if let Some((unit, values)) = quantities {
                self.push(format!("{name}_{unit}"), Values::Number(values));
            }
            return;
        };
        self.push(name, Values::Number(numbers));
    }

    /// The columns in order.
    pub fn columns(&self) -> &[Column] {
        &self.0
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.0.first().map_or(0, |column| column.values.len())
    }

    /// As CSV, with a header; an unknown value is empty.
    ///
    /// # Errors
    /// When the writer fails, which text does not cause.
    pub fn csv(&self) -> Result<String, WriteError> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(self.0.iter().map(|column| &column.name))?;
        for row in 0..self.rows() {
            writer.write_record(self.0.iter().map(|column| column.values.shown(row)))?;
        }
        let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
        Ok(String::from_utf8(bytes)?)
    }

    /// As a Parquet file; an unknown value is null.
    ///
    /// # Errors
    /// When the writer fails, which columns of this kind do not cause.
    pub fn parquet(&self) -> Result<Vec<u8>, WriteError> {
        Ok(parquet_file::write(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(labels: &[&str]) -> Vec<(String, Values)> {
        let mut columns = Columns::default();
        columns.push_labels("cell.x", labels.iter().map(|it| Some((*it).to_owned())).collect());
        columns.0.into_iter().map(|column| (column.name, column.values)).collect()
    }

    #[test]
    fn quantities_are_numbers_in_a_column_that_names_their_unit() {
        for (labels, name, expected) in [
            (["5 ms", "1 s"], "cell.x_s", [0.005, 1.0]),
            (["0 %", "1 %"], "cell.x_fraction", [0.0, 0.01]),
            (["500 kbit/s", "20 Mbit/s"], "cell.x_mbit_per_s", [0.5, 20.0]),
            (["50 kB", "5 MB"], "cell.x_bytes", [5e4, 5e6]),
        ] {
            let found = columns(&labels);
            assert_eq!(found[0].1, Values::Text(labels.map(|it| Some(it.to_owned())).to_vec()));
            assert_eq!(found[1], (name.to_owned(), Values::Number(expected.map(Some).to_vec())));
        }
    }

    #[test]
    fn bare_numbers_stay_in_their_column_and_words_have_no_other() {
        let numbers = Values::Number(vec![Some(0.0), Some(0.05)]);
        assert_eq!(columns(&["0", "0.05"]), [("cell.x".to_owned(), numbers)]);
        assert_eq!(columns(&["cubic", "5 ms"]).len(), 1);
    }
}
