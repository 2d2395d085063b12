//! The receiving half of an endpoint.

pub(crate) mod acks;
pub(crate) mod reassembly;
pub(crate) mod window;

use midhop_units::{Duration, Instant};

use self::{
    acks::Owed,
    reassembly::{Arrival, Reassembly},
    window::Room,
};
use crate::{
    ranges::Span,
    settings::{DelayedAck, Settings},
};

/// The receiving half: received data, pending acknowledgements, and room.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub reassembly: Reassembly,
    pub owed: Owed,
    pub room: Room,
    /// The position of the peer's FIN, once it is known.
    pub fin: Option<u64>,
    /// The largest payload seen: what a full segment is. Unit: bytes.
    segment: u64,
    /// The shift of our window field.
    pub shift: u8,
    /// The round-trip time as the receiver measures it: from echoes of its stamps, and never longer than the time
    /// of one window of data.
    rtt: Option<Duration>,
    /// The stamp that was echoed last.
    echoed: Option<u32>,
    rtt_mark: (u64, Instant),
}

/// The result of a segment's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// There is more to read.
    pub readable: bool,
    /// The peer's FIN has been reached.
    pub closed: bool,
}

impl Receiver {
    pub fn new(settings: &Settings) -> Self {
        let initial = settings.receive_autotuning.map(|tuning| tuning.initial.get());
        Self {
            reassembly: Reassembly::new(0),
            owed: Owed::new(&settings.delayed_ack),
            room: Room::new(settings.receive_buffer.get().max(1), initial),
            fin: None,
            segment: 536,
            shift: 0,
            rtt: None,
            echoed: None,
            rtt_mark: (0, Instant::START),
        }
    }

    /// The peer's SYN was received: its stream begins at position 1.
    pub fn open(&mut self, now: Instant) {
        self.reassembly = Reassembly::new(1);
        self.rtt_mark = (1, now);
    }

    /// The next position expected.
    pub fn nxt(&self) -> u64 {
        self.reassembly.nxt
    }

    /// The part of `span` that lies in the offered window.
    pub fn within(&self, span: Span) -> Span {
        Span { start: span.start, end: span.end.min(self.room.edge.max(self.nxt())) }
    }

    /// Data from `start` was received, with or without a FIN behind it. Sequence numbers are acceptable.
    pub fn on_data(&mut self, now: Instant, rule: &DelayedAck, span: Span, fin: bool) -> Taken {
        let before = self.nxt();
        let payload = self.within(span);
        let whole = payload.end == span.end;
        // Nothing follows a FIN: a FIN before the end of the received data contradicts it, and is ignored.
        if fin && whole && self.fin.is_none() && span.end >= self.reassembly.end() {
            self.fin = Some(span.end);
        }
        let limit = self.fin.unwrap_or(u64::MAX);
        let end = payload.end.min(limit) + u64::from(fin && whole && payload.end == limit);
        let taken = Span { start: payload.start.min(end), end };
        self.segment = self.segment.max((payload.end - payload.start.min(payload.end)).min(65_535));
        let arrival = if taken.start >= taken.end {
            Arrival::Duplicate
        } else {
            self.reassembly.on_segment(taken)
        };
        self.room.on_arrival(payload.end - payload.start.min(payload.end));
        if arrival == Arrival::Beyond {
            self.room.on_gap(self.reassembly.end() - self.nxt());
        }
        self.owed.on_data(now, rule, arrival, self.nxt(), self.segment);
        if fin {
            self.owed.at_once();
        }
        self.measure(now);
        let closed = self.is_finished() && before < self.nxt();
        Taken { readable: self.stream_end() > before, closed }
    }

    /// A segment was not acceptable: an acknowledgement reports what would be.
    pub fn note_outside(&mut self, span: Span) {
        if span.start < span.end && span.end <= self.nxt() {
            self.reassembly.note_duplicate(span);
        }
        self.owed.at_once();
    }

    /// Whether everything up to and including the FIN was received.
    pub fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.nxt() > fin)
    }

    /// The position after the last byte that can be read.
    pub fn stream_end(&self) -> u64 {
        self.nxt() - u64::from(self.is_finished())
    }

    /// How many bytes can be read.
    pub fn readable(&self) -> u64 {
        self.stream_end().saturating_sub(self.room.read)
    }

    /// The application reads up to `bytes`; returns how many.
    pub fn read(&mut self, now: Instant, bytes: u64, rtt: Option<Duration>) -> u64 {
        let taken = bytes.min(self.readable());
        if taken > 0 {
            let rtt = self.rtt.or(rtt);
            self.room.on_read(now, self.room.read + taken, rtt);
            if self.readable() == 0 {
                self.reassembly.release();
            }
            if self.room.is_worth_announcing(self.nxt(), self.segment, self.shift) {
                self.owed.at_once();
            }
        }
        taken
    }

    /// The right edge to write into the next segment. The segment must be sent.
    pub fn offer(&mut self) -> u64 {
        let (nxt, unit) = (self.nxt(), 1 << self.shift);
        let edge = self.room.offer(nxt, self.segment, self.shift);
        // An edge that the field cannot express is rounded up where there is room. Otherwise the edge would move
        // back by less than a unit with every other segment received (RFC 7323 §2.4).
        let rounded = nxt + ((edge - nxt).div_ceil(unit) * unit).min(u64::from(u16::MAX) * unit);
        self.room.edge = if rounded <= self.room.read + self.room.buffer { rounded } else { edge };
        self.room.edge
    }

    /// A segment of `length` was received, with the echo of a stamp that left `age` milliseconds ago. Call it
    /// before [`Receiver::on_data`].
    ///
    /// Source: net/ipv4/tcp_input.c, `tcp_rcv_rtt_measure_ts`: full segments only, one for each stamp;
    /// a shorter time counts at once, a longer one by an eighth, and only where all has been read.
    pub fn on_echo(&mut self, echo: u32, age: u32, length: u64) {
        let known = self.echoed.replace(echo) == Some(echo);
        let took = Duration::from_ms(u64::from(age.max(1)));
        // A stamp from the future was never ours.
        if known || length < self.segment || (age as i32) < 0 {
            return;
        }
        self.rtt = match self.rtt {
            Some(rtt) if took >= rtt && self.readable() > 0 => Some(rtt),
            Some(rtt) if took >= rtt => Some(rtt - rtt / 8 + took / 8),
            _ => Some(took),
        };
    }

    /// A window's worth of data takes at least a round trip.
    fn measure(&mut self, now: Instant) {
        let (mark, since) = self.rtt_mark;
        if self.nxt() >= mark {
            let took = now.saturating_since(since);
            if mark > 1 {
                self.rtt = Some(self.rtt.map_or(took, |rtt| rtt.min(took)));
            }
            self.rtt_mark = (self.room.edge.max(self.nxt() + 1), now);
        }
    }

    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.reassembly.check()?;
        if self.room.read > self.stream_end().max(1) {
            return Err(format!("read up to {} of {}", self.room.read, self.stream_end()));
        }
        let end = self.reassembly.end();
        if end > self.room.edge.max(1) + u64::from(self.fin.is_some()) {
            return Err(format!("took data up to {end} beyond {}", self.room.edge));
        }
        Ok(())
    }
}
