//! Amounts of data.

use crate::quantity::{self, ParseQuantityError, Unit};
use std::{fmt, iter::Sum, ops, str::FromStr};

const EXPECTED: &str = "an amount such as \"5 MB\" (B, kB, MB, GB, KiB, MiB, GiB)";
const SHOWN: &[Unit] = &[("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000), ("B", 1)];
const READ: &[Unit] = &[
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("kiB", 1 << 10),
];

/// An amount of data.
///
/// Unit: bytes. Range: ≥ 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

impl Bytes {
    /// No data.
    pub const ZERO: Self = Self(0);
    /// The largest amount.
    pub const MAX: Self = Self(u64::MAX);

    /// This many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The difference, zero where `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, saturating.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This amount times `factor`, rounded down. A factor that is negative or not a number gives zero.
    pub fn scale(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor) as u64)
    }
}

impl ops::Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl ops::Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl ops::SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, ops::Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quantity::write(f, self.0, SHOWN)
    }
}

impl FromStr for Bytes {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        quantity::parse(text, READ, EXPECTED).map(Self)
    }
}

quantity::quantity_serde!(Bytes, EXPECTED);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimal_and_binary_units_differ() {
        assert_eq!("5 MB".parse(), Ok(Bytes::new(5_000_000)));
        assert_eq!("2 GiB".parse(), Ok(Bytes::new(2 << 30)));
        assert_eq!("4955 kB".parse::<Bytes>().map(|b| b.to_string()), Ok("4.955 MB".to_owned()));
        assert!("5 Mb".parse::<Bytes>().is_err());
    }

    proptest! {
        #[test]
        fn display_and_parse_are_inverse(bytes: u64) {
            prop_assert_eq!(Bytes::new(bytes).to_string().parse(), Ok(Bytes::new(bytes)));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Bytes>();
        }
    }
}
