//! Time as an argument: nothing here reads a clock.

use crate::quantity::{self, ParseQuantityError, Unit};
use std::{fmt, iter::Sum, ops, str::FromStr};

const EXPECTED: &str = "a time such as \"600 ms\" (ns, us, ms, s, min, h)";
const SHOWN: &[Unit] = &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
const READ: &[Unit] = &[
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A span of time.
///
/// Unit: nanoseconds. Range: 0 to 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(u64);

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Longer than any run.
    pub const MAX: Self = Self(u64::MAX);

    /// This many nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// This many microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// This many milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// This many seconds.
    pub const fn from_s(s: u64) -> Self {
        Self(s * 1_000_000_000)
    }

    /// This many seconds, to the nearest nanosecond; negative or not a number gives zero.
    pub fn from_s_f64(s: f64) -> Self {
        Self((s * 1e9).round() as u64)
    }

    /// Nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Milliseconds, for display and plots.
    pub fn as_ms_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Seconds, for display and arithmetic on models.
    pub fn as_s_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Whether this is no time at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The difference, zero where `other` is longer.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, saturating.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This span times `factor`; negative or not a number gives zero.
    pub fn scale(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor).round() as u64)
    }
}

impl From<std::time::Duration> for Duration {
    fn from(std: std::time::Duration) -> Self {
        Self(u64::try_from(std.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Duration> for std::time::Duration {
    fn from(own: Duration) -> Self {
        Self::from_nanos(own.0)
    }
}

impl ops::Add for Duration {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl ops::AddAssign for Duration {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl ops::Sub for Duration {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl ops::Mul<u64> for Duration {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0 * factor)
    }
}

impl ops::Div<u64> for Duration {
    type Output = Self;
    fn div(self, divisor: u64) -> Self {
        Self(self.0 / divisor)
    }
}

impl Sum for Duration {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, ops::Add::add)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quantity::write(f, self.0, SHOWN)
    }
}

impl FromStr for Duration {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        quantity::parse(text, READ, EXPECTED).map(Self)
    }
}

quantity::quantity_serde!(Duration, EXPECTED);

/// A moment on a monotonic clock that the caller chooses.
///
/// Unit: nanoseconds since that clock's start (the run's start in the simulator, the machine's in
/// the testbed). Only differences carry meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Instant(u64);

impl Instant {
    /// The clock's start.
    pub const START: Self = Self(0);
    /// Later than any run: "no timer is set".
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `ns` nanoseconds after the clock's start.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The time since `earlier`, zero where `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl ops::Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl ops::Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl ops::Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        Duration(self.0 - earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        assert_eq!("600 ms".parse(), Ok(Duration::from_ms(600)));
        assert_eq!("0.2ms".parse(), Ok(Duration::from_us(200)));
        assert_eq!("2 min".parse(), Ok(Duration::from_s(120)));
        assert_eq!("8.5 ms".parse::<Duration>().map(|d| d.to_string()), Ok("8.5 ms".to_owned()));
        assert!("600".parse::<Duration>().is_err());
    }

    proptest! {
        #[test]
        fn display_and_parse_are_inverse(ns: u64) {
            prop_assert_eq!(Duration::from_ns(ns).to_string().parse(), Ok(Duration::from_ns(ns)));
        }
    }
}
