//! How the flows of one tunnel share what they may have written and the peer has not acknowledged.
//!
//! QUIC has one window for that, the pool, and divides it among streams by who comes first; of those that
//! wait for room it wakes the last one first. So flows write in turns here: deficit round robin (Shreedhar
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
use midhop_tunnel::http3::Code;
use quinn::{Connection, SendStream, WriteError};
use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
/// The priority of what is not urgent; the control stream's and everybody's at first is 0.
const PRIORITY_BULK: i32 = -1;

/// The turns of one tunnel's flows.
///
/// Its lock is never contended: a tunnel's flows live on one thread. A flow's stream may be opened for
/// another thread, though.
#[derive(Debug)]
pub struct Turns {
    connection: Connection,
    /// Unit: bytes. QUIC's send window.
    pool: u64,
    queue: Mutex<Queue>,
}

/// Who waits, by when it came. The first one's turn it is.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<u64, Waker>,
    last: u64,
}

impl Turns {
    /// The turns of a connection whose send window is `pool`.
    pub fn new(connection: Connection, pool: midhop_units::Bytes) -> Arc<Self> {
        Arc::new(Self { connection, pool: pool.get(), queue: Mutex::default() })
    }

    /// Flows that have a part in it.
    pub fn flows(self: &Arc<Self>) -> u64 {
        (Arc::strong_count(self) as u64).saturating_sub(1)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes beside a full pool: as much again. Nobody else writes meanwhile.
    fn beside<R>(&self, write: impl FnOnce() -> R) -> R {
        self.connection.set_send_window(self.pool.saturating_mul(2));
        let written = write();
        self.connection.set_send_window(self.pool);
        written
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
    pub fn begin(&mut self, stream: &SendStream) {
        if self.idle.elapsed() >= REST {
            // A stream that is closed already sends nothing.
            let _ = self.urgent.is_none().then(|| stream.set_priority(0));
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
        stream: &mut SendStream,
        chunks: &mut [Bytes],
    ) -> Poll<Result<(), Fault>> {
        if self.urgent.is_none() {
            ready!(self.poll_turn(cx));
        }
        let mut written = write(cx, stream, chunks);
        if written.is_pending() && self.urgent.is_some() {
            written = self.turns.beside(|| write(cx, stream, chunks));
        } else if written.is_pending() {
            // Beside a full pool there is room for nothing, unless the stream has no credit.
            let room = self.turns.beside(|| write(cx, stream, &mut []));
            if room.is_pending() {
                self.leave();
            }
        }
        self.spend(ready!(written)?, stream);
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

    fn spend(&mut self, bytes: usize, stream: &SendStream) {
        if let Some(sent) = &mut self.urgent {
            *sent += bytes as u64;
            if *sent >= URGENT_BYTES {
                self.urgent = None;
                // A stream that is closed already sends nothing.
                let _ = stream.set_priority(PRIORITY_BULK);
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

/// Writes as much as QUIC takes. Unit: bytes.
fn write(
    cx: &mut Context<'_>,
    stream: &mut SendStream,
    chunks: &mut [Bytes],
) -> Poll<Result<usize, Fault>> {
    let written = ready!(pin!(stream.write_chunks(chunks)).poll(cx));
    Poll::Ready(written.map(|written| written.bytes).map_err(|error| match error {
        WriteError::Stopped(code) => Fault::Reset(Code(code.into_inner())),
        WriteError::ConnectionLost(error) => Fault::Lost(error),
        WriteError::ClosedStream | WriteError::ZeroRttRejected => {
            Fault::Wrong(Code::INTERNAL_ERROR)
        }
    }))
}
