//! Packets under way, and where they are kept.
//!
//! A packet is written once into a slab and stays there from hop to hop; links and queues move its
//! eight-byte [`Handle`]. What is cloned is marked as a copy, because only a channel that delivers twice
//! clones one: the copy arrives first and borrows the slot that the original gives back.

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

/// A flow, by the order in which flows began. Never used again in a run.
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
    /// Which end of the flow it goes to.
    pub towards: End,
    /// The node of the other end.
    pub source: NodeId,
    /// The node of that end.
    pub destination: NodeId,
    /// From which port to which.
    pub ports: [u16; 2],
    /// The version of IP.
    pub family: Family,
    /// Header and payload of the network layer. Unit: bytes.
    pub size: u32,
    /// What XCP's senders, routers and receivers tell each other.
    pub xcp: Xcp,
    /// What it carries.
    pub body: Body,
}

impl Packet {
    /// What its IP header says of congestion.
    pub const fn ecn(&self) -> Ecn {
        match &self.body {
            Body::Segment(segment) => segment.ecn,
            Body::Datagram(_) => Ecn::NotCapable,
        }
    }

    /// Says in its IP header that it has met congestion.
    fn mark(&mut self) {
        if let Body::Segment(segment) = &mut self.body {
            segment.ecn = Ecn::Congested;
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
}

/// XCP's congestion header, and what goes back to the other end's; each may be absent.
///
/// It stands for a header between those of IP and TCP, but takes no room in the packet: a study of XCP
/// is to see its windows, not another segment size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Xcp {
    feedback_q16: i64,
    /// What the receiver has collected of the other direction. Unit: bytes, with sixteen binary places.
    pub reverse_q16: i64,
    /// Unit: bytes. None is asked for where it is zero.
    window: u32,
    /// Unit: µs.
    rtt_us: u32,
}

impl Xcp {
    /// What a receiver has collected goes back.
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

    /// The congestion header; none where the sender knows no XCP.
    pub fn header(&self) -> Option<xcp::Header> {
        (self.window > 0).then(|| xcp::Header {
            window: Bytes::new(self.window.into()),
            rtt: Duration::from_us(self.rtt_us.into()),
            feedback_q16: self.feedback_q16,
        })
    }
}

/// What stands for a packet inside links. It tells where the packet goes, so that the nodes between
/// need not look at the packet itself, which a long way has driven out of the processor's caches.
#[derive(Debug, PartialEq, Eq)]
pub struct Handle {
    slot: u32,
    destination: NodeId,
    ecn: Ecn,
}

/// In a handle: it is a copy.
const COPY: u32 = 1 << 31;

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self { slot: self.slot | COPY, ..*self }
    }
}

impl Handle {
    /// Marks the packet as having met congestion, if its ends take marks; whether they do.
    pub fn mark(&mut self) -> bool {
        let takes = self.ecn != Ecn::NotCapable;
        if takes {
            self.ecn = Ecn::Congested;
        }
        takes
    }

    /// The node to which the packet goes.
    pub const fn destination(&self) -> NodeId {
        self.destination
    }
}

/// All packets under way.
#[derive(Debug, Default)]
pub struct Packets {
    slots: Vec<Option<Packet>>,
    free: Vec<u32>,
}

impl Packets {
    /// Takes a packet in.
    ///
    /// # Panics
    /// When two thousand million are under way already.
    pub fn insert(&mut self, packet: Packet) -> Handle {
        let destination = packet.destination;
        let ecn = packet.ecn();
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(packet);
            return Handle { slot, destination, ecn };
        }
        let slot = self.slots.len() as u32;
        assert!(slot < COPY, "too many packets under way");
        self.slots.push(Some(packet));
        Handle { slot, destination, ecn }
    }

    /// Gives a packet out for good.
    ///
    /// # Panics
    /// When its slot was given back before: a handle was used twice.
    pub fn take(&mut self, handle: Handle) -> Packet {
        let slot = &mut self.slots[(handle.slot & !COPY) as usize];
        if handle.slot & COPY != 0 {
            return slot.expect("a copy arrives before its original");
        }
        self.free.push(handle.slot);
        slot.take().expect("a packet is taken once")
    }

    /// A handle that owns its slot: a copy gets a slot of its own. What the way has written onto the
    /// handle is now in the packet.
    pub fn own(&mut self, handle: Handle) -> Handle {
        if handle.ecn == Ecn::Congested {
            self.slots[(handle.slot & !COPY) as usize].iter_mut().for_each(Packet::mark);
        }
        if handle.slot & COPY == 0 {
            return handle;
        }
        let packet = self.take(handle);
        self.insert(packet)
    }

    /// A packet under way.
    ///
    /// # Panics
    /// When it is not.
    pub fn look(&self, handle: &Handle) -> &Packet {
        self.slots[(handle.slot & !COPY) as usize].as_ref().expect("the packet is under way")
    }

    /// A packet under way, for a router to write into.
    ///
    /// # Panics
    /// When it is not.
    pub fn look_mut(&mut self, handle: &Handle) -> &mut Packet {
        self.slots[(handle.slot & !COPY) as usize].as_mut().expect("the packet is under way")
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most that were ever under way at once.
    pub fn most(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u64) -> Packet {
        Packet {
            flow: FlowId(1),
            towards: End::Listener,
            source: NodeId(0),
            destination: NodeId(2),
            ports: [10_000, 7_000],
            family: Family::Ipv4,
            size: 1500,
            xcp: Xcp::default(),
            body: Body::Datagram(number),
        }
    }

    #[test]
    fn slots_are_used_again_and_copies_own_none() {
        let mut packets = Packets::default();
        let first = packets.insert(packet(1));
        let second = packets.insert(packet(2));
        let copy = second.clone();
        let copy = packets.own(copy);
        assert_eq!(packets.len(), 3);
        assert_eq!(packets.take(copy), packet(2));
        assert_eq!(packets.take(second), packet(2));
        let again = packets.insert(packet(3));
        assert_eq!((packets.take(first), packets.take(again)), (packet(1), packet(3)));
        assert_eq!((packets.len(), packets.most()), (0, 3));
    }

    #[test]
    fn a_packet_under_way_takes_less_than_200_bytes() {
        // In the slab, and its handle with size and time in a queue or in the air.
        assert!(size_of::<Option<Packet>>() + 32 + 4 <= 200, "{}", size_of::<Option<Packet>>());
    }
}
