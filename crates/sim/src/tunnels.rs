//! Opens the tunnels of a plan between its proxies.

use crate::fault::RunError;
use crate::host::Hosts;
use crate::packet::{End, NodeId};
use crate::pep::{Addressing, Modem, Proxy, TunnelEnd};
use midhop_config::KeyPath;
use midhop_experiment::Plan;
use midhop_experiment::limit::Family;
use midhop_experiment::tunnel::TunnelPeer;
use midhop_tunnel::quic::Lone;
use midhop_units::Seed;
use std::net::SocketAddr;

/// The port of an end that connects to another.
const PORT: u16 = 4434;

/// Connects every proxy with the peers that it opens tunnels to.
///
/// # Errors
/// When a tunnel is not possible.
pub(crate) fn open(
    plan: &Plan,
    proxies: &mut [(NodeId, Proxy)],
    hosts: &mut Hosts,
) -> Result<(), RunError> {
    for (near, node) in plan.nodes.iter().enumerate() {
        let Some(own) = &node.tunnels else { continue };
        for peer in &own.peers {
            let Some(address) = peer.address else { continue };
            let fault = |why: String| RunError::Tunnel {
                node: node.name.clone(),
                key: KeyPath::of([
                    "peps",
                    node.pep.as_deref().unwrap_or_default(),
                    "peers",
                    &peer.name,
                ]),
                why,
            };
            let far = plan.nodes.iter().position(|other| other.name == peer.node);
            let back = far.and_then(|far| {
                let tunnels = plan.nodes[far].tunnels.as_ref()?;
                tunnels.peers.iter().find(|it| it.node == node.name)
            });
            let contradiction = || RunError::Plan { what: format!("the tunnel to {}", peer.node) };
            let (Some(far), Some(back)) = (far, back) else { return Err(contradiction()) };
            let nodes = [near, far].map(|number| NodeId(number as u16));
            let ends = connect(nodes, [peer, back], address, plan.seed, proxies, hosts);
            for ((node, peer), mut end) in
                nodes.into_iter().zip([peer, back]).zip(ends.map_err(fault)?)
            {
                if let Some((_, proxy)) = proxies.iter_mut().find(|(at, _)| *at == node) {
                    if let Some(modem) = modem(plan, node, peer, proxy) {
                        end.go_by(modem);
                    }
                    proxy.place_tunnel(end);
                }
            }
        }
    }
    Ok(())
}

/// The modem at the end of a tunnel on `node` that leads to `peer`, if it has one.
fn modem(plan: &Plan, node: NodeId, peer: &TunnelPeer, proxy: &Proxy) -> Option<Modem> {
    peer.modem?;
    let reports = plan.modem_reports(&plan.nodes[node.index()].name, &peer.link)?;
    Some(Modem::new(reports, proxy.peer(&peer.name)?.modem.clone()?))
}

/// Both ends of a tunnel.
fn connect(
    nodes: [NodeId; 2],
    peers: [&TunnelPeer; 2],
    address: SocketAddr,
    seed: Seed,
    proxies: &[(NodeId, Proxy)],
    hosts: &mut Hosts,
) -> Result<[TunnelEnd; 2], String> {
    let plan_of = |end: usize| {
        let proxy = proxies.iter().find(|(at, _)| *at == nodes[end]);
        let plan = proxy.and_then(|(_, proxy)| proxy.peer(&peers[end].name));
        plan.ok_or_else(|| format!("the proxy has no peer `{}`", peers[end].name))
    };
    let plans = [plan_of(0)?, plan_of(1)?];
    let name = format!("tunnel-{}-{}", peers[1].node, peers[0].node);
    let seed = seed.derive(&name);
    #[expect(clippy::disallowed_methods, reason = "QUIC counts from some moment, whichever it is")]
    let epoch = std::time::Instant::now();
    let back = SocketAddr::new(address.ip(), PORT);
    let near = Lone::connect(plans[0], address, (epoch, seed.derive("near")));
    let far = Lone::listen(plans[1], back, (epoch, seed.derive("far")));
    let ends = [near, far].map(|made| made.map_err(|error| error.to_string()));
    let [near, far] = ends;
    let family = if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let flow = hosts.tunnel_flow(nodes, address.port(), family);
    let [own, other] = nodes;
    let addressing = [
        (End::Opener, [own, other], [PORT, address.port()]),
        (End::Listener, [other, own], [address.port(), PORT]),
    ];
    let addressing =
        addressing.map(|(end, nodes, ports)| Addressing { flow, nodes, ports, family, end });
    let names = peers.map(|peer| [&peer.name, &peer.node, &peer.link].map(String::clone));
    let rtt = peers[0].rtt.unwrap_or_default();
    Ok(TunnelEnd::pair(names, [near?, far?], addressing, rtt))
}
