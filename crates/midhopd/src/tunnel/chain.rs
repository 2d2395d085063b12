//! Flows that go from one tunnel directly into the next, without TCP between.
//!
//! A flow of a chain lives on the thread of the tunnel through which it arrived, whichever thread
//! owns the next one. What its client sends follows directly behind the request ([`open`]): no
//! proxy of a chain waits for the next one's response.
//!
//! Invariants: they are those of a flow with a TCP connection. Bytes leave in the order in which
//! they arrived. An end is passed on after the last byte, and only if it was sent. While pieces
//! wait here nothing more is read, so the first tunnel's credit closes by itself. No byte is sent
//! to two servers: if bytes of a flow were sent on, the flow is requested elsewhere only if the
//! next proxy has reported that it reached no server.
//!
//! Decision 0019.

use super::carry::Permits;
use super::error_mapping::NoFlow;
use super::relay::{IDLE_PIECES, TURN_BYTES, pass_end};
use super::stream::{Input, Output, Stream, StreamError, judge};
use crate::eager;
use crate::ends::RelayOutcome;
use crate::ends::{Broken, Side};
use crate::ledger::{Books, FlowBook, Wait};
use crate::relay::late::{DrainLooks, Left};
use crate::relay::{RelayContext, count, yield_turn};
use crate::worker::Worker;
use bytes::Bytes;
use midhop_pep::relay::{self, Step, Turn};
use midhop_tunnel::{connect::Request, http3::Code};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Bytes of a flow that are kept to be sent again elsewhere, if the next proxy reaches no server. A
/// flow that has sent more is not requested elsewhere. Unit: bytes.
const KEPT_BYTES: usize = 256 << 10;

/// The rest of a chain, which has accepted a flow.
#[derive(Debug)]
pub struct NextHop {
    stream: Stream,
    /// The direction to it, which may have bytes already.
    up: Way,
}

/// Why a flow does not go on into the next tunnel.
#[derive(Debug)]
pub enum NoNext {
    /// The requester has left.
    Left,
    /// There is no tunnel, or the next proxy did not accept.
    Refused {
        /// Why.
        why: NoFlow,
        /// Whether it may be requested elsewhere: then everything that the client has sent is read
        /// again.
        again: bool,
    },
}

/// Requests from `peer` the flow that `client` has requested. Hands on what the client sends until
/// the response arrives.
///
/// # Errors
/// When there is no flow.
pub async fn open(
    worker: &Worker,
    client: &mut Stream,
    peer: &str,
    request: Request,
) -> Result<NextHop, NoNext> {
    let target = request.target.clone();
    let mut next = tokio::select! {
        begun = worker.tunnels.begin(peer, request) => {
            begun.map_err(|why| NoNext::Refused { why, again: true })?
        }
        _gone = client.broken() => return Err(NoNext::Left),
    };
    let mut up = Way::new(Side::Client);
    up.kept = Some(Vec::new());
    let answer = go_ahead(client, &mut next, &mut up, &worker.relay_context).await;
    let kept = up.kept.take();
    let fault = match answer {
        Ok(()) => return Ok(NextHop { stream: next, up }),
        Err((side, fault)) => {
            if side == Side::Client {
                judge(client.connection(), &fault);
                client.blame(&fault.into());
                return Err(NoNext::Left);
            }
            judge(next.connection(), &fault);
            fault
        }
    };
    // If nothing was sent, or the next proxy reports that it reached no server, the bytes may be
    // sent elsewhere.
    let reached_nobody = up.state.moved() == 0
        || matches!(fault, StreamError::Denied(_) | StreamError::Reset(Code::REQUEST_REJECTED));
    let kept = kept.filter(|_| reached_nobody);
    let again = kept.is_some();
    client.input.put_back(kept.into_iter().flatten().chain(up.waiting).collect());
    Err(NoNext::Refused { why: NoFlow::of(fault, &target), again })
}

/// Hands on what the client sends, until the next proxy has responded. A failure is reported with
/// its side.
async fn go_ahead(
    client: &mut Stream,
    next: &mut Stream,
    up: &mut Way,
    context: &RelayContext,
) -> Result<(), (Side, StreamError)> {
    let (mut taken, mut deaf) = (false, false);
    poll_fn(|cx| {
        if let Poll::Ready(answer) = next.input.poll_answer(cx) {
            return Poll::Ready(answer.map_err(|fault| (Side::Server, fault)));
        }
        if !deaf {
            match up.poll_move(cx, &mut client.input, &mut next.output, None) {
                // The next proxy takes no more bytes. Its response reports the reason.
                Poll::Ready(Err((Side::Server, _))) => (deaf, up.reading) = (true, false),
                Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        up.follow(cx, &client.input, &next.output, None, context);
        if !taken && let Poll::Ready(stopped) = client.output.poll_stopped(cx) {
            stopped.map_err(|fault| (Side::Client, fault))?;
            taken = true;
        }
        if !(up.reading || up.state.has_ended())
            && let Poll::Ready(fault) = client.input.poll_reset(cx)
        {
            return Poll::Ready(Err((Side::Client, fault)));
        }
        Poll::Pending
    })
    .await
}

/// Moves the bytes of a flow between two streams until it has ended, in a task of its own. `client`
/// is the requester's.
pub fn spawn(
    worker: &Rc<Worker>,
    client: Stream,
    next: Box<NextHop>,
    book: FlowBook,
    permits: Permits,
) {
    let book = worker.ledger.open(book);
    eager::spawn(carry(worker.clone(), Box::new(client), next, book, permits));
}

async fn carry(
    worker: Rc<Worker>,
    mut client: Box<Stream>,
    mut next: Box<NextHop>,
    book: Arc<FlowBook>,
    permits: Permits,
) {
    let linger = worker.plan().limits.linger.into();
    let carried = relay(&mut client, &mut next, &book, &worker.relay_context, linger).await;
    if let Err(broken) = &carried.outcome {
        tracing::debug!(ends = ?book.ends, by = ?broken.side, error = %broken.error, "a flow was aborted");
    }
    // What has not ended in order is reset at both sides.
    drop((client, next));
    worker.ledger.close(&book, &carried);
    drop(permits);
}

/// Relays until both directions have ended and have arrived, or one side breaks. What a broken side
/// sent before has arrived when this returns, unless the other side takes nothing for `linger`.
async fn relay(
    client: &mut Stream,
    NextHop { stream: server, up }: &mut NextHop,
    book: &FlowBook,
    context: &RelayContext,
    linger: Duration,
) -> RelayOutcome {
    let connections = [client.connection().clone(), server.connection().clone()];
    let mut down = Way::new(Side::Server);
    let [books_up, books_down] = context.ledger.books(book);
    books_up.add(up.state.moved());
    let (books_up, books_down) = (Some(books_up), Some(books_down));
    let (mut taken, mut come) = ([false; 2], [false; 2]);
    let outcome = poll_fn(|cx| {
        // Moving goes first, so that what a side sent before its reset is handed on before the
        // reset.
        let upwards = up.poll_move(cx, &mut client.input, &mut server.output, books_up)?;
        up.follow(cx, &client.input, &server.output, books_up, context);
        let downwards = down.poll_move(cx, &mut server.input, &mut client.output, books_down)?;
        down.follow(cx, &server.input, &client.output, books_down, context);
        let both = [(Side::Client, &mut client.output), (Side::Server, &mut server.output)];
        for ((side, output), taken) in both.into_iter().zip(&mut taken) {
            if !*taken && let Poll::Ready(stopped) = output.poll_stopped(cx) {
                stopped.map_err(|fault| (side, fault))?;
                *taken = true;
            }
        }
        let both = [(&*up, &mut client.input), (&down, &mut server.input)];
        for ((way, input), come) in both.into_iter().zip(&mut come) {
            if way.state.has_ended()
                && !*come
                && let Poll::Ready(end) = input.poll_end(cx)
            {
                end.map_err(|fault| (way.from, fault))?;
                *come = true;
            }
        }
        // A flow is over once its last byte has arrived, and not when the byte is sent.
        let ended = upwards.is_ready() && downwards.is_ready() && come == [true; 2];
        if ended && taken == [true; 2] {
            return Poll::Ready(Ok(Side::Server));
        }
        for (way, input) in [(&*up, &mut client.input), (&down, &mut server.input)] {
            if !(way.reading || way.state.has_ended())
                && let Poll::Ready(fault) = input.poll_reset(cx)
            {
                return Poll::Ready(Err((way.from, fault)));
            }
        }
        Poll::Pending
    })
    .await;
    let outcome = outcome.map_err(|(side, fault): (Side, StreamError)| {
        judge(&connections[usize::from(side == Side::Server)], &fault);
        Broken { side, error: fault.into() }
    });
    if let Err(Broken { side, error }) = &outcome {
        let (way, back, guilty, other) = match side {
            Side::Client => (&mut *up, &mut down, client, server),
            Side::Server => (&mut down, &mut *up, server, client),
        };
        guilty.blame(error);
        back.leave();
        if !taken[usize::from(*side == Side::Client)] && StreamError::leaves_a_rest(error) {
            way.deliver(&mut guilty.input, &mut other.output, context, linger).await;
        }
    }
    up.leave();
    down.leave();
    RelayOutcome { outcome }
}

/// One direction, from the side that sends.
#[derive(Debug)]
struct Way {
    from: Side,
    /// Pieces that have arrived and were not handed on.
    waiting: VecDeque<Bytes>,
    state: relay::Direction,
    /// Whether it waits for more, so that reading notices a reset.
    reading: bool,
    /// Everything that was moved, as long as it is little and may have to be sent again.
    kept: Option<Vec<Bytes>>,
    count: count::HeldBytes,
}

impl Way {
    fn new(from: Side) -> Self {
        Self {
            from,
            waiting: VecDeque::new(),
            state: relay::Direction::default(),
            reading: false,
            kept: None,
            count: count::HeldBytes::default(),
        }
    }

    /// Moves what can be moved now, and books it. Ready once the end is passed on. A failure is
    /// reported with its side.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Input,
        output: &mut Output,
        books: Option<Books<'_>>,
    ) -> Poll<Result<(), (Side, StreamError)>> {
        if self.state.is_done() {
            return Poll::Ready(Ok(()));
        }
        self.reading = false;
        let mut turn = Turn::new(TURN_BYTES);
        loop {
            ready!(output.poll_flush(cx)).map_err(|fault| (self.from.other(), fault))?;
            // What the next tunnel takes is bounded by that tunnel's credit, and counted there.
            match self.state.step(!self.waiting.is_empty(), turn, || false) {
                Step::Write => {
                    let Some(piece) = self.waiting.pop_front() else { continue };
                    turn.spend(piece.len() as u64);
                    self.state.count(piece.len() as u64);
                    if let Some(books) = books {
                        books.add(piece.len() as u64);
                    }
                    self.keep(&piece);
                    output.enqueue(piece);
                }
                Step::Read => ready!(self.poll_read(cx, input, output))?,
                Step::End | Step::Cut => pass_end(&mut self.state, output),
                Step::Yield | Step::Wait { .. } => return yield_turn(cx),
                Step::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Takes what has arrived.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Input,
        output: &mut Output,
    ) -> Poll<Result<(), (Side, StreamError)>> {
        let Poll::Ready(more) = input.poll_pieces(cx, &mut self.waiting) else {
            self.reading = true;
            self.waiting.shrink_to(IDLE_PIECES);
            output.release_turn();
            return Poll::Pending;
        };
        match more {
            Ok(true) => {}
            Err(fault) if !self.state.is_cut() => return Poll::Ready(Err((self.from, fault))),
            Ok(false) | Err(_) => self.state.end(),
        }
        if self.state.has_ended() {
            output.enqueue_end();
        }
        Poll::Ready(Ok(()))
    }

    /// Hands on what arrived before the flow broke, and the reset behind it. Waits until that has
    /// arrived.
    async fn deliver(
        &mut self,
        input: &mut Input,
        output: &mut Output,
        context: &RelayContext,
        linger: Duration,
    ) {
        self.state.cut();
        let mut looks = DrainLooks::new(linger);
        poll_fn(|cx| {
            let moved = self.poll_move(cx, input, output, None);
            self.follow(cx, input, output, None, context);
            // If nothing was moved, a reset cannot overtake anything.
            let nothing_moved = moved.is_ready() && self.state.moved() == 0;
            if matches!(moved, Poll::Ready(Err(_)))
                || nothing_moved && !output.cuts_in_order()
                || output.poll_stopped(cx).is_ready()
            {
                return Poll::Ready(());
            }
            let left = Left::Some { written: self.state.moved(), unacknowledged: 0 };
            looks.poll(cx, || left)
        })
        .await;
    }

    /// Drops what waits, and gives back what was counted.
    fn leave(&mut self) {
        self.waiting.clear();
        self.count.clear();
    }

    fn keep(&mut self, piece: &Bytes) {
        if self.state.moved() > KEPT_BYTES as u64 {
            self.kept = None;
        } else if let Some(kept) = &mut self.kept {
            kept.push(piece.clone());
        }
    }

    /// Counts what waits here. What the next tunnel has taken is counted there.
    fn follow(
        &mut self,
        cx: &mut Context<'_>,
        input: &Input,
        output: &Output,
        books: Option<Books<'_>>,
        context: &RelayContext,
    ) {
        if let Some(books) = books {
            books.flow.set_wait((output.waiting() > 0).then_some(Wait::Tunnel));
        }
        let waiting: usize =
            self.waiting.iter().chain(self.kept.iter().flatten()).map(Bytes::len).sum();
        let staged = waiting + input.held() + output.waiting();
        self.count.follow(cx, staged, &self.state, &context.budget, || 0);
    }
}
