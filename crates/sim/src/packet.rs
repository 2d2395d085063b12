//! Packets, and the names of their ends.

mod contents;
mod under_way;

pub use contents::{Contents, ContentsId};
pub use midhop_assist::Report;
pub use under_way::{Handle, Packets};

use midhop_congestion::xcp;
use midhop_experiment::limit::Family;
use midhop_tcp::{Ecn, Segment};
use midhop_units::{Bytes, Duration};

/// The IPv4 and IPv6 headers. Unit: bytes.
pub(crate) const IP_HEADER: [u32; 2] = [20, 40];
/// A UDP header. Unit: bytes.
pub(crate) const UDP_HEADER: u32 = 8;

/// A node, by its number in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A flow, by the order in which flows began. Numbers are never reused in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

impl FlowId {
    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One of the two ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// The one that sends the first packet.
    Opener,
    /// The other.
    Listener,
}

impl End {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Opener, Self::Listener];

    /// The other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Opener => Self::Listener,
            Self::Listener => Self::Opener,
        }
    }

    /// The name in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opener => "opener",
            Self::Listener => "listener",
        }
    }

    /// 0 or 1.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// An IP packet, without the bytes of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The flow it belongs to, which stands for addresses and ports.
    pub flow: FlowId,
    /// The destination end of the flow.
    pub towards: End,
    /// The node of the source end.
    pub source: NodeId,
    /// The node of the destination end.
    pub destination: NodeId,
    /// The node that made it: the source, or a proxy that sends in its name.
    pub maker: NodeId,
    /// Source and destination port.
    pub ports: [u16; 2],
    /// The version of IP.
    pub family: Family,
    /// Header and payload of the network layer. Unit: bytes.
    pub size: u32,
    /// Requests and feedback of XCP.
    pub xcp: Xcp,
    /// What it carries.
    pub body: Body,
}

impl Packet {
    /// The ECN field of its IP header.
    pub const fn ecn(&self) -> Ecn {
        match &self.body {
            Body::Segment(segment) => segment.ecn,
            Body::Datagram(_) | Body::Report(_) | Body::Tunnel(_) => Ecn::NotCapable,
        }
    }
}

/// What a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// A TCP segment.
    Segment(Segment),
    /// A UDP datagram, by its number in its flow from 0.
    Datagram(u64),
    /// A UDP datagram that agents on the path exchange about the flow and direction.
    Report(Report),
    /// A UDP datagram of a tunnel between two proxies.
    Tunnel(ContentsId),
}

/// XCP's congestion header, and the feedback for the other end's; each may be absent.
///
/// It stands for a header between those of IP and TCP, but takes no room in the packet: a study of XCP
/// should show its windows, not another segment size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Xcp {
    feedback_q16: i64,
    /// The feedback that the receiver has collected for the other direction. Unit: bytes, with sixteen binary places.
    pub reverse_q16: i64,
    /// Unit: bytes. Zero: no request.
    window: u32,
    /// Unit: µs.
    rtt_us: u32,
}

impl Xcp {
    /// A receiver's collected feedback is sent back.
    pub fn returning(reverse_q16: i64) -> Self {
        Self { reverse_q16, ..Self::default() }
    }

    /// With a sender's header.
    pub fn asking(self, header: &xcp::Header) -> Self {
        Self {
            feedback_q16: header.feedback_q16,
            window: u32::try_from(header.window.get()).unwrap_or(u32::MAX),
            rtt_us: u32::try_from(header.rtt.as_ns() / 1000).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// The congestion header; `None` where the sender does not use XCP.
    pub fn header(&self) -> Option<xcp::Header> {
        (self.window > 0).then(|| xcp::Header {
            window: Bytes::new(self.window.into()),
            rtt: Duration::from_us(self.rtt_us.into()),
            feedback_q16: self.feedback_q16,
        })
    }
}
