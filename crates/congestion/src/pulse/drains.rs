//! Detects queues that other flows empty on purpose: BBR's flows do so every ten seconds, together, within a round
//! trip.
//!
//! A flow that responds to losses gives up a third of its window at once, and that does not empty a queue of a whole
//! product.

use midhop_units::{Duration, Instant};

/// A queue counts if it is at least this part of the path's round-trip time. Unit: parts.
const QUEUE_PART: u64 = 4;
/// It is empty once no more than this part of it is left. Unit: parts.
const LEFT_PART: u64 = 8;
/// A drain lasts at most so many of the round trips at its beginning.
const ROUNDS: u64 = 2;
/// After this time without a drain, no flow empties the queue on purpose.
const GONE: Duration = Duration::from_s(25);

/// The recent drains.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Drains {
    /// The longest recent round trip, and when it was measured.
    peak: Option<(Duration, Instant)>,
    last: Option<Instant>,
}

impl Drains {
    /// A round trip was measured.
    pub fn see(&mut self, now: Instant, rtt: Duration, base: Duration) {
        let (peak, at) = self.peak.unwrap_or((rtt, now));
        let old = now.saturating_since(at) > peak * ROUNDS;
        if rtt >= peak || old {
            self.peak = Some((rtt, now));
            return;
        }
        self.peak = Some((peak, at));
        let queue = peak.saturating_sub(base);
        if queue < base / QUEUE_PART || rtt > base + queue / LEFT_PART {
            return;
        }
        self.peak = Some((rtt, now));
        self.last = Some(now);
    }

    /// Whether the queue was emptied recently.
    pub fn are_recent(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_since(last) <= GONE)
    }
}
