//! Columns as a Parquet file: one row group, with plain types that every reader supports.

use crate::columns::{Column, Columns, Values};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use std::sync::Arc;

/// The file's bytes.
pub(crate) fn write(columns: &Columns) -> Result<Vec<u8>> {
    let fields = columns.columns().iter().map(|column| field(column).map(Arc::new));
    let schema = Type::group_type_builder("figures").with_fields(fields.collect::<Result<_>>()?);
    let properties = WriterProperties::builder()
        .set_created_by(concat!("midhop ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema.build()?), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    let mut rest = columns.columns().iter();
    while let Some(mut place) = group.next_column()? {
        if let Some(column) = rest.next() {
            fill(&mut place, &column.values)?;
        }
        place.close()?;
    }
    group.close()?;
    writer.into_inner()
}

fn field(column: &Column) -> Result<Type> {
    let (physical, logical, repetition) = match column.values {
        Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String), Repetition::OPTIONAL),
        Values::Number(_) => (Physical::DOUBLE, None, Repetition::OPTIONAL),
        Values::Count(_) => (Physical::INT64, None, Repetition::OPTIONAL),
        Values::Flag(_) => (Physical::BOOLEAN, None, Repetition::REQUIRED),
    };
    Type::primitive_type_builder(&column.name, physical)
        .with_logical_type(logical)
        .with_repetition(repetition)
        .build()
}

fn fill(place: &mut SerializedColumnWriter<'_>, values: &Values) -> Result<()> {
    /// Which rows have a value: level 1, else 0.
    fn levels<T>(values: &[Option<T>]) -> Vec<i16> {
        values.iter().map(|value| i16::from(value.is_some())).collect()
    }
    match values {
        Values::Text(all) => {
            let there: Vec<ByteArray> =
                all.iter().flatten().map(|text| ByteArray::from(text.as_str())).collect();
            place.typed::<ByteArrayType>().write_batch(&there, Some(&levels(all)), None)?;
        }
        Values::Number(all) => {
            let there: Vec<f64> = all.iter().flatten().copied().collect();
            place.typed::<DoubleType>().write_batch(&there, Some(&levels(all)), None)?;
        }
        Values::Count(all) => {
            let there: Vec<i64> = all
                .iter()
                .flatten()
                .map(|&count| i64::try_from(count).unwrap_or(i64::MAX))
                .collect();
            place.typed::<Int64Type>().write_batch(&there, Some(&levels(all)), None)?;
        }
        Values::Flag(all) => {
            place.typed::<BoolType>().write_batch(all, None, None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    #[test]
    fn what_was_written_reads_back() {
        let mut columns = Columns::default();
        columns.push("word", Values::Text(vec![Some("ä, b".to_owned()), None, None]));
        columns.push("number", Values::Number(vec![None, Some(0.25), Some(-1.0)]));
        columns.push("count", Values::Count(vec![Some(3), None, Some(u64::MAX)]));
        columns.push("flag", Values::Flag(vec![true, false, true]));
        let bytes = write(&columns).expect("plain columns");
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).expect("a file");
        let rows: Vec<_> =
            reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row")).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].get_string(0).expect("text"), "ä, b");
        assert!(rows[1].get_string(0).is_err(), "null");
        assert_eq!(rows[1].get_double(1).expect("number").to_bits(), 0.25f64.to_bits());
        assert_eq!(rows[2].get_long(2).expect("count"), i64::MAX);
        assert!(!rows[1].get_bool(3).expect("flag"));
    }

    #[test]
    fn no_rows_are_a_file_too() {
        let mut columns = Columns::default();
        columns.push("word", Values::Text(Vec::new()));
        let bytes = write(&columns).expect("plain columns");
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).expect("a file");
        assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
    }
}
