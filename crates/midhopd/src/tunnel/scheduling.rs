//! How the flows of one tunnel take turns in writing: tasks use one shared [`Scheduler`].
//!
//! Invariant: the first flow in the queue will be polled: it has been woken, or a timer wakes it,
//! or QUIC does once there is room. A flow that stops writing leaves the queue, at the latest when
//! it is dropped.

use super::stream::StreamError;
use bytes::Bytes;
use midhop_pep::config::ClassPlan;
use midhop_pep::scheduler::{Attempt, FlowSchedule, Scheduler, SendPool};
use midhop_tunnel::control::Pace;
use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};
use tokio::time::{self, Instant, Sleep};

/// The shared memory that flows write into.
pub trait Pool {
    /// Writes as much as there is room for. Pending while there is no room, or the peer has given no credit. Unit:
    /// bytes.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, StreamError>>;

    /// The same beside a full pool: pending only without credit.
    fn poll_write_beside(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, StreamError>>;

    /// Whether the next bytes leave before those of others.
    fn set_urgent(&mut self, urgent: bool);
}

/// A pool while a task writes into it.
struct Polled<'a, 'b, 'c, P> {
    pool: &'a mut P,
    cx: &'a mut Context<'b>,
    chunks: &'c mut [Bytes],
}

fn some<T>(poll: Poll<Result<T, StreamError>>) -> Result<Option<T>, StreamError> {
    match poll {
        Poll::Ready(done) => done.map(Some),
        Poll::Pending => Ok(None),
    }
}

impl<P: Pool> SendPool for Polled<'_, '_, '_, P> {
    type Error = StreamError;

    fn write(&mut self) -> Result<Option<usize>, StreamError> {
        some(self.pool.poll_write(self.cx, self.chunks))
    }

    fn write_beside(&mut self) -> Result<Option<usize>, StreamError> {
        some(self.pool.poll_write_beside(self.cx, self.chunks))
    }

    fn has_credit(&mut self) -> bool {
        // Without room, an empty write beside the pool is ready unless the stream lacks credit.
        self.pool.poll_write_beside(self.cx, &mut []).is_ready()
    }

    fn set_urgent(&mut self, urgent: bool) {
        self.pool.set_urgent(urgent);
    }
}

/// The scheduler of one tunnel's flows.
///
/// Its lock is never contended: a tunnel's flows live on one thread. A flow's stream may be opened for
/// another thread, though.
#[derive(Debug)]
pub struct SharedScheduler {
    scheduler: Mutex<Scheduler<Waker>>,
    /// The pace of the tunnel's datagrams. None: they are not paced.
    pace: Option<Pace>,
    epoch: Instant,
}

impl Default for SharedScheduler {
    fn default() -> Self {
        Self { scheduler: Mutex::default(), pace: None, epoch: Instant::now() }
    }
}

impl SharedScheduler {
    /// Creates it for a tunnel whose datagrams leave at `pace`.
    pub fn paced(pace: Pace) -> Self {
        let scheduler = Scheduler::shaped(pace.rate(), midhop_units::Instant::START);
        Self { scheduler: Mutex::new(scheduler), pace: Some(pace), epoch: Instant::now() }
    }

    /// Number of flows that take part.
    pub fn flows(self: &Arc<Self>) -> u64 {
        (Arc::strong_count(self) as u64).saturating_sub(1)
    }

    /// Whether the pool has no room, as far as the flows have found.
    pub fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    fn now(&self) -> midhop_units::Instant {
        midhop_units::Instant::START + self.epoch.elapsed().into()
    }

    /// Acts on the scheduler, and wakes the flows whose turn it is then.
    fn with<T>(&self, act: impl FnOnce(&mut Scheduler<Waker>) -> T) -> T {
        let mut scheduler = self.lock();
        let done = act(&mut scheduler);
        while let Some(next) = scheduler.poll_woken() {
            next.wake();
        }
        done
    }

    fn lock(&self) -> MutexGuard<'_, Scheduler<Waker>> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One flow's part in the scheduler.
#[derive(Debug)]
pub struct ScheduledFlow {
    shared: Arc<SharedScheduler>,
    schedule: FlowSchedule,
    /// The timer until more is taken, from this flow and those behind it.
    pause: Option<Pin<Box<Sleep>>>,
}

impl ScheduledFlow {
    /// Creates it for a new flow, which is urgent.
    pub fn new(shared: &Arc<SharedScheduler>) -> Self {
        Self { schedule: FlowSchedule::new(shared.now()), shared: shared.clone(), pause: None }
    }

    /// Assigns it to a flow of the given class.
    pub fn join(&mut self, class: &ClassPlan) {
        self.schedule.join(class.weight, class.ahead);
    }

    /// To be called when it has something to send again.
    pub fn begin(&mut self, pool: &mut impl Pool) {
        let now = self.shared.now();
        if self.shared.with(|scheduler| scheduler.begin(now, &mut self.schedule)) {
            pool.set_urgent(true);
        }
    }

    /// To be called when it has sent everything. It may have more at once.
    pub fn finish(&mut self) {
        self.schedule.finish(self.shared.now());
    }

    /// Writes what may be written now.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        pool: &mut impl Pool,
        chunks: &mut [Bytes],
    ) -> Poll<Result<(), StreamError>> {
        loop {
            let now = (self.shared.now(), self.shared.pace.as_ref().and_then(Pace::rate));
            let (waker, schedule) = (cx.waker(), &mut self.schedule);
            let mut polled = Polled { pool: &mut *pool, cx: &mut *cx, chunks: &mut *chunks };
            let attempt =
                self.shared.with(|scheduler| scheduler.write(now, schedule, waker, &mut polled))?;
            match attempt {
                Attempt::Written => {
                    self.pause = None;
                    return Poll::Ready(Ok(()));
                }
                Attempt::Queued | Attempt::Blocked => return Poll::Pending,
                Attempt::Shaped(wait) => {
                    let shaped = || Box::pin(time::sleep(wait.into()));
                    ready!(self.pause.get_or_insert_with(shaped).as_mut().poll(cx));
                    self.pause = None;
                }
            }
        }
    }

    /// Leaves the queue: it does not write any more for now.
    pub fn leave(&mut self) {
        self.shared.with(|scheduler| scheduler.leave(&mut self.schedule));
    }
}

impl Drop for ScheduledFlow {
    fn drop(&mut self) {
        self.leave();
    }
}
