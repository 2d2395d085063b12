//! Quantities as numbers, whose unit ends the key: `took_s`, `goodput_bit_per_s`, `discarded_bytes`.
//!
//! The serde form of a quantity is text, for files that people write. Files that programs write for
//! programs have numbers in the base unit, by an attribute of the field: `#[serde(rename =
//! "took_s", with = "Number::<Duration>")]`.
//!
//! Decision 0047.

use crate::{Bytes, Duration, Rate};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::marker::PhantomData;

/// A quantity that a number in its base unit can represent.
pub trait BaseUnit: Sized {
    /// The type of the number.
    type Number: Serialize + for<'de> Deserialize<'de>;

    /// The quantity in its base unit.
    fn to_number(&self) -> Self::Number;

    /// The quantity of `number`; none where it represents none.
    fn from_number(number: Self::Number) -> Option<Self>;
}

/// Unit: seconds. Exact to the nanosecond below 2²³ s (97 days).
impl BaseUnit for Duration {
    type Number = f64;

    fn to_number(&self) -> f64 {
        self.as_s_f64()
    }

    fn from_number(s: f64) -> Option<Self> {
        // Whole seconds are converted separately: multiplying the whole number by 10⁹ would round.
        let ns = |whole: f64| {
            Self::from_s(1)
                .as_ns()
                .saturating_mul(whole as u64)
                .saturating_add((s.fract() * 1e9).round() as u64)
        };
        (s.is_finite() && s >= 0.0).then(|| Self::from_ns(ns(s.trunc())))
    }
}

/// Unit: bits per second.
impl BaseUnit for Rate {
    type Number = u64;

    fn to_number(&self) -> u64 {
        self.bits_per_s()
    }

    fn from_number(bits_per_s: u64) -> Option<Self> {
        Some(Self::from_bits_per_s(bits_per_s))
    }
}

/// Unit: bytes.
impl BaseUnit for Bytes {
    type Number = u64;

    fn to_number(&self) -> u64 {
        self.get()
    }

    fn from_number(bytes: u64) -> Option<Self> {
        Some(Self::new(bytes))
    }
}

/// Unit: that of `Q`.
impl<Q: BaseUnit> BaseUnit for Option<Q> {
    type Number = Option<Q::Number>;

    fn to_number(&self) -> Self::Number {
        self.as_ref().map(Q::to_number)
    }

    fn from_number(number: Self::Number) -> Option<Self> {
        match number {
            Some(number) => Q::from_number(number).map(Some),
            None => Some(None),
        }
    }
}

/// The serde form and the JSON Schema of a field that is a number of `Q`'s base unit.
#[derive(Debug)]
pub struct Number<Q>(PhantomData<Q>);

impl<Q: BaseUnit> Number<Q> {
    /// Writes the number.
    ///
    /// # Errors
    /// When `serializer` fails.
    pub fn serialize<S: Serializer>(quantity: &Q, serializer: S) -> Result<S::Ok, S::Error> {
        quantity.to_number().serialize(serializer)
    }

    /// Reads the number.
    ///
    /// # Errors
    /// When there is no number, or it represents no such quantity.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Q, D::Error> {
        let number = Q::Number::deserialize(deserializer)?;
        Q::from_number(number).ok_or_else(|| de::Error::custom("a negative or infinite quantity"))
    }
}

#[cfg(feature = "schema")]
impl<Q: BaseUnit> schemars::JsonSchema for Number<Q>
where
    Q::Number: schemars::JsonSchema,
{
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        Q::Number::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let mut schema = Q::Number::json_schema(generator);
        schema.insert("minimum".to_owned(), 0.into());
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
    struct Fields {
        #[serde(rename = "took_s", with = "Number::<Duration>")]
        took: Duration,
        #[serde(rename = "rtt_s", with = "Number::<Option<Duration>>")]
        rtt: Option<Duration>,
        #[serde(rename = "goodput_bit_per_s", with = "Number::<Rate>")]
        goodput: Rate,
        #[serde(with = "Number::<Bytes>")]
        bytes: Bytes,
    }

    #[test]
    fn keys_have_the_units_and_values_are_numbers() {
        let fields = Fields {
            took: Duration::from_ns(1_000_000_001),
            rtt: None,
            goodput: Rate::from_bits_per_s(u64::MAX),
            bytes: Bytes::new(1_500),
        };
        let text = serde_json::to_string(&fields).expect("JSON");
        let expected = r#"{"took_s":1.000000001,"rtt_s":null,"goodput_bit_per_s":18446744073709551615,"bytes":1500}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Fields>(&text).expect("fields"), fields);
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        let read = |took: &str| {
            let text = format!(r#"{{"took_s":{took},"rtt_s":2,"goodput_bit_per_s":0,"bytes":0}}"#);
            serde_json::from_str::<Fields>(&text)
        };
        assert_eq!(read("3").expect("a whole number").took, Duration::from_s(3));
        assert_eq!(read("18446744073.709551615").expect("the most").took, Duration::MAX);
        for text in ["-1", "-0.5", "\"1 s\"", "\"1\"", "null"] {
            assert!(read(text).is_err(), "{text} was accepted");
        }
    }

    proptest! {
        #[test]
        fn no_nanosecond_is_lost(ns in 0..1_000_000_000u64 << 23, rtt: Option<u32>, bits: u64, bytes: u64) {
            let fields = Fields {
                took: Duration::from_ns(ns),
                rtt: rtt.map(|ns| Duration::from_ns(ns.into())),
                goodput: Rate::from_bits_per_s(bits),
                bytes: Bytes::new(bytes),
            };
            let text = serde_json::to_string(&fields).expect("JSON");
            prop_assert_eq!(serde_json::from_str::<Fields>(&text).expect("fields"), fields);
            let value = serde_json::to_value(fields).expect("JSON");
            prop_assert_eq!(serde_json::from_value::<Fields>(value).expect("fields"), fields);
        }
    }
}
