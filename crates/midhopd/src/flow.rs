//! One flow, as one value that walks through its life: taken, decided on, opened, relayed, closed,
//! booked.

use crate::admission::Ticket;
use crate::worker::Worker;
use crate::{close, leg, relay};
use midhop_pep::config::Plan;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;

/// The two ends of a flow, as the proxy sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The end that opened the flow.
    Client,
    /// The end that it wanted.
    Server,
}

impl Side {
    /// The opposite end.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A side that went away without ending its stream.
#[derive(Debug)]
pub struct Broken {
    /// Who.
    pub side: Side,
    /// How: reset, unreachable, silent beyond all probes.
    pub error: io::Error,
}

/// The addresses of a flow, which are the same on both legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// Address and port of the end that opened the flow.
    pub client: SocketAddr,
    /// Address and port of the end that it wanted.
    pub server: SocketAddr,
}

/// A flow whose client has been accepted.
#[derive(Debug)]
pub struct Flow {
    worker: Rc<Worker>,
    plan: Arc<Plan>,
    client: TcpStream,
    ends: Ends,
    ticket: Ticket,
}

impl Flow {
    /// A flow that interception delivered.
    pub fn taken(worker: &Rc<Worker>, client: TcpStream, ends: Ends) -> Self {
        worker.ledger.flows.add(1);
        Self {
            worker: worker.clone(),
            plan: worker.plan(),
            client,
            ends,
            ticket: worker.admission.enter(),
        }
    }

    /// Lives the flow.
    pub async fn run(self) {
        let Self { worker, plan, client, ends, ticket } = self;
        let server = match Self::open(&plan, &client, ends).await {
            Ok(server) => server,
            Err(error) => {
                tracing::debug!(?ends, %error, "the far side did not accept");
                worker.ledger.refused.add(1);
                // The client's socket resets as it goes.
                return;
            }
        };
        drop(plan);
        worker.ledger.flows_live.add(1);
        let carried = relay::relay(&client, &server, &worker.desk).await;
        close::close(client, server, &carried).await;
        worker.ledger.flows_live.sub(1);
        worker.ledger.bytes_up.add(carried.up);
        worker.ledger.bytes_down.add(carried.down);
        match carried.outcome {
            Ok(()) => worker.ledger.flows_ended.add(1),
            Err(_) => worker.ledger.flows_reset.add(1),
        }
        drop(ticket);
    }

    async fn open(plan: &Plan, client: &TcpStream, ends: Ends) -> io::Result<TcpStream> {
        let opening = leg::dial(ends, plan.leg_of(ends.server.ip(), None), 0)?;
        tokio::select! {
            answer = opening.finish() => answer,
            // A client that goes away takes its request with it.
            error = relay::broken(client) => Err(error),
        }
    }
}
