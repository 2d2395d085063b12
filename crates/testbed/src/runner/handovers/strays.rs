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
    let homewards = home.map(|own| [IpAddr::from(own.ipv4), own.ipv6.into()].map(&towards));
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

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::Scenario;

    const PLAN: &str = r#"
title = "a test"
duration = "10 s"
[nodes]
client = {}
left = { pep = "own" }
right = { pep = "own" }
server = {}
[peps.own]
[links.user-left]
between = ["client", "left"]
[links.user-right]
between = ["client", "right"]
[links.between]
between = ["left", "right"]
[links.feeder]
between = ["FAR", "server"]
[[handovers]]
at = "1 s"
from = "left"
to = "right"
leaves = "user-left"
takes = "user-right"
[transfers.file]
from = "server"
to = "client"
bytes = "1 kB"
"#;

    /// The devices of the client's segments and the server's at `right`, after the handover from `left`.
    fn devices(far: &str) -> Vec<String> {
        let scenario = Scenario::parse("test.toml", &PLAN.replace("FAR", far)).expect("a scenario");
        let plan = scenario.plans().expect("a plan").swap_remove(0);
        let number = plan.nodes.iter().position(|node| node.name == "right").expect("a node");
        let client = plan.node("client").expect("a client").interfaces[0].ipv4;
        let client = SocketAddr::new(client.into(), 40_000);
        let flow = Ends { client, server: plan.transfers[0].listener };
        let routes = plan.routes();
        let ways = ways(&plan, number, &routes[1][number], "left", &BTreeSet::from([flow]));
        let ends = [(flow.client, flow.server), (flow.server, flow.client)];
        assert!(ways.iter().all(|(_, from, to)| ends.contains(&(*from, *to))), "{ways:?}");
        ways.into_iter().map(|(device, ..)| device.to_owned()).collect()
    }

    #[test]
    fn each_end_is_answered_where_its_segments_arrive() {
        assert_eq!(devices("right"), ["user-right", "feeder"]);
    }

    #[test]
    fn segments_of_the_proxy_that_has_the_flows_pass() {
        assert_eq!(devices("left"), ["user-right"]);
    }
}
