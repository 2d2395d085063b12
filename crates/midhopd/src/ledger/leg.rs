//! What one leg carried, and what the kernel measured on one side of a flow.

use super::Counter;
use crate::leg::Sample;
use std::time::Duration;

/// What one leg carried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LegBook {
    /// Live connections.
    pub connections: u64,
    /// Unit: bytes. Sent into the leg.
    pub sent: u64,
    /// Unit: bytes. Received from the leg.
    pub received: u64,
    /// Unit: segments. Retransmitted.
    pub retransmissions: u64,
    /// Its segments.
    pub segments: Segments,
    /// Unit: microseconds. Smoothed over the last samples, newest weighing an eighth.
    pub rtt_us: Option<u64>,
    /// Unit: microseconds. The shortest seen.
    pub rtt_min_us: Option<u64>,
    /// Round-trip times sampled.
    pub samples: u64,
}

impl LegBook {
    pub(super) fn add(&mut self, rtt_us: u32, rtt_min_us: u32, resent: u64, fresh: Segments) {
        let (rtt, least) = (u64::from(rtt_us), u64::from(rtt_min_us));
        self.retransmissions += resent;
        self.segments.add(fresh);
        self.rtt_us = Some(self.rtt_us.map_or(rtt, |mean| (mean * 7 + rtt) / 8));
        self.rtt_min_us = Some(self.rtt_min_us.map_or(least, |min| min.min(least)));
        self.samples += 1;
    }
}

/// Segments with data; of a tunnel, its packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Segments {
    /// Sent, again or for the first time: retransmissions are a part of these.
    pub sent: u64,
    /// Received.
    pub received: u64,
    /// Received segments that were out of order: after a loss, or after reordering.
    pub out_of_order: u64,
}

impl Segments {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.out_of_order += other.out_of_order;
    }
}

/// The kernel's measurements of one side of a live flow, as last sampled. A flow is sampled in turn
/// with the others of its thread, and at its end.
#[derive(Debug, Default)]
pub struct SideBook {
    /// Unit: microseconds. Smoothed round-trip time; 0: not measured yet.
    pub rtt_us: Counter,
    /// Unit: bytes. Written into the socket and not sent yet.
    pub queued: Counter,
    /// Unit: bytes. Sent and not acknowledged, lost or not.
    pub in_flight: Counter,
    /// Unit: segments. Retransmitted.
    pub resent: Counter,
    /// Unit: segments. Sent.
    pub sent: Counter,
    received: Counter,
    out_of_order: Counter,
    /// Unit: microseconds. How long the far end's window was closed, up to the last sample.
    limited_us: Counter,
    /// Whether the window was closed for most of the time between the last two samples.
    by_window: Counter,
    /// Unit: microseconds. The flow's age at the last sample.
    age_us: Counter,
}

impl SideBook {
    /// Takes a sample of a flow of this age. Returns the retransmissions, and all segments, since the last one.
    pub(super) fn follow(&self, sample: &Sample, age: Duration) -> (u64, Segments) {
        let fresh = |counter: &Counter, now: u32| {
            let before = counter.replace(now.into());
            u64::from(now).saturating_sub(before)
        };
        self.rtt_us.set(sample.rtt_us.into());
        self.queued.set(sample.unsent.into());
        self.in_flight.set(sample.in_flight);
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let passed = age_us.saturating_sub(self.age_us.replace(age_us));
        let closed = sample
            .window_limited_us
            .saturating_sub(self.limited_us.replace(sample.window_limited_us));
        self.by_window.set(u64::from(closed > passed / 2));
        let resent = fresh(&self.resent, sample.retransmissions);
        let segments = Segments {
            sent: fresh(&self.sent, sample.sent_data_segments),
            received: fresh(&self.received, sample.segments),
            out_of_order: fresh(&self.out_of_order, sample.out_of_order),
        };
        (resent, segments)
    }

    /// Whether the queue of this side waits because the far end's window is closed.
    pub fn waits_for_window(&self) -> bool {
        self.by_window.value() > 0
    }
}

/// The speed of a flow, measured by the one observer of all flows.
#[derive(Debug, Default)]
pub struct Speed {
    /// Unit: bit/s. From client to server between the last two observations.
    pub up: Counter,
    /// The same from server to client.
    pub down: Counter,
    /// Unit: bytes. Moved up to the last observation.
    seen_up: Counter,
    seen_down: Counter,
    /// Unit: microseconds. The flow's age at the last observation.
    age_us: Counter,
}

impl Speed {
    pub(super) fn observe(&self, up: u64, down: u64, age: Duration) {
        /// Minimum time for which a speed is computed. Unit: microseconds.
        const SPAN_US: u64 = 100_000;
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let passed_us = age_us.saturating_sub(self.age_us.value());
        if passed_us < SPAN_US {
            return;
        }
        self.age_us.set(age_us);
        for (speed, seen, now) in
            [(&self.up, &self.seen_up, up), (&self.down, &self.seen_down, down)]
        {
            let moved = now.saturating_sub(seen.replace(now));
            speed.set(moved.saturating_mul(8_000_000) / passed_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_what_moved_between_two_observations() {
        let speed = Speed::default();
        speed.observe(125_000, 1_000, Duration::from_secs(1));
        assert_eq!((speed.up.value(), speed.down.value()), (1_000_000, 8_000));
        speed.observe(999_000, 1_000, Duration::from_millis(1050));
        assert_eq!(speed.up.value(), 1_000_000, "too soon for a new one");
        speed.observe(125_000, 251_000, Duration::from_secs(3));
        assert_eq!((speed.up.value(), speed.down.value()), (0, 1_000_000));
    }

    #[test]
    fn each_segment_is_counted_once_and_a_closed_window_is_seen() {
        let side = SideBook::default();
        let sample = |sent, resent, limited| Sample {
            rtt_us: 1,
            rtt_min_us: 1,
            retransmissions: resent,
            sent: 0,
            received: 0,
            unsent: 7,
            segments: 5,
            out_of_order: 1,
            sent_segments: 0,
            sent_data_segments: sent,
            window_limited_us: limited,
            window: 0,
            in_flight: 9,
            closed: false,
        };
        let (resent, fresh) = side.follow(&sample(100, 4, 0), Duration::from_secs(1));
        assert_eq!((resent, fresh), (4, Segments { sent: 100, received: 5, out_of_order: 1 }));
        assert!(!side.waits_for_window());
        let (resent, fresh) = side.follow(&sample(150, 4, 900_000), Duration::from_secs(2));
        assert_eq!((resent, fresh), (0, Segments { sent: 50, ..Segments::default() }));
        assert!(side.waits_for_window());
        assert_eq!((side.queued.value(), side.in_flight.value()), (7, 9));
    }
}
