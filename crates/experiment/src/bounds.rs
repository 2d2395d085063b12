//! Upper bounds of what scenarios may request.

use midhop_units::Bytes;

/// More than any run transfers; sums of such values do not overflow.
pub(crate) const BYTES_MAX: Bytes = Bytes::new(1_000_000_000_000_000);

/// The largest IP packet on any link. Unit: bytes.
pub const MTU: u32 = 1500;
