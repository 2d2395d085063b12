//! XCP: routers report to senders by how much to change their windows.
//!
//! Source: D. Katabi, M. Handley, C. Rohrs, "Congestion control for high bandwidth-delay product
//! networks", SIGCOMM 2002. A sender writes its window and round-trip time into a [`Header`] of each
//! segment, routers on the way lower the change of the window that it carries ([`Router`]), the
//! receiver sends the change back with its acknowledgement ([`Receiver`]), and the sender applies it
//! ([`Xcp`]). Between two proxies the only router is the modem's queue.
//!
//! Changes of windows have sixteen binary places (`_q16`), as a segment's share of a large window's
//! change is less than a byte.

mod router;
mod sender;

pub use router::Router;
pub use sender::{Xcp, XcpSettings};

use midhop_units::{Bytes, Duration};

/// No sender requests more at once: a petabyte.
pub(crate) const DEMAND_MAX_Q16: i64 = i64::MAX >> 2;

/// The congestion header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// H_cwnd: the sender's window.
    pub window: Bytes,
    /// H_rtt: the sender's round-trip time; zero while unknown, and then no router responds.
    pub rtt: Duration,
    /// H_feedback: the requested growth of the window for this segment, until
    /// a router lowers it. Unit: bytes, with sixteen binary places.
    pub feedback_q16: i64,
}

/// The receiver: collects the feedback of the segments that an acknowledgement covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Receiver {
    owed_q16: i64,
}

impl Receiver {
    /// A segment has arrived.
    pub fn on_segment(&mut self, header: &Header) {
        self.owed_q16 = self.owed_q16.saturating_add(header.feedback_q16);
    }

    /// The feedback for the acknowledgement that now leaves. Unit: bytes, with sixteen binary places.
    pub fn take(&mut self) -> i64 {
        std::mem::take(&mut self.owed_q16)
    }
}
