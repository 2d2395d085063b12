//! The interface of an algorithm, and its events.

use crate::xcp;
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::fmt;

/// A congestion control algorithm, as a [`Controller`](crate::Controller) drives it.
///
/// The methods are the controller's of the same names, which document the meaning of each and when it is called.
/// Methods with a default do not concern every algorithm.
pub trait CongestionControl: fmt::Debug + Send {
    /// The handshake is complete.
    fn on_established(&mut self, _established: &Established) {}
    /// Data has arrived.
    fn on_ack(&mut self, ack: &Ack);
    /// A loss begins a recovery.
    fn on_loss(&mut self, loss: &Loss);
    /// The retransmission timer has fired.
    fn on_rto(&mut self, rto: &Rto);
    /// The last loss or timeout was spurious.
    fn on_spurious(&mut self, spurious: &Spurious);
    /// The path has changed, or will change at once.
    fn on_handover(&mut self, handover: &Handover);
    /// A segment has been found lost.
    fn on_lost_segment(&mut self, _segment: &LostSegment) {}
    /// Data is about to leave although nothing was in flight.
    fn on_restart(&mut self, _restart: &Restart) {}
    /// This flow's part of a leg of known rate has changed.
    fn on_share(&mut self, _share: Rate) {}
    /// The rate of the leg is reported, headers included: by its modem, or by whoever configures it.
    fn on_rate(&mut self, _rate: Rate) {}
    /// The device at the bottleneck reports its queue.
    fn on_queue(&mut self, _report: &QueueReport) {}
    /// An acknowledgement carries feedback of XCP routers. Unit: bytes, with sixteen binary places.
    fn on_xcp_feedback(&mut self, _feedback_q16: i64) {}
    /// The congestion header of the next segment.
    fn xcp_header(&self) -> Option<xcp::Header> {
        None
    }
    /// The limit of data in flight.
    fn window(&self) -> Bytes;
    /// Whether it looks for the path's capacity from below.
    fn is_in_slow_start(&self) -> bool {
        false
    }
    /// The window at which slow start ends.
    fn slow_start_threshold(&self) -> Option<Bytes> {
        None
    }
    /// Whether the window applies unchanged in recovery.
    fn governs_recovery(&self) -> bool {
        false
    }
    /// How fast payload may leave.
    fn pacing_rate(&self) -> Option<Rate>;
    /// Whether it measures the path by the times at which it sends now.
    fn measures(&self) -> bool {
        false
    }
    /// What the path carries instead of the configured rate, headers included.
    fn carried(&self) -> Option<Rate> {
        None
    }
}

/// The handshake is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Established {
    /// When.
    pub now: Instant,
    /// The round-trip time that it measured; `None` where its segments were retransmitted.
    pub rtt: Option<Duration>,
}

/// Data has arrived: one acknowledgement that covers something new.
///
/// Build it with `..Ack::default()`, so that a field for only some algorithms can be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ack {
    /// When the acknowledgement arrived.
    pub now: Instant,
    /// The bytes that it newly covers, cumulatively or selectively.
    pub acked: Bytes,
    /// Bytes that it newly shows to be lost, also where that begins a recovery and
    /// [`Loss::lost`] has reported them. To count losses, count [`LostSegment`]s or add up this field.
    pub lost: Bytes,
    /// The round-trip time that it measures; `None` where only retransmitted data was covered.
    pub rtt: Option<Duration>,
    /// The recent delivery rate, where it could be measured.
    pub delivery_rate: Option<Rate>,
    /// Data in flight after it was processed.
    pub in_flight: Bytes,
    /// The number of round trips completed since the connection began.
    pub round: u64,
    /// Whether the sender had less to send than the window allowed. Such a window must not grow.
    pub app_limited: bool,
    /// The recovery state of the transport.
    pub phase: Phase,
    /// All that was delivered since the connection began, this included: C.delivered of the BBR draft.
    pub delivered: Bytes,
    /// Whether the window was used up at some moment of the last round trip: C.is_cwnd_limited.
    pub cwnd_limited: bool,
    /// How much of `acked` arrived with congestion experienced (RFC 3168), where the path marks.
    pub marked: Bytes,
    /// The record from when the newest of the covered segments was sent; `None` where the transport
    /// keeps no such records.
    pub sample: Option<RateSample>,
}

/// What an acknowledgement reports about the time since the newest segment that it covers was sent.
///
/// The rate itself is [`Ack::delivery_rate`], `None` where the interval is too short to be valid.
/// Source: draft-ietf-ccwg-bbr-06 §2.3 and §4.1.2.1.3 (there RS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateSample {
    /// Bytes delivered over the interval: RS.delivered.
    pub delivered: Bytes,
    /// Bytes that had been delivered when the segment was sent: RS.prior_delivered.
    pub prior_delivered: Bytes,
    /// The longer of the sending and the acknowledging interval: RS.interval.
    pub interval: Duration,
    /// Whether the sender had run out of data when the segment was sent: RS.is_app_limited.
    pub is_app_limited: bool,
    /// Data in flight once the segment was sent, itself included: RS.tx_in_flight.
    pub tx_in_flight: Bytes,
    /// Bytes found lost since the segment was sent: RS.lost.
    pub lost: Bytes,
    /// Data in flight before this acknowledgement.
    pub prior_in_flight: Bytes,
    /// When the segment was sent: P.send_time.
    pub sent: Instant,
    /// When it left the sender's own queue, where the transport has one; else [`sent`](Self::sent).
    pub departed: Instant,
}

/// A segment has been found lost, with the record from when it was sent.
///
/// Source: draft-ietf-ccwg-bbr-06 §4.1.2.1.2 (there P).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LostSegment {
    /// When it was found.
    pub now: Instant,
    /// Its data.
    pub size: Bytes,
    /// When it was sent: P.send_time.
    pub sent: Instant,
    /// Data in flight once it was sent, itself included: P.tx_in_flight.
    pub tx_in_flight: Bytes,
    /// Bytes found lost since it was sent, itself included: C.lost − P.lost.
    pub lost: Bytes,
    /// Whether the sender had run out of data when it was sent: P.is_app_limited.
    pub is_app_limited: bool,
    /// Whether it begins at the end of the segment found lost before it: both are one gap.
    pub contiguous: bool,
}

/// Data is about to leave although nothing was in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restart {
    /// When.
    pub now: Instant,
    /// Whether a lack of data was the reason that nothing was in flight.
    pub app_limited: bool,
}

/// The recovery state of the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Nothing is missing.
    #[default]
    Open,
    /// Fast recovery: the transport spreads the window reduction itself (RFC 9937), unless the
    /// algorithm [governs it](crate::Controller::governs_recovery).
    Recovery,
    /// After a timeout, until all data then in flight has arrived.
    Loss,
}

/// A loss begins a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// When it was found.
    pub now: Instant,
    /// Bytes known to be lost so far.
    pub lost: Bytes,
    /// Data in flight when the first lost segment was sent.
    pub in_flight: Bytes,
}

/// The retransmission timer has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rto {
    /// When.
    pub now: Instant,
    /// Data in flight, all of it now considered lost.
    pub in_flight: Bytes,
}

/// The last loss or timeout was spurious.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spurious {
    /// When that became known.
    pub now: Instant,
}

/// The path has changed, or will change at once: a satellite's handover, as far as it is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handover {
    /// When.
    pub now: Instant,
    /// The new path's round-trip time without queues, where it is known.
    pub rtt: Option<Duration>,
    /// The new path's rate, where it is known.
    pub rate: Option<Rate>,
}

/// The queue in front of a link, reported by the device that owns it: a satellite terminal, to the
/// proxy beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueReport {
    /// When.
    pub now: Instant,
    /// This connection's data in the queue; all data, where the device does not distinguish connections.
    pub queued: Bytes,
    /// The rate allotted to the link, where it changes and is known.
    pub allocation: Option<Rate>,
}
