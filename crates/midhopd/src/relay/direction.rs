//! One direction of a flow: bytes that one end sent, on their way to the other.
//!
//! A small read is handed on at once. What the far side cannot take yet waits here, and until it is
//! gone nothing more is read: the sender's window closes by itself. Bulk goes through a pipe and is
//! never copied.
//!
//! Invariants: bytes leave in the order in which they came; the end of the stream is passed on only
//! after the last byte; at most the direction's stage waits.

use super::count::HeldBytes;
use super::pipe::Pipe;
use super::share::RateShare;
use super::{Desk, Stage};
use crate::ends::{Broken, Side};
use crate::ledger::{DirectionBook, Wait};
use midhop_linux::sockopt;
use midhop_pep::relay::{self, Step, Turn};
use nix::errno::Errno;
use nix::fcntl::{SpliceFFlags, splice};
use nix::libc;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// After so many bytes in one turn a flow lets the others of its worker go first.
const TURN_BYTES: u64 = 4 << 20;
/// A bulk flow that had less to splice than this goes back to copying.
const BULK_BYTES: usize = 16 << 10;

/// The longest that an acknowledgement is delayed, in microseconds (`include/uapi/linux/tcp.h`).
const TCP_DELACK_MAX_US: libc::c_int = 46;
/// That of a sender who finds no room: the least that kernels of 250 ticks a second take.
const DELAY_MOST_US: libc::c_int = 8000;

/// What has been read and not yet written.
#[derive(Debug, Default)]
enum Waiting {
    #[default]
    Nothing,
    Copied {
        bytes: Box<[u8]>,
        written: usize,
    },
    Piped {
        pipe: Pipe,
        bytes: usize,
    },
}

impl Waiting {
    fn bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Copied { bytes, written } => bytes.len() - written,
            Self::Piped { bytes, .. } => *bytes,
        }
    }
}

/// One direction of a flow, from the side that sends.
#[derive(Debug)]
pub struct Direction {
    from: Side,
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
}

impl Direction {
    /// The direction of what `from` sends.
    pub fn new(from: Side, stage: Stage) -> Self {
        Self {
            from,
            state: relay::Direction::default(),
            waiting: Waiting::Nothing,
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

    /// The sender broke. From now on [`Direction::poll_move`] is ready once all is handed on that it sent before.
    ///
    /// Whoever learnt of that has taken the error from the socket, and so its queue seems to end in order.
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
        desk: &Desk,
    ) -> Poll<Result<(), Broken>> {
        let before = self.bytes();
        let waits = self.waiting.bytes();
        if self.share.as_mut().is_some_and(|share| share.look(cx, waits, to)) && waits > 0 {
            // The kernel says that a queue can be written to when a third of it is free; a leg that
            // waits for a lost segment would run dry by then. What is refused here is tried again.
            let _ = self.write_once(to, desk, false);
        }
        self.reading = false;
        let outcome = self.turn(cx, from, to, last, desk);
        let moved = self.bytes() - before;
        if moved > 0 {
            book.add(moved);
            let total = match self.from {
                Side::Client => &desk.ledger.bytes_up,
                Side::Server => &desk.ledger.bytes_down,
            };
            total.add(moved);
        }
        book.set_wait(self.state.waits().then_some(Wait::Memory));
        let waits = self.waiting.bytes();
        self.count.follow(cx, waits, &self.state, &desk.budget, || {
            sockopt::unread(from).unwrap_or(0) + sockopt::unacknowledged(to).unwrap_or(0)
        });
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
        desk: &Desk,
    ) -> Poll<Result<(), Broken>> {
        let mut turn = Turn::new(TURN_BYTES);
        let on_their_way = || sockopt::unacknowledged(to).is_ok_and(|bytes| bytes > 0);
        loop {
            let must_wait = || desk.budget.must_wait(on_their_way);
            match self.state.step(self.waiting.bytes() > 0, turn, must_wait) {
                Step::Write => {
                    let written = self.poll_write(cx, to, desk);
                    if written.is_pending() {
                        self.hurry(from);
                    }
                    ready!(written)?;
                }
                Step::Read => {
                    if !desk.budget.has_plenty() {
                        // With nothing on its way a little may always move.
                        self.bulk = false;
                    }
                    turn.spend(ready!(self.poll_read(cx, from, to, desk))? as u64);
                }
                Step::End => {
                    if !last {
                        shutdown(to.as_raw_fd(), Shutdown::Write)
                            .map_err(|errno| self.broken_far(errno.into()))?;
                    }
                    self.state.finish();
                }
                Step::Cut => self.state.finish(),
                Step::Yield => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Step::Wait { begins } => {
                    desk.ledger.memory_waits.add(begins.into());
                    return Poll::Pending;
                }
                Step::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// From now on the sender will find this end's window closed from time to time. A kernel that has
    /// no room to offer delays its acknowledgements longer than a near sender waits before it sends
    /// its last segment once more, for nothing.
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
        desk: &Desk,
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
            let result =
                if self.bulk { self.splice_in(from, to, desk) } else { self.copy(from, to, desk) };
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

    fn copy(&mut self, from: &TcpStream, to: &TcpStream, desk: &Desk) -> Result<usize, Fault> {
        let mut scratch = desk.scratch.borrow_mut();
        let room = self.stage.min(scratch.len());
        let scratch = &mut scratch[..room];
        let mut read = None;
        let outcome = from.try_io(Interest::READABLE, || {
            let count = recv(from.as_raw_fd(), scratch, MsgFlags::empty())?;
            read = Some(count);
            let is_empty = || sockopt::unread(from).is_ok_and(|bytes| bytes == 0);
            if count > 0 && count < scratch.len() && is_empty() {
                // Whatever comes from now on raises a new event. More may have stood behind urgent data,
                // before which reading stops, and that raises none.
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        let Some(count) = read else {
            return Err(Fault::Near(outcome.err().unwrap_or_else(|| io::ErrorKind::Other.into())));
        };
        if count == 0 {
            self.state.end();
            return Ok(0);
        }
        self.bulk = count == scratch.len();
        let bytes = &scratch[..count];
        if let Some(share) = &mut self.share {
            share.before_write(count, to);
        }
        let written = loop {
            match send(to.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
                Ok(written) => break written,
                Err(Errno::EAGAIN) => break 0,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Fault::Far(errno.into())),
            }
        };
        self.state.count(written as u64);
        if written < count {
            self.waiting = Waiting::Copied { bytes: bytes[written..].into(), written: 0 };
        }
        Ok(count)
    }

    fn splice_in(&mut self, from: &TcpStream, to: &TcpStream, desk: &Desk) -> Result<usize, Fault> {
        let Some(pipe) = desk.pipes.take() else {
            self.bulk = false;
            return Ok(0);
        };
        let outcome = from.try_io(Interest::READABLE, || {
            let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
            let room = self.stage.min(pipe.capacity);
            match splice(from.as_fd(), None, &pipe.sink, None, room, flags) {
                Err(Errno::EAGAIN) if sockopt::unread(from).is_ok_and(|bytes| bytes > 0) => Ok(0),
                outcome => Ok(outcome?),
            }
        });
        match outcome {
            // The end of the stream, or urgent data, before which splicing stops in the same way: reading
            // tells them apart, and gets past it.
            Ok(0) => {
                desk.pipes.put(pipe);
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
                desk.pipes.put(pipe);
                Err(Fault::Near(error))
            }
        }
    }

    /// Writes what waits. Ready when nothing does.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        to: &TcpStream,
        desk: &Desk,
    ) -> Poll<Result<(), Broken>> {
        loop {
            if matches!(self.waiting, Waiting::Nothing) {
                return Poll::Ready(Ok(()));
            }
            match self.write_once(to, desk, true) {
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

    /// Writes once of what waits; `announced`: only where the kernel has said that there is room.
    fn write_once(&mut self, to: &TcpStream, desk: &Desk, announced: bool) -> io::Result<()> {
        let count = match &mut self.waiting {
            Waiting::Nothing => 0,
            Waiting::Copied { bytes, written } => {
                let write =
                    || Ok(send(to.as_raw_fd(), &bytes[*written..], MsgFlags::MSG_NOSIGNAL)?);
                let count =
                    if announced { to.try_io(Interest::WRITABLE, write)? } else { write()? };
                *written += count;
                if *written == bytes.len() {
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
                    desk.pipes.put(pipe);
                }
                count
            }
        };
        self.state.count(count as u64);
        Ok(())
    }

    /// Gives up what waits, if anything does.
    pub fn leave(&mut self, desk: &Desk) {
        if let Waiting::Piped { pipe, .. } = std::mem::take(&mut self.waiting) {
            desk.pipes.discard(pipe);
        }
    }

    fn broken_far(&self, error: io::Error) -> Broken {
        Broken { side: self.from.other(), error }
    }
}

/// Which of the two sockets of a direction failed.
enum Fault {
    Near(io::Error),
    Far(io::Error),
}
