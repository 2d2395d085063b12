//! Delivers what one end sent before it broke. The other end is reset only after that.
//!
//! A sender whose bytes were acknowledged expects them to be delivered, whatever happens to its
//! connection. For example, a server responds and then resets, because the request was too long or
//! its timeout has expired: the client is to read the response. Without a proxy, the far kernel has
//! those bytes before it gets the reset. Here they may still wait: in the receive queue of the
//! broken connection, which Linux keeps readable after a reset, in the stage between the sockets,
//! or in the far socket's queue. A reset would discard what the far end has not acknowledged.
//!
//! Invariant: an end that takes nothing is not waited for. Bytes that make no progress for the
//! limit are given up.

use super::direction::Direction;
use super::{RelayContext, broken, yield_turn};
use crate::close::{FIRST_LOOK, LAST_LOOK};
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

/// Bytes that are dropped at a time.
const DROPPED_BYTES: usize = 64 << 10;
/// Number of times in one turn.
const DROPS: usize = 16;

/// Hands on what the sender of a direction sent before it broke, and waits until the far end has
/// acknowledged it. Stops if the far end breaks as well, or takes nothing for `limit`.
pub async fn deliver(
    direction: &mut Direction<'_>,
    from: &TcpStream,
    to: &TcpStream,
    book: &DirectionBook,
    context: &RelayContext,
    limit: Duration,
) {
    direction.cut();
    let mut gone = pin!(broken(to));
    let mut looks = DrainLooks::new(limit);
    let mut unwanted = Unwanted::default();
    poll_fn(|cx| {
        let moved = direction.poll_move(cx, from, to, true, book, context);
        if matches!(moved, Poll::Ready(Err(_))) || unwanted.poll_drop(cx, to, context).is_err() {
            return Poll::Ready(());
        }
        if gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        looks.poll(cx, || left(to, moved.is_ready(), direction.bytes()))
    })
    .await;
}

/// What is left of this many bytes that were written to a socket; `all`: no more are to follow.
pub fn left(to: &TcpStream, all: bool, written: u64) -> Left {
    // If the socket cannot be queried, nothing more can be delivered.
    let unacknowledged = sockopt::unacknowledged(to).unwrap_or(0) as u64;
    if all && unacknowledged == 0 { Left::Nothing } else { Left::Some { written, unacknowledged } }
}

/// What has not been delivered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Everything was delivered.
    Nothing,
    /// Something is left.
    Some {
        /// Unit: bytes. Written so far.
        written: u64,
        /// Unit: bytes. Written and not acknowledged.
        unacknowledged: u64,
    },
}

/// Checks what is left: often at first, and seldom if it takes long.
#[derive(Debug)]
pub struct DrainLooks {
    limit: Duration,
    pause: Duration,
    sleep: Pin<Box<Sleep>>,
    last: Option<Left>,
    /// When there was progress last.
    since: Instant,
}

impl DrainLooks {
    /// Creates it to give up bytes that make no progress for `limit`.
    pub fn new(limit: Duration) -> Self {
        let sleep = Box::pin(sleep(FIRST_LOOK));
        Self { limit, pause: FIRST_LOOK, sleep, last: None, since: Instant::now() }
    }

    /// Ready when nothing is left, or there was no progress for the limit.
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

/// What the surviving end goes on to send, which has no receiver any more.
///
/// It is read and dropped. If the window closed instead, an end that writes all it has to send
/// before it reads would never read what is to be delivered to it, and would be reset.
#[derive(Debug, Default)]
pub struct Unwanted {
    ended: bool,
}

impl Unwanted {
    /// Drops what has arrived.
    ///
    /// # Errors
    /// When the connection is found broken.
    pub fn poll_drop(
        &mut self,
        cx: &mut Context<'_>,
        stream: &TcpStream,
        context: &RelayContext,
    ) -> io::Result<()> {
        for _ in 0..DROPS {
            if self.ended {
                return Ok(());
            }
            match stream.poll_read_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(()),
            }
            let mut scratch = context.scratch.borrow_mut();
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
        let _pending: Poll<()> = yield_turn(cx);
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
