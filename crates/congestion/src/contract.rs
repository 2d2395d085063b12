//! What an algorithm has to offer, and the events that it decides by.

use crate::xcp;
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::fmt;

/// A congestion control algorithm, as a [`Controller`](crate::Controller) drives it.
///
/// The methods are the controller's of the same names, which say what each means and when it is called.
/// What has a default is not every algorithm's business.
pub trait CongestionControl: fmt::Debug + Send {
    /// The handshake is complete.
    fn on_established(&mut self, _established: &Established) {}
    /// Data has arrived.
    fn on_ack(&mut self, ack: &Ack);
    /// A loss begins a recovery.
    fn on_loss(&mut self, loss: &Loss);
    /// The retransmission timer has fired.
    fn on_rto(&mut self, rto: &Rto);
    /// The last loss or timeout was none.
    fn on_spurious(&mut self, spurious: &Spurious);
    /// The path has changed, or will at once.
    fn on_handover(&mut self, handover: &Handover);
    /// A segment has been found lost.
    fn on_lost_segment(&mut self, _segment: &LostSegment) {}
    /// Data is about to leave although nothing was in flight.
    fn on_restart(&mut self, _restart: &Restart) {}
    /// This flow's part of a leg of known rate has changed.
    fn on_share(&mut self, _share: Rate) {}
    /// The device at the bottleneck reports what waits there.
    fn on_queue(&mut self, _report: &QueueReport) {}
    /// An acknowledgement carries feedback of XCP routers. Unit: bytes, with sixteen binary places.
    fn on_xcp_feedback(&mut self, _feedback_q16: i64) {}
    /// What to write into the congestion header of the next segment.
    fn xcp_header(&self) -> Option<xcp::Header> {
        None
    }
    /// How much may be in flight.
    fn window(&self) -> Bytes;
    /// Whether it looks for the path's capacity from below.
    fn is_in_slow_start(&self) -> bool {
        false
    }
    /// The window at which slow start ends.
    fn slow_start_threshold(&self) -> Option<Bytes> {
        None
    }
    /// Whether the window holds in recovery as it stands.
    fn governs_recovery(&self) -> bool {
        false
    }
    /// How fast payload may leave.
    fn pacing_rate(&self) -> Option<Rate>;
}

/// The handshake is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Established {
    /// When.
    pub now: Instant,
    /// The round-trip time it measured; `None` where its segments were sent more than once.
    pub rtt: Option<Duration>,
}

/// Data has arrived: one acknowledgement that covers something new.
///
/// Build it with `..Ack::default()`, so that a field that only some algorithms read can be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ack {
    /// When the acknowledgement came.
    pub now: Instant,
    /// What it newly covers, cumulatively or selectively.
    pub acked: Bytes,
    /// What it shows to be lost that was not known to be, also where that begins a recovery and
    /// [`Loss::lost`] has told of it. Who counts losses counts [`LostSegment`]s, or adds up this.
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
    /// All that was delivered since the connection began, this included: C.delivered of the BBR draft.
    pub delivered: Bytes,
    /// Whether the window was used up at some moment of the last round trip: C.is_cwnd_limited.
    pub cwnd_limited: bool,
    /// How much of `acked` came with congestion experienced (RFC 3168), where the path marks.
    pub marked: Bytes,
    /// What was noted when the newest of the covered segments was sent; `None` where the transport
    /// keeps no such notes.
    pub sample: Option<RateSample>,
}

/// What an acknowledgement tells of the time since the newest segment that it covers was sent.
///
/// The rate itself is [`Ack::delivery_rate`], `None` where the interval is too short to be true.
/// Source: draft-ietf-ccwg-bbr-06 §2.3 and §4.1.2.1.3 (there RS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateSample {
    /// What was delivered over the interval: RS.delivered.
    pub delivered: Bytes,
    /// What had been delivered when the segment was sent: RS.prior_delivered.
    pub prior_delivered: Bytes,
    /// The longer of sending and acknowledging: RS.interval.
    pub interval: Duration,
    /// Whether the sender had run out of data when the segment was sent: RS.is_app_limited.
    pub is_app_limited: bool,
    /// What was in flight once the segment was sent, itself included: RS.tx_in_flight.
    pub tx_in_flight: Bytes,
    /// What was found lost since the segment was sent: RS.lost.
    pub lost: Bytes,
    /// What was in flight before this acknowledgement.
    pub prior_in_flight: Bytes,
    /// When the segment was sent: P.send_time.
    pub sent: Instant,
}

/// A segment has been found lost, with what was noted when it was sent.
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
    /// What was in flight once it was sent, itself included: P.tx_in_flight.
    pub tx_in_flight: Bytes,
    /// What was found lost since it was sent, itself included: C.lost − P.lost.
    pub lost: Bytes,
    /// Whether the sender had run out of data when it was sent: P.is_app_limited.
    pub is_app_limited: bool,
    /// Whether it begins where the segment found lost before it ended: both are one gap.
    pub contiguous: bool,
}

/// Data is about to leave although nothing was in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restart {
    /// When.
    pub now: Instant,
    /// Whether it was for lack of data that nothing was in flight.
    pub app_limited: bool,
}

/// Where the transport is with its repairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Nothing is missing.
    #[default]
    Open,
    /// Fast recovery: the transport spends the window reduction itself (RFC 9937), unless the
    /// algorithm [governs it](crate::Controller::governs_recovery).
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

/// What waits in front of a link, told by the device that owns the queue: a satellite terminal, to the
/// proxy beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueReport {
    /// When.
    pub now: Instant,
    /// This connection's data in the queue; all of it, where nobody tells connections apart.
    pub queued: Bytes,
    /// The rate that the link has been allotted, where it changes and is known.
    pub allocation: Option<Rate>,
}
