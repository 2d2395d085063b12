//! One flow, as one value that walks through its life: taken, decided on, opened, relayed, closed,
//! booked.

use crate::hold::Known;
use crate::ledger::FlowBook;
use crate::leg::Failure;
use crate::relay::Stages;
use crate::worker::Worker;
use crate::{close, leg, relay};
use midhop_pep::config::{LegPlan, Plan};
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
    door: Arc<LegPlan>,
}

impl Flow {
    /// A flow that interception delivered to a listener with the settings of `door`.
    pub fn taken(worker: &Rc<Worker>, client: TcpStream, ends: Ends, door: &Arc<LegPlan>) -> Self {
        worker.ledger.flows.add(1);
        let plan = worker.plan();
        let mut known = worker.held.take(&ends).unwrap_or_else(|| {
            // Without a queue nobody saw the SYN but the kernel, which kept it.
            Known::unseen(&plan, ends, leg::saved_class(&client))
        });
        if known.interface.is_none() {
            known.interface.clone_from(&door.interface);
        }
        Self { worker: worker.clone(), plan, client, ends, known, door: door.clone() }
    }

    /// Lives the flow.
    pub async fn run(mut self) {
        let (server, class, ticket) = match self.known.far.take() {
            Some(far) => match TcpStream::from_std(far.stream) {
                Ok(server) => (server, far.class, far.ticket),
                Err(error) => {
                    tracing::warn!(ends = ?self.ends, %error, "a flow is reset: its far side is lost");
                    return;
                }
            },
            None => {
                let ticket = self.worker.admission.enter();
                match self.open().await {
                    Ok(server) => (server, self.worker.held.take_class(&self.ends), ticket),
                    Err(failure) => {
                        tracing::debug!(ends = ?self.ends, error = %failure.error, "no far side");
                        self.worker.ledger.book_failure(&failure);
                        // The client's socket resets as it goes.
                        return;
                    }
                }
            }
        };
        if let Err(error) = self.treat_client(class) {
            tracing::warn!(ends = ?self.ends, %error, "a client's socket is not as its leg asks");
        }
        let book = FlowBook::new(self.ends, self.client_leg(), self.server_leg());
        let stages = Stages::of(self.client_leg(), self.server_leg(), &self.worker.desk);
        let Self { worker, client, .. } = self;
        carry(&worker, client, server, book, stages).await;
        drop(ticket);
    }

    /// Opens the far side of a client that has been accepted already.
    async fn open(&self) -> Result<TcpStream, Failure> {
        let opening = leg::dial(self.ends, self.server_leg(), self.known.class, false)?;
        tokio::select! {
            answer = opening.finish() => answer,
            // A client that goes away takes its request with it.
            error = relay::broken(&self.client) => Err(error.into()),
        }
    }

    fn client_leg(&self) -> &LegPlan {
        let interface = self.known.interface.as_deref();
        self.plan.leg(&self.known.decision, self.ends.client.ip(), interface)
    }

    fn server_leg(&self) -> &LegPlan {
        let egress = self.worker.egress(&self.plan, self.ends);
        self.plan.leg(&self.known.decision, self.ends.server.ip(), egress.as_deref())
    }

    /// Gives the client's socket the class in which the server answered, and what its leg asks where
    /// that is not what its listener had: for a rule's sake, or since the plan has changed.
    fn treat_client(&self, class: u8) -> io::Result<()> {
        leg::set_class(&self.client, self.ends.client, class)?;
        let wanted = self.client_leg();
        if *wanted == *self.door {
            return Ok(());
        }
        leg::settings(&SockRef::from(&self.client), wanted)
    }
}

/// Moves the bytes of a flow whose two sides are open, to its very end.
pub async fn carry(
    worker: &Worker,
    client: TcpStream,
    server: TcpStream,
    book: FlowBook,
    stages: Stages,
) {
    let book = worker.ledger.open(book);
    let watched = worker.watch.add(&book, client, server);
    let (client, server) = watched.sides();
    let carried = relay::relay(client, server, stages, &book, &worker.desk).await;
    let last = [(Side::Client, client), (Side::Server, server)]
        .map(|(side, stream)| worker.ledger.sample(&book, side, stream));
    // None only where the watch holds them still, which it does for no longer than a look.
    if let Some((client, server)) = watched.release() {
        close::close(client, server, last, &carried).await;
    }
    worker.ledger.close(&book, &carried);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<F>(_: fn(Flow) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_flow_is_small() {
        // The task of a flow; its two sockets' registrations and its book add less than 1 KiB.
        assert!(bytes_of(Flow::run) <= 4096, "{} bytes", bytes_of(Flow::run));
    }
}
