//! Where segments of flows arrive at a node that has no connection for them.

use super::proxy::Ends;
use midhop_experiment::plan::{Plan, Route};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// The devices by which segments of the ends of `flows` arrive at the `number`th node of `plan`, which has `routes`, and
/// their sources and destinations. An end behind the node `home`, whose proxy has the flows, is left out: its segments
/// cannot be told from those of the proxy.
pub(super) fn ways<'p>(
    plan: &'p Plan,
    number: usize,
    routes: &'p [Route],
    home: &str,
    flows: &BTreeSet<Ends>,
) -> Vec<(&'p str, SocketAddr, SocketAddr)> {
    // Paths are the same in both directions.
    let towards = |address: IpAddr| {
        let route = routes.iter().find(|route| route.to == address);
        route.map(|route| route.link.as_str()).or_else(|| on_link(plan, number, address))
    };
    let home = plan.node(home).and_then(|node| node.interfaces.first());
    let homewards =
        home.map(|own| [IpAddr::from(own.ipv4), own.ipv6.into()].map(|address| towards(address)));
    let mut ways = Vec::new();
    for Ends { client, server } in flows {
        for (source, destination) in [(*client, *server), (*server, *client)] {
            let device = towards(source.ip()).filter(|device| {
                homewards.is_none_or(|all| !all.into_iter().flatten().any(|other| other == *device))
            });
            ways.extend(device.map(|device| (device, source, destination)));
        }
    }
    ways
}

/// The link of the `number`th node on which another node has this address.
fn on_link(plan: &Plan, number: usize, address: IpAddr) -> Option<&str> {
    let mut others = plan.nodes.iter().flat_map(|node| &node.interfaces);
    let far = others.find(|own| [IpAddr::from(own.ipv4), own.ipv6.into()].contains(&address))?;
    let own = plan.nodes.get(number)?.interfaces.iter().find(|own| own.link == far.link)?;
    Some(own.link.as_str())
}
