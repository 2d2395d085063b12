//! How a proxy's senders stand over time, all of one leg together, as the testbed's probe sees them.

use super::flow::Flow;
use super::relay::Leg;
use crate::recorder::SenderCurves;
use crate::watch::Glance;
use midhop_experiment::metrics::median;
use midhop_experiment::record::{LegResult, Series};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::BTreeMap;

/// The curves of each leg, by its link.
#[derive(Debug, Default)]
pub(super) struct LegCurves(BTreeMap<String, SenderCurves>);

impl LegCurves {
    /// Notes how the legs of `flows` stand; `books` has what the legs did in all.
    pub fn sample<'f>(
        &mut self,
        now: Instant,
        flows: impl Iterator<Item = &'f Flow>,
        books: &BTreeMap<String, LegResult>,
    ) {
        let mut legs: BTreeMap<&str, Vec<Glance>> = BTreeMap::new();
        for leg in flows.flat_map(Flow::connected) {
            legs.entry(leg.link()).or_default().push(Glance::of(&leg.endpoint));
        }
        for (link, glances) in legs {
            let resent = books.get(link).map_or(0, |book| book.retransmissions);
            let together = Glance { retransmissions: resent, ..together(&glances) };
            self.0.entry(link.to_owned()).or_default().push(now, &together);
        }
    }

    /// All curves of the proxy at `node`.
    pub fn series(&self, node: &str) -> Vec<Series> {
        let of = |(link, curves): (&String, &SenderCurves)| {
            let leg = LegResult { node: node.to_owned(), link: link.clone(), ..Default::default() };
            curves.series(&leg.place(), None).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }
}

impl Leg {
    fn link(&self) -> &str {
        &self.model.link
    }
}

/// Several senders as one: what they have together, the median of their round trips, and the phase of the
/// first that has something on its way.
fn together(glances: &[Glance]) -> Glance {
    let sum = |figure: fn(&Glance) -> Bytes| glances.iter().map(figure).sum();
    let rate = |figure: fn(&Glance) -> Option<Rate>| {
        let rates: Vec<u64> = glances.iter().filter_map(figure).map(Rate::bits_per_s).collect();
        let sum = rates.iter().fold(0u64, |sum, rate| sum.saturating_add(*rate));
        (!rates.is_empty()).then(|| Rate::from_bits_per_s(sum))
    };
    let rtts: Vec<f64> =
        glances.iter().filter_map(|it| it.rtt).map(|rtt| rtt.as_ns() as f64).collect();
    Glance {
        phase: glances.iter().find_map(|it| it.phase),
        cwnd: sum(|it| it.cwnd),
        rtt: median(&rtts).map(|ns| Duration::from_ns(ns as u64)),
        rtt_min: glances.iter().filter_map(|it| it.rtt_min).min(),
        retransmissions: glances.iter().map(|it| it.retransmissions).sum(),
        delivery_rate: rate(|it| it.delivery_rate),
        in_flight: sum(|it| it.in_flight),
        outstanding: sum(|it| it.outstanding),
        pacing_rate: rate(|it| it.pacing_rate),
    }
}
