//! A packet of an assisted flow, as agents process it.

use super::Translated;
use bytes::Bytes;
use midhop_assist::wire::{self, Route};
use midhop_assist::{Carried, Headed, Heading, place};
use midhop_linux::nfqueue::Packet;
use midhop_tcp::Segment;
use std::time;

/// A packet that the kernel has handed over.
#[derive(Debug, Clone)]
pub struct MetPacket {
    /// Its number in the queue.
    pub queued: u32,
    /// Whether its header has been changed.
    pub changed: bool,
    /// From the network header on.
    pub bytes: Bytes,
    segment: Segment,
    /// Source and destination, as in the packet.
    pub route: Route,
    /// Source and destination, as both ends of the lossy link see the flow.
    way: Route,
    /// Index of the interface by which it leaves.
    pub egress: u32,
    heading: Heading,
}

impl MetPacket {
    /// Parses a packet that goes onto the lossy link or comes from there. None for a packet that no agent processes.
    pub fn read(packet: Packet, heading: Heading, translated: &Translated) -> Option<Self> {
        let (route, segment) = wire::read(&packet.bytes)?;
        let way = translated.on_link(route, time::Instant::now());
        let (queued, egress, bytes) = (packet.id, packet.egress, packet.bytes.into());
        Some(Self { queued, changed: false, bytes, segment, route, way, egress, heading })
    }
}

impl Carried for MetPacket {
    type Way = Route;

    fn way(&self) -> Route {
        self.way
    }

    fn segment(&self) -> &Segment {
        &self.segment
    }

    fn with(self, segment: Segment) -> Self {
        match wire::write(&self.bytes, &segment) {
            Some(bytes) => Self { changed: true, bytes: bytes.into(), segment, ..self },
            None => self,
        }
    }

    fn size(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    fn room(&self) -> u64 {
        u64::from(self.size()) + place::<Self>()
    }
}

impl Headed for MetPacket {
    fn heading(&self) -> Heading {
        self.heading
    }
}
