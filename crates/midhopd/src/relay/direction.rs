//! One direction of a flow: bytes that one end sent, on their way to the other.
//!
//! A small read is handed on at once: the bytes are peeked at, written, and only then taken from
//! the receive queue. What the far side cannot take yet stays there. Until it is gone nothing more
//! is read, so the sender's window closes by itself. Bulk goes through a pipe and is never copied.
//!
//! Invariants: bytes leave in the order in which they arrived. The end of the stream is passed on
//! only after the last byte. At most the direction's stage waits. The kernel has every byte that is
//! not written yet, so that another process can continue the flow wherever this one dies
//! ([`midhop_pep::resumption`]).

use super::count::{Counted, HeldBytes};
use super::pipe::Pipe;
use super::share::RateShare;
use super::start::{StartDirection, discard};
use super::{RelayContext, Stage, yield_turn};
use crate::ends::{Broken, Side};
use crate::ledger::{DirectionBook, Wait};
use crate::leg::BoundedWindow;
use crate::survival::register::FlowEntry;
use midhop_linux::sockopt;
use midhop_pep::relay::{self, Step, Turn};
use nix::errno::Errno;
use nix::fcntl::{SpliceFFlags, splice};
use nix::libc;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// After this many bytes in one turn a direction yields to the others of its worker. Where a hundred flows fill two
/// processors, a short message waits for a turn of each.
const TURN_BYTES: u64 = 512 << 10;
/// A bulk flow that had less to splice than this goes back to copying.
const BULK_BYTES: usize = 16 << 10;

/// The longest that an acknowledgement is delayed, in microseconds (`include/uapi/linux/tcp.h`).
const TCP_DELACK_MAX_US: libc::c_int = 46;
/// The same for a sender that finds no room: the shortest delay that kernels with 250 ticks a
/// second accept.
const DELAY_MOST_US: libc::c_int = 8000;

/// What is to be written before more is read.
#[derive(Debug, Default)]
enum Waiting {
    #[default]
    Nothing,
    /// This many bytes of the sender's receive queue were peeked at and are not written yet.
    Seen(usize),
    Piped {
        pipe: Pipe,
        bytes: usize,
    },
}

impl Waiting {
    fn bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Seen(bytes) | Self::Piped { bytes, .. } => *bytes,
        }
    }
}

/// One direction of a flow, from the side that sends.
#[derive(Debug)]
pub struct Direction<'a> {
    from: Side,
    /// The window that the sender is offered.
    window: &'a BoundedWindow,
    state: relay::Direction,
    waiting: Waiting,
    /// Unit: bytes. The most that waits here.
    stage: usize,
    bulk: bool,
    /// Whether it waits for the sender's next byte.
    reading: bool,
    hurried: bool,
    count: HeldBytes,
    share: Option<Box<RateShare>>,
    /// The entry in which its pipe is recorded.
    entry: Option<Rc<FlowEntry>>,
}

impl<'a> Direction<'a> {
    /// The direction of what `from` sends.
    pub fn new(
        from: Side,
        window: &'a BoundedWindow,
        stage: Stage,
        start: StartDirection,
        entry: Option<Rc<FlowEntry>>,
    ) -> Self {
        let mut state = relay::Direction::default();
        if start.done {
            state.end();
            state.finish();
        }
        let waiting = match start.piped {
            Some((pipe, bytes)) => Waiting::Piped { pipe, bytes },
            None => Waiting::Nothing,
        };
        Self {
            from,
            window,
            state,
            waiting,
            entry,
            stage: stage.bytes,
            bulk: false,
            reading: false,
            hurried: false,
            count: HeldBytes::default(),
            share: stage.share,
        }
    }

    /// Whether the sender's stream has ended and is passed on.
    pub fn is_done(&self) -> bool {
        self.state.is_done()
    }

    /// Whether it waits for the sender's next byte, so that a sender that breaks is noticed here.
    pub fn is_reading(&self) -> bool {
        self.reading
    }

    /// Unit: bytes. What has been handed on.
    pub fn bytes(&self) -> u64 {
        self.state.moved()
    }

    /// To be called when the sender broke. From now on [`Direction::poll_move`] is ready once
    /// everything that the sender sent before is handed on.
    ///
    /// The error was taken from the socket when the break was found, so the receive queue seems to
    /// end in order.
    pub fn cut(&mut self) {
        self.state.cut();
    }

    /// Moves what can be moved now, and books it. Ready once the sender's stream has ended and its
    /// last byte is passed on; the end itself is too, unless this is the flow's `last` direction.
    pub fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
        last: bool,
        book: &DirectionBook,
        context: &RelayContext,
    ) -> Poll<Result<(), Broken>> {
        let before = self.bytes();
        let waits = self.waiting.bytes();
        if self.share.as_mut().is_some_and(|share| share.look(cx, waits, to)) && waits > 0 {
            // The kernel reports a queue as writable when a third of it is free. A leg that waits
            // for a lost segment would run dry by then. What is refused here is tried again.
            let _ = self.write_once(from, to, context, false);
        }
        self.reading = false;
        let outcome = self.turn(cx, from, to, last, context);
        let moved = self.bytes() - before;
        if moved > 0 {
            book.add(moved);
            let total = match self.from {
                Side::Client => &context.ledger.bytes_up,
                Side::Server => &context.ledger.bytes_down,
            };
            total.add(moved);
        }
        book.set_wait(self.state.waits().then_some(Wait::Memory));
        let waits = self.waiting.bytes();
        let seen = if let Waiting::Seen(bytes) = self.waiting { bytes } else { 0 };
        let mut unread = 0;
        let counted = self.count.follow(cx, waits, &self.state, &context.budget, || {
            unread = sockopt::unread(from).unwrap_or(0);
            unread.saturating_sub(seen) + sockopt::unacknowledged(to).unwrap_or(0)
        });
        match counted {
            Some(Counted::Some) => self.window.look(from, unread, context),
            Some(Counted::Nothing) => self.window.look_at_rest(from, context),
            None => {}
        }
        if let Some(share) = &mut self.share {
            share.rest(cx);
        }
        outcome
    }

    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
        last: bool,
        context: &RelayContext,
    ) -> Poll<Result<(), Broken>> {
        let mut turn = Turn::new(TURN_BYTES);
        let on_their_way = || sockopt::unacknowledged(to).is_ok_and(|bytes| bytes > 0);
        loop {
            let must_wait = || context.budget.must_wait(on_their_way);
            match self.state.step(self.waiting.bytes() > 0, turn, must_wait) {
                Step::Write => {
                    let written = self.poll_write(cx, from, to, context);
                    if written.is_pending() {
                        self.hurry(from);
                    }
                    ready!(written)?;
                }
                Step::Read => {
                    if !context.budget.has_plenty() {
                        // If nothing is staged, a little may always move.
                        self.bulk = false;
                    }
                    turn.spend(ready!(self.poll_read(cx, from, to, context))? as u64);
                }
                Step::End => {
                    if !last {
                        shutdown(to.as_raw_fd(), Shutdown::Write)
                            .map_err(|errno| self.broken_far(errno.into()))?;
                    }
                    self.state.finish();
                }
                Step::Cut => self.state.finish(),
                Step::Yield => return yield_turn(cx),
                Step::Wait { begins } => {
                    context.ledger.memory_waits.add(begins.into());
                    return Poll::Pending;
                }
                Step::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// From now on the sender finds this end's window closed from time to time. A kernel that has
    /// no room to offer delays its acknowledgements. The delay is longer than a near sender waits
    /// before it sends its last segment once more in vain.
    fn hurry(&mut self, from: &TcpStream) {
        if !self.hurried {
            self.hurried = true;
            // Kernels before Linux 6.15 do not know the option; there the segments are sent again.
            let _ = sockopt::set_int(from, libc::IPPROTO_TCP, TCP_DELACK_MAX_US, DELAY_MOST_US);
        }
    }

    /// Reads once, and writes at once what the other side takes of it.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
        context: &RelayContext,
    ) -> Poll<Result<usize, Broken>> {
        loop {
            match from.poll_read_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(self.fail_near(error)),
                Poll::Pending => {
                    self.reading = true;
                    return Poll::Pending;
                }
            }
            if self.bulk && self.window.rests() {
                // From here on the kernel measures a fast reader.
                self.window.look(from, 0, context);
            }
            let result = if self.bulk {
                self.splice_in(from, to, context)
            } else {
                self.copy(from, to, context)
            };
            match result {
                Ok(moved) => return Poll::Ready(Ok(moved)),
                Err(Fault::Near(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(Fault::Near(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(Fault::Near(error)) => return Poll::Ready(self.fail_near(error)),
                Err(Fault::Far(error)) => return Poll::Ready(Err(self.broken_far(error))),
            }
        }
    }

    fn fail_near(&mut self, error: io::Error) -> Result<usize, Broken> {
        if self.state.is_cut() {
            self.state.end();
            return Ok(0);
        }
        Err(Broken { side: self.from, error })
    }

    fn copy(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        context: &RelayContext,
    ) -> Result<usize, Fault> {
        let mut scratch = context.scratch.borrow_mut();
        let room = self.stage.min(scratch.len());
        let scratch = &mut scratch[..room];
        let mut copied = None;
        let outcome = from.try_io(Interest::READABLE, || {
            let seen = recv(from.as_raw_fd(), scratch, MsgFlags::MSG_PEEK)?;
            if seen == 0 {
                copied = Some((0, Ok(0)));
                return Ok(());
            }
            if let Some(share) = &mut self.share {
                share.before_write(seen, to);
            }
            let written = hand_on(from, to, &mut scratch[..seen]);
            let all = matches!(written, Ok(written) if written == seen);
            copied = Some((seen, written));
            let is_empty = || sockopt::unread(from).is_ok_and(|bytes| bytes == 0);
            if all && seen < scratch.len() && is_empty() {
                // The next arrival raises a new event. Reading also stops before urgent data, and
                // what follows that may raise none.
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        let Some((seen, written)) = copied else {
            return Err(Fault::Near(outcome.err().unwrap_or_else(|| io::ErrorKind::Other.into())));
        };
        if seen == 0 {
            self.state.end();
            return Ok(0);
        }
        self.bulk = seen == scratch.len();
        let written = written.map_err(Fault::Far)?;
        self.state.count(written as u64);
        if written < seen {
            self.waiting = Waiting::Seen(seen - written);
        }
        Ok(seen)
    }

    fn splice_in(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        context: &RelayContext,
    ) -> Result<usize, Fault> {
        let Some(pipe) = context.pipes.take() else {
            self.bulk = false;
            return Ok(0);
        };
        if let Some(entry) = &self.entry {
            entry.note_pipe(self.from, Some((pipe.source.as_raw_fd(), pipe.sink.as_raw_fd())));
        }
        let outcome = from.try_io(Interest::READABLE, || {
            let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
            let room = self.stage.min(pipe.capacity);
            match splice(from.as_fd(), None, &pipe.sink, None, room, flags) {
                Err(Errno::EAGAIN) if sockopt::unread(from).is_ok_and(|bytes| bytes > 0) => Ok(0),
                outcome => Ok(outcome?),
            }
        });
        match outcome {
            // The end of the stream, or urgent data, before which splicing stops in the same way.
            // Reading distinguishes them, and continues behind urgent data.
            Ok(0) => {
                self.give_back(pipe, context);
                self.bulk = false;
                Ok(0)
            }
            Ok(count) => {
                self.bulk = count >= BULK_BYTES;
                if let Some(share) = &mut self.share {
                    share.before_write(count, to);
                }
                self.waiting = Waiting::Piped { pipe, bytes: count };
                Ok(count)
            }
            Err(error) => {
                self.give_back(pipe, context);
                Err(Fault::Near(error))
            }
        }
    }

    /// Writes what waits. Ready when nothing does.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
        context: &RelayContext,
    ) -> Poll<Result<(), Broken>> {
        loop {
            if matches!(self.waiting, Waiting::Nothing) {
                return Poll::Ready(Ok(()));
            }
            match self.write_once(from, to, context, true) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = ready!(to.poll_write_ready(cx)) {
                        return Poll::Ready(Err(self.broken_far(error)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(self.broken_far(error))),
            }
        }
    }

    /// Writes once of what waits; `announced`: only where the kernel has reported room.
    fn write_once(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        context: &RelayContext,
        announced: bool,
    ) -> io::Result<()> {
        let count = match &mut self.waiting {
            Waiting::Nothing => 0,
            Waiting::Seen(bytes) => {
                let mut scratch = context.scratch.borrow_mut();
                let mut write = || {
                    let room = (*bytes).min(scratch.len());
                    let seen = recv(from.as_raw_fd(), &mut scratch[..room], MsgFlags::MSG_PEEK)?;
                    match hand_on(from, to, &mut scratch[..seen])? {
                        0 => Err(io::ErrorKind::WouldBlock.into()),
                        written => Ok(written),
                    }
                };
                let count =
                    if announced { to.try_io(Interest::WRITABLE, write)? } else { write()? };
                *bytes -= count;
                if *bytes == 0 {
                    self.waiting = Waiting::Nothing;
                }
                count
            }
            Waiting::Piped { pipe, bytes } => {
                let write = || {
                    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
                    Ok(splice(&pipe.source, None, to.as_fd(), None, *bytes, flags)?)
                };
                let count =
                    if announced { to.try_io(Interest::WRITABLE, write)? } else { write()? };
                *bytes -= count;
                if *bytes == 0
                    && let Waiting::Piped { pipe, .. } = std::mem::take(&mut self.waiting)
                {
                    self.give_back(pipe, context);
                }
                count
            }
        };
        self.state.count(count as u64);
        Ok(())
    }

    /// Gives back an empty pipe.
    fn give_back(&self, pipe: Pipe, context: &RelayContext) {
        self.note_no_pipe();
        context.pipes.put(pipe);
    }

    /// Stops here, with what waits, and whether its end was passed on. It can go on from that.
    pub fn stop(self) -> (Stage, StartDirection) {
        let piped = match self.waiting {
            Waiting::Piped { pipe, bytes } => Some((pipe, bytes)),
            // They are in the receive queue.
            Waiting::Nothing | Waiting::Seen(_) => None,
        };
        let done = self.state.is_done();
        (Stage { bytes: self.stage, share: self.share }, StartDirection { piped, done })
    }

    /// Gives up what waits, if anything does.
    pub fn leave(&mut self, context: &RelayContext) {
        if let Waiting::Piped { pipe, .. } = std::mem::take(&mut self.waiting) {
            self.note_no_pipe();
            context.pipes.discard(pipe);
        }
    }

    fn note_no_pipe(&self) {
        if let Some(entry) = &self.entry {
            entry.note_pipe(self.from, None);
        }
    }

    fn broken_far(&self, error: io::Error) -> Broken {
        Broken { side: self.from.other(), error }
    }
}

/// Writes as much as the far socket takes now of the `seen` bytes at the head of the receive queue,
/// then takes that from the queue. A process that dies between the two has written bytes that are
/// still unread. The process that continues the flow finds their number by the kernel's counts.
fn hand_on(from: &TcpStream, to: &TcpStream, seen: &mut [u8]) -> io::Result<usize> {
    let written = loop {
        match send(to.as_raw_fd(), seen, MsgFlags::MSG_NOSIGNAL) {
            Ok(written) => break written,
            Err(Errno::EAGAIN) => return Ok(0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    discard(from, written as u64, seen)?;
    Ok(written)
}

/// Which of the two sockets of a direction failed.
enum Fault {
    Near(io::Error),
    Far(io::Error),
}
