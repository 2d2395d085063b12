//! From a client's wish to an open far side, or to the reason why not.

use super::{
    Desk,
    handshake::{Outcome, Target},
};
use crate::{
    admission::Ticket,
    leg::{self, Refusal},
    relay,
};
use midhop_pep::{
    config::{Action, LegPlan, Plan},
    policy::FlowKey,
};
use socket2::SockRef;
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::{
    net::{TcpStream, lookup_host},
    time,
};

/// How long a name may take to be looked up.
const LOOKUP: Duration = Duration::from_secs(10);
/// How many addresses of a name are tried.
const ADDRESSES_MAX: usize = 4;

/// An open far side, with its place among the flows.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) server: TcpStream,
    /// The legs that the client and the server are on.
    pub(super) legs: [LegPlan; 2],
    pub(super) ticket: Ticket,
}

/// Opens the far side for `client`, which is `peer`.
pub(super) async fn dial(
    plan: &Plan,
    desk: &Desk,
    client: &TcpStream,
    peer: SocketAddr,
    target: &Target,
) -> Result<Dialled, Outcome> {
    let source = peer.ip().to_canonical();
    if !plan.explicit.clients.iter().any(|prefix| prefix.contains(&source)) {
        return Err(Outcome::NotAllowed);
    }
    let addresses = look_up(plan, target).await?;
    let ticket = desk.handover.admit().ok_or(Outcome::Full)?;
    let mut last = Outcome::NameUnknown;
    for server in addresses.into_iter().take(ADDRESSES_MAX) {
        let attempt = try_address(plan, desk, client, peer, server);
        tokio::select! {
            attempt = attempt => match attempt {
                Ok((server, legs)) => return Ok(Dialled { server, legs, ticket }),
                Err(outcome) => last = outcome,
            },
            // A client that goes away takes its request with it.
            _ = relay::broken(client) => return Err(Outcome::Failed),
        }
    }
    Err(last)
}

async fn look_up(plan: &Plan, target: &Target) -> Result<Vec<SocketAddr>, Outcome> {
    let (name, port) = match target {
        Target::Address(address) => return Ok(vec![*address]),
        Target::Name(..) if !plan.explicit.resolve => return Err(Outcome::NamesOff),
        Target::Name(name, port) => (name.as_str(), *port),
    };
    match time::timeout(LOOKUP, lookup_host((name, port))).await {
        Ok(Ok(found)) => Ok(found.collect()),
        Ok(Err(_)) | Err(_) => Err(Outcome::NameUnknown),
    }
}

async fn try_address(
    plan: &Plan,
    desk: &Desk,
    client: &TcpStream,
    peer: SocketAddr,
    server: SocketAddr,
) -> Result<(TcpStream, [LegPlan; 2]), Outcome> {
    if !plan.explicit.local_targets && is_local(server.ip()) {
        return Err(Outcome::NotAllowed);
    }
    let flow = FlowKey { source: peer, destination: server, interface: None, dscp: 0 };
    let decision = plan.policy.decide(&flow);
    // A client that asked cannot be bypassed: its flow is carried, as it would be by any proxy.
    if decision.action == Action::Reject {
        return Err(Outcome::NotAllowed);
    }
    let leg_towards = |address: IpAddr| {
        let interface = desk.egress.towards(address);
        plan.leg(&decision, address, interface.as_deref())
    };
    let client_leg = leg_towards(peer.ip().to_canonical());
    if let Err(error) = leg::settings(&SockRef::from(client), client_leg) {
        tracing::warn!(%peer, %error, "a client's socket is not set as its leg asks");
    }
    let server_leg = leg_towards(server.ip());
    let opening = leg::dial_as_self(server, server_leg).map_err(|error| {
        tracing::warn!(%server, %error, "a far side cannot be dialled");
        Outcome::Failed
    })?;
    let server = opening.finish().await.map_err(|failure| match failure.refusal {
        Some(Refusal::Reset) => Outcome::Refused,
        Some(Refusal::Unreachable(0)) => Outcome::NetworkUnreachable,
        Some(Refusal::Unreachable(_)) => Outcome::HostUnreachable,
        Some(Refusal::Silence) => Outcome::TimedOut,
        None => Outcome::Failed,
    })?;
    Ok((server, [client_leg.clone(), server_leg.clone()]))
}

/// Whether only this host, or its own link, knows the address: what is there was not put there for
/// clients of a proxy.
fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_broadcast()
                || address.is_multicast()
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_unspecified()
                || address.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_this_host_knows_is_local() {
        for (address, local) in [
            ("127.0.0.1", true),
            ("::ffff:127.1.2.3", true),
            ("169.254.169.254", true),
            ("0.0.0.0", true),
            ("::1", true),
            ("::", true),
            ("fe80::1", true),
            ("ff02::1", true),
            ("10.0.0.1", false),
            ("fd00::1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_local(address.parse().expect(address)), local, "{address}");
        }
    }
}
