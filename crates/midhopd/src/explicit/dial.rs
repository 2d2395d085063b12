//! Opens the far side that a client requests, or returns the reason why not.

use super::{ExplicitContext, handshake::Target};
use crate::{
    admission::Ticket,
    happy_eyeballs::{self, race},
    leg, networks, relay,
    targets::Targets,
    tunnel::{
        error_mapping::{self, NoFlow},
        stream::Stream,
    },
};
use midhop_lookup::Found;
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
    pub(super) far: DialedSide,
    /// The leg that the client is on.
    pub(super) client_leg: LegPlan,
    /// The rule that decided, from 0.
    pub(super) rule: Option<usize>,
    pub(super) ticket: Ticket,
}

/// What is at the far side.
#[derive(Debug)]
pub(super) enum DialedSide {
    /// The server, on this leg.
    Server(TcpStream, Box<LegPlan>),
    /// A stream through the tunnel to this peer, which connects it to this server.
    Tunnel { stream: Box<Stream>, peer: String, server: SocketAddr },
}

impl DialedSide {
    /// The address from which the client is connected.
    pub(super) fn bound(&self) -> Result<SocketAddr, Cause> {
        match self {
            Self::Server(server, _) => server.local_addr().map_err(|_| Cause::Failed),
            // The peer connects to the server, and does not report its own address.
            Self::Tunnel { .. } => Ok(SocketAddr::from(([0; 4], 0))),
        }
    }
}

/// Opens the far side for `client`, whose address is `peer`.
pub(super) async fn dial(
    plan: &Plan,
    context: &ExplicitContext,
    client: &TcpStream,
    peer: SocketAddr,
    target: &Target,
) -> Result<Dialled, Cause> {
    let source = peer.ip().to_canonical();
    if !plan.explicit.clients.iter().any(|prefix| prefix.contains(&source)) {
        return Err(Cause::NotAllowed);
    }
    let resolve = plan.explicit.resolve;
    let host = networks::host_of(source).to_string();
    let found = context.resolver.look_up(target, resolve, &host).await?;
    let ticket = context.handover.admit(source).ok_or(Cause::Full)?;
    let wish = Wish { plan, context, peer };
    let opened = tokio::select! {
        opened = wish.open(found) => opened?,
        // When a client goes away, its request ends.
        _ = relay::broken(client) => return Err(Cause::Failed),
    };
    let (far, decision) = opened;
    let client_leg = wish.leg_towards(&decision, source);
    if let Err(error) = leg::settings(&SockRef::from(client), client_leg) {
        tracing::warn!(%peer, %error, "the leg's socket options could not be set on a client's connection");
    }
    Ok(Dialled { far, client_leg: client_leg.clone(), rule: decision.rule, ticket })
}

/// A client's request.
struct Wish<'a> {
    plan: &'a Plan,
    context: &'a ExplicitContext,
    peer: SocketAddr,
}

impl<'a> Wish<'a> {
    /// Opens the far side at one of the addresses.
    async fn open(&self, found: Found) -> Result<(DialedSide, Decision), Cause> {
        let (mut last, mut direct) = (Cause::NameUnknown, Vec::new());
        for server in found.first {
            let tunnel = match self.decide(server) {
                Ok(decision) => match self.try_tunnel(&decision, server).await {
                    Ok(None) => {
                        direct.push((server, decision));
                        continue;
                    }
                    Ok(Some(far)) => return Ok((far, decision)),
                    Err(cause) => cause,
                },
                Err(cause) => cause,
            };
            last = tunnel;
        }
        let later = async {
            let decided = found.later.await.into_iter().map(|it| (it, self.decide(it)));
            let decided = decided.filter_map(|(server, decided)| Some((server, decided.ok()?)));
            decided.filter(|(_, decision)| self.plan.route(decision).is_none()).collect()
        };
        let dial = async |(server, decision)| self.dial(server, decision).await;
        race(direct, later, dial).await.map_err(|cause| cause.unwrap_or(last))
    }

    /// Applies the rules to the flow if it goes to `server`.
    fn decide(&self, server: SocketAddr) -> Result<Decision, Cause> {
        let flow = FlowKey {
            source: self.peer,
            destination: server,
            interface: None,
            peer: None,
            dscp: 0,
        };
        let decision = self.plan.policy.decide(&flow);
        // A client that sent a request cannot be bypassed: its flow is carried, as by any proxy.
        if decision.action == Action::Reject { Err(Cause::NotAllowed) } else { Ok(decision) }
    }

    fn leg_towards(&self, decision: &Decision, address: IpAddr) -> &'a LegPlan {
        let interface = self.context.egress.towards(address);
        self.plan.leg(decision, address, interface.as_deref())
    }

    /// Connects to a server if clients may request it.
    async fn dial(
        &self,
        server: SocketAddr,
        decision: Decision,
    ) -> Result<(DialedSide, Decision), Cause> {
        let explicit = &self.plan.explicit;
        if !Targets::of_clients(explicit).allow(server.ip(), &self.context.egress) {
            return Err(Cause::NotAllowed);
        }
        let leg = self.leg_towards(&decision, server.ip());
        let opening = leg::dial_as_self(server, leg).map_err(|error| {
            tracing::warn!(%server, %error, "a connection to a server cannot be opened");
            Cause::Failed
        })?;
        let answered = happy_eyeballs::answer(opening, explicit.connect_timeout.into()).await;
        let stream = answered.map_err(|failure| error_mapping::cause_of(&failure))?;
        Ok((DialedSide::Server(stream, Box::new(leg.clone())), decision))
    }

    /// Opens the far side through the tunnel of the flow's rule. The tunnel's other end has its own
    /// check of what may be requested. None: the rule names no tunnel, or there is none and the
    /// flow goes without.
    async fn try_tunnel(
        &self,
        decision: &Decision,
        server: SocketAddr,
    ) -> Result<Option<DialedSide>, Cause> {
        let Some(route) = self.plan.route(decision) else { return Ok(None) };
        let peer = route.peer.clone();
        let class = self.plan.class(decision, None, None).announced();
        let request = Request { target: Target::Address(server), client: None, class, hops: 0 };
        match self.context.tunnels.open(&peer, request).await {
            Ok(stream) => Ok(Some(DialedSide::Tunnel { stream: Box::new(stream), peer, server })),
            Err(NoFlow::Refused(failure)) => Err(error_mapping::cause_of(&failure)),
            Err(NoFlow::Unavailable(why)) => {
                tracing::debug!(peer, why, otherwise = ?route.otherwise, "the tunnel of a flow is unavailable");
                if route.otherwise == Action::Reject { Err(Cause::NotAllowed) } else { Ok(None) }
            }
        }
    }
}
