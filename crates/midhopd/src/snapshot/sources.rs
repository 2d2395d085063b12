//! The sources of tunnels' flows at one moment: their distance, and the condition of their flows.

use crate::ledger::FlowBook;
use midhop_pep::config::{PeerPlan, Plan};
use midhop_pep::source::{Condition, Satellite, bandwidth_ratio};
use midhop_status::snapshot::{PeerSnapshot, SourceSnapshot};
use midhop_units::{Duration, Rate};
use std::collections::BTreeMap;

/// The state of sources' satellites.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    plan: &'a Plan,
    /// The recent send rate of all sources together, by peer. Unit: bit/s.
    sent: BTreeMap<&'a str, u64>,
}

impl<'a> Sources<'a> {
    /// Creates it for live flows.
    pub(super) fn of(plan: &'a Plan, live: impl Iterator<Item = &'a FlowBook>) -> Self {
        let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
        for book in live {
            if let Some(peer) = book.peer() {
                *sent.entry(peer).or_default() += book.source.rate.value();
            }
        }
        Self { plan, sent }
    }

    /// The source of a flow; none if it goes through no tunnel, or is not measured yet.
    pub(super) fn source(
        &self,
        book: &FlowBook,
        peers: &BTreeMap<String, PeerSnapshot>,
    ) -> Option<SourceSnapshot> {
        let name = book.peer()?;
        let source = &book.source;
        let rtt = Some(source.rtt_us.value()).filter(|us| *us > 0).map(Duration::from_us)?;
        let plan = self.plan.peers.iter().find(|peer| peer.name == name);
        let rate = Rate::from_bits_per_s(source.rate.value());
        let all = self.sent.get(name).copied().unwrap_or(0);
        let others = Rate::from_bits_per_s(all.saturating_sub(rate.bits_per_s()));
        let satellite = satellite(plan, peers.get(name)?, others)?;
        let segments = source.segments.value().max(1);
        Some(SourceSnapshot {
            rtt,
            loss: source.out_of_order.value() as f64 / segments as f64,
            rate,
            condition: Condition::of(rtt, &satellite),
            bandwidth_ratio: satellite.rate.map(|whole| bandwidth_ratio(rate, whole)),
        })
    }
}

/// A peer's satellite link, once its round-trip time is known.
fn satellite(plan: Option<&PeerPlan>, at: &PeerSnapshot, others: Rate) -> Option<Satellite> {
    let least = at.rtt_min?;
    let now = at.rtt.unwrap_or(least);
    let rtt = plan.and_then(|plan| plan.rtt).unwrap_or(least);
    let queue = now.saturating_sub(least);
    Some(Satellite { rtt, queue, rate: plan.and_then(|plan| plan.rate), others })
}

/// Counts flows by their peers' names and their conditions.
pub(super) fn count(
    sources: impl Iterator<Item = (String, SourceSnapshot)>,
    peers: &mut BTreeMap<String, PeerSnapshot>,
) {
    let mut ratios: BTreeMap<(String, Condition), Vec<f64>> = BTreeMap::new();
    for (peer, source) in sources {
        let Some(at) = peers.get_mut(&peer) else { continue };
        at.conditions.entry(source.condition.name()).or_default().flows += 1;
        let moving = source.bandwidth_ratio.filter(|_| source.rate > Rate::ZERO);
        ratios.entry((peer, source.condition)).or_default().extend(moving);
    }
    for ((peer, condition), ratios) in ratios.into_iter().filter(|(_, ratios)| !ratios.is_empty()) {
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        if let Some(at) =
            peers.get_mut(&peer).and_then(|at| at.conditions.get_mut(condition.name()))
        {
            at.bandwidth_ratio = Some(mean);
        }
    }
}
