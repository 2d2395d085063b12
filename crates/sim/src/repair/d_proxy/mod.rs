//! One of two D-Proxies at its node: which packets pass between the two, and their reports to each other as packets.

#[cfg(test)]
mod tests;

use crate::agent::{Actions, Agent};
use crate::agents::{FlowDirection, pass_on};
use crate::packet::{Body, IP_HEADER, NodeId, Packet, Report, UDP_HEADER, Xcp};
use midhop_assist::{DProxy, Side};
use midhop_experiment::agents;
use midhop_experiment::limit::Family;
use midhop_units::Instant;

/// The size of a report: its kind, the flow by its addresses and ports, and its range.
/// Unit: bytes, padded to words, by [`Family`].
const REPORT: [u32; 2] = [24, 48];
/// The agents' port.
const PORT: u16 = 7;

/// One of the two agents.
#[derive(Debug)]
pub struct DProxyNode {
    agent: DProxy<Packet>,
    node: NodeId,
    peer: NodeId,
    /// Whether a node, by its number, is the peer or lies behind it.
    beyond: Vec<bool>,
    wanted: midhop_assist::Actions<Packet>,
}

impl DProxyNode {
    /// An agent at `node` whose peer is at `peer`; `beyond` marks the nodes, by their numbers, whose
    /// route leads over the peer, including the peer's own.
    pub fn new(settings: &agents::DProxy, node: NodeId, peer: NodeId, beyond: Vec<bool>) -> Self {
        Self { agent: DProxy::new(settings.into()), node, peer, beyond, wanted: Default::default() }
    }

    fn side(&self, packet: &Packet) -> Side {
        let is_beyond = |node: NodeId| self.beyond.get(node.index()).copied().unwrap_or(false);
        match (is_beyond(packet.source), is_beyond(packet.destination)) {
            (false, true) => Side::Before,
            (true, false) => Side::Behind,
            _ => Side::Beside,
        }
    }

    fn pass_on(&mut self, actions: &mut Actions) {
        let (node, peer) = (self.node, self.peer);
        pass_on(&mut self.wanted, actions, |way, report| Some(message(node, peer, way, report)));
    }
}

/// A message to the peer about a flow's direction.
fn message(node: NodeId, peer: NodeId, way: FlowDirection, report: Report) -> Packet {
    let version = usize::from(way.family == Family::Ipv6);
    Packet {
        flow: way.flow,
        towards: way.towards,
        source: node,
        destination: peer,
        maker: node,
        ports: [PORT, PORT],
        family: way.family,
        size: IP_HEADER[version] + UDP_HEADER + REPORT[version],
        xcp: Xcp::default(),
        body: Body::Report(report),
    }
}

impl Agent for DProxyNode {
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        match packet.body {
            Body::Segment(_) => {
                let side = self.side(&packet);
                self.agent.handle_packet(now, packet, side, &mut self.wanted);
            }
            Body::Report(report) if packet.destination == self.node => {
                let Packet { flow, towards, family, .. } = packet;
                let way = FlowDirection { flow, towards, family };
                self.agent.handle_report(now, way, report, &mut self.wanted);
            }
            Body::Report(_) | Body::Datagram(_) | Body::Tunnel(_) => return actions.send(packet),
        }
        self.pass_on(actions);
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        self.agent.handle_timeout(now, &mut self.wanted);
        self.pass_on(actions);
    }

    fn handle_drop(&mut self, _now: Instant, packet: &Packet) {
        if matches!(packet.body, Body::Segment(_)) {
            self.agent.handle_drop(packet);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.agent.poll_timeout()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.agent.counts()
    }

    fn check_invariants(&self) {
        self.agent.check_invariants();
    }
}
