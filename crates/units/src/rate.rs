//! Data rates.

use crate::quantity::{self, ParseQuantityError, Unit};
use crate::{Bytes, Duration};
use std::{fmt, str::FromStr};

const EXPECTED: &str = "a rate such as \"20 Mbit/s\" (bit/s, kbit/s, Mbit/s, Gbit/s)";
const SHOWN: &[Unit] =
    &[("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000), ("bit/s", 1)];
const READ: &[Unit] = &[
    ("Gbit/s", 1_000_000_000),
    ("Mbit/s", 1_000_000),
    ("kbit/s", 1_000),
    ("bit/s", 1),
    ("Gb/s", 1_000_000_000),
    ("Mb/s", 1_000_000),
    ("kb/s", 1_000),
    ("b/s", 1),
];

/// A data rate.
///
/// Unit: bits per second. Range: ≥ 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Rate {
    /// A rate of zero.
    pub const ZERO: Self = Self(0);

    /// A rate of `bits` per second.
    pub const fn from_bits_per_s(bits: u64) -> Self {
        Self(bits)
    }

    /// A rate of `megabits` per second.
    pub const fn from_mbit_per_s(megabits: u64) -> Self {
        Self(megabits * 1_000_000)
    }

    /// Bits per second.
    pub const fn bits_per_s(self) -> u64 {
        self.0
    }

    /// Megabits per second, for display and plots.
    pub fn mbit_per_s(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The rate at which `bytes` pass in `time`; zero time gives the largest rate.
    pub fn of(bytes: Bytes, time: Duration) -> Self {
        if time.is_zero() {
            return Self(u64::MAX);
        }
        let bits = u128::from(bytes.get()) * 8 * 1_000_000_000 / u128::from(time.as_ns());
        Self(u64::try_from(bits).unwrap_or(u64::MAX))
    }

    /// The time for `bytes` at this rate, rounded up to a nanosecond; infinite at a rate of zero.
    pub fn time_for(self, bytes: Bytes) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let ns = (u128::from(bytes.get()) * 8 * 1_000_000_000).div_ceil(u128::from(self.0));
        Duration::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// The bytes that pass in `time`, rounded down.
    pub fn bytes_in(self, time: Duration) -> Bytes {
        let bytes = u128::from(self.0) * u128::from(time.as_ns()) / 8_000_000_000;
        Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quantity::write(f, self.0, SHOWN)
    }
}

impl FromStr for Rate {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        quantity::parse(text, READ, EXPECTED).map(Self)
    }
}

quantity::quantity_serde!(Rate, EXPECTED);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_what_people_write() {
        for (text, bits, shown) in [
            ("20 Mbit/s", 20_000_000, "20 Mbit/s"),
            ("60kbit/s", 60_000, "60 kbit/s"),
            ("1.5 Gb/s", 1_500_000_000, "1.5 Gbit/s"),
            ("0 bit/s", 0, "0 bit/s"),
            ("1234567 bit/s", 1_234_567, "1234.567 kbit/s"),
        ] {
            let rate: Rate = text.parse().expect(text);
            assert_eq!((rate.bits_per_s(), rate.to_string().as_str()), (bits, shown));
        }
        for text in ["", "20", "Mbit/s", "-1 Mbit/s", "1.2.3 Mbit/s", "20 MB", "1e3 bit/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text} was accepted");
        }
        assert!("99999999999999999999 Gbit/s".parse::<Rate>().is_err());
    }

    #[test]
    fn a_packet_takes_its_time() {
        let rate = Rate::from_mbit_per_s(20);
        assert_eq!(rate.time_for(Bytes::new(1500)), Duration::from_us(600));
        assert_eq!(rate.bytes_in(Duration::from_ms(600)), Bytes::new(1_500_000));
        assert_eq!(Rate::ZERO.time_for(Bytes::new(1)), Duration::MAX);
        assert_eq!(Rate::of(Bytes::new(1500), Duration::from_us(600)), rate);
    }
}
