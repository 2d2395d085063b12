//! The handle that a connection's controller shares with the code that releases its datagrams.

use super::core::Core;
use crate::pacer::QUEUE_TIME;
use midhop_congestion::Controller;
use midhop_units::{Bytes, Duration, Rate};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The queue below a controller that measures the path by what it sends.
const QUEUE_TIME_SHORT: Duration = Duration::from_ms(1);
/// More batches than any path has in flight.
const WAITS_MAX: usize = 1 << 16;
/// No rate is known: send as fast as the window allows.
const UNPACED: u64 = u64::MAX;

/// How fast a connection may send, according to its controller.
#[derive(Debug, Clone)]
pub struct Pace(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    overhead: Bytes,
    /// Unit: bits per second, headers of IP and UDP included.
    rate: AtomicU64,
    /// An upper bound on it, set by a caller who knows what else uses the path.
    bound: AtomicU64,
    /// What the controller has measured instead of the configured rate.
    carried: AtomicU64,
    /// Unit: bytes.
    window: AtomicU64,
    /// Unit: bytes.
    datagram_max: AtomicU64,
    /// Unit: nanoseconds.
    queueing: AtomicU64,
    losses: AtomicU64,
    /// Unit: nanoseconds.
    queue_time: AtomicU64,
    /// Batches that waited for the pace.
    waits: Mutex<VecDeque<Wait>>,
    /// The controller that was made last.
    core: Mutex<Weak<Mutex<Core>>>,
}

/// How long the first and the last datagram waited of what QUIC made at one moment.
#[derive(Debug, Clone, Copy)]
struct Wait {
    made: std::time::Instant,
    first: Duration,
    last: Duration,
}

/// What a connection has delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// What the peer has acknowledged.
    pub delivered: Bytes,
    /// Acknowledgements received.
    pub acks: u64,
    /// Those of them that found nothing more to send, although the window had room.
    pub idle: u64,
}

impl Pace {
    pub(super) fn new(overhead: Bytes) -> Self {
        Self(Arc::new(Shared {
            overhead,
            rate: AtomicU64::new(UNPACED),
            bound: AtomicU64::new(UNPACED),
            carried: AtomicU64::new(UNPACED),
            window: AtomicU64::new(0),
            datagram_max: AtomicU64::new(u64::MAX),
            queueing: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            queue_time: AtomicU64::new(QUEUE_TIME.as_ns()),
            waits: Mutex::new(VecDeque::new()),
            core: Mutex::new(Weak::new()),
        }))
    }

    /// A fixed pace, for a sender without a controller.
    pub fn of(rate: Option<Rate>, overhead: Bytes) -> Self {
        let pace = Self::new(overhead);
        pace.0.rate.store(rate.map_or(UNPACED, Rate::bits_per_s), Relaxed);
        pace
    }

    /// How fast datagrams may leave, counted with their [overhead](Self::overhead); `None` while no rate is known:
    /// then they are not paced.
    pub fn rate(&self) -> Option<Rate> {
        let bits = self.0.rate.load(Relaxed).min(self.0.bound.load(Relaxed));
        (bits != UNPACED).then(|| Rate::from_bits_per_s(bits))
    }

    /// From now on datagrams leave no faster than this, even if the controller allows more: something else uses the
    /// path. None: only the controller decides.
    pub fn bound(&self, rate: Option<Rate>) {
        self.0.bound.store(rate.map_or(UNPACED, Rate::bits_per_s), Relaxed);
    }

    /// What the path carries of each datagram beyond its payload.
    pub fn overhead(&self) -> Bytes {
        self.0.overhead
    }

    /// How much the controller allows in flight. quinn's own number is meaningless.
    pub fn window(&self) -> Bytes {
        Bytes::new(self.0.window.load(Relaxed))
    }

    /// The largest datagram that the path is known to carry: a larger one is a probe.
    pub fn datagram_max(&self) -> Bytes {
        Bytes::new(self.0.datagram_max.load(Relaxed))
    }

    /// By how much recent round trips exceed the shortest one.
    pub fn queueing(&self) -> Duration {
        Duration::from_ns(self.0.queueing.load(Relaxed))
    }

    /// How many losses the connection has found on the path.
    pub fn losses(&self) -> u64 {
        self.0.losses.load(Relaxed)
    }

    /// How much time the queue of datagrams that wait for the pace may hold, and QUIC's next batch.
    pub fn queue_time(&self) -> Duration {
        Duration::from_ns(self.0.queue_time.load(Relaxed))
    }

    /// What the path carries instead of the configured rate, headers included; `None` while that is believed.
    pub fn carried(&self) -> Option<Rate> {
        let bits = self.0.carried.load(Relaxed);
        (bits != UNPACED).then(|| Rate::from_bits_per_s(bits))
    }

    /// Counts a loss.
    pub fn loses(&self) {
        self.0.losses.fetch_add(1, Relaxed);
    }

    /// A datagram of what QUIC made at `made` leaves after it has `waited` for the pace.
    pub(crate) fn leaves(&self, made: std::time::Instant, waited: Duration) {
        let mut waits = lock(&self.0.waits);
        match waits.back_mut() {
            Some(wait) if wait.made == made => wait.last = waited,
            _ if waited.is_zero() => {}
            _ => {
                if waits.len() >= WAITS_MAX {
                    waits.pop_front();
                }
                waits.push_back(Wait { made, first: waited, last: waited });
            }
        }
    }

    /// How long a datagram at this part of what QUIC made at `made` has waited; unit of the part: 1/65536. What was made
    /// before is forgotten.
    pub(super) fn waited(&self, made: std::time::Instant, part_q16: u64) -> Duration {
        let mut waits = lock(&self.0.waits);
        while waits.front().is_some_and(|wait| wait.made < made) {
            waits.pop_front();
        }
        let wait = waits.front().filter(|wait| wait.made == made);
        wait.map_or(Duration::ZERO, |wait| {
            let after = wait.last.saturating_sub(wait.first).as_ns();
            wait.first + Duration::from_ns(after / 65_536 * part_q16.min(65_536))
        })
    }

    /// How much is in flight, according to quinn's last report.
    pub fn in_flight(&self) -> Bytes {
        let core = lock(&self.0.core).upgrade();
        core.map_or(Bytes::ZERO, |core| Bytes::new(lock(&core).in_flight()))
    }

    /// The connection's progress; zero if it has no controller any more.
    pub fn progress(&self) -> Progress {
        let core = lock(&self.0.core).upgrade();
        core.map_or_else(Progress::default, |core| lock(&core).progress())
    }

    /// Sets the share of the leg that this connection may use.
    pub fn share(&self, rate: Rate) {
        self.with_core(|core| core.share(rate));
    }

    /// The link carries another rate, as a caller reports.
    pub fn reported(&self, rate: Rate) {
        self.with_core(|core| core.reported(rate));
    }

    /// The path has changed, as a caller reports: its round-trip time without queues and its rate.
    pub fn hand_over(&self, now: std::time::Instant, rtt: Option<Duration>, rate: Option<Rate>) {
        self.with_core(|core| core.hand_over(now, rtt, rate));
    }

    /// Hands the connection over to another algorithm, built for datagrams of `datagram` bytes.
    pub(super) fn turn(&self, now: std::time::Instant, control: Controller, datagram: u64) {
        self.publish(&control, datagram);
        self.with_core(|core| core.turn(now, control, datagram));
    }

    fn with_core(&self, update: impl FnOnce(&mut Core)) {
        let core = lock(&self.0.core).upgrade();
        if let Some(core) = core {
            let mut core = lock(&core);
            update(&mut core);
            core.publish(self);
        }
    }

    pub(super) fn belongs_to(&self, core: &Arc<Mutex<Core>>) {
        *lock(&self.0.core) = Arc::downgrade(core);
    }

    pub(crate) fn carries(&self, datagram_max: u16) {
        self.0.datagram_max.store(datagram_max.into(), Relaxed);
    }

    pub(crate) fn queues(&self, queueing: Duration) {
        self.0.queueing.store(queueing.as_ns(), Relaxed);
    }

    pub(super) fn publish(&self, control: &Controller, datagram: u64) {
        let gross = |payload: Rate| {
            let bits = u128::from(payload.bits_per_s())
                * u128::from(datagram + self.0.overhead.get())
                / u128::from(datagram.max(1));
            u64::try_from(bits).unwrap_or(UNPACED)
        };
        self.0.rate.store(control.pacing_rate().map_or(UNPACED, gross), Relaxed);
        self.0.window.store(control.window().get(), Relaxed);
        self.0.carried.store(control.carried().map_or(UNPACED, Rate::bits_per_s), Relaxed);
        // A controller that measures the path by what it sends needs a shorter queue below it.
        let queue = if control.measures() { QUEUE_TIME_SHORT } else { QUEUE_TIME };
        self.0.queue_time.store(queue.as_ns(), Relaxed);
    }
}

/// Locks a mutex. No holder panics while it holds the lock, so the guarded value is consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
