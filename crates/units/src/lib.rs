//! Physical values as types, so that a rate is never taken for a number of bytes.
//!
//! Every quantity is an integer in its base unit (bits per second, bytes, nanoseconds) or, for a
//! probability, a fraction of one. Each is written and read as a person writes it: `20 Mbit/s`,
//! `1.5 MB`, `600 ms`, `1 %`. [`std::fmt::Display`] and [`std::str::FromStr`] are each other's inverse.
//!
//! Invariant: this crate reads no clock and draws no random numbers. Time is an [`Instant`] that the
//! caller hands in, randomness comes from a [`Seed`] that the caller hands in.

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
