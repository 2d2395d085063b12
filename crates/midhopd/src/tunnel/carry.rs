//! Carries a flow through a tunnel: requests it from the peer, and relays its bytes until it ends.

use super::directory::RequestedFlow;
use super::error_mapping::NoFlow;
use super::link::Link;
use super::opened::Leaving;
use super::peer_limits;
use super::relay;
use super::resume::ResumableFlow;
use super::stream::{Stream, kept::Offer};
use crate::admission::Ticket;
use crate::close;
use crate::eager;
use crate::ends::Side;
use crate::ledger::{FlowBook, FlowOrigin, Party};
use crate::leg::{self, BoundedWindow, Sample};
use crate::survival::register::{
    FlowEntry, NO_SOCKET, Record, StreamRecord, cookie_of, name_of, now_ns,
};
use crate::syn_hold::living::Life;
use crate::worker::Worker;
use midhop_linux::stream_position::{OpenedBy, StreamPosition};
use midhop_pep::config::Plan;
use midhop_pep::source;
use midhop_tunnel::connect::Request;
use std::io;
use std::os::fd::AsRawFd;
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
    let first_bytes = first.len() as u64;
    if !first.is_empty() {
        worker.ledger.bytes_up.add(first.len() as u64);
        stream.output.enqueue(first);
    }
    let book = FlowBook::new(ends, client_leg, Party::tunnel(&peer))
        .with_origin(FlowOrigin { rule, ..FlowOrigin::default() });
    let permits = Permits { ticket, life: None, of_peer: None, leaving: None };
    let position = StreamPosition::of(&client, OpenedBy::FarEnd)?;
    let start = StreamStart {
        before: [position.read.wrapping_sub(first_bytes), position.written],
        ..StreamStart::default()
    };
    start_at(worker, (client, Side::Client), stream, book, permits, Some(Box::new(start)));
    Ok(())
}

/// Resources that a flow holds until it ends.
#[derive(Debug)]
pub struct Permits {
    /// Its place among the flows of this daemon.
    pub ticket: Ticket,
    /// The flow's entry among live flows: while it lasts, repeated SYNs belong to the flow.
    pub life: Option<Life>,
    /// Its place among the flows of the peer that requested it.
    pub of_peer: Option<peer_limits::PeerSlot>,
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
    start_at(worker, (tcp, side), stream, book, permits, None);
}

/// The same for a flow that does not start at its first byte.
pub fn start_at(
    worker: &Rc<Worker>,
    (tcp, side): (TcpStream, Side),
    stream: Stream,
    book: FlowBook,
    permits: Permits,
    start: Option<Box<StreamStart>>,
) {
    let book = worker.ledger.open(book);
    eager::spawn(carry(worker.clone(), (tcp, side), Box::new(stream), book, permits, start));
}

/// Where a flow starts. That of a new one is the default.
#[derive(Debug, Default)]
pub struct StreamStart {
    /// Its entry in the register, if another process carried it until it was killed.
    pub noted: Option<FlowEntry>,
    /// Unit: bytes. Bytes read from its socket before its first byte, and bytes written; modulo
    /// 2⁶⁴.
    pub before: [u64; 2],
    /// What another process has moved of it.
    pub moved: Moved,
}

/// What another process has moved of a flow.
#[derive(Debug, Default, Clone, Copy)]
pub struct Moved {
    /// Whether the socket's end was passed on to the stream.
    pub outward_end: bool,
    /// Unit: bytes. From the stream to the socket.
    pub inward: u64,
    /// Whether the stream's end was passed on to the socket.
    pub inward_end: bool,
}

/// Enters a flow that can be resumed, so that it outlives this process.
fn note(
    worker: &Worker,
    (tcp, side): (&TcpStream, Side),
    stream: &mut Stream,
    (book, offer): (&FlowBook, &Offer),
    before: [u64; 2],
) -> Option<FlowEntry> {
    let cookie = cookie_of(tcp).ok()?;
    let (region, writer) = (worker.region.as_ref()?, worker.store.writer(cookie)?);
    stream.keep_in(writer);
    let (own, lacks) = (side as usize, side.other() as usize);
    let stream = StreamRecord {
        id: offer.id,
        peer: name_of(book.peer()?),
        class: name_of(&offer.class.name),
    };
    let mut record = Record {
        ends: book.ends,
        sockets: [NO_SOCKET; 2],
        cookies: [0; 2],
        pipes: [None, None],
        legs: [0; 2],
        interface: book.origin.interface.clone(),
        rule: book.origin.rule,
        dscp: book.origin.dscp,
        ahead: before,
        began: now_ns(),
        answered: 0,
        stream: None,
        leaves: false,
        is_still: false,
    };
    (record.sockets[own], record.cookies[own]) = (tcp.as_raw_fd(), cookie);
    record.legs[own] = name_of(&book.party(side).name);
    (record.cookies[lacks], record.legs[lacks]) = (stream.peer, stream.class);
    record.stream = Some(stream);
    region.enter(&record)
}

/// Offers the flow's end on this side a window that suffices to keep the tunnel full at its
/// round-trip time.
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
        tracing::debug!(ends = ?book.ends, %error, "the receive window of a flow's source could not be enlarged");
    }
}

/// Its parameters are small, because a task keeps them twice.
async fn carry(
    worker: Rc<Worker>,
    (tcp, side): (TcpStream, Side),
    mut stream: Box<Stream>,
    book: Arc<FlowBook>,
    permits: Permits,
    start: Option<Box<StreamStart>>,
) {
    let StreamStart { noted, before, moved } = start.map(|it| *it).unwrap_or_default();
    let window = {
        let plan = worker.plan();
        let leg = plan.legs.iter().find(|leg| *leg.name == *book.party(side).name);
        match leg.filter(|_| noted.is_some()) {
            Some(leg) => BoundedWindow::adopted(leg, &tcp, &worker.relay_context),
            None => BoundedWindow::new(leg),
        }
    };
    let sampled = worker.sampler.add(&book, crate::flow_sampler::One { side, stream: tcp, window });
    let tcp = &sampled.sides().stream;
    welcome_source(&worker, &book, side, tcp);
    let linger = worker.plan().limits.linger.into();
    let mut resumable = book.peer().zip(stream.offer.take()).and_then(|(peer, offer)| {
        ResumableFlow::enter(offer, &worker.tunnels.resumable_flows, peer)
    });
    if let Some(resumable) = &mut resumable {
        let offer = (&*book, resumable.offer());
        resumable.note(noted.or_else(|| note(&worker, (tcp, side), &mut stream, offer, before)));
    }
    let one = (sampled.sides(), resumable.as_ref());
    let carried = relay::relay(one, &mut stream, moved, &book, &worker, linger).await;
    if carried.outcome.is_ok()
        && let Some(resumable) = &resumable
    {
        resumable.finish(&stream);
    }
    let noted = resumable.and_then(ResumableFlow::leave);
    let last = worker.ledger.sample(&book, side, tcp);
    if let Err(broken) = &carried.outcome {
        tracing::debug!(ends = ?book.ends, by = ?broken.side, error = %broken.error, "a flow was aborted");
    }
    // If the flow broke, both resets are sent before anything that takes time. After an orderly end
    // the entry stays, because the next process would have to wait as this one does.
    let noted = noted.filter(|_| carried.outcome.is_ok());
    drop(stream);
    if let Some(crate::flow_sampler::One { stream: tcp, .. }) = sampled.release() {
        close::close_one(tcp, last, &carried, linger, &worker.coarse_timer).await;
    }
    worker.ledger.close(&book, &carried);
    drop((permits, noted));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<A, B, C, D, E, F, G>(_: fn(A, B, C, D, E, F) -> G) -> usize {
        size_of::<G>()
    }

    #[test]
    fn an_idle_flow_is_small() {
        let bytes = bytes_of(carry) + size_of::<Stream>();
        assert!(bytes <= 2336, "{bytes} bytes");
    }
}
