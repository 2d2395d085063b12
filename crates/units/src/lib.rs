//! Physical values as types, so that for example a rate is never used as a number of bytes.
//!
//! Every quantity is an integer in its base unit (bits per second, bytes, nanoseconds) or, for a
//! probability, a fraction of one. The text form is the one that people write: `20 Mbit/s`, `1.5
//! MB`, `600 ms`, `1 %`. [`std::fmt::Display`] and [`std::str::FromStr`] are inverse to each other.
//!
//! Invariant: this crate reads no clock and draws no random numbers. Time is an [`Instant`] and
//! randomness comes from a [`Seed`], both passed by the caller.

mod bytes;
mod loss;
#[cfg(feature = "serde")]
mod number;
mod quantity;
mod rate;
mod seed;
mod time;

pub use bytes::Bytes;
pub use loss::Loss;
#[cfg(feature = "serde")]
pub use number::{BaseUnit, Number};
pub use quantity::ParseQuantityError;
pub use rate::Rate;
pub use seed::Seed;
pub use time::{Duration, Instant};
