//! What has arrived of cross traffic, and how fast.

use midhop_experiment::traffic::TrafficPlan;
use midhop_units::{Bytes, Instant, Rate};

/// Payload that has arrived, and when the last of it did.
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

    /// Counts payload that arrives now.
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

    /// How fast it arrived in a run that ends at `end`.
    pub fn goodput(&self, plan: &TrafficPlan, end: Instant) -> Rate {
        let [last, end] = [self.last, end].map(|at| at.saturating_since(Instant::START));
        plan.goodput(self.bytes, last, end)
    }
}
