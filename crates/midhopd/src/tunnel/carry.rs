//! Carries a flow through a tunnel: asks the peer for it, and moves its bytes to its very end.

use super::directory::RequestedFlow;
use super::error_mapping::NoFlow;
use super::link::Link;
use super::relay;
use super::stream::Stream;
use crate::close;
use crate::ends::Side;
use crate::ledger::{FlowBook, Party};
use crate::leg::{self, Sample};
use crate::worker::Worker;
use midhop_pep::config::Plan;
use midhop_pep::source;
use midhop_tunnel::connect::Request;
use std::io;
use tokio::net::TcpStream;

/// Asks for a flow and waits for the answer.
pub(super) async fn open(plan: &Plan, link: &Link, request: &Request) -> Result<Stream, NoFlow> {
    let mut stream = begin(plan, link, request).await?;
    match stream.input.answer().await {
        Ok(()) => Ok(stream),
        Err(fault) => Err(NoFlow::of(fault, &request.target)),
    }
}

/// Asks for a flow whose answer comes with its first bytes.
///
/// # Errors
/// That there is no tunnel: nothing has been asked for then.
pub async fn begin(plan: &Plan, link: &Link, request: &Request) -> Result<Stream, NoFlow> {
    let class = plan.class_named(request.class.as_deref());
    let way = link.way().await.ok_or_else(|| NoFlow::Unavailable("it is not open".into()))?;
    way.ask(request, class).await.map_err(|fault| NoFlow::of(fault, &request.target))
}

pub(super) async fn carry_asked(worker: &Worker, asked: RequestedFlow) -> io::Result<()> {
    let RequestedFlow { client, client_leg, peer, first, mut stream, ends, ticket } = asked;
    leg::guard(&client)?;
    let client = TcpStream::from_std(client)?;
    worker.ledger.flows.add(1);
    if !first.is_empty() {
        worker.ledger.bytes_up.add(first.len() as u64);
        stream.output.put(first);
    }
    let book = FlowBook::new(ends, client_leg, Party::tunnel(&peer));
    carry(worker, client, Side::Client, stream, book).await;
    drop(ticket);
    Ok(())
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

/// Moves the bytes of a flow between `tcp`, which is its `side`, and a stream, to its very end.
pub async fn carry(
    worker: &Worker,
    tcp: TcpStream,
    side: Side,
    mut stream: Stream,
    book: FlowBook,
) {
    let book = worker.ledger.open(book);
    let watched = worker.watch.add(&book, crate::watch::One { side, stream: tcp });
    let tcp = &watched.sides().stream;
    welcome_source(worker, &book, side, tcp);
    let linger = worker.plan().limits.linger.into();
    let carried = relay::relay(tcp, side, &mut stream, &book, &worker.desk, linger).await;
    let last = worker.ledger.sample(&book, side, tcp);
    if let Err(broken) = &carried.outcome {
        tracing::debug!(ends = ?book.ends, by = ?broken.side, error = %broken.error, "a flow broke");
    }
    // Both resets, where it broke, before whatever else takes time.
    drop(stream);
    if let Some(crate::watch::One { stream: tcp, .. }) = watched.release() {
        close::close_one(tcp, last, &carried, linger, &worker.looks).await;
    }
    worker.ledger.close(&book, &carried);
}
