//! What one end sent before it broke, on its way to the other end, which is reset only after it.
//!
//! A sender whose bytes were acknowledged to it counts on their being delivered, whatever becomes of its
//! connection: a server that answers and then resets, for the request was too long or its patience is at an
//! end, means its answer to be read. With no proxy between, the far kernel has those bytes before it has
//! the reset. Here they may still wait in five places: Linux keeps a connection's receive queue readable
//! after a reset, then come the stage between the sockets and the far socket's queue, of which a reset would
//! discard what the far end has not acknowledged.
//!
//! Invariant: nobody waits for an end that takes nothing: what makes no progress for the limit is given up.

use super::direction::Direction;
use super::{Desk, broken};
use crate::ledger::DirectionBook;
use midhop_linux::sockopt;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, recv};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// The pause before the first look at what is left; it doubles up to the last.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_secs(1);
/// Bytes that are dropped at a time.
const DROPPED_BYTES: usize = 64 << 10;
/// So many times in one turn.
const DROPS: usize = 16;

/// Hands on what the sender of a direction sent before it broke, and waits until the far end has
/// acknowledged it; not when that breaks as well, or takes nothing for so long as `limit`.
pub async fn deliver(
    direction: &mut Direction<'_>,
    from: &TcpStream,
    to: &TcpStream,
    book: &DirectionBook,
    desk: &Desk,
    limit: Duration,
) {
    direction.cut();
    let mut gone = pin!(broken(to));
    let mut looks = DrainLooks::new(limit);
    let mut unwanted = Unwanted::default();
    poll_fn(|cx| {
        let moved = direction.poll_move(cx, from, to, true, book, desk);
        if matches!(moved, Poll::Ready(Err(_))) || unwanted.poll_drop(cx, to, desk).is_err() {
            return Poll::Ready(());
        }
        if gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        looks.poll(cx, || left(to, moved.is_ready(), direction.bytes()))
    })
    .await;
}

/// What is left of so many bytes that were written to a socket, to which no more come if `all`.
pub fn left(to: &TcpStream, all: bool, written: u64) -> Left {
    // A socket that cannot be asked delivers nothing.
    let unacknowledged = sockopt::unacknowledged(to).unwrap_or(0) as u64;
    if all && unacknowledged == 0 { Left::Nothing } else { Left::Some { written, unacknowledged } }
}

/// What has not been delivered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// All has.
    Nothing,
    /// Not all has.
    Some {
        /// Unit: bytes.
        written: u64,
        /// Unit: bytes. Of these.
        unacknowledged: u64,
    },
}

/// Looks at what is left: often at first, and seldom where it takes long.
#[derive(Debug)]
pub struct DrainLooks {
    limit: Duration,
    pause: Duration,
    sleep: Pin<Box<Sleep>>,
    last: Option<Left>,
    /// When something of it was last seen to have gone.
    since: Instant,
}

impl DrainLooks {
    /// Gives up what makes no progress for `limit`.
    pub fn new(limit: Duration) -> Self {
        let sleep = Box::pin(sleep(FIRST_LOOK));
        Self { limit, pause: FIRST_LOOK, sleep, last: None, since: Instant::now() }
    }

    /// Ready when nothing is left, or what is will not go.
    pub fn poll(&mut self, cx: &mut Context<'_>, left: impl Fn() -> Left) -> Poll<()> {
        loop {
            let left = left();
            if left == Left::Nothing {
                return Poll::Ready(());
            }
            if self.last != Some(left) {
                (self.last, self.since) = (Some(left), Instant::now());
            } else if self.since.elapsed() >= self.limit {
                return Poll::Ready(());
            }
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.pause = (self.pause * 2).min(LAST_LOOK);
            self.sleep.as_mut().reset(Instant::now() + self.pause);
        }
    }
}

/// What the surviving end goes on to send, which has nowhere to go.
///
/// It is read and dropped. A window that closes would stop it as well, but an end that writes all it has to
/// send before it reads would then never read what it is to be given, and would be reset instead.
#[derive(Debug, Default)]
pub struct Unwanted {
    ended: bool,
}

impl Unwanted {
    /// Drops what has come.
    ///
    /// # Errors
    /// When the connection is found broken.
    pub fn poll_drop(
        &mut self,
        cx: &mut Context<'_>,
        stream: &TcpStream,
        desk: &Desk,
    ) -> io::Result<()> {
        for _ in 0..DROPS {
            if self.ended {
                return Ok(());
            }
            match stream.poll_read_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(()),
            }
            let mut scratch = desk.scratch.borrow_mut();
            let most = scratch.len().min(DROPPED_BYTES);
            let read = stream.try_io(Interest::READABLE, || {
                // TCP copies nothing with this flag.
                let flags = MsgFlags::from_bits_retain(libc::MSG_TRUNC);
                Ok(recv(stream.as_raw_fd(), &mut scratch[..most], flags)?)
            });
            match read {
                Ok(count) => self.ended = count == 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.raw_os_error() == Some(Errno::EINTR as i32) => {}
                Err(error) => return Err(error),
            }
        }
        // Others of this worker go first.
        cx.waker().wake_by_ref();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn what_goes_slowly_is_waited_for_and_what_stands_still_is_not() {
        let mut cx = Context::from_waker(Waker::noop());
        let some = |unacknowledged| Left::Some { written: 1000, unacknowledged };
        let mut looks = DrainLooks::new(LIMIT);
        for unacknowledged in (1..100).rev() {
            assert!(looks.poll(&mut cx, || some(unacknowledged)).is_pending());
            tokio::time::advance(LIMIT - LAST_LOOK).await;
        }
        assert!(looks.poll(&mut cx, || some(1)).is_pending());
        tokio::time::advance(LIMIT).await;
        assert!(looks.poll(&mut cx, || some(1)).is_ready(), "nothing went for the limit");
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_is_left_nobody_waits() {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(DrainLooks::new(LIMIT).poll(&mut cx, || Left::Nothing).is_ready());
    }
}
