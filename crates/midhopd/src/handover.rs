//! Flows that did not come from the wire: a client requested the proxy, and the thread that handled its request hands
//! both open sides to a worker.

use crate::admission::{Admission, Ticket};
use crate::ends::Ends;
use crate::flow::{carry, entered};
use crate::flow_sampler::BothLegs;
use crate::ledger::{FlowBook, FlowOrigin};
use crate::leg::BoundedWindow;
use crate::relay::Stages;
use crate::relay::start::{Start, ahead};
use crate::relocation::halt::Halt;
use crate::worker::Worker;
use midhop_pep::config::LegPlan;
use std::io;
use std::net::IpAddr;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// A flow whose two sides are open. Its ticket limits it, as for every flow.
#[derive(Debug)]
pub struct HandedFlow {
    /// The requesting side. No bytes for the server may have been read from it.
    pub client: TcpStream,
    /// The requested side, opened with [`leg::dial_as_self`](crate::leg::dial_as_self).
    pub server: TcpStream,
    /// The leg that the client is on.
    pub client_leg: LegPlan,
    /// The leg that the server is on.
    pub server_leg: LegPlan,
    /// The rule that decided, from 0.
    pub rule: Option<usize>,
    /// The flow's place, see [`Handover::admit`].
    pub ticket: Ticket,
}

/// Hands flows to the workers, round robin.
#[derive(Debug, Clone)]
pub struct Handover {
    workers: Vec<UnboundedSender<HandedFlow>>,
    next: Arc<AtomicUsize>,
    admission: Arc<Admission>,
}

impl Handover {
    pub(crate) fn new(
        workers: Vec<UnboundedSender<HandedFlow>>,
        admission: Arc<Admission>,
    ) -> Self {
        Self { workers, next: Arc::default(), admission }
    }

    /// A place for one more flow of a client; `None` beyond a limit. Then a requesting client must be refused, as it cannot
    /// pass by.
    pub fn admit(&self, client: IpAddr) -> Option<Ticket> {
        self.admission.try_enter_from(client).ok()
    }

    /// Gives a flow to a worker. Both sockets have to be non-blocking.
    ///
    /// # Errors
    /// When the data plane has ended.
    pub fn carry(&self, asked: HandedFlow) -> io::Result<()> {
        let turn = self.next.fetch_add(1, Relaxed) % self.workers.len().max(1);
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the data plane has ended");
        self.workers.get(turn).ok_or_else(ended)?.send(asked).map_err(|_| ended())
    }
}

/// Serves handed-over flows until the last sender is gone.
pub(crate) async fn receive(worker: Rc<Worker>, mut flows: UnboundedReceiver<HandedFlow>) {
    while let Some(flow) = flows.recv().await {
        if let Err(error) = go_on(&worker, flow) {
            tracing::warn!(%error, "a flow could not be moved to this worker");
        }
    }
}

/// Continues a flow on the thread of `worker`.
fn go_on(worker: &Rc<Worker>, flow: HandedFlow) -> io::Result<()> {
    let HandedFlow { client, server, client_leg, server_leg, rule, ticket } = flow;
    let ends = Ends { client: client.peer_addr()?, server: server.peer_addr()? };
    let client = tokio::net::TcpStream::from_std(client)?;
    let server = tokio::net::TcpStream::from_std(server)?;
    worker.ledger.flows.add(1);
    let book = FlowBook::new(ends, (&client_leg).into(), (&server_leg).into())
        .with_origin(FlowOrigin { rule, ..FlowOrigin::default() });
    let stages = Stages::of(&client_leg, &server_leg, &worker.relay_context);
    let windows = [&client_leg, &server_leg].map(|leg| BoundedWindow::new(Some(leg)));
    let legs = BothLegs { client, server, windows, halt: Halt::default() };
    let start = match &worker.region {
        // The bytes of the client's request and of the response do not belong to the flow.
        Some(_) => entered(worker, &legs, &book, ahead(&legs.client, &legs.server)?),
        None => Start::default(),
    };
    carry(worker, legs, book, stages, start, (ticket, None));
    Ok(())
}
