//! Flows whose packets leave the route to their destination, because the proxy that has the flow is
//! not on it.
//!
//! After a handover, the route no longer passes the old proxy, which may still have flows; or
//! packets of a flow that has moved arrive at the old proxy. The node at which such packets arrive
//! forwards them to the flow's proxy, over the link between the two.

use crate::hop::HopId;
use crate::packet::{FlowId, NodeId};
use std::collections::BTreeMap;

/// The diversion of a flow's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Diversion {
    /// The next hop.
    pub hop: HopId,
    /// The node whose proxy has the flow.
    pub home: NodeId,
}

/// All diversions, by the node at which packets are diverted.
///
/// Invariant: following the hops of a flow leads to its home.
#[derive(Debug, Default)]
pub(crate) struct Diversions(BTreeMap<(NodeId, FlowId), Diversion>);

impl Diversions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The diversion of a flow at a node.
    pub fn of(&self, node: NodeId, flow: FlowId) -> Option<Diversion> {
        self.0.get(&(node, flow)).copied()
    }

    /// Sets the diversion of a flow at a node.
    pub fn set(&mut self, node: NodeId, flow: FlowId, diversion: Diversion) {
        self.0.insert((node, flow), diversion);
    }

    /// The flow has moved to `home`. The diversions of the hops to it are set already.
    pub fn come(&mut self, flow: FlowId, home: NodeId) {
        self.0.remove(&(home, flow));
        for ((_, of), diversion) in &mut self.0 {
            if *of == flow {
                diversion.home = home;
            }
        }
    }

    /// The flows that are diverted at a node, and their homes.
    pub fn at(&self, node: NodeId) -> Vec<(FlowId, NodeId)> {
        let at = self.0.range((node, FlowId(0))..=(node, FlowId(u32::MAX)));
        at.map(|((_, flow), diversion)| (*flow, diversion.home)).collect()
    }

    /// Removes flows that have ended.
    pub fn retain(&mut self, mut lives: impl FnMut(FlowId, NodeId) -> bool) {
        self.0.retain(|(_, flow), diversion| lives(*flow, diversion.home));
    }
}
