//! A node: where packets are for somebody here, or take the next hop.

use crate::agent::Agent;
use crate::engine::Timer;
use crate::hop::HopId;
use crate::packet::NodeId;
use midhop_experiment::record::LegResult;
use midhop_units::Instant;
use std::collections::BTreeMap;

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The next hop to each node, by the node's number; none to itself and to what it cannot reach.
    routes: Vec<Option<HopId>>,
    /// Who stands here and meets each packet, and the timer that wakes it.
    pub(crate) agent: Option<(Box<dyn Agent>, Timer)>,
    /// Packets that ended here without being for anybody, by cause.
    pub(crate) drops: BTreeMap<&'static str, u64>,
}

impl Node {
    /// A node with these ways to all others.
    pub fn new(name: String, routes: Vec<Option<HopId>>) -> Self {
        Self { name, routes, agent: None, drops: BTreeMap::new() }
    }

    /// The next hop on the way to `destination`.
    pub fn route(&self, destination: NodeId) -> Option<HopId> {
        self.routes.get(destination.index()).copied().flatten()
    }

    /// Changes the way to `destination`.
    pub fn set_route(&mut self, destination: NodeId, hop: Option<HopId>) {
        if let Some(route) = self.routes.get_mut(destination.index()) {
            *route = hop;
        }
    }

    /// Counts a packet that ends here.
    pub(crate) fn count_drop(&mut self, cause: &'static str) {
        *self.drops.entry(cause).or_default() += 1;
    }

    /// What the agent here did, by its own names.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.agent.as_ref().map(|(agent, _)| agent.counts()).unwrap_or_default()
    }

    /// What the connections of a proxy here did.
    pub fn legs(&self, now: Instant) -> Vec<LegResult> {
        self.agent.as_ref().map(|(agent, _)| agent.legs(now)).unwrap_or_default()
    }

    /// Packets that ended here without being for anybody, by cause.
    pub fn drops(&self) -> &BTreeMap<&'static str, u64> {
        &self.drops
    }
}
