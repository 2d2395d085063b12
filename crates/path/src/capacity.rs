//! The rate at which the sender may send at a moment, with all limits.
//!
//! Work is counted in nanobits (bits × 10⁹), so that a rate of `r` bit/s moves `r` of them each
//! nanosecond and all sums are exact.

use crate::acm::Acm;
use crate::dama::Dama;
use crate::outage::Outages;
use crate::plan::DirectionPlan;
use crate::rate::LinkRate;
use crate::reconfiguration::Reconfiguration;
use midhop_units::{Bytes, Instant, Rate};

/// Larger packets count as this size, so that their work fits into 64 bits.
pub(crate) const PACKET_MAX: Bytes = Bytes::new(1 << 30);

/// The work of so many bytes.
pub(crate) fn work(size: Bytes) -> u64 {
    size.get().saturating_mul(8_000_000_000)
}

/// A rate that holds for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Unit: bit/s, or nanobits per nanosecond; `None` without limit.
    pub(crate) rate: Option<u64>,
    /// When it may change.
    pub(crate) until: Instant,
}

/// The capacity of one direction over time.
#[derive(Debug, Clone)]
pub(crate) struct Capacity {
    rate: LinkRate,
    start: Instant,
    acm: Option<Acm>,
    held: Outages,
    reconfiguration: Option<Reconfiguration>,
    dama: Option<Dama>,
    /// The rate by carrier, MODCOD, outages and slots, without grants.
    carrier: Segment,
}

impl Capacity {
    pub(crate) fn new(
        plan: &DirectionPlan,
        start: Instant,
        acm: Option<Acm>,
        reconfiguration: Option<Reconfiguration>,
    ) -> Self {
        Self {
            rate: plan.rate.clone(),
            start,
            acm,
            held: Outages::new(&plan.outages, true, start),
            reconfiguration,
            dama: plan.dama.as_ref().map(|plan| Dama::new(plan, start)),
            carrier: Segment { rate: None, until: start },
        }
    }

    /// The rate at `now`, when `backlog` bytes wait or are being sent. Times must not go backwards.
    pub(crate) fn at(&mut self, now: Instant, backlog: impl FnOnce() -> u64) -> Segment {
        let carrier = self.carrier_at(now);
        match &mut self.dama {
            None => carrier,
            Some(dama) => {
                let rate = carrier.rate.unwrap_or(0);
                dama.advance(now, backlog(), rate);
                let (rate, until) = dama.at(now, rate);
                Segment { rate: Some(rate), until: until.min(carrier.until) }
            }
        }
    }

    /// Whether capacity is granted on demand.
    pub(crate) fn is_granted(&self) -> bool {
        self.dama.is_some()
    }

    /// The rate by carrier, MODCOD, outages and slots, without grants. Times must not go backwards.
    pub(crate) fn carrier_rate(&mut self, now: Instant) -> Option<Rate> {
        self.carrier_at(now).rate.map(Rate::from_bits_per_s)
    }

    /// Counts a packet that arrives; `idle` where nothing waited before it.
    pub(crate) fn arrive(&mut self, now: Instant, size: Bytes, idle: bool) {
        if self.dama.is_none() {
            return;
        }
        let rate = self.carrier_at(now).rate.unwrap_or(0);
        if let Some(dama) = &mut self.dama {
            if idle {
                dama.advance(now, 0, rate);
            }
            dama.arrive(work(size));
        }
    }

    /// Counts work that was done.
    pub(crate) fn spend(&mut self, work: u64) {
        if let Some(dama) = &mut self.dama {
            dama.spend(work);
        }
    }

    fn carrier_at(&mut self, now: Instant) -> Segment {
        if now < self.carrier.until {
            return self.carrier;
        }
        let (rate, mut until) = match &self.rate {
            LinkRate::Unlimited => (None, Instant::NEVER),
            LinkRate::Constant(rate) => (Some(*rate), Instant::NEVER),
            LinkRate::Trace(trace) => {
                let (rate, until) = trace.at_instant(self.start, now);
                (Some(rate), until)
            }
        };
        let mut rate = rate.map(Rate::bits_per_s);
        if let Some(acm) = &mut self.acm {
            let (modcod, change) = acm.at(now);
            let by_modcod = acm.rate(modcod).bits_per_s();
            rate = Some(rate.map_or(by_modcod, |rate| rate.min(by_modcod)));
            until = until.min(change);
        }
        if let Some(reconfiguration) = &mut self.reconfiguration {
            let slot = reconfiguration.at(now);
            rate = rate.map(|rate| (rate as f64 * slot.rate_factor) as u64);
            until = until.min(slot.end);
            if !slot.lossy && now < slot.interrupted_until {
                rate = Some(0);
                until = until.min(slot.interrupted_until);
            }
        }
        let (down, change) = self.held.at(now);
        if down {
            rate = Some(0);
        }
        self.carrier = Segment { rate, until: until.min(change) };
        self.carrier
    }
}
