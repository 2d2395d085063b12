//! Events and laws for the tests of this crate's modules.

use crate::{Ack, Algorithm, Law};
use midhop_units::{Bytes, Rate};

/// An acknowledgement of `bytes` in `round` without measurements.
pub(crate) fn ack(round: u64, bytes: u64) -> Ack {
    Ack { acked: Bytes::new(bytes), round, ..Ack::default() }
}

/// The law of `algorithm` by its name alone, or over a path of 15 Mbit/s where it needs a rate.
pub(crate) fn usual(algorithm: Algorithm) -> Law {
    let known = Some(Rate::from_mbit_per_s(15));
    let law = Law::usual(algorithm, None).or_else(|| Law::usual(algorithm, known));
    law.expect("each takes a rate")
}
