//! A proxy's senders over time, all senders of one leg together, as the testbed's probe samples them.
//!
//! Invariant: once each leg has been seen, a sample allocates only its own memory.

use super::relay::Leg;
use crate::recorder::SenderCurves;
use crate::watch::Glance;
use midhop_experiment::record::{LegResult, Series};
use midhop_units::{Duration, Instant, Rate};
use std::collections::BTreeMap;

/// The curves of each leg, by its link.
#[derive(Debug, Default)]
pub(super) struct LegCurves(BTreeMap<String, Together>);

/// The senders of one leg as one.
#[derive(Debug, Default)]
struct Together {
    curves: SenderCurves,
    /// The current sample: their sum, and the phase of the first that has one.
    sum: Option<Glance>,
    rtts: Vec<Duration>,
}

impl LegCurves {
    /// Samples the state of `legs`; `books` has the counts of finished ones.
    pub fn sample<'f>(
        &mut self,
        now: Instant,
        legs: impl Iterator<Item = &'f Leg>,
        books: &BTreeMap<String, LegResult>,
    ) {
        for leg in legs {
            let link = &leg.model.link;
            if !self.0.contains_key(link) {
                self.0.insert(link.clone(), Together::default());
            }
            if let Some(together) = self.0.get_mut(link) {
                together.add(leg);
            }
        }
        for (link, together) in &mut self.0 {
            together.sample(now, books.get(link).map_or(0, |book| book.retransmissions));
        }
    }

    /// All curves of the proxy at `node`.
    pub fn series(&self, node: &str) -> Vec<Series> {
        let of = |(link, together): (&String, &Together)| {
            let leg = LegResult { node: node.to_owned(), link: link.clone(), ..Default::default() };
            together.curves.series(&leg.place(), None).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }
}

impl Together {
    fn add(&mut self, leg: &Leg) {
        let one = Glance::of(&leg.endpoint);
        self.rtts.extend(one.rtt);
        self.sum = Some(match self.sum {
            None => one,
            Some(sum) => Glance {
                phase: sum.phase.or(one.phase),
                cwnd: sum.cwnd + one.cwnd,
                retransmissions: sum.retransmissions + one.retransmissions,
                delivery_rate: added(sum.delivery_rate, one.delivery_rate),
                in_flight: sum.in_flight + one.in_flight,
                outstanding: sum.outstanding + one.outstanding,
                pacing_rate: added(sum.pacing_rate, one.pacing_rate),
                ..sum
            },
        });
    }

    /// Ends a sample; without any sender nothing is noted.
    fn sample(&mut self, now: Instant, resent_before: u64) {
        let Some(sum) = self.sum.take() else { return };
        self.rtts.sort_unstable();
        let rtt = self.rtts.get(self.rtts.len() / 2).copied();
        self.rtts.clear();
        let retransmissions = sum.retransmissions + resent_before;
        self.curves.push(now, &Glance { rtt, retransmissions, ..sum });
    }
}

fn added(one: Option<Rate>, other: Option<Rate>) -> Option<Rate> {
    match (one, other) {
        (Some(one), Some(other)) => {
            let sum = one.bits_per_s().saturating_add(other.bits_per_s());
            Some(Rate::from_bits_per_s(sum))
        }
        (one, other) => one.or(other),
    }
}
