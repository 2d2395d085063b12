//! Watching a run: events of packets on hops, and states of senders, event by event.
//!
//! A record holds curves of ten samples a second; a watcher sees everything. It writes to its
//! caller's destination, since nothing here opens files.

mod lines;
mod pcapng;

pub use lines::{QueueLines, SenderLines};
pub use pcapng::Captures;

use crate::hop::Hop;
use crate::packet::{End, FlowId, Packet};
use midhop_tcp::{Endpoint, SenderPhase};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::io;

/// An event of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// It was given to the hop.
    Entered,
    /// It has left the hop.
    Left,
    /// The hop dropped it, for this cause.
    Dropped(&'static str),
}

/// The state of a sender.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Glance {
    /// Its phase; `None` while nothing is in flight.
    pub phase: Option<SenderPhase>,
    /// The limit of data in flight.
    pub cwnd: Bytes,
    /// The smoothed round trip.
    pub rtt: Option<Duration>,
    /// The smallest round trip.
    pub rtt_min: Option<Duration>,
    /// Retransmitted segments.
    pub retransmissions: u64,
    /// The recent delivery rate.
    pub delivery_rate: Option<Rate>,
    /// Data in flight, without data known to be lost or to have arrived.
    pub in_flight: Bytes,
    /// Data sent and not acknowledged in sequence.
    pub outstanding: Bytes,
    /// The pacing rate.
    pub pacing_rate: Option<Rate>,
}

impl Glance {
    /// The state of `endpoint`.
    pub(crate) fn of(endpoint: &Endpoint) -> Self {
        Self {
            phase: endpoint.phase(),
            cwnd: endpoint.window(),
            rtt: endpoint.smoothed_rtt(),
            rtt_min: endpoint.minimum_rtt(),
            retransmissions: endpoint.counters().retransmissions,
            delivery_rate: endpoint.delivery_rate(),
            in_flight: endpoint.in_flight(),
            outstanding: endpoint.outstanding(),
            pacing_rate: endpoint.pacing_rate(),
        }
    }
}

/// A watcher. Errors in between are reported at the end.
pub trait Watcher: std::fmt::Debug {
    /// An event of a packet on a hop.
    fn see(&mut self, _now: Instant, _hop: &Hop, _sight: Sight, _packet: &Packet) {}

    /// A connection's end has acted; its new state.
    fn look(&mut self, _now: Instant, _flow: FlowId, _end: End, _glance: &Glance) {}

    /// The run is over.
    ///
    /// # Errors
    /// The first error while writing.
    fn finish(&mut self) -> io::Result<()>;
}
