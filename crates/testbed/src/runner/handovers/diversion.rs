//! Packets of flows whose proxy is elsewhere.

use super::proxy::Ends;
use crate::lab::LabError;
use crate::namespace::{Exit, Namespace};
use crate::runner::RunError;
use midhop_experiment::plan::{Plan, PlannedNode};
use std::net::SocketAddr;

/// Has `node` send packets of `flows` over the link `over`, unless they are the proxy's own. Without a link, nothing is
/// diverted.
pub(super) fn divert(
    plan: &Plan,
    namespace: &Namespace,
    node: &PlannedNode,
    over: Option<&str>,
    flows: &[Ends],
) -> Result<(), RunError> {
    let exit = over.and_then(|device| {
        let link = plan.link(device)?;
        let far = link.between.iter().find(|end| **end != node.name)?;
        let far = plan.node(far)?.interfaces.iter().find(|own| own.link == device)?;
        let number = node.interfaces.iter().position(|own| own.link == device)?;
        Some(Exit { number, device, routers: [far.ipv4.into(), far.ipv6.into()] })
    });
    let Some(exit) = exit else { return Ok(()) };
    let devices: Vec<&str> = node.interfaces.iter().map(|own| own.link.as_str()).collect();
    Ok(namespace.divert(&both_ways(flows), &devices, exit).map_err(LabError::from)?)
}

/// The sources and destinations of segments of these flows.
pub(super) fn both_ways<'f>(
    flows: impl IntoIterator<Item = &'f Ends>,
) -> Vec<(SocketAddr, SocketAddr)> {
    let ways = |flow: &Ends| [(flow.client, flow.server), (flow.server, flow.client)];
    flows.into_iter().flat_map(ways).collect()
}
