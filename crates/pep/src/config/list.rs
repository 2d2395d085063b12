//! Values that are written more shortly than they are held: lists of one, port ranges, DSCP names.

#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, marker::PhantomData, ops, str::FromStr};

/// A list that may be written as its only element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T> OneOrMany<T> {
    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ops::Deref for OneOrMany<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(de::value::StrDeserializer::new(text))
                    .map(|one| OneOrMany(vec![one]))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                T::deserialize(de::value::I64Deserializer::new(number))
                    .map(|one| OneOrMany(vec![one]))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                T::deserialize(de::value::U64Deserializer::new(number))
                    .map(|one| OneOrMany(vec![one]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(OneOrMany)
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

#[cfg(feature = "schema")]
impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

/// Ports from `first` to `last`, both included: written `443` or `"8000-8999"`.
///
/// Invariant: `first` ≤ `last`, and neither is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// The ports from `first` to `last`, if there are any.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first == 0 || first > last { None } else { Some(Self { first, last }) }
    }

    /// The lowest port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Whether `port` is one of them.
    pub const fn contain(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Whether some port is in both.
    pub const fn overlap(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().ok();
        port(first).zip(port(last)).and_then(|(first, last)| Self::new(first, last)).ok_or_else(
            || format!("\"{text}\" is not a port or range such as 443 or \"8000-8999\""),
        )
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last {
            serializer.serialize_u16(self.first)
        } else {
            serializer.collect_str(self)
        }
    }
}

/// A differentiated services code point, written as a number from 0 to 63 or by its name.
///
/// Source: RFC 2474 (class selectors), RFC 2597 (assured forwarding), RFC 3246 (`ef`), RFC 8622 (`le`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

impl Dscp {
    /// The code point `value`, if it fits six bits.
    pub const fn new(value: u8) -> Option<Self> {
        if value < 64 { Some(Self(value)) } else { None }
    }

    /// The six bits.
    pub const fn value(self) -> u8 {
        self.0
    }
}

impl FromStr for Dscp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.trim().to_ascii_lowercase();
        let digits: Vec<u8> = lower.bytes().skip(2).map(|b| b.wrapping_sub(b'0')).collect();
        let value = match (lower.get(..2), digits.as_slice()) {
            (Some("ef"), []) => Some(46),
            (Some("le"), []) => Some(1),
            (Some("cs"), &[class @ 0..=7]) => Some(class * 8),
            (Some("af"), &[class @ 1..=4, drop @ 1..=3]) => Some(class * 8 + drop * 2),
            _ => lower.parse().ok(),
        };
        value.and_then(Self::new).ok_or_else(|| {
            format!("\"{text}\" is not a DSCP: 0 to 63, cs0 to cs7, af11 to af43, ef or le")
        })
    }
}

impl Serialize for Dscp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
    }
}

/// Reads a value that is written as a number or as text.
macro_rules! number_or_text {
    ($type:ty, $expected:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Reader;

                impl de::Visitor<'_> for Reader {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }

                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                }

                deserializer.deserialize_any(Reader)
            }
        }

        #[cfg(feature = "schema")]
        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": ["integer", "string"], "description": $expected })
            }
        }
    };
}
number_or_text!(Ports, "a port such as 443, or a range of ports such as \"8000-8999\"");
number_or_text!(Dscp, "a DSCP such as \"ef\", \"af41\" or 46");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ports_are_read_as_people_write_them() {
        assert_eq!("443".parse(), Ok(Ports { first: 443, last: 443 }));
        assert_eq!("8000-8999".parse(), Ok(Ports { first: 8000, last: 8999 }));
        for wrong in ["", "0", "70000", "20-10", "http", "1-2-3", "-5"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong} was accepted");
        }
    }

    #[test]
    fn dscp_names_are_those_of_the_rfcs() {
        for (name, value) in [("ef", 46), ("af11", 10), ("AF43", 38), ("cs6", 48), ("le", 1)] {
            assert_eq!(name.parse(), Ok(Dscp(value)), "{name}");
        }
        for wrong in ["64", "af14", "af51", "cs8", "-1", "", "é"] {
            assert!(wrong.parse::<Dscp>().is_err(), "{wrong} was accepted");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = (text.parse::<Ports>(), text.parse::<Dscp>());
        }

        #[test]
        fn ports_survive_printing(a in 1u16.., b in 1u16..) {
            let ports = Ports::new(a.min(b), a.max(b)).expect("ordered");
            prop_assert_eq!(ports.to_string().parse(), Ok(ports));
        }
    }
}
