//! Figures that bound what scenarios may ask for.

use midhop_units::Bytes;

/// More than any run moves, and sums of it are numbers.
pub(crate) const BYTES_MAX: Bytes = Bytes::new(1_000_000_000_000_000);

/// The largest IP packet on any link. Unit: bytes.
pub const MTU: u32 = 1500;
