//! Reads a tree as a type: a serde deserializer that keeps positions.
//!
//! The `toml` crate's own deserializer puts its information about unknown keys into a sentence;
//! this one keeps the key, its position and the known keys apart.

use crate::tree::{Entry, Node, Span, Table, Value};
use crate::{KeyPath, suggest};
use serde::de::{
    self, DeserializeSeed, EnumAccess, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use std::fmt;

/// Why a tree is not the wanted type.
#[derive(Debug)]
pub(crate) struct ReadFault {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// From the innermost key outwards.
    reversed: Vec<String>,
    /// Set at the innermost value with a known position.
    pub(crate) span: Option<Span>,
}

impl ReadFault {
    fn new(message: String, hint: Option<String>) -> Self {
        Self { message, hint, reversed: Vec::new(), span: None }
    }

    fn at(mut self, span: Span) -> Self {
        self.span.get_or_insert(span);
        self
    }

    fn below(mut self, key: &str) -> Self {
        self.reversed.push(key.to_owned());
        self
    }

    pub(crate) fn path(&self) -> KeyPath {
        KeyPath::of(self.reversed.iter().rev().cloned())
    }
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ReadFault {}

impl de::Error for ReadFault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        // The second line of a type's error is a hint.
        let message = message.to_string();
        match message.split_once('\n') {
            Some((message, hint)) => Self::new(message.to_owned(), Some(hint.to_owned())),
            None => Self::new(message, None),
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("expected {}, found {}", Plain(expected), plain(found)), None)
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Self::new(format!("expected {}, found {length} values", Plain(expected)), None)
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self::new("unknown key".to_owned(), suggest::hint(field, "known keys", known)).below(field)
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        Self::new(
            format!("unknown value \"{variant}\""),
            suggest::hint(variant, "known values", known),
        )
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(format!("key `{field}` is missing"), None)
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new(format!("key `{field}` is written twice"), None)
    }
}

/// The expectation of a type, in the terms of TOML.
struct Plain<'a>(&'a dyn Expected);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = self.0.to_string();
        let whole =
            |f: &mut fmt::Formatter<'_>, max: u64| write!(f, "a whole number from 0 to {max}");
        match expected.as_str() {
            "u8" => whole(f, u8::MAX.into()),
            "u16" => whole(f, u16::MAX.into()),
            "u32" => whole(f, u32::MAX.into()),
            "u64" | "usize" => f.write_str("a whole number of at least 0"),
            "i8" | "i16" | "i32" | "i64" | "isize" => f.write_str("a whole number"),
            "f32" | "f64" => f.write_str("a number"),
            "a boolean" => f.write_str("true or false"),
            "a map" => f.write_str("a table"),
            "a sequence" => f.write_str("an array"),
            named if named.starts_with("struct ") => f.write_str("a table"),
            other => f.write_str(other),
        }
    }
}

fn plain(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(truth) => truth.to_string(),
        Unexpected::Unsigned(number) => format!("the number {number}"),
        Unexpected::Signed(number) => format!("the number {number}"),
        Unexpected::Float(number) => format!("the number {number}"),
        Unexpected::Str(text) => format!("the string {text:?}"),
        Unexpected::Map => "a table".to_owned(),
        Unexpected::Seq => "an array".to_owned(),
        other => other.to_string(),
    }
}

/// One value of the tree.
pub(crate) struct NodeReader<'t>(pub(crate) &'t Node);

impl<'t> de::Deserializer<'t> for NodeReader<'t> {
    type Error = ReadFault;

    fn deserialize_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        let span = self.0.span;
        match &self.0.value {
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(truth) => visitor.visit_bool(*truth),
            Value::Array(items) => visitor.visit_seq(Items { items, next: 0 }),
            Value::Table(table) => visitor.visit_map(Entries::of(table)),
        }
        .map_err(|fault: ReadFault| fault.at(span))
    }

    fn deserialize_option<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'t>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'t>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        let span = self.0.span;
        match &self.0.value {
            Value::String(text) => visitor.visit_enum(Variant { name: text, span, content: None }),
            Value::Table(table) if table.entries().len() == 1 => {
                let Entry { key, key_span, node } = &table.entries()[0];
                visitor.visit_enum(Variant { name: key, span: *key_span, content: Some(node) })
            }
            other => Err(ReadFault::new(
                format!("expected one of {}, found {}", suggest::listed(variants), other.kind()),
                None,
            )),
        }
        .map_err(|fault| fault.at(span))
    }

    serde::forward_to_deserialize_any! {
        <W: Visitor<'t>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Items<'t> {
    items: &'t [Node],
    next: usize,
}

impl<'t> SeqAccess<'t> for Items<'t> {
    type Error = ReadFault;

    fn next_element_seed<S: DeserializeSeed<'t>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadFault> {
        let Some(item) = self.items.get(self.next) else { return Ok(None) };
        let number = self.next;
        self.next += 1;
        seed.deserialize(NodeReader(item))
            .map(Some)
            .map_err(|fault| fault.at(item.span).below(&number.to_string()))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.next)
    }
}

struct Entries<'t> {
    entries: std::slice::Iter<'t, Entry>,
    current: Option<&'t Entry>,
}

impl<'t> Entries<'t> {
    fn of(table: &'t Table) -> Self {
        Self { entries: table.entries().iter(), current: None }
    }
}

impl<'t> MapAccess<'t> for Entries<'t> {
    type Error = ReadFault;

    fn next_key_seed<S: DeserializeSeed<'t>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadFault> {
        self.current = self.entries.next();
        let Some(Entry { key, key_span, .. }) = self.current else { return Ok(None) };
        let key: de::value::BorrowedStrDeserializer<'t, ReadFault> =
            de::value::BorrowedStrDeserializer::new(key);
        seed.deserialize(key).map(Some).map_err(|fault| fault.at(*key_span))
    }

    fn next_value_seed<S: DeserializeSeed<'t>>(&mut self, seed: S) -> Result<S::Value, ReadFault> {
        let Some(entry) = self.current.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        seed.deserialize(NodeReader(&entry.node))
            .map_err(|fault| fault.at(entry.node.span).below(&entry.key))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// A variant's name, and its value.
struct Variant<'t> {
    name: &'t str,
    span: Span,
    content: Option<&'t Node>,
}

impl<'t> EnumAccess<'t> for Variant<'t> {
    type Error = ReadFault;
    type Variant = VariantContent<'t>;

    fn variant_seed<S: DeserializeSeed<'t>>(
        self,
        seed: S,
    ) -> Result<(S::Value, VariantContent<'t>), ReadFault> {
        let name: de::value::StrDeserializer<'_, ReadFault> = self.name.into_deserializer();
        let variant = seed.deserialize(name).map_err(|fault| fault.at(self.span))?;
        Ok((variant, VariantContent { name: self.name, content: self.content }))
    }
}

struct VariantContent<'t> {
    name: &'t str,
    content: Option<&'t Node>,
}

impl<'t> VariantContent<'t> {
    fn read<V>(
        self,
        read: impl FnOnce(NodeReader<'t>) -> Result<V, ReadFault>,
    ) -> Result<V, ReadFault> {
        let Some(node) = self.content else {
            return Err(ReadFault::new(
                format!("\"{}\" requires a value", self.name),
                Some(format!("write {{ {} = … }}", self.name)),
            ));
        };
        read(NodeReader(node)).map_err(|fault| fault.at(node.span).below(self.name))
    }
}

impl<'t> VariantAccess<'t> for VariantContent<'t> {
    type Error = ReadFault;

    fn unit_variant(self) -> Result<(), ReadFault> {
        match self.content {
            None => Ok(()),
            Some(node) => Err(ReadFault::new(
                format!("`{}` holds nothing", self.name),
                Some(format!("write it as the string \"{}\"", self.name)),
            )
            .at(node.span)),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'t>>(self, seed: S) -> Result<S::Value, ReadFault> {
        self.read(|node| seed.deserialize(node))
    }

    fn tuple_variant<V: Visitor<'t>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        self.read(|node| de::Deserializer::deserialize_seq(node, visitor))
    }

    fn struct_variant<V: Visitor<'t>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        self.read(|node| de::Deserializer::deserialize_map(node, visitor))
    }
}
