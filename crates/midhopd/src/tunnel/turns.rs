//! How the flows of one tunnel share what they may have written and the peer has not acknowledged.
//!
//! A connection has one window for that, the pool. QUIC divides it among streams by who comes first; of those
//! that wait for room it wakes the last one first. So flows write in turns here ([`Line`]), each as much as its
//! class weighs, and all together no faster than their [`Supply`] has it. What enters the pool in those parts
//! leaves it in those parts, whatever is lost on the way.
//! Two kinds of flows stand outside:
//!
//! - One that may go ahead ([`Allowance`]) is urgent: it waits for no turn, finds room beside a full pool,
//!   and its bytes leave before those of the others.
//! - One whose peer has given it no credit lets the next one write, until it has.
//!
//! Invariant: whoever is first in the queue is going to be polled: it has been woken, or a timer wakes it, or
//! QUIC once there is room. Whoever does not write any more leaves the queue, at the latest when it is dropped.

use super::stream::StreamError;
use super::supply::Supply;
use bytes::Bytes;
use midhop_pep::ahead::{Ahead, Allowance};
use midhop_pep::config::ClassPlan;
use midhop_pep::line::{Account, Line, WEIGHT};
use midhop_tunnel::control::Pace;
use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::time::{self, Instant, Sleep};

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
    ) -> Poll<Result<usize, StreamError>>;

    /// The same beside a full pool: only for want of credit is it pending.
    fn poll_write_beside(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, StreamError>>;

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

/// Who waits, and what may go ahead of those.
#[derive(Debug, Default)]
struct Queue {
    line: Line<Waker>,
    allowance: Allowance,
    /// None: whatever there is room for is written.
    supply: Option<(Supply, Instant)>,
}

impl Turns {
    /// Those of a tunnel that lets go at `pace`.
    pub fn paced(pace: Pace) -> Self {
        let supply = Supply::new(pace, midhop_units::Instant::START);
        let queue = Queue { supply: Some((supply, Instant::now())), ..Queue::default() };
        Self { queue: Mutex::new(queue), ..Self::default() }
    }

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

impl Queue {
    /// How long to wait until more is taken; none: it is taken now.
    fn wait(&mut self) -> Option<Duration> {
        let (supply, epoch) = self.supply.as_mut()?;
        let now = midhop_units::Instant::START + epoch.elapsed().into();
        supply.wait(now).map(Into::into)
    }
}

/// One flow's part in the turns.
#[derive(Debug)]
pub struct TurnShare {
    turns: Arc<Turns>,
    account: Account,
    /// When it goes ahead.
    ahead: Ahead,
    /// Unit: bytes. Said ahead since it last rested; none: it is not urgent.
    urgent: Option<u64>,
    /// Since when it has had nothing to send.
    idle: Instant,
    /// Until more is taken, of this flow and those behind it.
    pause: Option<Pin<Box<Sleep>>>,
}

impl TurnShare {
    /// A flow that begins, which is urgent.
    pub fn new(turns: &Arc<Turns>) -> Self {
        Self {
            turns: turns.clone(),
            account: Account::new(WEIGHT),
            ahead: Ahead::default(),
            urgent: Some(0),
            idle: Instant::now(),
            pause: None,
        }
    }

    /// Makes it a flow of some class.
    pub fn join(&mut self, class: &ClassPlan) {
        self.account.weigh(class.weight);
        self.ahead = class.ahead;
    }

    /// It has something to send again.
    pub fn begin(&mut self, pool: &mut impl Pool) {
        let again = || self.urgent.is_none() && self.turns.queue().allowance.lets_again(self.ahead);
        let may = self.idle.elapsed() >= REST || again();
        if may && self.urgent.replace(0).is_none() {
            pool.set_urgent(true);
            self.leave();
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
    ) -> Poll<Result<(), StreamError>> {
        if let Some(said) = self.urgent
            && !self.turns.queue().allowance.lets(self.ahead, said)
        {
            self.urgent = None;
            pool.set_urgent(false);
        }
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
        self.spend(ready!(written)?);
        Poll::Ready(Ok(()))
    }

    /// Waits until it is this flow's turn, and more is taken.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut queue = self.turns.queue();
            if !queue.line.wait(&mut self.account, cx.waker()) {
                return Poll::Pending;
            }
            let Some(wait) = queue.wait() else {
                self.pause = None;
                return Poll::Ready(());
            };
            drop(queue);
            let pause = self.pause.get_or_insert_with(|| Box::pin(time::sleep(wait)));
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
    }

    /// Leaves the queue: it does not write any more for now.
    pub fn leave(&mut self) {
        let next = self.turns.queue().line.leave(&mut self.account);
        if let Some(next) = next {
            next.wake();
        }
    }

    fn spend(&mut self, bytes: usize) {
        let mut queue = self.turns.queue();
        if let Some(said) = &mut self.urgent {
            *said += bytes as u64;
            return queue.allowance.spend(self.ahead, bytes as u64);
        }
        queue.allowance.earn(bytes as u64);
        if let Some((supply, _)) = &mut queue.supply {
            supply.spend(bytes);
        }
        let next = queue.line.spend(&mut self.account, bytes);
        drop(queue);
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Drop for TurnShare {
    fn drop(&mut self) {
        self.leave();
    }
}
