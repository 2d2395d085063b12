//! A snoop agent at a node, before the nodes on the lossy side.

#[cfg(test)]
mod tests;

use crate::agent::{Actions, Agent};
use crate::agents::pass_on;
use crate::packet::{Body, NodeId, Packet};
use midhop_assist::Snoop;
use midhop_experiment::agents;
use midhop_units::Instant;

/// A snoop agent.
#[derive(Debug)]
pub struct SnoopNode {
    agent: Snoop<Packet>,
    /// Whether a node, by its number, lies on the lossy side.
    lossy: Vec<bool>,
    wanted: midhop_assist::Actions<Packet>,
}

impl SnoopNode {
    /// An agent that caches packets to the nodes that `lossy` marks, by their numbers.
    pub fn new(settings: &agents::Snoop, lossy: Vec<bool>) -> Self {
        Self { agent: Snoop::new(settings.into()), lossy, wanted: Default::default() }
    }

    fn is_lossy(&self, node: NodeId) -> bool {
        self.lossy.get(node.index()).copied().unwrap_or(false)
    }
}

impl Agent for SnoopNode {
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        if !matches!(packet.body, Body::Segment(_)) {
            return actions.send(packet);
        }
        let leaves = self.is_lossy(packet.destination);
        self.agent.handle_packet(now, packet, leaves, &mut self.wanted);
        pass_on(&mut self.wanted, actions, |_, _| None);
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        self.agent.handle_timeout(now, &mut self.wanted);
        pass_on(&mut self.wanted, actions, |_, _| None);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.agent.poll_timeout()
    }

    fn handle_drop(&mut self, _now: Instant, packet: &Packet) {
        if matches!(packet.body, Body::Segment(_)) {
            self.agent.handle_drop(packet);
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.agent.counts()
    }

    fn check_invariants(&self) {
        self.agent.check_invariants();
    }
}
