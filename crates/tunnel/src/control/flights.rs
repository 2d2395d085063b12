//! Records what left when: the source of delivery rates, rounds and losses.
//!
//! Source: draft-ietf-ccwg-bbr-06 §4.1.1 (delivery rate estimation), by flights instead of packets: quinn
//! reports a batch of datagrams at once, and identifies an acknowledged packet by the time at which it left.

use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::VecDeque;

/// More than any path has in flight, at one datagram or more for each flight: 1.2 GB.
const FLIGHTS_MAX: usize = 1 << 20;
/// Records older than so many round trips are of packets that quinn has forgotten.
const ROUNDS_KEPT: u64 = 8;

/// The state at the moment at which a flight left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Snapshot {
    pub sent: Instant,
    /// Delivered by then. Unit: bytes, as all counts here.
    pub delivered: u64,
    pub delivered_at: Instant,
    /// When the flight that is being measured began to leave.
    pub first_sent_at: Instant,
    /// Found lost by then.
    pub lost: u64,
    /// In flight, itself included.
    pub in_flight: u64,
    pub app_limited: bool,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    snapshot: Snapshot,
    size: u64,
    /// Neither acknowledged nor lost.
    left: u64,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    /// `None` if the interval is too short for a measurement.
    pub rate: Option<Rate>,
    pub delivered: u64,
    pub interval: Duration,
    pub snapshot: Snapshot,
}

/// A lost part of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostPiece {
    pub snapshot: Snapshot,
    pub size: u64,
}

/// The flights that are not acknowledged yet, and the counts of a connection.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flights: VecDeque<Flight>,
    pub delivered: u64,
    pub lost: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Flights that leave before more than this is delivered are application-limited; zero: none are.
    app_limited_until: u64,
    next_round: u64,
    pub round: u64,
    pub round_started: bool,
}

impl Flights {
    /// `bytes` leave while `in_flight` bytes are in flight.
    pub fn on_sent(&mut self, now: Instant, in_flight: u64, bytes: u64) {
        if in_flight == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        let in_flight = in_flight.saturating_add(bytes);
        if let Some(last) = self.flights.back_mut().filter(|last| last.snapshot.sent == now) {
            last.size += bytes;
            last.left += bytes;
            last.snapshot.in_flight = in_flight;
            return;
        }
        if self.flights.len() >= FLIGHTS_MAX {
            self.flights.pop_front();
        }
        let snapshot = Snapshot {
            sent: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            lost: self.lost,
            in_flight,
            app_limited: self.app_limited_until > 0,
        };
        self.flights.push_back(Flight { snapshot, size: bytes, left: bytes });
    }

    /// The application has nothing to send though the window would allow it.
    pub fn on_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
    }

    /// A packet that left at `sent` was acknowledged. Returns the record of its flight, and which part of that flight
    /// is no longer in flight. Unit: 1/65536.
    pub fn on_acked(&mut self, sent: Instant, bytes: u64) -> Option<(Snapshot, u64)> {
        let at = self.flights.partition_point(|flight| flight.snapshot.sent < sent);
        let flight = self.flights.get_mut(at).filter(|flight| flight.snapshot.sent == sent)?;
        flight.left = flight.left.saturating_sub(bytes);
        let done_q16 = (flight.size - flight.left) * 65_536 / flight.size.max(1);
        Some((flight.snapshot, done_q16))
    }

    /// One acknowledgement delivers `bytes`; `newest` is the record of the newest packet in it.
    pub fn on_delivered(
        &mut self,
        now: Instant,
        bytes: u64,
        newest: Option<Snapshot>,
        rtt_min: Option<Duration>,
    ) -> Option<Sample> {
        self.round_started = false;
        self.delivered += bytes;
        self.delivered_at = now;
        if self.app_limited_until < self.delivered {
            self.app_limited_until = 0;
        }
        let kept = rtt_min.map_or(Duration::MAX, |rtt| rtt * ROUNDS_KEPT + Duration::from_s(1));
        while let Some(oldest) = self.flights.front()
            && (oldest.left == 0 || now.saturating_since(oldest.snapshot.sent) > kept)
        {
            self.flights.pop_front();
        }
        let snapshot = newest?;
        if snapshot.delivered >= self.next_round {
            self.next_round = self.delivered;
            self.round += 1;
            self.round_started = true;
        }
        self.first_sent_at = snapshot.sent;
        let sending = snapshot.sent.saturating_since(snapshot.first_sent_at);
        let acking = now.saturating_since(snapshot.delivered_at);
        let interval = sending.max(acking);
        let delivered = self.delivered - snapshot.delivered;
        // Shorter than any round trip: the acknowledgements were compressed.
        let valid = !interval.is_zero() && rtt_min.is_none_or(|rtt_min| interval >= rtt_min);
        let rate = valid.then(|| Rate::of(Bytes::new(delivered), interval));
        Some(Sample { rate, delivered, interval, snapshot })
    }

    /// `bytes` are lost of what left up to `newest_sent`. quinn declares lost all that is older and not
    /// acknowledged, so the oldest flights lose first. Reports pieces of at most `segment`.
    pub fn on_lost(
        &mut self,
        newest_sent: Instant,
        bytes: u64,
        segment: u64,
        mut report: impl FnMut(LostPiece, u64),
    ) {
        let mut left = bytes;
        for flight in &mut self.flights {
            if flight.snapshot.sent > newest_sent || left == 0 {
                break;
            }
            let mut here = flight.left.min(left);
            flight.left -= here;
            left -= here;
            while here > 0 {
                let size = here.min(segment.max(1));
                here -= size;
                self.lost += size;
                report(LostPiece { snapshot: flight.snapshot, size }, self.lost);
            }
        }
        // The rest has no record: its flights were too small.
        self.lost += left;
    }
}
