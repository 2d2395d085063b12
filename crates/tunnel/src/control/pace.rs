//! The handle that a connection's controller shares with the code that releases its datagrams.

use super::core::Core;
use midhop_congestion::Controller;
use midhop_units::{Bytes, Duration, Rate};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// No rate is known: send as fast as the window allows.
const UNPACED: u64 = u64::MAX;

/// How fast a connection may send, as its controller says at each moment.
#[derive(Debug, Clone)]
pub struct Pace(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    overhead: Bytes,
    /// Unit: bits per second, headers of IP and UDP included.
    rate: AtomicU64,
    /// The same, as somebody else says who knows what shares the path.
    bound: AtomicU64,
    /// Unit: bytes.
    window: AtomicU64,
    /// Unit: bytes.
    datagram_max: AtomicU64,
    /// Unit: nanoseconds.
    queueing: AtomicU64,
    losses: AtomicU64,
    /// The controller that was made last.
    core: Mutex<Weak<Mutex<Core>>>,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// What the peer has acknowledged.
    pub delivered: Bytes,
    /// Acknowledgements that have come.
    pub heard: u64,
    /// Those of them at which there was nothing more to send, though more might have been.
    pub idle: u64,
}

impl Pace {
    pub(super) fn new(overhead: Bytes) -> Self {
        Self(Arc::new(Shared {
            overhead,
            rate: AtomicU64::new(UNPACED),
            bound: AtomicU64::new(UNPACED),
            window: AtomicU64::new(0),
            datagram_max: AtomicU64::new(u64::MAX),
            queueing: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            core: Mutex::new(Weak::new()),
        }))
    }

    /// A pace that somebody else sets, for what has no controller of its own.
    pub fn of(rate: Option<Rate>, overhead: Bytes) -> Self {
        let pace = Self::new(overhead);
        pace.0.rate.store(rate.map_or(UNPACED, Rate::bits_per_s), Relaxed);
        pace
    }

    /// How fast datagrams may leave, counted with their [overhead](Self::overhead); `None` while
    /// nothing is known: as fast as they come.
    pub fn rate(&self) -> Option<Rate> {
        let bits = self.0.rate.load(Relaxed).min(self.0.bound.load(Relaxed));
        (bits != UNPACED).then(|| Rate::from_bits_per_s(bits))
    }

    /// Lets datagrams leave no faster than this from now on, whatever the controller says: something else uses
    /// the path. None: as the controller says.
    pub fn bound(&self, rate: Option<Rate>) {
        self.0.bound.store(rate.map_or(UNPACED, Rate::bits_per_s), Relaxed);
    }

    /// What the path carries of each datagram beyond its payload.
    pub fn overhead(&self) -> Bytes {
        self.0.overhead
    }

    /// How much the controller lets be in flight. quinn's own figure says nothing.
    pub fn window(&self) -> Bytes {
        Bytes::new(self.0.window.load(Relaxed))
    }

    /// The largest datagram that the path is known to carry: a larger one is a probe.
    pub fn datagram_max(&self) -> Bytes {
        Bytes::new(self.0.datagram_max.load(Relaxed))
    }

    /// By how much round trips lately take longer than the shortest one.
    pub fn queueing(&self) -> Duration {
        Duration::from_ns(self.0.queueing.load(Relaxed))
    }

    /// How often something was lost on the path, as far as the connection has found out.
    pub fn losses(&self) -> u64 {
        self.0.losses.load(Relaxed)
    }

    /// Says that something was lost.
    pub fn loses(&self) {
        self.0.losses.fetch_add(1, Relaxed);
    }

    /// How much is in flight, as the controller was told last.
    pub fn in_flight(&self) -> Bytes {
        let core = lock(&self.0.core).upgrade();
        core.map_or(Bytes::ZERO, |core| Bytes::new(lock(&core).in_flight()))
    }

    /// How far the connection has come; nothing, where it has no controller any more.
    pub fn progress(&self) -> Progress {
        let core = lock(&self.0.core).upgrade();
        core.map_or_else(Progress::default, |core| lock(&core).progress())
    }

    /// Whoever divides the leg says what part of it this connection may use.
    pub fn share(&self, rate: Rate) {
        self.with_core(|core| core.share(rate));
    }

    /// The path has changed, as far as somebody knows: its round-trip time without queues and its rate.
    pub fn hand_over(&self, now: std::time::Instant, rtt: Option<Duration>, rate: Option<Rate>) {
        self.with_core(|core| core.hand_over(now, rtt, rate));
    }

    /// Hands the connection over to another algorithm, built for datagrams of `datagram` bytes.
    pub(super) fn turn(&self, now: std::time::Instant, control: Controller, datagram: u64) {
        self.publish(&control, datagram);
        self.with_core(|core| core.turn(now, control, datagram));
    }

    fn with_core(&self, tell: impl FnOnce(&mut Core)) {
        let core = lock(&self.0.core).upgrade();
        if let Some(core) = core {
            let mut core = lock(&core);
            tell(&mut core);
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
    }
}

/// A lock whose holder never panics in between: what it guards is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
