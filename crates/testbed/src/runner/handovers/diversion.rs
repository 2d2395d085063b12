//! Packets of flows whose proxy is elsewhere.

use super::proxy::Ends;
use crate::lab::LabError;
use crate::namespace::Namespace;
use crate::runner::RunError;
use midhop_experiment::plan::{Plan, PlannedNode};
use std::net::{IpAddr, SocketAddr};

/// Has `node` send packets of `flows` over the link `over`, unless they arrived by it: those are
/// packets of the proxy itself. Without a link, nothing is diverted.
pub(super) fn divert(
    plan: &Plan,
    namespace: &Namespace,
    node: &PlannedNode,
    over: Option<&str>,
    flows: &[Ends],
) -> Result<(), RunError> {
    let far = over.and_then(|name| {
        let link = plan.link(name)?;
        let far = link.between.iter().find(|end| **end != node.name)?;
        plan.node(far)?.interfaces.iter().find(|own| own.link == name)
    });
    let Some(far) = far else { return Ok(()) };
    let devices: Vec<&str> = node.interfaces.iter().map(|own| own.link.as_str()).collect();
    let devices: Vec<&str> = devices.into_iter().filter(|name| *name != far.link).collect();
    let mut ways: Vec<(SocketAddr, SocketAddr)> = Vec::new();
    for flow in flows {
        ways.extend([(flow.client, flow.server), (flow.server, flow.client)]);
    }
    let routers: [IpAddr; 2] = [far.ipv4.into(), far.ipv6.into()];
    Ok(namespace.divert(&ways, &devices, routers).map_err(LabError::from)?)
}
