//! The part of the data that the radio loses.

use midhop_units::Instant;

/// A larger part of losses is not attributed to a radio. Unit: 1/65536.
const RADIO_MAX_Q16: u64 = 65_536 / 4;

/// The radio's losses: those of data that was sent while no pulse made a queue. A queue that is too short for a pulse
/// drops a part of it, which looks like a radio's loss.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Calm {
    /// From the end of the queue of the last pulse but one to the start of the last pulse.
    before: (Instant, Instant),
    /// From the end of the queue of the last pulse.
    since: Instant,
    acked: u64,
    lost: u64,
}

impl Calm {
    /// A pulse lasts from `start` to `end`, and its queue as long again.
    pub fn interrupt(&mut self, start: Instant, end: Instant) {
        self.before = (self.since, start);
        self.since = end + end.saturating_since(start);
    }

    pub fn holds(&self, sent: Instant) -> bool {
        sent >= self.since || (self.before.0 <= sent && sent < self.before.1)
    }

    pub fn learn(&mut self, acked: u64, lost: u64) {
        self.acked = (self.acked / 16 * 15).saturating_add(acked);
        self.lost = (self.lost / 16 * 15).saturating_add(lost);
    }

    pub fn forget(&mut self) {
        self.acked = 0;
        self.lost = 0;
    }

    /// The part that the radio loses. Unit: 1/65536.
    pub fn lost_q16(&self) -> u64 {
        let all = u128::from(self.acked) + u128::from(self.lost);
        let lost_q16 = u128::from(self.lost) * 65_536 / all.max(1);
        u64::try_from(lost_q16).map_or(RADIO_MAX_Q16, |lost_q16| lost_q16.min(RADIO_MAX_Q16))
    }
}
