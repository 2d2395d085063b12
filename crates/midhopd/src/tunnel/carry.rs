//! Carries a flow through a tunnel: requests it from the peer, and relays its bytes until it ends.

use super::directory::RequestedFlow;
use super::error_mapping::NoFlow;
use super::guests;
use super::link::Link;
use super::opened::Leaving;
use super::relay;
use super::resume::LastingFlow;
use super::stream::Stream;
use crate::admission::Ticket;
use crate::begun;
use crate::close;
use crate::ends::Side;
use crate::hold::living::Life;
use crate::ledger::{FlowBook, FlowOrigin, Party};
use crate::leg::{self, BoundedWindow, Sample};
use crate::worker::Worker;
use midhop_pep::config::Plan;
use midhop_pep::source;
use midhop_tunnel::connect::Request;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Requests a flow and waits for the response.
pub(super) async fn open(plan: &Plan, link: &Link, request: &Request) -> Result<Stream, NoFlow> {
    let mut stream = begin(plan, link, request).await?;
    match stream.input.answer().await {
        Ok(()) => Ok(stream),
        Err(fault) => Err(NoFlow::of(fault, &request.target)),
    }
}

/// Requests a flow whose response arrives with its first bytes.
///
/// # Errors
/// When there is no tunnel: nothing has been requested then.
pub async fn begin(plan: &Plan, link: &Link, request: &Request) -> Result<Stream, NoFlow> {
    let class = plan.class_named(request.class.as_deref());
    let way = link.way().await.ok_or_else(|| NoFlow::Unavailable("it is not open".into()))?;
    way.ask(request, class).await.map_err(|fault| NoFlow::of(fault, &request.target))
}

/// Continues a flow of another thread, whose stream is open.
///
/// # Errors
/// When the thread's event loop does not take the client's socket.
pub(super) fn carry_asked(worker: &Rc<Worker>, asked: RequestedFlow) -> io::Result<()> {
    let RequestedFlow { client, client_leg, peer, first, mut stream, ends, rule, ticket } = asked;
    leg::guard(&client)?;
    let client = TcpStream::from_std(client)?;
    worker.ledger.flows.add(1);
    if !first.is_empty() {
        worker.ledger.bytes_up.add(first.len() as u64);
        stream.output.put(first);
    }
    let book = FlowBook::new(ends, client_leg, Party::tunnel(&peer))
        .with_origin(FlowOrigin { rule, ..FlowOrigin::default() });
    let permits = Permits { ticket, life: None, of_peer: None, leaving: None };
    spawn(worker, (client, Side::Client), stream, book, permits);
    Ok(())
}

/// Resources that a flow holds until it ends.
#[derive(Debug)]
pub struct Permits {
    /// Its place among the flows of this daemon.
    pub ticket: Ticket,
    /// The flow's life: while it lasts, repeated SYNs belong to the flow.
    pub life: Option<Life>,
    /// Its place among the flows of the peer that requested it.
    pub of_peer: Option<guests::Seat>,
    /// Its entry among the flows that leave here for a server.
    pub leaving: Option<Leaving>,
}

/// Relays the bytes of a flow between a TCP connection, which is one side of it, and a stream, until it ends. It does
/// so in a task of its own: the resources of opening the flow are free from here on.
pub fn spawn(
    worker: &Rc<Worker>,
    (tcp, side): (TcpStream, Side),
    stream: Stream,
    book: FlowBook,
    permits: Permits,
) {
    let book = worker.ledger.open(book);
    begun::spawn(carry(worker.clone(), (tcp, side), Box::new(stream), book, permits));
}

/// Offers the end that a flow has on this side what keeps the tunnel full from as far as it is.
fn welcome_source(worker: &Worker, book: &FlowBook, side: Side, tcp: &TcpStream) {
    let plan = worker.plan();
    let peer = book.peer().and_then(|name| plan.peers.iter().find(|peer| peer.name == name));
    let Some(rate) = peer.and_then(|peer| peer.rate) else { return };
    let Some(sample) = worker.ledger.sample(book, side, tcp).filter(Sample::is_measured) else {
        return;
    };
    let rtt = midhop_units::Duration::from_us(u64::from(sample.rtt_us));
    let window = source::window(rate, rtt, plan.limits.flow_buffer, plan.limits.memory);
    let leg = &book.party(side).name;
    let fixed = plan.legs.iter().any(|it| it.name == **leg && it.window.is_some());
    if let Err(error) = leg::offer(tcp, window, fixed) {
        tracing::debug!(ends = ?book.ends, %error, "a source is offered less than it could fill");
    }
}

/// Its parameters are small, because a task keeps them twice.
async fn carry(
    worker: Rc<Worker>,
    (tcp, side): (TcpStream, Side),
    mut stream: Box<Stream>,
    book: Arc<FlowBook>,
    permits: Permits,
) {
    let window = {
        let plan = worker.plan();
        let leg = plan.legs.iter().find(|leg| *leg.name == *book.party(side).name);
        BoundedWindow::new(leg)
    };
    let watched = worker.watch.add(&book, crate::watch::One { side, stream: tcp, window });
    let tcp = &watched.sides().stream;
    welcome_source(&worker, &book, side, tcp);
    let linger = worker.plan().limits.linger.into();
    let lasting = book
        .peer()
        .zip(stream.offer.take())
        .and_then(|(peer, offer)| LastingFlow::enter(offer, &worker.tunnels.lasting, peer));
    let lasting = lasting.as_ref();
    let carried = relay::relay(watched.sides(), &mut stream, lasting, &book, &worker, linger).await;
    let last = worker.ledger.sample(&book, side, tcp);
    if let Err(broken) = &carried.outcome {
        tracing::debug!(ends = ?book.ends, by = ?broken.side, error = %broken.error, "a flow broke");
    }
    // Where it broke, both resets are sent before anything that takes time.
    drop(stream);
    if let Some(crate::watch::One { stream: tcp, .. }) = watched.release() {
        close::close_one(tcp, last, &carried, linger, &worker.looks).await;
    }
    worker.ledger.close(&book, &carried);
    drop(permits);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<A, B, C, D, E, F>(_: fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_flow_is_small() {
        let bytes = bytes_of(carry) + size_of::<Stream>();
        assert!(bytes <= 2304, "{bytes} bytes");
    }
}
