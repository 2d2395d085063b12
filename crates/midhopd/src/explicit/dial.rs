//! From a client's wish to an open far side, or to the reason why not.

use super::{Desk, handshake::Target};
use crate::{
    admission::Ticket,
    leg,
    lookup::{is_local, look_up},
    relay,
    tunnel::{
        stream::Stream,
        told::{self, NoFlow},
    },
};
use midhop_pep::{
    config::{Action, LegPlan, Plan},
    policy::{Decision, FlowKey},
};
use midhop_tunnel::{cause::Cause, connect::Request};
use socket2::SockRef;
use std::net::{IpAddr, SocketAddr};
use tokio::net::TcpStream;

/// An open far side, with its place among the flows.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) far: Far,
    /// The leg that the client is on.
    pub(super) client_leg: LegPlan,
    pub(super) ticket: Ticket,
}

/// What is at the far side.
#[derive(Debug)]
pub(super) enum Far {
    /// The server, on this leg.
    Server(TcpStream, Box<LegPlan>),
    /// A tunnel to this peer, at whose other end is this server.
    Tunnel { stream: Box<Stream>, peer: String, server: SocketAddr },
}

impl Far {
    /// The address from which the client is connected.
    pub(super) fn bound(&self) -> Result<SocketAddr, Cause> {
        match self {
            Self::Server(server, _) => server.local_addr().map_err(|_| Cause::Failed),
            // It is the peer's, who does not tell.
            Self::Tunnel { .. } => Ok(SocketAddr::from(([0; 4], 0))),
        }
    }
}

/// Opens the far side for `client`, which is `peer`.
pub(super) async fn dial(
    plan: &Plan,
    desk: &Desk,
    client: &TcpStream,
    peer: SocketAddr,
    target: &Target,
) -> Result<Dialled, Cause> {
    let source = peer.ip().to_canonical();
    if !plan.explicit.clients.iter().any(|prefix| prefix.contains(&source)) {
        return Err(Cause::NotAllowed);
    }
    let addresses = look_up(target, plan.explicit.resolve).await?;
    let ticket = desk.handover.admit().ok_or(Cause::Full)?;
    let mut last = Cause::NameUnknown;
    for server in addresses {
        let attempt = try_address(plan, desk, client, peer, server);
        tokio::select! {
            attempt = attempt => match attempt {
                Ok((far, client_leg)) => return Ok(Dialled { far, client_leg, ticket }),
                Err(cause) => last = cause,
            },
            // A client that goes away takes its request with it.
            _ = relay::broken(client) => return Err(Cause::Failed),
        }
    }
    Err(last)
}

async fn try_address(
    plan: &Plan,
    desk: &Desk,
    client: &TcpStream,
    peer: SocketAddr,
    server: SocketAddr,
) -> Result<(Far, LegPlan), Cause> {
    if !plan.explicit.local_targets && is_local(server.ip()) {
        return Err(Cause::NotAllowed);
    }
    let flow = FlowKey { source: peer, destination: server, interface: None, dscp: 0 };
    let decision = plan.policy.decide(&flow);
    // A client that asked cannot be bypassed: its flow is carried, as it would be by any proxy.
    if decision.action == Action::Reject {
        return Err(Cause::NotAllowed);
    }
    let leg_towards = |address: IpAddr| {
        let interface = desk.egress.towards(address);
        plan.leg(&decision, address, interface.as_deref())
    };
    let client_leg = leg_towards(peer.ip().to_canonical());
    if let Err(error) = leg::settings(&SockRef::from(client), client_leg) {
        tracing::warn!(%peer, %error, "a client's socket is not set as its leg asks");
    }
    if let Some(far) = try_tunnel(plan, desk, &decision, server).await? {
        return Ok((far, client_leg.clone()));
    }
    let server_leg = leg_towards(server.ip());
    let opening = leg::dial_as_self(server, server_leg).map_err(|error| {
        tracing::warn!(%server, %error, "a far side cannot be dialled");
        Cause::Failed
    })?;
    let server = opening.finish().await.map_err(|failure| told::cause_of(&failure))?;
    Ok((Far::Server(server, Box::new(server_leg.clone())), client_leg.clone()))
}

/// Opens the far side through the tunnel of the flow's rule; none: there is none, and the flow goes
/// without.
async fn try_tunnel(
    plan: &Plan,
    desk: &Desk,
    decision: &Decision,
    server: SocketAddr,
) -> Result<Option<Far>, Cause> {
    let Some(route) = plan.route(decision) else { return Ok(None) };
    let peer = route.peer.clone();
    let class = plan.class(decision, None, None).told();
    let request = Request { target: Target::Address(server), client: None, class, hops: 0 };
    match desk.tunnels.open(&peer, request).await {
        Ok(stream) => Ok(Some(Far::Tunnel { stream: Box::new(stream), peer, server })),
        Err(NoFlow::Refused(failure)) => Err(told::cause_of(&failure)),
        Err(NoFlow::Unavailable(why)) => {
            tracing::debug!(peer, why, otherwise = ?route.otherwise, "a flow goes without its tunnel");
            if route.otherwise == Action::Reject { Err(Cause::NotAllowed) } else { Ok(None) }
        }
    }
}
