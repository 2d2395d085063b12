//! The window that the receiver offers.
//!
//! Source: RFC 9293 §3.8.6.2.2 (silly-window avoidance), RFC 7323 §2 (scaling); when an update is worth
//! sending and how the window follows the application is Linux' (net/ipv4/tcp_input.c, dynamic
//! right-sizing).
//!
//! Invariant: the right edge never moves back.

use midhop_units::{Duration, Instant};

/// What a sender sends in its first round trip (RFC 6928): what a window must have doubled by then.
const FIRST_FLIGHT: u64 = 14_600;

/// The room of one receiver, in positions of the sequence space.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    /// What may wait unread. Unit: bytes.
    pub buffer: u64,
    buffer_max: u64,
    /// The position up to which the application has read.
    pub read: u64,
    /// The right edge that was offered.
    pub edge: u64,
    tuning: Option<Tuning>,
    /// Where it is tuned: the window reaches no further beyond what has come. Unit: bytes.
    threshold: u64,
}

/// What the application reads per round trip.
#[derive(Debug, Clone)]
struct Tuning {
    since: Instant,
    read: u64,
    space: u64,
}

impl Room {
    /// `initial`: the window offered first, where it is to follow the application.
    pub fn new(buffer: u64, initial: Option<u64>) -> Self {
        Self {
            buffer: initial.map_or(buffer, |initial| initial.min(buffer)),
            buffer_max: buffer,
            read: 1,
            edge: 0,
            threshold: initial.map_or(u64::MAX, |initial| initial.min(buffer)),
            tuning: initial.map(|initial| Tuning {
                since: Instant::START,
                read: 1,
                space: initial.min(buffer).min(FIRST_FLIGHT),
            }),
        }
    }

    /// The right edge to offer now: no silly window, no unit smaller than the scale, never back.
    pub fn offer(&self, nxt: u64, mss: u64, shift: u8) -> u64 {
        let edge = (self.read + self.buffer).min(nxt.saturating_add(self.threshold)).max(nxt);
        let edge = edge.min(nxt + (u64::from(u16::MAX) << shift));
        // Of what may be offered, not of all that there is: else a threshold below would never open.
        let silly = mss.min(self.buffer.min(self.threshold) / 2).max(1);
        if edge < self.edge + silly {
            return self.edge.max(nxt);
        }
        // What the field cannot say is not offered.
        let down = (1 << shift) - 1;
        (edge - (edge - nxt) % (down + 1)).max(self.edge)
    }

    /// Whether the peer should hear that there is room again.
    pub fn is_worth_telling(&self, nxt: u64, mss: u64, shift: u8) -> bool {
        let now = self.edge.saturating_sub(nxt);
        let then = self.offer(nxt, mss, shift).saturating_sub(nxt);
        2 * now <= self.buffer && then > now && then >= 2 * now
    }

    /// So many bytes have come: the window may open by twice as many, not at once to all of a buffer
    /// that has been made larger (net/ipv4/tcp_input.c, tcp_grow_window).
    pub fn on_arrival(&mut self, bytes: u64) {
        if self.threshold < self.buffer {
            self.threshold = (self.threshold + 2 * bytes).min(self.buffer);
        }
    }

    /// The application has read up to `position`.
    pub fn on_read(&mut self, now: Instant, position: u64, rtt: Option<Duration>) {
        self.read = position;
        let Some(tuning) = &mut self.tuning else { return };
        if now.saturating_since(tuning.since) < rtt.unwrap_or(Duration::MAX) {
            return;
        }
        let copied = position - tuning.read;
        let before = tuning.space.max(1);
        tuning.since = now;
        tuning.read = position;
        if copied > before {
            tuning.space = copied;
            // Twice what was read, to live through losses; more where it grows, as this is one round
            // trip late and the sender doubles in slow start.
            let window = copied.saturating_mul(2);
            let grow = u128::from(window) * u128::from(copied - before) / u128::from(before);
            let grow = u64::try_from(grow).unwrap_or(u64::MAX);
            self.widen(window.saturating_add(grow.saturating_mul(2)));
        }
    }

    /// Data lies up to `beyond` bytes behind what has arrived without a gap, and more may come before the
    /// gap is filled.
    pub fn on_gap(&mut self, beyond: u64) {
        if let Some(tuning) = &self.tuning {
            self.widen(tuning.space.saturating_mul(2).saturating_add(beyond));
        }
    }

    fn widen(&mut self, window: u64) {
        self.buffer = self.buffer.max(window.min(self.buffer_max));
    }
}
