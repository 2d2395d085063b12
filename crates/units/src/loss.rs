//! The probability of losing a packet.

use crate::ParseQuantityError;
use std::{fmt, str::FromStr};

const EXPECTED: &str = "a probability such as 0.01 or \"1 %\", between 0 and 1";

/// The probability that a packet is lost.
///
/// Unit: none. Range: 0 to 1, both included.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Loss(f64);

impl Loss {
    /// Nothing is lost.
    pub const NONE: Self = Self(0.0);
    /// Everything is lost.
    pub const ALL: Self = Self(1.0);

    /// A loss of `probability`, or `None` outside 0 to 1.
    pub fn new(probability: f64) -> Option<Self> {
        (0.0..=1.0).contains(&probability).then_some(Self(probability))
    }

    /// The loss of a packet of `bytes` on a channel with `bit_error_rate`: 1 − (1 − BER)^(8·bytes).
    ///
    /// # Panics
    /// When the bit error rate is not a probability.
    pub fn from_bit_errors(bit_error_rate: f64, bytes: u64) -> Self {
        assert!((0.0..=1.0).contains(&bit_error_rate), "bit error rate {bit_error_rate}");
        Self(-f64::exp_m1(8.0 * bytes as f64 * f64::ln_1p(-bit_error_rate)))
    }

    /// The probability.
    pub const fn probability(self) -> f64 {
        self.0
    }

    /// The loss over two parts of a path with independent losses.
    pub fn then(self, next: Self) -> Self {
        Self(1.0 - (1.0 - self.0) * (1.0 - next.0))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} %", (self.0 * 100.0 * 1e9).round() / 1e9))
    }
}

impl FromStr for Loss {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParseQuantityError { text: text.to_owned(), expected: EXPECTED };
        let (number, scale) = match text.trim().strip_suffix('%') {
            Some(percent) => (percent, 100.0),
            None => (text, 1.0),
        };
        let number: f64 = number.trim().parse().map_err(|_| refused())?;
        Self::new(number / scale).ok_or_else(refused)
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::{EXPECTED, Loss};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
    use std::fmt;

    impl Serialize for Loss {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_f64(self.0)
        }
    }

    impl<'de> Deserialize<'de> for Loss {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct LossVisitor;
            impl de::Visitor<'_> for LossVisitor {
                type Value = Loss;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(EXPECTED)
                }

                fn visit_f64<E: de::Error>(self, value: f64) -> Result<Loss, E> {
                    Loss::new(value).ok_or_else(|| E::custom(format!("{value} is not {EXPECTED}")))
                }

                fn visit_i64<E: de::Error>(self, value: i64) -> Result<Loss, E> {
                    self.visit_f64(value as f64)
                }

                fn visit_u64<E: de::Error>(self, value: u64) -> Result<Loss, E> {
                    self.visit_f64(value as f64)
                }

                fn visit_str<E: de::Error>(self, value: &str) -> Result<Loss, E> {
                    value.parse().map_err(E::custom)
                }
            }
            deserializer.deserialize_any(LossVisitor)
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Loss {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Loss".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["number", "string"], "description": EXPECTED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_errors_follow_packet_size() {
        // At a bit error rate of 1e-7.
        for (bytes, expected) in [(128, 1.02e-4), (1024, 8.19e-4), (1500, 1.20e-3)] {
            let loss = Loss::from_bit_errors(1e-7, bytes).probability();
            assert!((loss / expected - 1.0).abs() < 0.005, "{bytes} B: {loss}");
        }
        assert_eq!(Loss::from_bit_errors(0.0, 1500), Loss::NONE);
        assert_eq!(Loss::from_bit_errors(1.0, 1500), Loss::ALL);
    }

    #[test]
    fn reads_fractions_and_percent() {
        assert_eq!("1 %".parse(), Ok(Loss(0.01)));
        assert_eq!("0.05%".parse(), Ok(Loss(0.0005)));
        assert_eq!("0.001".parse(), Ok(Loss(0.001)));
        for text in ["1.1", "-0.1", "101 %", "NaN", "", "%"] {
            assert!(text.parse::<Loss>().is_err(), "{text} was accepted");
        }
        assert_eq!(Loss(0.001).to_string(), "0.1 %");
    }
}
