//! One flow, as one value that walks through its life: taken, decided on, opened, relayed, closed,
//! booked.

use crate::hold::Known;
use crate::leg::Failure;
use crate::worker::Worker;
use crate::{close, leg, relay};
use midhop_pep::config::Plan;
use socket2::SockRef;
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
    known: Known,
}

impl Flow {
    /// A flow that interception delivered.
    pub fn taken(worker: &Rc<Worker>, client: TcpStream, ends: Ends) -> Self {
        worker.ledger.flows.add(1);
        let plan = worker.plan();
        let known = worker.held.take(&ends).unwrap_or_else(|| {
            // Without a queue nobody saw the SYN but the kernel, which kept it.
            Known::unseen(&plan, ends, leg::saved_class(&client))
        });
        Self { worker: worker.clone(), plan, client, ends, known }
    }

    /// Lives the flow.
    pub async fn run(self) {
        let Self { worker, plan, client, ends, mut known } = self;
        let (server, ticket) = match known.far.take() {
            Some(far) => match TcpStream::from_std(far.stream) {
                Ok(server) => {
                    treat_client(&plan, &client, ends, &known, far.class);
                    (server, far.ticket)
                }
                Err(error) => {
                    tracing::warn!(?ends, %error, "a flow is reset: its far side is lost");
                    return;
                }
            },
            None => {
                let ticket = worker.admission.enter();
                match open(&worker, &plan, &client, ends, &known).await {
                    Ok(server) => {
                        let class = worker.held.take_class(&ends);
                        treat_client(&plan, &client, ends, &known, class);
                        (server, ticket)
                    }
                    Err(failure) => {
                        tracing::debug!(?ends, error = %failure.error, "the far side did not accept");
                        worker.ledger.book_failure(&failure);
                        // The client's socket resets as it goes.
                        return;
                    }
                }
            }
        };
        drop(plan);
        carry(&worker, client, server).await;
        drop(ticket);
    }
}

/// Moves the bytes of a flow whose two sides are open, to its very end.
pub async fn carry(worker: &Worker, client: TcpStream, server: TcpStream) {
    worker.ledger.flows_live.add(1);
    let carried = relay::relay(&client, &server, &worker.desk).await;
    close::close(client, server, &carried).await;
    worker.ledger.book_end(&carried);
}

/// Gives the client's socket what a rule wants beyond its leg, and the class in which the server
/// answered.
fn treat_client(plan: &Plan, client: &TcpStream, ends: Ends, known: &Known, class: u8) {
    let outcome = leg::set_class(client, ends.client, class).and_then(|()| {
        if known.decision.rule.is_none() {
            return Ok(());
        }
        let interface = known.interface.as_deref();
        let wanted = plan.leg(&known.decision, ends.client.ip(), interface);
        if std::ptr::eq(wanted, plan.leg_of(ends.client.ip(), interface)) {
            return Ok(());
        }
        leg::settings(&SockRef::from(client), wanted)
    });
    if let Err(error) = outcome {
        tracing::warn!(?ends, %error, "a client's socket is not set as its leg asks");
    }
}

/// Opens the far side of a client that has been accepted already.
async fn open(
    worker: &Worker,
    plan: &Plan,
    client: &TcpStream,
    ends: Ends,
    known: &Known,
) -> Result<TcpStream, Failure> {
    let egress = worker.egress(plan, ends);
    let leg = plan.leg(&known.decision, ends.server.ip(), egress.as_deref());
    let opening = leg::dial(ends, leg, known.class, false)?;
    tokio::select! {
        answer = opening.finish() => answer,
        // A client that goes away takes its request with it.
        error = relay::broken(client) => Err(error.into()),
    }
}
