//! Flows that go from one tunnel straight into the next, and no TCP between.
//!
//! A flow of a chain lives on the thread of the tunnel that it came by, whichever owns the next one.
//!
//! Invariants: as those of a flow with a TCP connection: bytes leave in the order in which they came, an end
//! is passed on after the last byte and only if it was said, and while pieces wait here nothing more is read:
//! the first tunnel's credit closes by itself.

use super::stream::{Fault, Input, Output, Stream, judge};
use crate::flow::{Broken, Side};
use crate::ledger::{Count, FlowBook};
use crate::relay::{Carried, Desk, count};
use crate::worker::Worker;
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

/// After so many bytes in one turn a flow lets the others of its worker go first.
const TURN_BYTES: usize = 1 << 20;
/// Pieces that are taken at once.
const PIECES: usize = 32;

/// Moves the bytes of a flow between two streams, to its very end. `client` is the one that asked.
pub async fn carry(worker: &Worker, mut client: Stream, mut server: Stream, book: FlowBook) {
    let book = worker.ledger.open(book);
    let carried = relay(&mut client, &mut server, &book, &worker.desk).await;
    if let Err(broken) = &carried.outcome {
        tracing::debug!(ends = ?book.ends, by = ?broken.side, error = %broken.error, "a flow broke");
    }
    // What has not ended in order is reset at both sides.
    drop((client, server));
    worker.ledger.close(&book, &carried);
}

/// Relays until both directions have ended and have arrived, or one side breaks.
async fn relay(client: &mut Stream, server: &mut Stream, book: &FlowBook, desk: &Desk) -> Carried {
    let connections = [client.connection().clone(), server.connection().clone()];
    let mut up = Way::new(Side::Client, [&book.up, &desk.ledger.bytes_up]);
    let mut down = Way::new(Side::Server, [&book.down, &desk.ledger.bytes_down]);
    let (mut taken, mut come) = ([false; 2], [false; 2]);
    let outcome = poll_fn(|cx| {
        // Moving goes first, so that what came before a reset is handed on before the reset is.
        let upwards = up.poll_move(cx, &mut client.input, &mut server.output)?;
        up.follow(cx, &client.input, &server.output, desk);
        let downwards = down.poll_move(cx, &mut server.input, &mut client.output)?;
        down.follow(cx, &server.input, &client.output, desk);
        let both = [(Side::Client, &mut client.output), (Side::Server, &mut server.output)];
        for ((side, output), taken) in both.into_iter().zip(&mut taken) {
            if !*taken && let Poll::Ready(stopped) = output.poll_stopped(cx) {
                stopped.map_err(|fault| (side, fault))?;
                *taken = true;
            }
        }
        let both = [(&up, &mut client.input), (&down, &mut server.input)];
        for ((way, input), come) in both.into_iter().zip(&mut come) {
            if way.ended
                && !*come
                && let Poll::Ready(end) = input.poll_end(cx)
            {
                end.map_err(|fault| (way.from, fault))?;
                *come = true;
            }
        }
        // A flow is over once its last byte has arrived, not when it is on its way.
        let ended = upwards.is_ready() && downwards.is_ready() && come == [true; 2];
        if ended && taken == [true; 2] {
            return Poll::Ready(Ok(Side::Server));
        }
        for (way, input) in [(&up, &mut client.input), (&down, &mut server.input)] {
            if !(way.reading || way.ended)
                && let Poll::Ready(fault) = input.poll_reset(cx)
            {
                return Poll::Ready(Err((way.from, fault)));
            }
        }
        Poll::Pending
    })
    .await;
    up.count.clear(&desk.budget);
    down.count.clear(&desk.budget);
    let outcome = outcome.map_err(|(side, fault): (Side, Fault)| {
        judge(&connections[usize::from(side == Side::Server)], &fault);
        Broken { side, error: fault.into() }
    });
    if let Err(Broken { side, error }) = &outcome {
        let guilty = if *side == Side::Client { client } else { server };
        guilty.blame(error);
    }
    Carried { outcome }
}

/// One direction, from the side that says.
struct Way<'a> {
    from: Side,
    /// What has come and was not handed on.
    waiting: VecDeque<Bytes>,
    /// Whether it waits for more, so that a reset is noticed here.
    reading: bool,
    ended: bool,
    done: bool,
    /// Unit: bytes. What went through.
    moved: u64,
    count: count::Count,
    books: [&'a Count; 2],
}

impl<'a> Way<'a> {
    fn new(from: Side, books: [&'a Count; 2]) -> Self {
        Self {
            from,
            waiting: VecDeque::with_capacity(PIECES),
            reading: false,
            ended: false,
            done: false,
            moved: 0,
            count: count::Count::default(),
            books,
        }
    }

    /// Moves what can be moved now. Ready once the end is passed on. What fails is told with its side.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Input,
        output: &mut Output,
    ) -> Poll<Result<(), (Side, Fault)>> {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        self.reading = false;
        let mut moved = 0;
        loop {
            ready!(output.poll_flush(cx)).map_err(|fault| (self.from.other(), fault))?;
            if let Some(piece) = self.waiting.pop_front() {
                moved += piece.len();
                self.moved += piece.len() as u64;
                self.books.iter().for_each(|book| book.add(piece.len() as u64));
                output.put(piece);
                continue;
            }
            if self.ended {
                output.end();
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            if moved >= TURN_BYTES {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.reading = true;
            let Poll::Ready(more) = input.poll_pieces(cx, &mut self.waiting) else {
                output.rest();
                return Poll::Pending;
            };
            self.ended = !more.map_err(|fault| (self.from, fault))?;
            self.reading = false;
            if self.ended {
                output.put_end();
            }
        }
    }

    /// Counts what waits here; what the next tunnel has taken is counted as the tunnel's.
    fn follow(&mut self, cx: &mut Context<'_>, input: &Input, output: &Output, desk: &Desk) {
        let waiting: usize = self.waiting.iter().map(Bytes::len).sum();
        let staged = waiting + input.held() + output.waiting();
        self.count.follow(cx, staged, self.moved, &desk.budget, || 0);
    }
}
