//! How the flows of one tunnel share what they may have written and the peer has not acknowledged.
//!
//! A connection has one window for that, the pool. QUIC divides it among streams by who comes first; of those
//! that wait for room it wakes the last one first. So flows write in turns here: deficit round robin (Shreedhar
//! and Varghese, 1995), where one that overdraws pays next time. What enters the pool in equal parts
//! leaves it in equal parts, whatever is lost on the way. Two kinds of flows stand outside:
//!
//! - One that has sent little since it last rested is urgent: it waits for no turn, finds room beside a
//!   full pool, and its bytes leave before those of the others.
//! - One whose peer has given it no credit lets the next one write, until it has.
//!
//! Invariant: whoever is first in the queue is going to be polled: it has been woken, or QUIC wakes it once
//! there is room. Whoever does not write any more leaves the queue, at the latest when it is dropped.

use super::stream::Fault;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::time::Instant;

/// What a flow of weight one may write in its turn: as much as is read from a socket at once. Unit: bytes.
const QUANTUM: i64 = 64 << 10;
/// What an urgent flow may send before it has to rest. Unit: bytes.
const URGENT_BYTES: u64 = 64 << 10;
/// A flow that had nothing to send for so long has rested.
const REST: Duration = Duration::from_millis(250);

/// What a flow writes into, and others with it.
pub trait Pool {
    /// Writes as much as there is room for. Pending while there is none, or the peer has given no credit.
    /// Unit: bytes.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, Fault>>;

    /// The same beside a full pool: only for want of credit is it pending.
    fn poll_write_beside(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, Fault>>;

    /// Whether what is written next leaves before that of others.
    fn set_urgent(&mut self, urgent: bool);
}

/// The turns of one tunnel's flows.
///
/// Its lock is never contended: a tunnel's flows live on one thread. A flow's stream may be opened for
/// another thread, though.
#[derive(Debug, Default)]
pub struct Turns {
    /// Whether the last one that wrote found no room.
    full: AtomicBool,
    queue: Mutex<Queue>,
}

/// Who waits, by when it came. The first one's turn it is.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<u64, Waker>,
    last: u64,
}

impl Turns {
    /// Flows that have a part in it.
    pub fn flows(self: &Arc<Self>) -> u64 {
        (Arc::strong_count(self) as u64).saturating_sub(1)
    }

    /// Whether the pool has no room, as far as anybody has found.
    pub fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One flow's part in the turns.
#[derive(Debug)]
pub struct Share {
    turns: Arc<Turns>,
    /// Its place in the queue.
    ticket: Option<u64>,
    /// How much more than a flow of weight one it may write.
    weight: u32,
    /// Unit: bytes. What it may still write in its turn; below zero what it owes.
    credit: i64,
    /// Unit: bytes. Sent since it last rested; none: too much to be urgent.
    urgent: Option<u64>,
    /// Since when it has had nothing to send.
    idle: Instant,
}

impl Share {
    /// A flow that begins, which is urgent.
    pub fn new(turns: &Arc<Turns>, weight: u32) -> Self {
        Self {
            turns: turns.clone(),
            ticket: None,
            weight: weight.max(1),
            credit: 0,
            urgent: Some(0),
            idle: Instant::now(),
        }
    }

    /// It has something to send again.
    pub fn begin(&mut self, pool: &mut impl Pool) {
        if self.idle.elapsed() >= REST {
            if self.urgent.is_none() {
                pool.set_urgent(true);
            }
            self.urgent = Some(0);
        }
    }

    /// It has sent what it had, and may have more at once.
    pub fn finish(&mut self) {
        self.idle = Instant::now();
    }

    /// Writes what may be written now.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        pool: &mut impl Pool,
        chunks: &mut [Bytes],
    ) -> Poll<Result<(), Fault>> {
        if self.urgent.is_none() {
            ready!(self.poll_turn(cx));
        }
        let mut written = pool.poll_write(cx, chunks);
        if written.is_ready() {
            self.turns.full.store(false, Relaxed);
        } else if self.urgent.is_some() {
            written = pool.poll_write_beside(cx, chunks);
        } else {
            // Beside a full pool there is room for nothing, unless the stream has no credit.
            let room = pool.poll_write_beside(cx, &mut []);
            if room.is_pending() {
                self.leave();
            } else {
                self.turns.full.store(true, Relaxed);
            }
        }
        self.spend(ready!(written)?, pool);
        Poll::Ready(Ok(()))
    }

    /// Leaves the queue: it does not write any more for now.
    pub fn leave(&mut self) {
        self.credit = self.credit.min(0);
        let Some(ticket) = self.ticket.take() else { return };
        let mut queue = self.turns.queue();
        let was_first = queue.waiting.keys().next() == Some(&ticket);
        queue.waiting.remove(&ticket);
        let next = queue.waiting.values().next().filter(|_| was_first).cloned();
        drop(queue);
        if let Some(next) = next {
            next.wake();
        }
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.turns.queue();
        let ticket = *self.ticket.get_or_insert_with(|| {
            queue.last += 1;
            queue.last
        });
        if queue.waiting.keys().next().is_some_and(|first| *first < ticket) {
            let waker = queue.waiting.entry(ticket).or_insert_with(|| cx.waker().clone());
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        queue.waiting.entry(ticket).or_insert_with(|| cx.waker().clone());
        while self.credit <= 0 {
            self.credit += QUANTUM * i64::from(self.weight);
        }
        Poll::Ready(())
    }

    fn spend(&mut self, bytes: usize, pool: &mut impl Pool) {
        if let Some(sent) = &mut self.urgent {
            *sent += bytes as u64;
            if *sent >= URGENT_BYTES {
                self.urgent = None;
                pool.set_urgent(false);
            }
            return;
        }
        self.credit = self.credit.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        if self.credit <= 0 {
            self.leave();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.leave();
    }
}
