//! The routes of a plan: the next hop from each node to each other node.

use crate::hop::HopId;
use crate::packet::NodeId;
use midhop_experiment::Plan;
use midhop_experiment::route::{self, Edge};
use midhop_path::Direction;
use std::collections::{BTreeMap, BTreeSet};

/// For each node, by its number, the next hop to each other; none to itself and to unreachable
/// nodes. Links that are `unused` are ignored.
pub(crate) fn table(plan: &Plan, unused: &BTreeSet<&str>) -> Vec<Vec<Option<HopId>>> {
    let numbered = plan.nodes.iter().zip(0..);
    let ids: BTreeMap<&str, NodeId> =
        numbered.map(|(node, number)| (node.name.as_str(), NodeId(number))).collect();
    let edges: Vec<Edge> =
        plan.edges().into_iter().filter(|edge| !unused.contains(edge.name.as_str())).collect();
    let mut routes = vec![vec![None; plan.nodes.len()]; plan.nodes.len()];
    for destination in &plan.nodes {
        for (from, (edge, via)) in route::towards(&edges, &destination.name) {
            let link = plan.links.iter().position(|link| link.name == edge.name);
            let (Some(link), Some(from), Some(to)) =
                (link, ids.get(from.as_str()), ids.get(destination.name.as_str()))
            else {
                continue;
            };
            let way = if edge.ends[0] == via { Direction::Down } else { Direction::Up };
            routes[from.index()][to.index()] = Some(hop(link, way));
        }
    }
    routes
}

/// The hop that is a direction of a link, by its place in the plan.
pub(crate) fn hop(link: usize, way: Direction) -> HopId {
    HopId((2 * link + usize::from(way == Direction::Up)) as u16)
}
