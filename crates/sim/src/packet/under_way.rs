//! Storage of packets in flight.
//!
//! A packet is written once into a slab and stays there from hop to hop; links and queues move its
//! eight-byte [`Handle`]. A clone is marked as a copy, because only a channel that delivers twice
//! clones one: the copy arrives first and uses the slot that the original frees later.
//!
//! On a long path packets stay here longer than in the processor's caches, so that each costs
//! its receiver a wait for memory. The fields of every packet are therefore one cache line; rare fields (the
//! options of a SYN, SACK blocks and XCP's header) are stored separately.

use super::{Body, ContentsId, End, FlowId, NodeId, Packet, Report, Xcp};
use midhop_assist::Topic;
use midhop_experiment::limit::Family;
use midhop_tcp::{Ecn, Flags, SackBlocks, Segment, SynOptions, Timestamps};

/// A packet inside links. The handle has the packet's destination and takes marks on the
/// way, so that the nodes between need not read the packet itself, which is no longer in the
/// processor's caches after a long path.
#[derive(Debug, PartialEq, Eq)]
pub struct Handle {
    slot: u32,
    destination: NodeId,
    ecn: Ecn,
}

/// Flag in a handle: it is a copy.
const COPY: u32 = 1 << 31;

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self { slot: self.slot | COPY, ..*self }
    }
}

impl Handle {
    const fn index(&self) -> usize {
        (self.slot & !COPY) as usize
    }

    /// Whether it is a copy, which owns no slot.
    pub const fn is_copy(&self) -> bool {
        self.slot & COPY != 0
    }

    /// Marks the packet as congested, if its ends support marks; returns whether they do.
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

/// The fields of every packet.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Slot {
    /// Its payload kind; empty in a free slot.
    content: Content,
    towards: End,
    family: Family,
    flags: Flags,
    window: u16,
    source: NodeId,
    destination: NodeId,
    maker: NodeId,
    ports: [u16; 2],
    flow: FlowId,
    size: u32,
    /// Of a segment, or the number of a datagram.
    offset: u64,
    sequence: u32,
    acknowledgment: u32,
    length: u32,
    timestamps: Option<Timestamps>,
    /// The place of the rest; [`NOWHERE`] for most.
    rare: u32,
}

impl Slot {
    const EMPTY: Self = Self {
        content: Content::Nothing,
        towards: End::Opener,
        family: Family::Ipv4,
        flags: Flags::from_bits(0),
        window: 0,
        source: NodeId(0),
        destination: NodeId(0),
        maker: NodeId(0),
        ports: [0; 2],
        flow: FlowId(0),
        size: 0,
        offset: 0,
        sequence: 0,
        acknowledgment: 0,
        length: 0,
        timestamps: None,
        rare: NOWHERE,
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    Segment,
    Datagram,
    Report(Topic),
    Tunnel,
}

/// The rare fields of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Rare {
    xcp: Xcp,
    sack: SackBlocks,
    syn: SynOptions,
}

/// The place for a packet without rare fields.
const NOWHERE: u32 = u32::MAX;

/// All packets in flight.
#[derive(Debug, Default)]
pub struct Packets {
    slots: Vec<Slot>,
    free: Vec<u32>,
    rare: Vec<Rare>,
    rare_free: Vec<u32>,
}

impl Packets {
    /// Stores a packet.
    ///
    /// # Panics
    /// When two thousand million are in flight already.
    #[inline]
    pub fn insert(&mut self, packet: &Packet) -> Handle {
        let rare = self.rest_of(packet);
        let (destination, ecn) = (packet.destination, packet.ecn());
        if let Some(slot) = self.free.pop() {
            fill(&mut self.slots[slot as usize], packet, rare);
            return Handle { slot, destination, ecn };
        }
        let slot = self.slots.len() as u32;
        assert!(slot < COPY, "too many packets under way");
        self.slots.push(Slot::EMPTY);
        fill(&mut self.slots[slot as usize], packet, rare);
        Handle { slot, destination, ecn }
    }

    /// Takes a packet out for good.
    ///
    /// # Panics
    /// When its slot was freed before: a handle was used twice.
    #[inline]
    pub fn take(&mut self, handle: Handle) -> Packet {
        let packet = self.look(&handle);
        if handle.slot & COPY == 0 {
            let slot = &mut self.slots[handle.index()];
            slot.content = Content::Nothing;
            if slot.rare != NOWHERE {
                self.rare_free.push(slot.rare);
            }
            self.free.push(handle.slot);
        }
        packet
    }

    /// A handle that owns its slot: a copy gets a slot of its own.
    pub fn own(&mut self, handle: Handle) -> Handle {
        if handle.slot & COPY == 0 {
            return handle;
        }
        let packet = self.take(handle);
        self.insert(&packet)
    }

    /// A packet in flight.
    ///
    /// # Panics
    /// When it is not in flight.
    #[inline]
    pub fn look(&self, handle: &Handle) -> Packet {
        let slot = &self.slots[handle.index()];
        let rare = self.rare.get(slot.rare as usize).copied().unwrap_or_default();
        let body = match slot.content {
            Content::Segment => Body::Segment(Segment {
                offset: slot.offset,
                sequence: slot.sequence,
                acknowledgment: slot.acknowledgment,
                length: slot.length,
                window: slot.window,
                flags: slot.flags,
                // As marked on the way.
                ecn: handle.ecn,
                timestamps: slot.timestamps,
                sack: rare.sack,
                syn: rare.syn,
            }),
            Content::Datagram => Body::Datagram(slot.offset),
            Content::Report(topic) => {
                Body::Report(Report { topic, from: slot.sequence, to: slot.acknowledgment })
            }
            Content::Tunnel => Body::Tunnel(ContentsId::of(slot.sequence)),
            Content::Nothing => panic!("the packet is not under way"),
        };
        Packet {
            flow: slot.flow,
            towards: slot.towards,
            source: slot.source,
            destination: slot.destination,
            maker: slot.maker,
            ports: slot.ports,
            family: slot.family,
            size: slot.size,
            xcp: rare.xcp,
            body,
        }
    }

    /// Writes a router's feedback into a packet in flight.
    ///
    /// # Panics
    /// When it is not in flight.
    pub fn write_xcp(&mut self, handle: &Handle, xcp: Xcp) {
        let packet = Packet { xcp, ..self.look(handle) };
        let slot = self.slots[handle.index()];
        if slot.rare != NOWHERE {
            self.rare_free.push(slot.rare);
        }
        let rare = self.rest_of(&packet);
        fill(&mut self.slots[handle.index()], &packet, rare);
    }

    /// How many are in flight.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether none is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most that were ever in flight at once.
    pub fn most(&self) -> usize {
        self.slots.len()
    }

    /// Stores the rare fields of a packet; returns their place.
    #[inline]
    fn rest_of(&mut self, packet: &Packet) -> u32 {
        let segment = match &packet.body {
            Body::Segment(segment) => Some(segment),
            Body::Datagram(_) | Body::Report(_) | Body::Tunnel(_) => None,
        };
        let has_options =
            |segment: &&Segment| !segment.sack.is_empty() || segment.syn != SynOptions::default();
        let segment = segment.filter(has_options);
        if segment.is_none() && packet.xcp == Xcp::default() {
            return NOWHERE;
        }
        let (sack, syn) = segment.map(|segment| (segment.sack, segment.syn)).unwrap_or_default();
        self.put_apart(Rare { xcp: packet.xcp, sack, syn })
    }

    fn put_apart(&mut self, rare: Rare) -> u32 {
        if let Some(place) = self.rare_free.pop() {
            self.rare[place as usize] = rare;
            return place;
        }
        self.rare.push(rare);
        self.rare.len() as u32 - 1
    }
}

/// Writes a packet into its slot, in place: a packet built elsewhere first is copied.
#[inline]
fn fill(slot: &mut Slot, packet: &Packet, rare: u32) {
    slot.towards = packet.towards;
    slot.family = packet.family;
    slot.source = packet.source;
    slot.destination = packet.destination;
    slot.maker = packet.maker;
    slot.ports = packet.ports;
    slot.flow = packet.flow;
    slot.size = packet.size;
    slot.rare = rare;
    match &packet.body {
        Body::Segment(segment) => {
            slot.content = Content::Segment;
            slot.flags = segment.flags;
            slot.window = segment.window;
            slot.offset = segment.offset;
            slot.sequence = segment.sequence;
            slot.acknowledgment = segment.acknowledgment;
            slot.length = segment.length;
            slot.timestamps = segment.timestamps;
        }
        Body::Datagram(number) => {
            slot.content = Content::Datagram;
            slot.offset = *number;
        }
        Body::Report(Report { topic, from, to }) => {
            slot.content = Content::Report(*topic);
            (slot.sequence, slot.acknowledgment) = (*from, *to);
        }
        Body::Tunnel(contents) => {
            slot.content = Content::Tunnel;
            slot.sequence = contents.number();
        }
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
            maker: NodeId(0),
            ports: [10_000, 7_000],
            family: Family::Ipv4,
            size: 1500,
            xcp: Xcp::default(),
            body: Body::Datagram(number),
        }
    }

    fn segment(sack: bool, xcp: bool) -> Packet {
        let mut segment = Segment {
            offset: 1 << 33,
            sequence: 7,
            acknowledgment: 8,
            length: 9,
            window: 10,
            flags: Flags::ACK,
            ecn: Ecn::Capable,
            timestamps: Some(Timestamps { value: 11, echo: 12 }),
            ..Segment::default()
        };
        if sack {
            segment.sack.push(midhop_tcp::SackBlock { start: 13, end: 14 });
        }
        let xcp = Xcp { reverse_q16: i64::from(xcp), ..Xcp::default() };
        Packet { xcp, body: Body::Segment(segment), ..packet(0) }
    }

    #[test]
    fn a_packet_comes_out_as_it_went_in() {
        let mut packets = Packets::default();
        for round in 0..3 {
            let all = [(false, false), (true, false), (false, true), (true, true)];
            let all = all.map(|(sack, xcp)| segment(sack, xcp));
            let handles: Vec<Handle> = all.iter().map(|packet| packets.insert(packet)).collect();
            let (from, to) = (round as u32, 77);
            for topic in [Topic::Wanted, Topic::Lacking, Topic::Arrived, Topic::Resent] {
                let report = Report { topic, from, to };
                let message = Packet { body: Body::Report(report), ..packet(0) };
                let handle = packets.insert(&message);
                assert_eq!(packets.take(handle), message);
            }
            let answered = Xcp { reverse_q16: 5 + round, ..Xcp::default() };
            handles.iter().for_each(|handle| packets.write_xcp(handle, answered));
            for (handle, packet) in handles.into_iter().zip(all) {
                assert_eq!(packets.take(handle), Packet { xcp: answered, ..packet });
            }
        }
        assert!(packets.is_empty());
        assert_eq!((packets.rare.len(), packets.rare_free.len()), (4, 4));
    }

    #[test]
    fn slots_are_used_again_and_copies_own_none() {
        let mut packets = Packets::default();
        let first = packets.insert(&packet(1));
        let second = packets.insert(&packet(2));
        let copy = second.clone();
        let copy = packets.own(copy);
        assert_eq!(packets.len(), 3);
        assert_eq!(packets.take(copy), packet(2));
        assert_eq!(packets.take(second), packet(2));
        let again = packets.insert(&packet(3));
        assert_eq!((packets.take(first), packets.take(again)), (packet(1), packet(3)));
        assert_eq!((packets.len(), packets.most()), (0, 3));
    }

    #[test]
    fn a_packet_under_way_takes_a_cache_line_and_its_place_in_a_queue() {
        assert_eq!(size_of::<Slot>(), 64);
        assert_eq!(size_of::<Handle>(), 8);
    }
}
