//! Common parts of agents that thin or space acknowledgements.

use crate::hop::HopId;
use crate::network::Network;
use crate::packet::{Body, NodeId, Packet};
use midhop_tcp::Segment;

/// The segment of a pure acknowledgement: no data, no SYN, FIN or RST. A packet with
/// feedback of XCP's routers is none: the feedback would be lost with it.
pub(super) fn pure(packet: &Packet) -> Option<&Segment> {
    match &packet.body {
        Body::Segment(segment) if segment.is_pure_ack() && packet.xcp.reverse_q16 == 0 => {
            Some(segment)
        }
        _ => None,
    }
}

/// Which packets of a node cross certain links.
#[derive(Debug, Clone)]
pub(crate) struct Crossing {
    at: NodeId,
    /// By node: whether the route from here to there begins on one of the links.
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

    /// Whether a packet has arrived over one of the links, provided that routes there and back are the same.
    pub fn came(&self, packet: &Packet) -> bool {
        packet.maker != self.at && self.is_beyond(packet.source)
    }

    fn is_beyond(&self, node: NodeId) -> bool {
        self.beyond.get(node.index()).copied().unwrap_or(false)
    }
}
