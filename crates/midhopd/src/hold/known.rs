//! What is known of a flow between its SYN and the acceptance of its client.

use super::living::Life;
use crate::admission::Ticket;
use crate::leg::{Bound, Departure};
use crate::tunnel::stream::Stream;
use midhop_pep::policy::Decision;
use std::net::TcpStream;
use std::time::Instant;
#[cfg(test)]
use {crate::ends::Ends, midhop_pep::config::Plan, midhop_pep::policy::FlowKey};

/// What is known of a flow whose SYN was seen, for the worker that accepts its client.
#[derive(Debug)]
pub struct Known {
    /// What the policy decided.
    pub decision: Decision,
    /// The interface on which the SYN came.
    pub interface: Option<String>,
    /// How the flow leaves this host.
    pub departure: Departure,
    /// The SYN's class of service.
    pub class: u8,
    /// The far side, and the flow's place; none where it is opened later.
    pub far: Option<Far>,
    /// The flow's life, once its client has connected: while it is held, repeated SYNs belong to the flow.
    pub life: Option<Life>,
    /// Since when.
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
        Self { decision, interface, departure, class, far: None, life: None, since }
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
