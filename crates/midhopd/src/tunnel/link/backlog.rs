//! Detects whether a QUIC connection has more to send than its path carries.

use midhop_tunnel::control::{Pace, Progress};
use midhop_units::Bytes;

/// Of this many acknowledgements, one may find nothing to send: a writer is late at times.
const IDLE_PARTS: u64 = 10;

/// The counters of a connection at the last check.
#[derive(Debug, Default)]
pub struct Backlog {
    last: Progress,
}

impl Backlog {
    /// Returns the bytes that have arrived since the last check, and whether there was more to send
    /// all the time.
    pub fn look(&mut self, pace: &Pace) -> (Bytes, bool) {
        let now = pace.progress();
        let last = std::mem::replace(&mut self.last, now);
        let acks = now.acks.saturating_sub(last.acks);
        let idle = now.idle.saturating_sub(last.idle);
        let delivered = now.delivered.saturating_sub(last.delivered);
        (delivered, acks > 0 && idle * IDLE_PARTS <= acks)
    }
}
