//! Events for the tests of this crate's modules.

use crate::Ack;
use midhop_units::Bytes;

/// An acknowledgement of `bytes` in `round` that measured nothing.
pub(crate) fn ack(round: u64, bytes: u64) -> Ack {
    Ack { acked: Bytes::new(bytes), round, ..Ack::default() }
}
