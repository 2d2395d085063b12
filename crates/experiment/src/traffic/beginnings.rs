//! The starts of flows that begin as a Poisson process, and the size of each.

use super::{Load, TrafficPlan};
use crate::random::Random;
use midhop_units::{Bytes, Duration, Seed};

/// Flows that begin at random moments: the time after the run's start, and the number of bytes.
/// Ends when the traffic stops.
#[derive(Debug)]
pub struct Beginnings {
    /// Mean time between two.
    gap: Duration,
    size: Bytes,
    shape: Option<f64>,
    random: Random,
    last: Duration,
    stop: Duration,
}

impl Beginnings {
    /// The flows of `plan` in a run of `seed`; none for other kinds.
    pub fn of(plan: &TrafficPlan, seed: Seed) -> Option<Self> {
        let Load::Arrivals { per_second, bytes, shape, .. } = &plan.load else { return None };
        Some(Self {
            gap: Duration::from_s_f64(1.0 / per_second),
            size: *bytes,
            shape: *shape,
            random: plan.random(seed),
            last: plan.start,
            stop: plan.stop,
        })
    }
}

impl Iterator for Beginnings {
    type Item = (Duration, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.last.saturating_add(self.random.time(self.gap, None));
        self.last = next;
        (next < self.stop).then(|| (next, self.random.size(self.size, self.shape)))
    }
}
