//! The agents that a scenario can put on the path, one file each, and their places at nodes.
//!
//! Common invariants: a packet that an agent drops is counted, at the node or at the link in whose queue it
//! was; the state that an agent keeps of packets and flows has a bound; agents have no randomness of their own, so
//! they do the same whenever the same packets arrive at the same times.

mod ack_filter;
mod acks;
mod carried;
mod decimation;
mod spacing;

pub use ack_filter::AckFilter;
pub use decimation::AckDecimationNode;
pub use spacing::AckSpacingNode;

use crate::hop::HopId;
use crate::packet::NodeId;
use crate::repair::{DProxyNode, SnoopNode};
use crate::simulation::Simulation;
use acks::Crossing;
pub use carried::FlowDirection;
pub(crate) use carried::pass_on;
use midhop_experiment::Plan;
use midhop_experiment::agents::Role;

/// Puts the agents of a plan at their nodes.
pub(crate) fn place(plan: &Plan, simulation: &mut Simulation) {
    for (node, number) in plan.nodes.iter().zip(0..) {
        let at = NodeId(number);
        for agent in &node.agents {
            match &agent.role {
                Role::AckFilter(filter) => {
                    let hops = exits(plan, &node.name, &filter.links);
                    let filter = AckFilter::new(filter, hops);
                    simulation.network.node_mut(at).filter = Some((agent.name.clone(), filter));
                }
                Role::Snoop(snoop) => {
                    let hops = exits(plan, &node.name, &snoop.links);
                    let lossy = |way: &[HopId]| way.first().is_some_and(|hop| hops.contains(hop));
                    let snoop = SnoopNode::new(snoop, ways(plan, simulation, at, lossy));
                    simulation.place(at, Some(agent.name.clone()), Box::new(snoop));
                }
                Role::DProxy(half) => {
                    let peer = plan.nodes.iter().position(|node| node.name == half.peer);
                    let peer = NodeId(peer.unwrap_or_default() as u16);
                    let hops = simulation.network.hops();
                    let over = |way: &[HopId]| way.iter().any(|hop| hops[hop.index()].to == peer);
                    let beyond = ways(plan, simulation, at, over);
                    let half = DProxyNode::new(half, at, peer, beyond);
                    simulation.place(at, Some(agent.name.clone()), Box::new(half));
                }
                Role::AckDecimation(role) => {
                    let hops = exits(plan, &node.name, &role.links);
                    let crossing = Crossing::new(&simulation.network, at, &hops);
                    let agent_here = AckDecimationNode::new(role, crossing);
                    simulation.place(at, Some(agent.name.clone()), Box::new(agent_here));
                }
                Role::AckSpacing(role) => {
                    let hops = exits(plan, &node.name, &role.links);
                    let crossing = Crossing::new(&simulation.network, at, &hops);
                    let agent_here = AckSpacingNode::new(role, crossing);
                    simulation.place(at, Some(agent.name.clone()), Box::new(agent_here));
                }
            }
        }
    }
}

/// For each node, by its number, whether the route from `at` is of this kind.
fn ways(
    plan: &Plan,
    simulation: &Simulation,
    at: NodeId,
    is_such: impl Fn(&[HopId]) -> bool,
) -> Vec<bool> {
    let nodes = plan.nodes.iter().zip(0..);
    nodes.map(|(_, node)| is_such(&simulation.network.way(at, NodeId(node)))).collect()
}

/// The hops that leave a node over these links.
fn exits(plan: &Plan, node: &str, links: &[String]) -> Vec<HopId> {
    let leaving = plan.links.iter().enumerate().filter(|(_, link)| links.contains(&link.name));
    // Twice the link's number is the hop towards its first node.
    leaving
        .map(|(at, link)| HopId((2 * at + usize::from(link.between[0] == node)) as u16))
        .collect()
}
