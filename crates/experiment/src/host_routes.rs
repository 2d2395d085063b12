//! The routes of each node to all addresses of the others.

use crate::plan::{PlannedNode, Route};
use crate::route::{self, Edge};
use std::net::IpAddr;

/// The routes of each of `nodes`, in their order, over the links `used`.
///
/// The kernel finds addresses on a node's own links by itself. A link that is not in use is an
/// exception: its addresses belong to hosts that are reached by other links.
pub(crate) fn host_routes(nodes: &[PlannedNode], used: &[Edge]) -> Vec<Vec<Route>> {
    let mut routes = vec![Vec::new(); nodes.len()];
    for destination in nodes {
        for (from, (edge, via)) in route::towards(used, &destination.name) {
            let on_link = |name: &str| {
                let node = nodes.iter().find(|node| node.name == name)?;
                node.interfaces.iter().find(|own| own.link == edge.name)
            };
            let Some(via) = on_link(&via) else { continue };
            let Some(at) = nodes.iter().position(|node| node.name == from) else { continue };
            let own = |link: &str| nodes[at].interfaces.iter().any(|own| own.link == link);
            let in_use = |link: &str| used.iter().any(|edge| edge.name == link);
            for address in &destination.interfaces {
                if own(&address.link) && in_use(&address.link) {
                    continue;
                }
                let ways: [(IpAddr, IpAddr); 2] = [
                    (address.ipv4.into(), via.ipv4.into()),
                    (address.ipv6.into(), via.ipv6.into()),
                ];
                let link = &edge.name;
                routes[at].extend(ways.map(|(to, via)| Route { to, via, link: link.clone() }));
            }
        }
    }
    routes
}
