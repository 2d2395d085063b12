//! Distinguishes the connections to peers, over QUIC or TCP and of any socket.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that no other connection of this process has.
pub fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Relaxed) + 1
}
