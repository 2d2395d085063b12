//! Moves a flow's bytes between a TCP connection and a stream of a tunnel, both ways, until both ends
//! have ended or one of them broke.
//!
//! Invariants: bytes leave in the order in which they arrived. The end of a stream is passed on
//! only after the last byte. At most a few pieces of each direction wait here. While they do
//! nothing more is read, so the sender's window closes by itself. While all flows together hold the
//! limit, nothing more is taken from the tunnel either. What goes into the tunnel is bounded by the
//! tunnel's own window.

use super::carry::Moved;
use super::coalescing::Coalescing;
use super::resume::{GoesOn, ResumableFlow, Stop, go_on};
use super::stream::kept::{confirm, poll_confirmation_arrived};
use super::stream::{Input, Output, PIECES, Stream, StreamError, judge};
use crate::ends::{Broken, RelayOutcome, Side};
use crate::flow_sampler::One;
use crate::ledger::{Books, FlowBook, Wait};
use crate::leg::BoundedWindow;
use crate::relay::late::{self, DrainLooks, Left, Unwanted};
use crate::relay::{RelayContext, broken, count, yield_turn};
use crate::worker::Worker;
use bytes::{Buf, Bytes};
use midhop_linux::sockopt;
use midhop_pep::relay::{Direction, Step, Turn};
use midhop_tunnel::http3::Code;
use nix::sys::socket::{MsgFlags, Shutdown, recv, sendmsg, shutdown};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// After this many bytes in one turn a flow yields to the others of its worker.
pub(super) const TURN_BYTES: u64 = 256 << 10;
/// Pieces for which a flow keeps room while it has none.
pub(super) const IDLE_PIECES: usize = 4;

/// Relays until both directions have ended or one side breaks. What a broken side sent before has
/// reached the other when this returns, unless that takes nothing for `linger`. If the stream
/// breaks with its carrier, a `resumable` flow continues with another one. Another process may have
/// `moved` some of the flow.
pub async fn relay(
    (One { side, stream: tcp, window }, resumable): (&One, Option<&ResumableFlow>),
    stream: &mut Stream,
    moved: Moved,
    book: &FlowBook,
    worker: &Worker,
    linger: Duration,
) -> RelayOutcome {
    let (side, context) = (*side, &worker.relay_context);
    let [up, down] = context.ledger.books(book);
    let (outwards, inwards) = if side == Side::Client { (up, down) } else { (down, up) };
    let mut outwards = Outwards {
        state: Direction::default(),
        reading: false,
        unwanted: false,
        count: count::HeldBytes::default(),
        window,
        books: outwards,
    };
    let mut inwards = Inwards {
        state: Direction::default(),
        waiting: VecDeque::new(),
        coalescing: Coalescing::default(),
        reading: false,
        count: count::HeldBytes::default(),
        books: inwards,
    };
    if moved.outward_end {
        outwards.state.end();
    }
    inwards.state.count(moved.inward);
    if moved.inward_end {
        inwards.state.end();
        inwards.state.finish();
    }
    let by_tcp = |error: io::Error| Stop::Broken(Broken { side, error });
    let mut tcp_broken = pin!(broken(tcp));
    let (mut all_taken, mut all_come) = (false, false);
    let outcome = loop {
        let connection = stream.connection().clone();
        let by_stream = |fault: StreamError| {
            judge(&connection, &fault);
            Stop::Broken(Broken { side: side.other(), error: fault.into() })
        };
        let Stream { output, input, .. } = &mut *stream;
        let stopped = poll_fn(|cx| {
            if let Some(resumable) = resumable
                && let Poll::Ready(call) = resumable.poll_call(cx)
            {
                return Poll::Ready(Err(Stop::Called(call)));
            }
            // Moving goes first, so that what a side sent before its reset is handed on before the
            // reset.
            let out = match outwards.poll_move(cx, tcp, output, context) {
                Poll::Ready(Err(Stuck::Tcp(error))) => return Poll::Ready(Err(by_tcp(error))),
                Poll::Ready(Err(Stuck::Stream(fault))) if wants_no_more(side, &fault) => {
                    outwards.drop_what_comes(output);
                    false
                }
                Poll::Ready(Err(Stuck::Stream(fault))) => {
                    return Poll::Ready(Err(by_stream(fault)));
                }
                other => other.is_ready(),
            };
            outwards.follow(cx, tcp, output, context);
            let inside = match inwards.poll_move(cx, tcp, input, context) {
                Poll::Ready(Err(Stuck::Tcp(error))) => return Poll::Ready(Err(by_tcp(error))),
                Poll::Ready(Err(Stuck::Stream(fault))) => {
                    return Poll::Ready(Err(by_stream(fault)));
                }
                other => other.is_ready(),
            };
            inwards.follow(cx, tcp, input, context);
            if inwards.state.has_ended()
                && !all_come
                && let Poll::Ready(end) = input.poll_end(cx)
            {
                end.map_err(by_stream)?;
                all_come = true;
            }
            confirm(output, input, cx, inwards.passed_on()).map_err(by_stream)?;
            outwards.books.flow.set_undelivered(output.unconfirmed());
            if !all_taken && let Poll::Ready(taken) = output.poll_stopped(cx) {
                match taken {
                    Err(fault) if wants_no_more(side, &fault) => outwards.drop_what_comes(output),
                    taken => taken.map_err(by_stream)?,
                }
                all_taken = true;
            }
            let out = if outwards.unwanted && inside {
                match outwards.poll_unwanted(cx, tcp, context) {
                    Poll::Ready(Err(Stuck::Tcp(error))) => return Poll::Ready(Err(by_tcp(error))),
                    Poll::Ready(Err(Stuck::Stream(fault))) => {
                        return Poll::Ready(Err(by_stream(fault)));
                    }
                    other => other.is_ready(),
                }
            } else {
                out
            };
            let over = out && inside && all_come;
            // A flow is over once its last byte has arrived, and not when the byte is sent.
            if over && all_taken && !output.has_to_end() {
                if resumable.is_some_and(|resumable| !resumable.is_far())
                    && output.unconfirmed().is_some()
                {
                    ready!(poll_confirmation_arrived(output, cx)).map_err(by_stream)?;
                }
                return Poll::Ready(Ok(side.other()));
            }
            if !inwards.reading
                && !inwards.state.has_ended()
                && let Poll::Ready(fault) = input.poll_reset(cx)
            {
                return Poll::Ready(Err(by_stream(fault)));
            }
            if !(over || outwards.reading)
                && let Poll::Ready(error) = tcp_broken.as_mut().poll(cx)
            {
                return Poll::Ready(Err(by_tcp(error)));
            }
            Poll::Pending
        })
        .await;
        let stop = match stopped {
            Ok(side) => break Ok(side),
            Err(stop) => stop,
        };
        // Boxed, because it is seldom needed: a relay that waits holds no room for it.
        let both_ended =
            outwards.state.has_ended() && inwards.state.is_done() && stream.kept() == 0;
        match Box::pin(go_on(stop, (side, both_ended), stream, resumable, worker)).await {
            Ok(GoesOn::Resumed) => (all_taken, all_come) = (false, false),
            Ok(GoesOn::Stayed) => {}
            Ok(GoesOn::Complete) => break Ok(side.other()),
            Err(broken) => break Err(broken),
        }
    };
    if let Err(broken) = &outcome {
        stream.blame(&broken.error);
        if broken.side == side {
            inwards.leave();
            if !all_taken {
                outwards.deliver(tcp, stream, context, linger).await;
            }
        } else {
            outwards.count.clear();
            let rest = StreamError::leaves_a_rest(&broken.error);
            inwards.deliver(tcp, stream, rest, context, linger).await;
        }
    }
    outwards.count.clear();
    inwards.leave();
    RelayOutcome { outcome }
}

/// Whether the far end wants no more of a request because it has responded completely (RFC 9114
/// §4.1). Its response stays valid.
fn wants_no_more(side: Side, fault: &StreamError) -> bool {
    side == Side::Client && matches!(fault, StreamError::Reset(code) if *code == Code::NO_ERROR)
}

/// Which end of a direction failed.
enum Stuck {
    Tcp(io::Error),
    Stream(StreamError),
}

/// From the TCP connection into the tunnel.
struct Outwards<'a> {
    state: Direction,
    /// Whether it waits for the sender's next byte, so that a sender that breaks is noticed here.
    reading: bool,
    /// Whether the other end takes no more of it.
    unwanted: bool,
    count: count::HeldBytes,
    /// The window that the sender is offered.
    window: &'a BoundedWindow,
    books: Books<'a>,
}

impl Outwards<'_> {
    /// Moves what can be moved now. Ready once the end is passed on.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &TcpStream,
        output: &mut Output,
        context: &RelayContext,
    ) -> Poll<Result<(), Stuck>> {
        if self.state.is_done() {
            return Poll::Ready(Ok(()));
        }
        if self.unwanted {
            return Poll::Pending;
        }
        self.reading = false;
        let mut turn = Turn::new(TURN_BYTES);
        loop {
            // Bytes that were read wait in the stream, whose credit bounds them.
            let staged = output.poll_flush(cx).map_err(Stuck::Stream)?.is_pending();
            match self.state.step(staged, turn, || false) {
                Step::Write => return Poll::Pending,
                Step::Read => turn.spend(ready!(self.poll_read(cx, tcp, output, context))?),
                Step::End | Step::Cut => pass_end(&mut self.state, output),
                Step::Yield | Step::Wait { .. } => return yield_turn(cx),
                Step::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads once, into the stream. Unit: bytes.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &TcpStream,
        output: &mut Output,
        context: &RelayContext,
    ) -> Poll<Result<u64, Stuck>> {
        let Poll::Ready(readable) = tcp.poll_read_ready(cx) else {
            self.reading = true;
            output.release_turn();
            return Poll::Pending;
        };
        readable.map_err(Stuck::Tcp)?;
        match self.read(tcp, output, context) {
            Ok(count) => {
                let count = count as u64;
                self.state.count(count);
                self.books.add(count);
                return Poll::Ready(Ok(count));
            }
            Err(error) if is_passing(&error) => {}
            Err(_) if self.state.is_cut() => self.state.end(),
            Err(error) => return Poll::Ready(Err(Stuck::Tcp(error))),
        }
        Poll::Ready(Ok(0))
    }

    /// Hands on what the connection sent before it broke, and the reset behind it. Waits until the
    /// other end has it.
    async fn deliver(
        &mut self,
        tcp: &TcpStream,
        stream: &mut Stream,
        context: &RelayContext,
        linger: Duration,
    ) {
        let Stream { output, input, .. } = stream;
        if self.unwanted {
            return;
        }
        self.state.cut();
        output.give_up();
        let (mut arrived, mut answered) = (false, false);
        let mut looks = DrainLooks::new(linger);
        poll_fn(|cx| {
            let moved = self.poll_move(cx, tcp, output, context);
            self.follow(cx, tcp, output, context);
            if matches!(moved, Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            let nothing_moved = moved.is_ready() && self.state.moved() == 0;
            if nothing_moved && !output.cuts_in_order() {
                // If nothing was moved, a reset cannot overtake anything.
                return Poll::Ready(());
            }
            // Until it has responded, the other end drops the request of a requester that has left,
            // and the bytes of it.
            answered = answered || nothing_moved || input.poll_answer(cx).is_ready();
            if !arrived
                && (answered || output.cuts_in_order())
                && let Poll::Ready(stopped) = output.poll_stopped(cx)
            {
                if stopped.is_err() {
                    return Poll::Ready(());
                }
                arrived = true;
            }
            if arrived && answered {
                return Poll::Ready(());
            }
            // After handing the bytes over, the tunnel reports when they have arrived.
            let left = Left::Some { written: self.state.moved(), unacknowledged: 0 };
            looks.poll(cx, || left)
        })
        .await;
    }

    fn read(
        &mut self,
        tcp: &TcpStream,
        output: &mut Output,
        context: &RelayContext,
    ) -> io::Result<usize> {
        let mut scratch = context.scratch.borrow_mut();
        let room = scratch.len();
        let mut read = None;
        if let Some((owner, sent)) = output.found_as() {
            scratch.note(owner, sent);
        }
        let outcome = tcp.try_io(Interest::READABLE, || {
            let count = recv(tcp.as_raw_fd(), &mut scratch, MsgFlags::empty())?;
            read = Some(count);
            if count == room && self.window.rests() {
                // From here on the kernel measures a fast reader.
                self.window.look(tcp, 0, context);
            }
            // The queue is empty, as a rule. But reading stops before urgent data, and more may
            // follow that.
            let is_empty = || sockopt::unread(tcp).is_ok_and(|bytes| bytes == 0);
            if count > 0 && count < room && is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        if let Some(count) = read.filter(|count| *count > 0) {
            output.enqueue_copy(&scratch[..count]);
        }
        scratch.release();
        let Some(count) = read else {
            outcome?;
            return Ok(0);
        };
        if count == 0 {
            // If it broke, the error was taken from the socket already, and the queue seems to end
            // in order.
            self.state.end();
            if self.state.has_ended() {
                output.enqueue_end();
            }
        }
        Ok(count)
    }

    /// Sends no more.
    fn drop_what_comes(&mut self, output: &mut Output) {
        if !self.state.is_done() {
            (self.unwanted, self.reading) = (true, false);
            output.reset(Code::NO_ERROR);
        }
    }

    /// Waits for the sender's end, when all was sent to the sender and the other end wants no more
    /// of it. More bytes are answered with a reset, as by a host that has closed the connection.
    fn poll_unwanted(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &TcpStream,
        context: &RelayContext,
    ) -> Poll<Result<(), Stuck>> {
        while !self.state.is_done() {
            ready!(tcp.poll_read_ready(cx)).map_err(Stuck::Tcp)?;
            let mut scratch = context.scratch.borrow_mut();
            let read = tcp.try_io(Interest::READABLE, || {
                Ok(recv(tcp.as_raw_fd(), &mut scratch, MsgFlags::empty())?)
            });
            match read {
                Ok(0) => self.state.finish(),
                Ok(_) => {
                    return Poll::Ready(Err(Stuck::Stream(StreamError::Reset(Code::NO_ERROR))));
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Poll::Ready(Err(Stuck::Tcp(error))),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn follow(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &TcpStream,
        output: &Output,
        context: &RelayContext,
    ) {
        let mut unread = 0;
        let waiting = output.waiting();
        self.books.flow.set_wait((waiting > 0).then_some(Wait::Tunnel));
        let counted = self.count.follow(cx, waiting, &self.state, &context.budget, || {
            unread = sockopt::unread(tcp).unwrap_or(0);
            unread
        });
        match counted {
            Some(count::Counted::Some) => self.window.look(tcp, unread, context),
            Some(count::Counted::Nothing) => self.window.look_at_rest(tcp, context),
            None => {}
        }
    }
}

/// From the tunnel into the TCP connection.
struct Inwards<'a> {
    state: Direction,
    /// Pieces that have arrived and that the TCP connection has not taken yet.
    waiting: VecDeque<Bytes>,
    /// Whether it looks for more before these are written.
    coalescing: Coalescing,
    /// Whether it waits for the tunnel, so that a reset is noticed here.
    reading: bool,
    count: count::HeldBytes,
    books: Books<'a>,
}

impl Inwards<'_> {
    /// Moves what can be moved now. Ready once the end is passed on.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &TcpStream,
        input: &mut Input,
        context: &RelayContext,
    ) -> Poll<Result<(), Stuck>> {
        self.reading = false;
        let mut turn = Turn::new(TURN_BYTES);
        let on_their_way = || sockopt::unacknowledged(tcp).is_ok_and(|bytes| bytes > 0);
        loop {
            let staged = !self.waiting.is_empty() && !self.coalescing.looks();
            let must_wait = || context.budget.must_wait(on_their_way);
            match self.state.step(staged, turn, must_wait) {
                Step::Write => turn.spend(ready!(self.poll_write(cx, tcp))?),
                Step::Read => {
                    if ready!(self.poll_read(cx, input))? {
                        self.reading = true;
                        return yield_turn(cx);
                    }
                }
                Step::End => {
                    shutdown(tcp.as_raw_fd(), Shutdown::Write)
                        .map_err(|errno| Stuck::Tcp(errno.into()))?;
                    self.state.finish();
                }
                Step::Cut => self.state.finish(),
                Step::Yield => return yield_turn(cx),
                Step::Wait { begins } => {
                    context.ledger.memory_waits.add(begins.into());
                    // What was coalesced is written first.
                    if !self.coalescing.stop() {
                        return Poll::Pending;
                    }
                }
                Step::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// The offset up to which the flow has been passed on. The end counts as one byte.
    fn passed_on(&self) -> u64 {
        self.state.moved() + u64::from(self.state.is_done() && !self.state.is_cut())
    }

    /// Takes what has arrived. Returns whether to look for more before it is written.
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut Input) -> Poll<Result<bool, Stuck>> {
        let Poll::Ready(more) = input.poll_pieces(cx, &mut self.waiting) else {
            self.reading = true;
            self.waiting.shrink_to(IDLE_PIECES);
            return Poll::Pending;
        };
        match more {
            Ok(true) => {}
            Err(fault) if !self.state.is_cut() => return Poll::Ready(Err(Stuck::Stream(fault))),
            Ok(false) | Err(_) => self.state.end(),
        }
        Poll::Ready(Ok(self.looks_for_more(input)))
    }

    /// Writes once, if the connection takes anything now. Unit: bytes.
    fn poll_write(&mut self, cx: &mut Context<'_>, tcp: &TcpStream) -> Poll<Result<u64, Stuck>> {
        match self.write(tcp) {
            Ok(count) => {
                let count = count as u64;
                self.state.count(count);
                self.books.add(count);
                return Poll::Ready(Ok(count));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready!(tcp.poll_write_ready(cx)).map_err(Stuck::Tcp)?;
            }
            Err(error) if is_passing(&error) => {}
            Err(error) => return Poll::Ready(Err(Stuck::Tcp(error))),
        }
        Poll::Ready(Ok(0))
    }

    /// Whether to look for more before the waiting pieces are written.
    fn looks_for_more(&mut self, input: &Input) -> bool {
        let may_come =
            !(self.state.is_exhausted() || input.is_broken()) && self.waiting.len() < PIECES;
        self.coalescing.look(self.staged());
        if !may_come {
            self.coalescing.stop();
        }
        self.coalescing.looks()
    }

    /// Unit: bytes. Arrived, and not yet taken by the TCP connection.
    fn staged(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum()
    }

    fn follow(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &TcpStream,
        input: &Input,
        context: &RelayContext,
    ) {
        let unacknowledged = || sockopt::unacknowledged(tcp).unwrap_or(0);
        let staged = self.staged() + input.held();
        self.books.flow.set_wait(self.state.waits().then_some(Wait::Memory));
        self.count.follow(cx, staged, &self.state, &context.budget, unacknowledged);
    }

    /// Hands on what arrived before the flow broke at the other end. Waits until the connection's
    /// far end has acknowledged it. Without a `rest`, the tunnel has no more of it.
    async fn deliver(
        &mut self,
        tcp: &TcpStream,
        stream: &mut Stream,
        rest: bool,
        context: &RelayContext,
        linger: Duration,
    ) {
        self.state.cut();
        if !rest {
            self.state.end();
        }
        let mut gone = pin!(broken(tcp));
        let mut looks = DrainLooks::new(linger);
        let mut unwanted = Unwanted::default();
        let mut reset = false;
        poll_fn(|cx| {
            let moved = self.poll_move(cx, tcp, &mut stream.input, context);
            self.follow(cx, tcp, &stream.input, context);
            if matches!(moved, Poll::Ready(Err(_))) || unwanted.poll_drop(cx, tcp, context).is_err()
            {
                return Poll::Ready(());
            }
            if gone.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if moved.is_ready() && !std::mem::replace(&mut reset, true) {
                // Nothing more is wanted of the other end, which learns this at once.
                stream.output.reset(Code::CONNECT_ERROR);
                stream.input.stop(Code::CONNECT_ERROR);
            }
            looks.poll(cx, || late::left(tcp, moved.is_ready(), self.state.moved()))
        })
        .await;
    }

    /// Drops what waits, and gives back what was counted.
    fn leave(&mut self) {
        self.waiting.clear();
        self.count.clear();
    }

    /// Writes once.
    fn write(&mut self, tcp: &TcpStream) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let count =
            self.waiting.iter().zip(&mut slices).map(|(piece, slice)| *slice = IoSlice::new(piece));
        let count = count.count();
        let mut written = tcp.try_io(Interest::WRITABLE, || {
            let slices = slices.get(..count).unwrap_or_default();
            Ok(sendmsg::<()>(tcp.as_raw_fd(), slices, &[], MsgFlags::MSG_NOSIGNAL, None)?)
        })?;
        let total = written;
        while let Some(piece) = self.waiting.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                break;
            }
            written -= piece.len();
            self.waiting.pop_front();
        }
        Ok(total)
    }
}

/// Ends a stream as the sender of its direction ended: in order, or abruptly behind its last byte.
pub(super) fn pass_end(state: &mut Direction, output: &mut Output) {
    if state.is_cut() {
        output.cut()
    } else {
        output.end()
    }
    state.finish();
}

/// Whether the same call may succeed later, or even at once.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
