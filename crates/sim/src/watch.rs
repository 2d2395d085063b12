//! Watching a run: what befalls packets on hops, and how senders stand, event by event.
//!
//! A record holds curves of ten samples a second; a watcher sees everything. It writes to where its
//! caller says, since nothing here opens files.

mod lines;
mod pcapng;

pub use lines::{QueueLines, SenderLines};
pub use pcapng::Captures;

use crate::hop::Hop;
use crate::packet::{End, FlowId, Packet};
use midhop_tcp::{Endpoint, SenderPhase};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::io;

/// What befell a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// It was handed to the hop.
    Entered,
    /// It has come out of the hop.
    Left,
    /// The hop dropped it, for this cause.
    Dropped(&'static str),
}

/// How a sender stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Glance {
    /// What it is doing about its window; none while nothing is on its way.
    pub phase: Option<SenderPhase>,
    /// How much may be in flight.
    pub cwnd: Bytes,
    /// The smoothed round trip.
    pub rtt: Option<Duration>,
    /// The smallest round trip.
    pub rtt_min: Option<Duration>,
    /// Segments sent again.
    pub retransmissions: u64,
    /// The rate at which data was delivered lately.
    pub delivery_rate: Option<Rate>,
    /// What is in flight, without what is known to be lost or to have arrived.
    pub in_flight: Bytes,
    /// What has been sent and not acknowledged in sequence.
    pub outstanding: Bytes,
    /// The rate at which segments leave.
    pub pacing_rate: Option<Rate>,
}

impl Glance {
    /// How `endpoint` stands.
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

/// Somebody who watches. What fails in between is told at the end.
pub trait Watcher: std::fmt::Debug {
    /// Something befell a packet on a hop.
    fn see(&mut self, _now: Instant, _hop: &Hop, _sight: Sight, _packet: &Packet) {}

    /// A connection's end has acted, and stands so.
    fn look(&mut self, _now: Instant, _flow: FlowId, _end: End, _glance: &Glance) {}

    /// The run is over.
    ///
    /// # Errors
    /// The first thing that could not be written.
    fn finish(&mut self) -> io::Result<()>;
}
