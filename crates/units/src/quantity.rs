//! Reading and writing "number, space, unit".
//!
//! Decision 0001.

use std::fmt;

/// Why a text is not the quantity it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseQuantityError {
    /// The text as it was written.
    pub text: String,
    /// The expected kind of quantity, with an example.
    pub expected: &'static str,
}

impl fmt::Display for ParseQuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not {}", self.text, self.expected)
    }
}

impl std::error::Error for ParseQuantityError {}

/// One unit: its name as written and its size in base units.
pub(crate) type Unit = (&'static str, u64);

/// Reads `text` as a non-negative decimal number followed by one of `units`.
///
/// The number is scaled exactly if it has at most 18 digits; a remainder below one base unit is
/// rounded to nearest. A value that does not fit into 64 bits is refused.
pub(crate) fn parse(
    text: &str,
    units: &[Unit],
    expected: &'static str,
) -> Result<u64, ParseQuantityError> {
    let refused = || ParseQuantityError { text: text.to_owned(), expected };
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .ok_or_else(refused)?;
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim();
    let scale = units.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?.1;
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    let no_digits = whole.is_empty() && fraction.is_empty();
    if no_digits || fraction.contains('.') || fraction.len() > 18 {
        return Err(refused());
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| refused())? };
    let numerator: u128 =
        if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| refused())? };
    let denominator = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| refused())?);
    let scale = u128::from(scale);
    let fraction_scaled = (numerator * scale + denominator / 2) / denominator;
    whole
        .checked_mul(scale)
        .and_then(|value| value.checked_add(fraction_scaled))
        .and_then(|value| u64::try_from(value).ok())
        .ok_or_else(refused)
}

/// Writes `value` in the largest of `units` that represents it exactly with at most three decimals,
/// otherwise in base units. `units` are ordered from large to small and end with the base unit.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, value: u64, units: &[Unit]) -> fmt::Result {
    let (name, scale) = units
        .iter()
        .copied()
        .find(|&(_, scale)| value >= scale && (u128::from(value) * 1000) % u128::from(scale) == 0)
        .unwrap_or(units[units.len() - 1]);
    let thousandths = u128::from(value) * 1000 / u128::from(scale);
    let (whole, rest) = (thousandths / 1000, thousandths % 1000);
    let mut text = whole.to_string();
    if rest != 0 {
        text.push_str(format!(".{rest:03}").trim_end_matches('0'));
    }
    f.pad(&format!("{text} {name}"))
}

/// Gives a quantity its serde form: the text that a person writes. `$expected` says what that is.
macro_rules! quantity_serde {
    ($quantity:ty, $expected:expr) => {
        #[cfg(feature = "serde")]
        impl serde::Serialize for $quantity {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $quantity {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Written;
                impl serde::de::Visitor<'_> for Written {
                    type Value = $quantity;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$quantity, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Written)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $quantity {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($quantity).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "description": $expected })
            }
        }
    };
}
pub(crate) use quantity_serde;
