//! Counts the bytes of a connection's flows that h2 holds until they are written.
//!
//! h2 drops its input once it is on its way. So each piece holds its part of a bounded room. That also shows when the
//! last piece of a finished stream has left.

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

/// The bytes that h2 may hold for all flows of one connection.
#[derive(Debug)]
pub struct Http2Room {
    /// Unit: bytes.
    most: usize,
    state: Mutex<Holding>,
}

#[derive(Debug, Default)]
struct Holding {
    /// Unit: bytes.
    held: usize,
    /// The tasks that wait for room.
    waiting: Vec<Waker>,
}

impl Http2Room {
    /// Creates a room of this size.
    pub fn new(most: midhop_units::Bytes) -> Arc<Self> {
        let most = usize::try_from(most.get()).unwrap_or(usize::MAX);
        Arc::new(Self { most, state: Mutex::default() })
    }

    /// Unit: bytes. What is held.
    pub fn held(&self) -> usize {
        lock(&self.state).held
    }

    /// How much more there is room for. None: it is full, and the task is woken when it is not.
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

    pub(super) fn hold(self: &Arc<Self>, bytes: Bytes, stream: &Arc<UnsentData>) -> Piece {
        lock(&self.state).held += bytes.len();
        lock(&stream.0).pieces += 1;
        let held = Held { room: self.clone(), bytes: bytes.len(), stream: stream.clone() };
        Piece { bytes, _held: held }
    }
}

/// Some room that is taken. Dropping it frees the room.
#[derive(Debug)]
struct Held {
    room: Arc<Http2Room>,
    /// Unit: bytes.
    bytes: usize,
    /// The stream whose piece it is.
    stream: Arc<UnsentData>,
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
        self.stream.leave();
    }
}

/// The unsent pieces of a stream.
#[derive(Debug, Default)]
pub(super) struct UnsentData(Mutex<Pieces>);

#[derive(Debug, Default)]
struct Pieces {
    /// Pieces that have not left.
    pieces: usize,
    /// Whether no more follow.
    complete: bool,
    /// The task that waits for the last one.
    waiting: Option<Waker>,
}

impl UnsentData {
    /// The stream is complete: the waiting task is woken once all of it has left.
    pub(super) fn complete(&self) {
        let mut state = lock(&self.0);
        state.complete = true;
        let waker = if state.pieces == 0 { state.waiting.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn leave(&self) {
        let mut state = lock(&self.0);
        state.pieces -= 1;
        let waker = if state.complete && state.pieces == 0 { state.waiting.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn poll_left(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.complete && state.pieces == 0 {
            return Poll::Ready(());
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Its holder never panics with the lock held, so the state is consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
