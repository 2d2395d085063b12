//! Parses text to a tree, with the `toml` crate's parser.

use crate::tree::{Entry, Node, Span, Table, Value};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A syntax fault, and its position.
#[derive(Debug)]
pub(crate) struct SyntaxFault {
    pub(crate) message: String,
    pub(crate) span: Span,
}

/// Parses the `number`th text of a document.
pub(crate) fn parse(text: &str, number: usize) -> Result<Node, SyntaxFault> {
    let place =
        |range: std::ops::Range<usize>| Span { text: number, start: range.start, end: range.end };
    match DeTable::parse(text) {
        Ok(table) => {
            let value = Value::Table(take_table(table.get_ref(), &place)?);
            Ok(Node { value, span: place(table.span()) })
        }
        Err(error) => Err(SyntaxFault {
            message: error.message().replace('\n', ", "),
            span: place(error.span().unwrap_or_default()),
        }),
    }
}

fn take_table(
    table: &DeTable<'_>,
    place: &impl Fn(std::ops::Range<usize>) -> Span,
) -> Result<Table, SyntaxFault> {
    let mut taken = Table::default();
    for (key, value) in table {
        taken.push(Entry {
            key: key.get_ref().to_string(),
            key_span: place(key.span()),
            node: take_value(value, place)?,
        });
    }
    Ok(taken)
}

fn take_value(
    value: &Spanned<DeValue<'_>>,
    place: &impl Fn(std::ops::Range<usize>) -> Span,
) -> Result<Node, SyntaxFault> {
    let span = place(value.span());
    let unfit =
        |what: String| SyntaxFault { message: format!("{what} does not fit 64 bits"), span };
    let value = match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => Value::Integer(
            i64::from_str_radix(number.as_str(), number.radix())
                .map_err(|_| unfit(number.to_string()))?,
        ),
        DeValue::Float(number) => {
            Value::Float(number.as_str().parse().map_err(|_| unfit(number.to_string()))?)
        }
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Datetime(moment) => Value::String(moment.to_string()),
        DeValue::Array(items) => Value::Array(
            items.iter().map(|item| take_value(item, place)).collect::<Result<_, _>>()?,
        ),
        DeValue::Table(table) => Value::Table(take_table(table, place)?),
    };
    Ok(Node { value, span })
}
