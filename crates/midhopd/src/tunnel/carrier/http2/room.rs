//! What h2 holds of a connection's flows until it is written.
//!
//! h2 drops what it was given once that is on its way. So each piece carries its part of a bounded room, and
//! the last one of a stream says that it has left.

use bytes::{Buf, Bytes};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Some payload on its way through h2.
#[derive(Debug)]
pub struct Piece {
    bytes: Bytes,
    _held: Held,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

/// What h2 may hold of all flows of one connection.
#[derive(Debug)]
pub struct Room {
    /// Unit: bytes.
    most: usize,
    state: Mutex<Holding>,
}

#[derive(Debug, Default)]
struct Holding {
    /// Unit: bytes.
    held: usize,
    /// Those who wait for room.
    waiting: Vec<Waker>,
}

impl Room {
    /// Room for so much.
    pub fn new(most: midhop_units::Bytes) -> Arc<Self> {
        let most = usize::try_from(most.get()).unwrap_or(usize::MAX);
        Arc::new(Self { most, state: Mutex::default() })
    }

    /// Unit: bytes. What is held.
    pub fn held(&self) -> usize {
        lock(&self.state).held
    }

    /// How much more there is room for; none: it is full, and the task is woken when it is not.
    pub(super) fn free(&self, cx: &Context<'_>) -> Option<usize> {
        let mut state = lock(&self.state);
        let free = self.most.saturating_sub(state.held);
        if free == 0 {
            if !state.waiting.iter().any(|waiting| waiting.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            return None;
        }
        Some(free)
    }

    pub(super) fn hold(self: &Arc<Self>, bytes: Bytes, stream: Option<Arc<Last>>) -> Piece {
        lock(&self.state).held += bytes.len();
        let held = Held { room: self.clone(), bytes: bytes.len(), stream };
        Piece { bytes, _held: held }
    }
}

/// Some room that is taken; dropping it gives it back.
#[derive(Debug)]
struct Held {
    room: Arc<Room>,
    /// Unit: bytes.
    bytes: usize,
    /// The stream whose last piece it is.
    stream: Option<Arc<Last>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = lock(&self.room.state);
        let was_full = state.held >= self.room.most;
        state.held -= self.bytes;
        let woken = if was_full && state.held < self.room.most {
            std::mem::take(&mut state.waiting)
        } else {
            Vec::new()
        };
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        if let Some(last) = &self.stream {
            last.leave();
        }
    }
}

/// The end of a stream on its way.
#[derive(Debug, Default)]
pub(super) struct Last(Mutex<(bool, Option<Waker>)>);

impl Last {
    fn leave(&self) {
        let mut state = lock(&self.0);
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn poll_left(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Its holder never panics in between: what it guards is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
