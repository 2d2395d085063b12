//! What a transport tells a congestion controller, and what it gets back.

use midhop_units::{Bytes, Duration, Instant, Rate};

/// A congestion control algorithm, as a transport sees it.
///
/// The transport calls one method per event, in the order of time, and reads window and pacing rate
/// after each. It calls [`on_loss`](Self::on_loss) once per recovery, not once per lost segment.
pub trait CongestionControl {
    /// Data has arrived.
    fn on_ack(&mut self, ack: &Ack);
    /// A loss begins a recovery.
    fn on_loss(&mut self, loss: &Loss);
    /// The retransmission timer has fired.
    fn on_rto(&mut self, rto: &Rto);
    /// The last loss or timeout was none: everything had arrived.
    fn on_spurious(&mut self, spurious: &Spurious);
    /// The path has changed, or will at once.
    fn on_handover(&mut self, handover: &Handover);
    /// How much may be in flight.
    fn window(&self) -> Bytes;
    /// How fast it may leave; `None` while no round-trip time is known: as fast as the window allows.
    fn pacing_rate(&self) -> Option<Rate>;
}

/// Data has arrived: one acknowledgement that covers something new.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ack {
    /// When the acknowledgement came.
    pub now: Instant,
    /// What it newly covers, cumulatively or selectively.
    pub acked: Bytes,
    /// What it shows to be lost that was not known to be; counted in [`Loss::lost`] where it begins a
    /// recovery.
    pub lost: Bytes,
    /// The round-trip time it measures; `None` where only retransmitted data was covered.
    pub rtt: Option<Duration>,
    /// The rate at which data was delivered lately, where it could be measured.
    pub delivery_rate: Option<Rate>,
    /// What is in flight once it is taken in.
    pub in_flight: Bytes,
    /// The number of round trips completed since the connection began.
    pub round: u64,
    /// Whether the sender had less to send than the window allowed. Such a window must not grow.
    pub app_limited: bool,
    /// Where the transport is with its repairs.
    pub phase: Phase,
}

/// Where the transport is with its repairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Nothing is missing.
    #[default]
    Open,
    /// Fast recovery: the transport spends the window reduction itself (RFC 9937).
    Recovery,
    /// After a timeout, until everything that was in flight then has arrived.
    Loss,
}

/// A loss begins a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// When it was found.
    pub now: Instant,
    /// What is known to be lost so far.
    pub lost: Bytes,
    /// What was in flight when the first lost segment was sent.
    pub in_flight: Bytes,
}

/// The retransmission timer has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rto {
    /// When.
    pub now: Instant,
    /// What was in flight, all of it now taken for lost.
    pub in_flight: Bytes,
}

/// The last loss or timeout was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spurious {
    /// When that became known.
    pub now: Instant,
}

/// The path has changed, or will at once: a satellite's handover, as far as anyone tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handover {
    /// When.
    pub now: Instant,
    /// The new path's round-trip time without queues, where it is known.
    pub rtt: Option<Duration>,
    /// The new path's rate, where it is known.
    pub rate: Option<Rate>,
}
