//! What is known of a flow between its SYN and the acceptance of its client.

use super::living::Life;
use crate::admission::Ticket;
use crate::ends::Ends;
use crate::leg::{Bound, Departure};
use crate::survival::register::{NO_SOCKET, OpeningEntry, Record, cookie_of, name_of, now_ns};
use crate::tunnel::stream::Stream;
use midhop_pep::config::Plan;
use midhop_pep::policy::Decision;
#[cfg(test)]
use midhop_pep::policy::FlowKey;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// What is known of a flow whose SYN was seen, for the worker that accepts its client.
#[derive(Debug)]
pub struct Known {
    /// What the policy decided.
    pub decision: Decision,
    /// The interface on which the SYN arrived.
    pub interface: Option<String>,
    /// How the flow leaves this host.
    pub departure: Departure,
    /// The SYN's class of service.
    pub class: u8,
    /// The far side, and the flow's place; none where it is opened later.
    pub far: Option<Far>,
    /// The flow's entry in the register, with its far side, so that both outlive this process.
    pub noted: Option<OpeningEntry>,
    /// The flow's life, once its client has connected: while it is held, repeated SYNs belong to the flow.
    pub life: Option<Life>,
    /// When it became known, or ready.
    pub(super) since: Instant,
}

impl Known {
    /// Creates it for a flow whose far side is not open yet.
    pub fn new(
        decision: Decision,
        interface: Option<String>,
        departure: Departure,
        class: u8,
        since: Instant,
    ) -> Self {
        Self { decision, interface, departure, class, far: None, noted: None, life: None, since }
    }
}

impl Known {
    /// The record of a flow whose far side is open, and whose client is not accepted yet. None
    /// where the kernel reports no cookie for the socket.
    pub fn opening(
        &self,
        plan: &Plan,
        ends: Ends,
        server: &TcpStream,
        answered: u8,
    ) -> Option<Record> {
        let Self { decision, interface, departure, class, .. } = self;
        let interface = interface.as_deref();
        let (client, target) = (ends.client.ip(), departure.ends.server.ip());
        let client_leg = plan.leg(decision, client, interface);
        let server_leg = plan.leg(decision, target, departure.egress.as_deref());
        Some(Record {
            ends,
            sockets: [NO_SOCKET, server.as_raw_fd()],
            cookies: [0, cookie_of(server).ok()?],
            pipes: [None, None],
            legs: [name_of(&client_leg.name), name_of(&server_leg.name)],
            interface: interface.map(Into::into),
            rule: decision.rule,
            dscp: class >> 2,
            ahead: [0, 0],
            began: now_ns(),
            answered,
            stream: None,
            leaves: false,
            is_still: false,
        })
    }
}

#[cfg(test)]
impl Known {
    /// Creates it for a flow that is not translated.
    pub(crate) fn for_test(plan: &Plan, ends: Ends) -> Self {
        let key = FlowKey {
            source: ends.client,
            destination: ends.server,
            interface: None,
            peer: None,
            dscp: 0,
        };
        let decision = plan.policy.decide(&key);
        let departure = Departure { ends, mark: 0, egress: None };
        Self::new(decision, None, departure, 0, Instant::now())
    }
}

/// A far side.
#[derive(Debug)]
pub struct Far {
    /// How it is reached.
    pub side: FarSide,
    /// The flow's place among the flows.
    pub ticket: Ticket,
    /// The class of service in which it answered.
    pub class: u8,
}

/// How a far side is reached.
#[derive(Debug)]
pub enum FarSide {
    /// By a socket bound to the flow's address and port, which no other socket can take any more.
    Bound(Bound),
    /// By a connection, to be registered by the worker that accepts the client.
    Leg(TcpStream),
    /// By a stream of a tunnel, which lives on the worker that owns the tunnel.
    Tunnel(Box<Stream>),
}
