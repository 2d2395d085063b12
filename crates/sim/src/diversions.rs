//! Flows whose packets take another way than their destination says, since the proxy that has them is not on it.
//!
//! A handover leaves flows at a proxy that no route leads over any more, or packets of a flow that has moved at the proxy
//! that had it. The node to which they come takes them to where the flow is, over the link between the two.

use crate::hop::HopId;
use crate::packet::{FlowId, NodeId};
use std::collections::BTreeMap;

/// Where packets of a flow go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Diversion {
    /// The next hop.
    pub hop: HopId,
    /// The node whose proxy has the flow.
    pub home: NodeId,
}

/// All of them, by the node at which packets are diverted.
///
/// Invariant: following the hops of a flow leads to its home.
#[derive(Debug, Default)]
pub(crate) struct Diversions(BTreeMap<(NodeId, FlowId), Diversion>);

impl Diversions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// That of a flow at a node.
    pub fn of(&self, node: NodeId, flow: FlowId) -> Option<Diversion> {
        self.0.get(&(node, flow)).copied()
    }

    /// Sets that of a flow at a node.
    pub fn set(&mut self, node: NodeId, flow: FlowId, diversion: Diversion) {
        self.0.insert((node, flow), diversion);
    }

    /// The flow has come to `home`, over hops that are set already.
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

    /// Forgets flows that have ended.
    pub fn retain(&mut self, mut lives: impl FnMut(FlowId, NodeId) -> bool) {
        self.0.retain(|(_, flow), diversion| lives(*flow, diversion.home));
    }
}
