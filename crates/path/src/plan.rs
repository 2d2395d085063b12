//! A resolved link: every default is visible, and only the seed is open.

use crate::acm::AcmPlan;
use crate::aqm::AqmPlan;
use crate::dama::DamaPlan;
use crate::delay::LinkDelay;
use crate::jitter::{JitterPlan, ReorderPlan};
use crate::loss::LossPlan;
use crate::outage::Outage;
use crate::queue::{QueueLimit, QueueSpec};
use crate::rate::LinkRate;
use crate::reconfiguration::ReconfigurationPlan;
use crate::resolve::{ResolveError, check_not_always, check_number, check_positive_time};
use crate::spec::DirectionSpec;
use crate::switch::Switch;
use midhop_units::{Duration, Loss, Rate};
use serde::{Deserialize, Serialize};

/// Both directions of a link, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPlan {
    /// The preset it was made from.
    pub preset: Option<String>,
    /// Towards the first node.
    pub down: DirectionPlan,
    /// Towards the second node.
    pub up: DirectionPlan,
}

/// One direction of a link, resolved. Made by [`DirectionSpec::resolve`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectionPlan {
    /// The rate of the link.
    pub rate: LinkRate,
    /// One-way propagation delay.
    pub delay: LinkDelay,
    /// The queue limit.
    pub queue: QueueLimit,
    /// Which packets are dropped before the queue is full.
    pub aqm: AqmPlan,
    /// Packets that the channel loses; the entries are independent of each other.
    pub loss: Vec<LossPlan>,
    /// The share of bits that the channel inverts.
    pub bit_error_rate: f64,
    /// Times at which the link is down.
    pub outages: Vec<Outage>,
    /// Delay that varies from packet to packet.
    pub jitter: JitterPlan,
    /// Packets that are overtaken by others.
    pub reorder: Option<ReorderPlan>,
    /// If the delay falls by at least this at once, later packets overtake packets in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overtaking: Option<Duration>,
    /// The share of packets that arrive twice.
    pub duplicate: Loss,
    /// DVB-S2 adaptive coding and modulation.
    pub acm: Option<AcmPlan>,
    /// DVB-RCS2 capacity on demand.
    pub dama: Option<DamaPlan>,
    /// Reassignment of satellites at fixed times.
    pub reconfiguration: Option<ReconfigurationPlan>,
}

impl DirectionPlan {
    pub(crate) fn new(spec: &DirectionSpec, path_rtt: Duration) -> Result<Self, ResolveError> {
        let rate = spec.rate.clone().unwrap_or(LinkRate::Unlimited);
        rate.check()?;
        let delay = spec.delay.clone().unwrap_or(LinkDelay::Constant(Duration::ZERO));
        delay.check()?;
        let acm = spec.acm.as_ref().and_then(Switch::on).map(|acm| acm.resolve()).transpose()?;
        let highest = highest_rate(&rate, acm.as_ref());
        let mut loss = Vec::new();
        for way in spec.loss.iter().flat_map(|specs| &specs.0) {
            loss.extend(way.resolve()?);
        }
        let bit_error_rate = spec.bit_error_rate.unwrap_or(0.0);
        check_number("bit_error_rate", bit_error_rate, 0.0..=0.5)?;
        let outages = spec.outages.clone().unwrap_or_default();
        for outage in &outages {
            outage.check()?;
        }
        if let Some(fall) = spec.overtaking {
            check_positive_time("overtaking", fall)?;
        }
        let duplicate = spec.duplicate.unwrap_or(Loss::NONE);
        check_not_always("duplicate", duplicate)?;
        let dama = spec.dama.as_ref().and_then(Switch::on);
        let reconfiguration = spec.reconfiguration.as_ref().and_then(Switch::on);
        let aqm = spec.aqm.as_ref().map_or(Ok(AqmPlan::None), |aqm| aqm.resolve())?;
        if aqm == AqmPlan::Xcp && highest.is_none() {
            return Err(ResolveError::missing("rate", "XCP's router divides the rate of its link"));
        }
        Ok(Self {
            queue: QueueSpec::resolve(spec.queue, highest, path_rtt)?,
            aqm,
            loss,
            bit_error_rate,
            outages,
            jitter: spec.jitter.as_ref().map_or(Ok(JitterPlan::None), |jitter| jitter.resolve())?,
            reorder: spec.reorder.as_ref().map_or(Ok(None), |reorder| reorder.resolve())?,
            overtaking: spec.overtaking,
            duplicate,
            dama: dama.map(|dama| dama.resolve(highest)).transpose()?,
            reconfiguration: reconfiguration.map(|table| table.resolve()).transpose()?,
            acm,
            rate,
            delay,
        })
    }

    /// The highest rate of this direction, `None` without a limit. It is the basis of physical
    /// limits: no transfer is faster.
    pub fn rate_max(&self) -> Option<Rate> {
        let highest = highest_rate(&self.rate, self.acm.as_ref())?;
        let factor = self.reconfiguration.as_ref().map_or(1.0, |plan| plan.rate_factor_highest());
        Some(Rate::from_bits_per_s((highest.bits_per_s() as f64 * factor).ceil() as u64))
    }

    /// The shortest delay of any packet.
    pub fn delay_min(&self) -> Duration {
        self.delay.shortest()
    }

    /// Whether its capacity depends on time: its rate has steps or is drawn, it has outages, its
    /// modulation follows a signal, or its capacity is granted on demand. Its capacity in a run is
    /// [`crate::Drawn`].
    pub fn varies(&self) -> bool {
        let steps = match &self.rate {
            LinkRate::Unlimited | LinkRate::Constant(_) => false,
            LinkRate::Trace(trace) => {
                trace.values().any(|rate| Some(rate) != trace.values().next())
            }
        };
        let drawn = self
            .reconfiguration
            .as_ref()
            .is_some_and(|slots| slots.rate_sigma > 0.0 || !slots.interruption_max.is_zero());
        let granted = self.dama.as_ref().is_some_and(|dama| !dama.vbdc);
        steps || drawn || granted || self.acm.is_some() || !self.outages.is_empty()
    }

    /// [`DirectionPlan::loss_mean`] without the bursts in time: the loss of each packet at any
    /// time.
    pub fn loss_of_packets(&self, packet_bytes: u64) -> Loss {
        let by_bits = Loss::from_bit_errors(self.bit_error_rate, packet_bytes);
        let by_packets = self.loss.iter().filter(|way| !way.is_by_time());
        by_packets.map(LossPlan::mean).fold(by_bits, Loss::then)
    }

    /// The long-term share of packets of this size that the channel loses, without outages and
    /// MODCOD failures.
    pub fn loss_mean(&self, packet_bytes: u64) -> Loss {
        let by_bits = Loss::from_bit_errors(self.bit_error_rate, packet_bytes);
        self.loss.iter().map(LossPlan::mean).fold(by_bits, Loss::then)
    }
}

/// The highest rate of carrier and MODCOD together.
fn highest_rate(rate: &LinkRate, acm: Option<&AcmPlan>) -> Option<Rate> {
    let by_acm = acm.map(AcmPlan::highest);
    rate.highest().into_iter().chain(by_acm).min()
}
