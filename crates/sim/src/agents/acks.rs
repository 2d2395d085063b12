//! What those who thin or space acknowledgements must know of one.

use crate::hop::HopId;
use crate::network::Network;
use crate::packet::{Body, NodeId, Packet};
use midhop_tcp::Segment;

/// The segment of a packet that does nothing but acknowledge: no data, no SYN, FIN or RST. One that
/// carries what XCP's routers say is none of them: it would be lost with it.
pub(super) fn pure(packet: &Packet) -> Option<&Segment> {
    match &packet.body {
        Body::Segment(segment) if segment.is_pure_ack() && packet.xcp.reverse_q16 == 0 => {
            Some(segment)
        }
        _ => None,
    }
}

/// Which packets of a node go over certain links.
#[derive(Debug, Clone)]
pub(crate) struct Crossing {
    at: NodeId,
    /// By node: whether the way from here to there begins on one of the links.
    beyond: Vec<bool>,
}

impl Crossing {
    /// At the node `at` of a network, over `hops`, which leave it.
    pub fn new(network: &Network, at: NodeId, hops: &[HopId]) -> Self {
        let node = &network.nodes()[at.index()];
        let over = |to| node.route(NodeId(to)).is_some_and(|hop| hops.contains(&hop));
        Self { at, beyond: (0..network.nodes().len() as u16).map(over).collect() }
    }

    /// Whether a packet will leave over one of the links.
    pub fn leaves(&self, packet: &Packet) -> bool {
        self.is_beyond(packet.destination)
    }

    /// Whether a packet has come over one of the links, as far as ways there and back are the same.
    pub fn came(&self, packet: &Packet) -> bool {
        packet.maker != self.at && self.is_beyond(packet.source)
    }

    fn is_beyond(&self, node: NodeId) -> bool {
        self.beyond.get(node.index()).copied().unwrap_or(false)
    }
}
