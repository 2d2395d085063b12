//! Values that a person may write as one text or number (`loss = "1 %"`) or as a table.
//!
//! An untagged enum only reports that nothing matched. This keeps the message for the form that was
//! actually written: the error of the text form, or the unknown key with the known ones.

#[cfg(feature = "schema")]
use schemars::transform::Transform;
#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::{Deserializer, de};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A value with a text form ([`FromStr`]) and a table form.
pub(crate) trait Written: FromStr<Err: fmt::Display> {
    /// What is allowed here, with an example: completes "… is not".
    const EXPECTED: &'static str;

    /// Reads the table form.
    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error>;
}

/// Reads either form.
pub(crate) fn deserialize<'de, W: Written, D: Deserializer<'de>>(from: D) -> Result<W, D::Error> {
    struct WrittenVisitor<W>(PhantomData<W>);

    impl<'de, W: Written> de::Visitor<'de> for WrittenVisitor<W> {
        type Value = W;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(W::EXPECTED)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<W, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<W, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<W, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<W, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<W, A::Error> {
            W::from_table(MapAccessDeserializer::new(map))
        }
    }

    from.deserialize_any(WrittenVisitor(PhantomData))
}

/// Gives a struct with `#[serde(remote = "Self")]` both forms: derived code reads and writes the
/// table, its [`FromStr`] the text.
macro_rules! written_as_table {
    ($type:ty, $expected:expr) => {
        impl crate::written::Written for $type {
            const EXPECTED: &'static str = $expected;

            fn from_table<'de, D: serde::Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
                // The inherent function that `remote` derives, not the trait's.
                <$type>::deserialize(table)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                crate::written::deserialize(from)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                <$type>::serialize(self, to)
            }
        }
    };
}
pub(crate) use written_as_table;

/// Says what a value is that is written as text, or may be as the table `$table`.
macro_rules! schema {
    ($type:ty, $expected:expr) => {
        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "description": $expected })
            }
        }
    };
    ($type:ty, $expected:expr, $table:ty) => {
        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $crate::written::short_or::<$table>(generator, $expected)
            }
        }
    };
}
pub(crate) use schema;

/// A short form, described by `expected`, or a table.
#[cfg(feature = "schema")]
pub(crate) fn short_or<T: JsonSchema>(generator: &mut SchemaGenerator, expected: &str) -> Schema {
    json_schema!({ "anyOf": [short(expected), generator.subschema_for::<T>()] })
}

/// Extends a table's schema by a short form, with this description.
#[cfg(feature = "schema")]
pub struct Short(pub &'static str);

#[cfg(feature = "schema")]
impl Transform for Short {
    fn transform(&mut self, schema: &mut Schema) {
        let description = schema.remove("description");
        let table = std::mem::replace(schema, json_schema!({}));
        *schema = json_schema!({ "anyOf": [short(self.0), table] });
        if let Some(description) = description {
            schema.insert("description".to_owned(), description);
        }
    }
}

#[cfg(feature = "schema")]
fn short(expected: &str) -> Schema {
    json_schema!({ "type": ["string", "number"], "description": expected })
}
