//! Why a link as written is refused.

use midhop_units::{Bytes, Duration, Loss, Rate};

/// The highest rate of a link; above it, a nanosecond is too coarse to separate packets.
pub(crate) const RATE_MAX: Rate = Rate::from_bits_per_s(1_000_000_000_000);
/// The longest delay, jitter or outage.
pub(crate) const DELAY_MAX: Duration = Duration::from_s(3600);
/// The largest queue.
pub(crate) const QUEUE_BYTES_MAX: Bytes = Bytes::new(16 << 30);
/// The largest queue counted in packets.
pub(crate) const QUEUE_PACKETS_MAX: u64 = 10_000_000;

/// Why a direction of a link as written is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// A value is outside what is possible or sensible.
    #[error("`{key}` is {value}: {hint}")]
    OutOfRange {
        /// The key, with dots, below the direction.
        key: &'static str,
        /// The value as written.
        value: String,
        /// What is allowed here.
        hint: String,
    },
    /// A key needs another one.
    #[error("`{key}` is missing: {hint}")]
    Missing {
        /// The key that must be given.
        key: &'static str,
        /// The reason, and what to write.
        hint: String,
    },
    /// Two keys that exclude each other are both given.
    #[error("`{key}` and `{with}` exclude each other: {hint}")]
    Conflict {
        /// One of the keys.
        key: &'static str,
        /// The other.
        with: &'static str,
        /// Which of the two to keep, for which purpose.
        hint: String,
    },
    /// The steps of a trace are not valid.
    #[error("the trace of `{key}` {reason}")]
    Trace {
        /// The key whose value is a trace.
        key: &'static str,
        /// The problem, and what to do.
        reason: String,
    },
}

impl ResolveError {
    /// The key at fault, with dots, below the direction; `orbit.…` below the link.
    pub fn key(&self) -> &'static str {
        match self {
            Self::OutOfRange { key, .. }
            | Self::Missing { key, .. }
            | Self::Conflict { key, .. }
            | Self::Trace { key, .. } => key,
        }
    }

    pub(crate) fn out_of_range(
        key: &'static str,
        value: impl ToString,
        hint: impl Into<String>,
    ) -> Self {
        Self::OutOfRange { key, value: value.to_string(), hint: hint.into() }
    }

    pub(crate) fn missing(key: &'static str, hint: impl Into<String>) -> Self {
        Self::Missing { key, hint: hint.into() }
    }

    pub(crate) fn conflict(key: &'static str, with: &'static str, hint: impl Into<String>) -> Self {
        Self::Conflict { key, with, hint: hint.into() }
    }

    pub(crate) fn trace(key: &'static str, reason: impl Into<String>) -> Self {
        Self::Trace { key, reason: reason.into() }
    }
}

/// Refuses a time above [`DELAY_MAX`].
pub(crate) fn check_time(key: &'static str, time: Duration) -> Result<(), ResolveError> {
    if time > DELAY_MAX {
        return Err(ResolveError::out_of_range(key, time, format!("at most {DELAY_MAX}")));
    }
    Ok(())
}

/// Refuses a zero time and a time above [`DELAY_MAX`].
pub(crate) fn check_positive_time(key: &'static str, time: Duration) -> Result<(), ResolveError> {
    if time.is_zero() {
        return Err(ResolveError::out_of_range(key, time, "must be longer than nothing"));
    }
    check_time(key, time)
}

/// Refuses a time outside `range`.
pub(crate) fn check_time_in(
    key: &'static str,
    time: Duration,
    range: std::ops::RangeInclusive<Duration>,
) -> Result<(), ResolveError> {
    if range.contains(&time) {
        return Ok(());
    }
    let hint = format!("must be between {} and {}", range.start(), range.end());
    Err(ResolveError::out_of_range(key, time, hint))
}

/// Refuses a rate above [`RATE_MAX`].
pub(crate) fn check_rate(key: &'static str, rate: Rate) -> Result<(), ResolveError> {
    if rate > RATE_MAX {
        return Err(ResolveError::out_of_range(
            key,
            rate,
            format!("at most {RATE_MAX}; for a link without a limit write \"unlimited\""),
        ));
    }
    Ok(())
}

/// Refuses a number outside `range`, infinities and NaN.
pub(crate) fn check_number(
    key: &'static str,
    value: f64,
    range: std::ops::RangeInclusive<f64>,
) -> Result<(), ResolveError> {
    if range.contains(&value) {
        return Ok(());
    }
    let hint = format!("must be between {} and {}", range.start(), range.end());
    Err(ResolveError::out_of_range(key, value, hint))
}

/// Refuses a probability of one: no packet would remain.
pub(crate) fn check_not_always(key: &'static str, probability: Loss) -> Result<(), ResolveError> {
    if probability.probability() >= 1.0 {
        return Err(ResolveError::out_of_range(key, probability, "must be less than 100 %"));
    }
    Ok(())
}
