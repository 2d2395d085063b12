//! Queues that others empty on purpose: BBR's flows do so all ten seconds, together, within a round trip.
//!
//! A flow that takes losses for congestion gives up a third of its window at once, and a queue of a product is not
//! empty for that.

use midhop_units::{Duration, Instant};

/// A queue was there if it was this part of the path without it.
const QUEUE_PART: u64 = 4;
/// It is gone if so much of it is left. Unit: parts.
const LEFT_PART: u64 = 8;
/// A drain lasts so many of the round trips that it began with, at most.
const ROUNDS: u64 = 2;
/// Nobody empties the queue on purpose who has not for so long.
const GONE: Duration = Duration::from_s(25);

/// The drains of late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Drains {
    /// The longest round trip of late, and when it was seen.
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

    /// Whether it has been emptied lately.
    pub fn are_recent(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_since(last) <= GONE)
    }
}
