//! Cross traffic that has arrived, and its rate.

use midhop_experiment::traffic::TrafficPlan;
use midhop_units::{Bytes, Instant, Rate};

/// Payload received, and the time of the last.
#[derive(Debug)]
pub(super) struct Arrived {
    bytes: Bytes,
    last: Instant,
}

impl Arrived {
    /// Nothing yet.
    pub fn new() -> Self {
        Self { bytes: Bytes::ZERO, last: Instant::START }
    }

    /// Counts payload received now.
    pub fn add(&mut self, now: Instant, payload: u64) {
        if payload > 0 {
            self.bytes += Bytes::new(payload);
            self.last = now;
        }
    }

    /// All of it.
    pub const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Its rate in a run that ends at `end`.
    pub fn goodput(&self, plan: &TrafficPlan, end: Instant) -> Rate {
        let [last, end] = [self.last, end].map(|at| at.saturating_since(Instant::START));
        plan.goodput(self.bytes, last, end)
    }
}
