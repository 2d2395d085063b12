//! Loss detection by time: a segment is lost if it was sent a reordering window before one that has arrived.
//!
//! Source: RFC 8985 §6. Differences: segments are ordered by the count of transmissions, which is exactly what the
//! RFC's pair of time and sequence number stands for. The reordering timer waits for the latest transmission that is
//! known to have arrived, as in Linux, and not for each segment. An echoed timestamp decides nothing, as in Linux:
//! while a segment is missing, the receiver echoes the timestamp of the segment before it (RFC 7323 §4.3). By the
//! RFC's step 2 no retransmission behind the missing segment would count.

use midhop_units::{Duration, Instant};

use super::{
    scoreboard::Scoreboard,
    sent::{Found, Order, Sent},
};

/// RFC 8985 §6.2: for how many recoveries a widened window stays.
const PERSIST: u32 = 16;
/// RFC 8985 §6.2, DupThresh.
const DUP_THRESH: u32 = 3;

/// The latest arrival, by the time of sending.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rack {
    latest: Option<Latest>,
    /// The highest position that has arrived.
    fack: u64,
    /// Whether the path was ever seen to reorder.
    reordering: bool,
    multiplier: u32,
    persist: u32,
    /// A duplicate widens the window again only once this is acknowledged.
    dsack_round: u64,
}

#[derive(Debug, Clone, Copy)]
struct Latest {
    order: Order,
    sent_at: Instant,
    rtt: Duration,
}

/// Other inputs of the reordering window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings {
    pub rtt_min: Option<Duration>,
    pub smoothed: Option<Duration>,
    pub in_recovery: bool,
}

impl Rack {
    /// A segment has arrived, by cumulative or selective acknowledgement.
    pub fn on_delivered(&mut self, now: Instant, newest: &Sent, ambiguous: bool) {
        if ambiguous {
            return;
        }
        let rtt = now.saturating_since(newest.sent_at);
        if self.latest.is_none_or(|latest| latest.order.is_before(newest.order)) {
            self.latest = Some(Latest { order: newest.order, sent_at: newest.sent_at, rtt });
        }
    }

    /// Everything below `end` was acknowledged; the lowest segment that arrived and was sent only once
    /// began at `original`.
    pub fn on_reached(&mut self, end: u64, original: Option<u64>) {
        if original.is_some_and(|start| start < self.fack) {
            self.reordering = true;
        }
        self.fack = self.fack.max(end);
    }

    /// The receiver received a segment twice: a segment found lost was only late.
    pub fn on_duplicate(&mut self, una: u64, nxt: u64) {
        if una >= self.dsack_round {
            self.multiplier = (self.multiplier + 1).min(64);
            self.persist = PERSIST;
            self.dsack_round = nxt;
        }
        self.reordering = true;
    }

    /// The latest arrival was an earlier transmission of the same segment.
    pub fn forget(&mut self) {
        self.latest = None;
    }

    /// A recovery has ended without a duplicate.
    pub fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiplier = 0;
        }
    }

    /// How late a segment may be.
    fn window(&self, board: &Scoreboard, with: Surroundings) -> Duration {
        if !self.reordering && (with.in_recovery || board.sacked_segments() >= DUP_THRESH) {
            return Duration::ZERO;
        }
        let (Some(rtt_min), Some(smoothed)) = (with.rtt_min, with.smoothed) else {
            return Duration::ZERO;
        };
        (rtt_min / 4 * (u64::from(self.multiplier) + 1)).min(smoothed)
    }

    /// Marks late segments as lost; returns when to look again, if ever.
    pub fn detect(
        &self,
        now: Instant,
        board: &mut Scoreboard,
        with: Surroundings,
        report: &mut impl FnMut(&Sent),
    ) -> (Found, Instant) {
        let Some(latest) = self.latest else { return (Found::default(), Instant::NEVER) };
        let patience = latest.rtt + self.window(board, with);
        let Some(until) = now.as_ns().checked_sub(patience.as_ns()) else {
            return (Found::default(), latest.sent_at + patience);
        };
        let (found, waiting) =
            board.lose_sent_before(latest.order, Instant::from_ns(until), report);
        (found, if waiting { latest.sent_at + patience } else { Instant::NEVER })
    }
}
