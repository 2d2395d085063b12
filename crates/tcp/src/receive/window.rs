//! The window that the receiver offers.
//!
//! Source: RFC 9293 §3.8.6.2.2 (silly-window avoidance), RFC 7323 §2 (scaling). When to send an update
//! and how the window follows the application are Linux' (net/ipv4/tcp_input.c, dynamic
//! right-sizing).
//!
//! Invariant: the right edge never moves back.

use midhop_units::{Duration, Instant};

/// What a sender sends in its first round trip (RFC 6928): by then a window must have doubled.
const FIRST_FLIGHT: u64 = 14_600;

/// The room of one receiver, in positions of the sequence space.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    /// How much data may wait unread. Unit: bytes.
    pub buffer: u64,
    buffer_max: u64,
    /// The position up to which the application has read.
    pub read: u64,
    /// The right edge that was offered last.
    pub edge: u64,
    tuning: Option<Tuning>,
    /// With tuning: the window reaches no further beyond the received data. Unit: bytes.
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
    /// `initial`: the window offered first, where the window is to follow the application.
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
        // Relative to the smaller limit, not to the whole buffer: else a small threshold would never open the window.
        let silly = mss.min(self.buffer.min(self.threshold) / 2).max(1);
        if edge < self.edge + silly {
            return self.edge.max(nxt);
        }
        // Does not offer what the field cannot express.
        let down = (1 << shift) - 1;
        (edge - (edge - nxt) % (down + 1)).max(self.edge)
    }

    /// Whether to send a window update.
    pub fn is_worth_announcing(&self, nxt: u64, mss: u64, shift: u8) -> bool {
        let now = self.edge.saturating_sub(nxt);
        let then = self.offer(nxt, mss, shift).saturating_sub(nxt);
        2 * now <= self.buffer && then > now && then >= 2 * now
    }

    /// So many bytes were received. The window may open by twice as many, but not at once to all of an
    /// enlarged buffer (net/ipv4/tcp_input.c, tcp_grow_window).
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
            // Twice the bytes read, to survive losses. More while the window grows: this measurement is one round
            // trip late and the sender doubles in slow start.
            let window = copied.saturating_mul(2);
            let grow = u128::from(window) * u128::from(copied - before) / u128::from(before);
            let grow = u64::try_from(grow).unwrap_or(u64::MAX);
            self.widen(window.saturating_add(grow.saturating_mul(2)));
        }
    }

    /// Data lies up to `beyond` bytes behind the data received in order, and more may arrive before the
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
