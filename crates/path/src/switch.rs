//! Features that are off unless a table describes them.

use crate::written::{self, Written};
#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::str::FromStr;

/// A feature as written: `"none"`, or the table that describes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Switch<T> {
    /// Off, although a preset or the other part of the link has it.
    Off,
    /// On.
    On(T),
}

impl<T> Switch<T> {
    /// The table, if the feature is there.
    pub fn on(&self) -> Option<&T> {
        match self {
            Self::Off => None,
            Self::On(table) => Some(table),
        }
    }
}

impl<T> FromStr for Switch<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::Off),
            _ => Err(format!("\"{text}\" is not \"none\" or a table")),
        }
    }
}

impl<T: for<'de> Deserialize<'de>> Written for Switch<T> {
    const EXPECTED: &'static str = "\"none\" or a table";

    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        T::deserialize(table).map(Self::On)
    }
}

impl<'de, T: for<'any> Deserialize<'any>> Deserialize<'de> for Switch<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        written::deserialize(from)
    }
}

#[cfg(feature = "schema")]
impl<T: JsonSchema> JsonSchema for Switch<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Switch_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let table = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "const": "none" }, table] })
    }
}

impl<T: Serialize> Serialize for Switch<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => to.serialize_str("none"),
            Self::On(table) => table.serialize(to),
        }
    }
}
