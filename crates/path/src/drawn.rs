//! The capacity of one direction of a link over time, as it is drawn: the same draws as in
//! [`crate::Link`], without packets. Limits are computed from it.
//!
//! It depends on the seed and the time only. Draws for each packet are not part of it: such losses
//! are [`crate::DirectionPlan::loss_of_packets`]. For a link with demand-assigned capacity, it
//! assumes requests for all that the link can grant from its start on: fewer or later requests are
//! never granted more.

use crate::acm::Acm;
use crate::capacity::{Capacity, PACKET_MAX};
use crate::direction::Direction;
use crate::loss::LossProcess;
use crate::outage::Outages;
use crate::plan::DirectionPlan;
use crate::reconfiguration::Reconfiguration;
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};

/// The backlog of a terminal that requests as much as possible. Unit: nanobits.
const SATURATED: u64 = u64::MAX / 8;

/// A period in which nothing changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    /// When it begins.
    pub begin: Instant,
    /// When something may change; [`Instant::NEVER`] when nothing does.
    pub end: Instant,
    /// How fast the sender can send; `None` without a limit.
    pub rate: Option<Rate>,
    /// The share of the sent data that arrives despite outages, fading and loss bursts in time.
    /// Range: 0 to 1.
    pub arrives: f64,
}

impl Stretch {
    /// Payload and headers that arrive within `length` of it. Unit: bit.
    pub fn carries(&self, length: Duration) -> f64 {
        self.rate.map_or(f64::INFINITY, |rate| {
            rate.bits_per_s() as f64 * length.as_s_f64() * self.arrives
        })
    }
}

/// The stretches of one direction of a link, one after the other.
#[derive(Debug, Clone)]
pub struct Drawn {
    now: Instant,
    capacity: Capacity,
    lossy: Outages,
    reconfiguration: Option<Reconfiguration>,
    acm: Option<Acm>,
    bursts: Vec<LossProcess>,
}

impl Drawn {
    /// The same draws as [`crate::Link::new`] makes for the same plan, direction and seed, on a
    /// clock on which the link starts at [`Instant::START`].
    ///
    /// # Panics
    /// As [`crate::Link::new`].
    pub fn new(plan: &DirectionPlan, direction: Direction, seed: Seed) -> Self {
        let start = Instant::START;
        let acm = plan.acm.as_ref().map(|plan| Acm::new(plan, start));
        let own_seed = direction.seed(seed);
        let slots = plan.reconfiguration.as_ref();
        let reconfiguration = slots.map(|plan| Reconfiguration::new(plan, start, seed, own_seed));
        let mut bursts = LossProcess::all(&plan.loss, start, own_seed);
        bursts.retain_mut(|process| process.share(start).is_some());
        Self {
            now: start,
            capacity: Capacity::new(plan, start, acm.clone(), reconfiguration.clone()),
            lossy: Outages::new(&plan.outages, false, start),
            reconfiguration,
            acm,
            bursts,
        }
    }

    /// Advances to `at` without using capacity: what has been granted for that moment is still
    /// available. Never goes back.
    pub fn seek(&mut self, at: Instant) {
        while self.now < at {
            self.now = self.stretch().end.min(at);
        }
    }

    /// The next period, in which as much as possible is sent.
    pub fn advance(&mut self) -> Stretch {
        let stretch = self.stretch();
        if let Some(rate) = stretch.rate.filter(|_| self.capacity.is_granted()) {
            let length = stretch.end.saturating_since(stretch.begin).as_ns();
            self.capacity.spend(rate.bits_per_s().saturating_mul(length));
        }
        self.now = stretch.end;
        stretch
    }

    /// The bytes that the sender can send before `until`, lost or not; none without a limit.
    pub fn sends_until(mut self, until: Instant) -> Option<Bytes> {
        let mut nanobits = 0u128;
        while self.now < until {
            let stretch = self.advance();
            let length = stretch.end.min(until).saturating_since(stretch.begin).as_ns();
            nanobits += u128::from(stretch.rate?.bits_per_s()) * u128::from(length);
        }
        Some(Bytes::new(u64::try_from(nanobits.div_ceil(8_000_000_000)).unwrap_or(u64::MAX)))
    }

    /// The period from now on.
    fn stretch(&mut self) -> Stretch {
        let now = self.now;
        self.capacity.arrive(now, PACKET_MAX, false);
        let segment = self.capacity.at(now, || SATURATED);
        let (down, mut end) = self.lossy.at(now);
        end = end.min(segment.until);
        let mut arrives = if down { 0.0 } else { 1.0 };
        if let Some(slots) = &mut self.reconfiguration {
            let slot = slots.at(now);
            end = end.min(slot.end);
            if now < slot.interrupted_until {
                end = end.min(slot.interrupted_until);
                arrives = if slot.lossy { 0.0 } else { arrives };
            }
        }
        if let Some(acm) = &mut self.acm {
            let (decodable, change) = acm.decodable_until(now);
            end = end.min(change);
            arrives = if decodable { arrives } else { 0.0 };
        }
        for (share, change) in self.bursts.iter_mut().filter_map(|process| process.share(now)) {
            end = end.min(change);
            arrives *= 1.0 - share.probability();
        }
        Stretch { begin: now, end, rate: segment.rate.map(Rate::from_bits_per_s), arrives }
    }
}
