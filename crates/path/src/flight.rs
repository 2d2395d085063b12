//! Propagation: each packet arrives after its delay, counted from when its last bit was sent.

use crate::delay::LinkDelay;
use crate::jitter::{JitterPlan, ReorderPlan};
use crate::plan::DirectionPlan;
use crate::queue::make_room;
use crate::reconfiguration::Reconfiguration;
use crate::stream::Stream;
use midhop_units::{Bytes, Duration, Instant, Loss, Seed};
use std::collections::VecDeque;

/// A packet in flight.
#[derive(Debug, Clone)]
pub(crate) struct Flying<P> {
    pub(crate) due: Instant,
    pub(crate) size: Bytes,
    pub(crate) packet: P,
}

/// All packets in flight.
///
/// Invariant: sorted by arrival; packets that arrive together stay in the order sent.
#[derive(Debug, Clone)]
pub(crate) struct Flight<P> {
    flying: VecDeque<Flying<P>>,
    delay: LinkDelay,
    start: Instant,
    /// The current delay, and until when it holds.
    delay_now: (Duration, Instant),
    reconfiguration: Option<Reconfiguration>,
    jitter: JitterPlan,
    jitter_stream: Stream,
    reorder: Option<ReorderPlan>,
    reorder_stream: Stream,
    duplicate: Loss,
    duplicate_stream: Stream,
    /// When the delay falls by at least this, later packets overtake earlier ones.
    overtaking: Option<Duration>,
    /// The delay of the previous packet.
    last_delay: Duration,
    /// No packet that keeps its order may arrive before this.
    last_due: Instant,
}

/// The random draws for one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fortune {
    jitter: Duration,
    held_back: Duration,
    twice: bool,
}

impl<P: Clone> Flight<P> {
    pub(crate) fn new(
        plan: &DirectionPlan,
        start: Instant,
        reconfiguration: Option<Reconfiguration>,
        seed: Seed,
    ) -> Self {
        Self {
            flying: VecDeque::new(),
            delay: plan.delay.clone(),
            start,
            delay_now: (Duration::ZERO, start),
            reconfiguration,
            jitter: plan.jitter,
            jitter_stream: Stream::new(seed, "jitter"),
            reorder: plan.reorder,
            reorder_stream: Stream::new(seed, "reorder"),
            duplicate: plan.duplicate,
            duplicate_stream: Stream::new(seed, "duplicate"),
            overtaking: plan.overtaking,
            last_delay: Duration::ZERO,
            last_due: start,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.flying.len()
    }

    /// When the next packet arrives.
    pub(crate) fn next_due(&self) -> Instant {
        self.flying.front().map_or(Instant::NEVER, |head| head.due)
    }

    /// Draws for the next packet. It is called for lost packets too, so that losses elsewhere do
    /// not change the delays of the packets that arrive.
    pub(crate) fn draw(&mut self) -> Fortune {
        let jitter = match self.jitter {
            JitterPlan::None => Duration::ZERO,
            JitterPlan::Uniform { max } => self.jitter_stream.between(Duration::ZERO, max),
            JitterPlan::Normal { mean, deviation } => {
                let s = mean.as_s_f64() + deviation.as_s_f64() * self.jitter_stream.normal();
                Duration::from_s_f64(s)
            }
            JitterPlan::Exponential { mean } => self.jitter_stream.exponential(mean),
        };
        let held_back = match self.reorder {
            Some(plan) if self.reorder_stream.strikes(plan.probability) => plan.by,
            _ => Duration::ZERO,
        };
        let twice = self.duplicate != Loss::NONE && self.duplicate_stream.strikes(self.duplicate);
        Fortune { jitter, held_back, twice }
    }

    /// Sends a packet into the channel, and returns whether it will arrive twice.
    pub(crate) fn depart(
        &mut self,
        sent: Instant,
        size: Bytes,
        packet: P,
        fortune: Fortune,
    ) -> bool {
        let delay = self.delay_at(sent);
        let fall = self.last_delay.saturating_sub(delay);
        if self.overtaking.is_some_and(|least| fall >= least) {
            // A new path: packets on the old one no longer hold back later ones.
            self.last_due = sent;
        }
        self.last_delay = delay;
        let natural = sent + delay.saturating_add(fortune.jitter);
        let mut due = natural.max(self.last_due);
        self.last_due = due;
        if !fortune.held_back.is_zero() {
            due = due + fortune.held_back;
        }
        if fortune.twice {
            self.insert(Flying { due, size, packet: packet.clone() });
        }
        self.insert(Flying { due, size, packet });
        fortune.twice
    }

    /// The next packet that has arrived by `now`.
    pub(crate) fn arrive(&mut self, now: Instant) -> Option<Flying<P>> {
        if self.next_due() > now {
            return None;
        }
        self.flying.pop_front()
    }

    fn insert(&mut self, flying: Flying<P>) {
        make_room(&mut self.flying);
        match self.flying.back() {
            Some(last) if last.due > flying.due => {
                let place = self.flying.partition_point(|other| other.due <= flying.due);
                self.flying.insert(place, flying);
            }
            _ => self.flying.push_back(flying),
        }
    }

    fn delay_at(&mut self, now: Instant) -> Duration {
        if now >= self.delay_now.1 {
            let (mut delay, mut until) = match &self.delay {
                LinkDelay::Constant(delay) => (*delay, Instant::NEVER),
                LinkDelay::Trace(trace) => trace.at_instant(self.start, now),
            };
            if let Some(reconfiguration) = &mut self.reconfiguration {
                let slot = reconfiguration.at(now);
                delay = delay.saturating_add(slot.added_delay);
                until = until.min(slot.end);
            }
            self.delay_now = (delay, until);
        }
        self.delay_now.0
    }

    /// # Panics
    /// When packets are not sorted by arrival.
    pub(crate) fn check_invariants(&self) {
        assert!(self.flying.iter().is_sorted_by_key(|flying| flying.due), "out of order");
    }
}
