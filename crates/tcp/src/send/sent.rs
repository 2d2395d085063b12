//! A segment that was sent and is not acknowledged, and what acknowledgements report about it.

use midhop_units::Instant;

use super::rate::Snapshot;

/// The known state of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentState {
    InFlight,
    Sacked,
    Lost,
}

/// A segment that was sent and is not acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// Its first position.
    pub start: u64,
    /// Unit: positions; a FIN takes one.
    pub length: u32,
    pub state: SegmentState,
    /// Whether it was ever retransmitted.
    pub retransmitted: bool,
    /// Whether it was found lost, retransmitted since or not.
    pub missed: bool,
    pub sent_at: Instant,
    /// The number of its last transmission in the connection.
    pub order: Order,
    // The snapshot of when it left, in parts: the whole has padding, which would cost memory for each record
    // of a window.
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost: u64,
    in_flight: u32,
    app_limited: bool,
}

impl Sent {
    /// A segment that leaves for the first time.
    pub fn new(start: u64, length: u32, sent_at: Instant, order: Order, rate: Snapshot) -> Self {
        let Snapshot { delivered, delivered_at, first_sent_at, lost, in_flight, app_limited } =
            rate;
        Self {
            start,
            length,
            state: SegmentState::InFlight,
            retransmitted: false,
            missed: false,
            sent_at,
            order,
            delivered,
            delivered_at,
            first_sent_at,
            lost,
            in_flight,
            app_limited,
        }
    }

    /// It is retransmitted.
    pub fn leave_again(&mut self, sent_at: Instant, order: Order, rate: Snapshot) {
        let again = Self::new(self.start, self.length, sent_at, order, rate);
        *self = Self { retransmitted: true, missed: self.missed, ..again };
    }

    pub fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }

    /// The state recorded when it left.
    pub fn rate(&self) -> Snapshot {
        let Self { delivered, delivered_at, first_sent_at, lost, in_flight, app_limited, .. } =
            *self;
        Snapshot { delivered, delivered_at, first_sent_at, lost, in_flight, app_limited }
    }
}

/// The number of a transmission in a connection, modulo 2³²: the numbers of segments outstanding at
/// the same time are far less than 2³¹ apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Order(u32);

impl Order {
    pub fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// How many transmissions there were from it up to a later one.
    pub fn until(self, later: Self) -> u32 {
        later.0.wrapping_sub(self.0)
    }

    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// What one acknowledgement newly covers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delivery {
    /// Unit: positions.
    pub bytes: u64,
    pub segments: u32,
    /// The latest sent of the arrived segments.
    pub newest: Option<Sent>,
    /// When the first and last segment left that were sent only once and are now covered cumulatively.
    pub originals: Option<(Instant, Instant)>,
    /// The same for those covered selectively.
    pub selected: Option<(Instant, Instant)>,
    /// The highest position up to which a segment that was sent only once has now arrived.
    pub original_end: u64,
    /// The lowest position at which such a segment begins.
    pub original_start: Option<u64>,
    /// Whether a retransmitted segment is now covered cumulatively.
    pub retransmitted: bool,
}

impl Delivery {
    pub fn note(&mut self, sent: &Sent, cumulative: bool) {
        self.bytes += u64::from(sent.length);
        self.segments += 1;
        if self.newest.is_none_or(|newest| newest.order.is_before(sent.order)) {
            self.newest = Some(*sent);
        }
        if sent.retransmitted {
            self.retransmitted |= cumulative;
            return;
        }
        let times = if cumulative { &mut self.originals } else { &mut self.selected };
        *times = Some((times.map_or(sent.sent_at, |(first, _)| first), sent.sent_at));
        self.original_end = self.original_end.max(sent.end());
        self.original_start =
            Some(self.original_start.map_or(sent.start, |start| start.min(sent.start)));
    }
}

/// Segments just found lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub bytes: u64,
    /// Data in flight when the first of them was sent.
    pub in_flight_at_send: Option<u64>,
}

impl Found {
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.in_flight_at_send = self.in_flight_at_send.or(other.in_flight_at_send);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_cache_line() {
        assert_eq!(size_of::<Sent>(), 64);
    }
}
