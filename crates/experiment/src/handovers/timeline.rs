//! When handovers take place, and which links are in use when.

use super::{HandoverPlan, LiveFlows};
use crate::host_routes::host_routes;
use crate::plan::{Plan, Route};
use crate::route::Edge;
use midhop_path::DirectionPlan;
use midhop_path::outage::Outage;
use midhop_units::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// The moment of a handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// When, after the run's start.
    pub at: Duration,
    /// The handover, by its index in the scenario.
    pub handover: usize,
}

/// All moments of a run, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline<'h> {
    handovers: &'h [HandoverPlan],
    moments: Vec<Moment>,
    duration: Duration,
}

impl<'h> Timeline<'h> {
    /// The timeline of `handovers` in a run of `duration`.
    pub fn new(handovers: &'h [HandoverPlan], duration: Duration) -> Self {
        let mut moments = Vec::new();
        for (number, handover) in handovers.iter().enumerate() {
            let mut at = handover.at;
            while at < duration {
                moments.push(Moment { at, handover: number });
                let Some(every) = handover.every.filter(|every| !every.is_zero()) else { break };
                at = at.saturating_add(every);
            }
        }
        moments.sort();
        Self { handovers, moments, duration }
    }

    /// Its moments.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// When live flows of a proxy may be interrupted: at its moments, and when a drain ends.
    pub fn holdups(&self) -> Vec<Duration> {
        let ends = self.moments.iter().filter_map(|moment| {
            let handover = self.handover(*moment);
            (handover.flows == LiveFlows::Drained).then(|| moment.at.saturating_add(handover.drain))
        });
        let mut all: Vec<_> = self.moments.iter().map(|moment| moment.at).chain(ends).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The handover that takes place at a moment.
    pub fn handover(&self, moment: Moment) -> &'h HandoverPlan {
        &self.handovers[moment.handover]
    }

    /// The links that are not in use at the beginning: those that are taken before they are left.
    pub fn unused_first(&self) -> BTreeSet<&'h str> {
        let (mut unused, mut left) = (BTreeSet::new(), BTreeSet::new());
        for moment in &self.moments {
            let handover = self.handover(*moment);
            left.insert(handover.leaves.as_str());
            if !left.contains(handover.takes.as_str()) {
                unused.insert(handover.takes.as_str());
            }
        }
        unused
    }

    /// The links that are not in use: at the beginning, and after each moment.
    pub fn unused(&self) -> Vec<BTreeSet<&'h str>> {
        let mut unused = self.unused_first();
        let mut all = vec![unused.clone()];
        for moment in &self.moments {
            let handover = self.handover(*moment);
            unused.insert(&handover.leaves);
            unused.remove(handover.takes.as_str());
            all.push(unused.clone());
        }
        all
    }

    /// The links in use at the beginning, and in each other state of the run, without repetitions.
    pub fn phases(&self, edges: &[Edge]) -> Vec<Vec<Edge>> {
        let mut known = BTreeSet::new();
        let mut phases = Vec::new();
        for unused in self.unused() {
            let used = edges.iter().filter(|edge| !unused.contains(edge.name.as_str()));
            if known.insert(unused.clone()) {
                phases.push(used.cloned().collect());
            }
        }
        phases
    }

    /// When `link` carries nothing: while it is not in use, and shortly after it was taken.
    pub fn breaks(&self, link: &str) -> Vec<Outage> {
        let mut breaks = Vec::new();
        let mut since = self.unused_first().contains(link).then_some(Duration::ZERO);
        let mut add = |start: Duration, end: Duration| {
            let length = end.saturating_sub(start);
            if !length.is_zero() {
                breaks.push(Outage { start, length, every: None, hold: false });
            }
        };
        for moment in &self.moments {
            let handover = self.handover(*moment);
            if handover.leaves == link {
                since = Some(moment.at);
            } else if handover.takes == link
                && let Some(start) = since.take()
            {
                add(start, moment.at.saturating_add(handover.outage));
            }
        }
        if let Some(start) = since {
            // Packets may still be in flight when the run ends.
            add(start, self.duration * 2);
        }
        breaks
    }
}

impl Plan {
    /// The timeline of its handovers.
    pub fn timeline(&self) -> Timeline<'_> {
        Timeline::new(&self.handovers, self.duration)
    }

    /// All links as routing sees them.
    pub fn edges(&self) -> Vec<Edge> {
        let edge = |link: &crate::plan::PlannedLink| Edge {
            name: link.name.clone(),
            ends: link.between.clone(),
            delay_ns: link.down.delay_min().saturating_add(link.up.delay_min()).as_ns(),
        };
        self.links.iter().map(edge).collect()
    }

    /// The routes of all nodes, in the plan's order: at the beginning, and after each moment of its timeline.
    pub fn routes(&self) -> Vec<Vec<Vec<Route>>> {
        let edges = self.edges();
        let of = |unused: &BTreeSet<&str>| {
            let used = edges.iter().filter(|edge| !unused.contains(edge.name.as_str()));
            host_routes(&self.nodes, &used.cloned().collect::<Vec<_>>())
        };
        self.timeline().unused().iter().map(of).collect()
    }

    /// By link, the plan of its two directions, `down` first, with the outages of handovers. Only
    /// links that a handover leaves or takes are included.
    pub fn broken_links(&self) -> BTreeMap<&str, [DirectionPlan; 2]> {
        let timeline = self.timeline();
        let of = |link: &crate::plan::PlannedLink| {
            let breaks = timeline.breaks(&link.name);
            [&link.down, &link.up].map(|way| {
                let outages = way.outages.iter().chain(&breaks).copied().collect();
                DirectionPlan { outages, ..way.clone() }
            })
        };
        let concerned =
            |name: &str| self.handovers.iter().any(|it| it.leaves == name || it.takes == name);
        let links = self.links.iter().filter(|link| concerned(&link.name));
        links.map(|link| (link.name.as_str(), of(link))).collect()
    }
}
