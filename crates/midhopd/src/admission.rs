//! Limits the number of flows, and the bytes that they hold together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokio::sync::Notify;

/// The limits on all flows together, and their present use.
#[derive(Debug)]
pub struct Admission {
    flows: AtomicU64,
    flows_max: AtomicU64,
    gate_shut: AtomicBool,
    /// Notified whenever the number of flows reaches the limit or falls below it again.
    pub edge: Notify,
    /// Notified whenever a flow leaves.
    pub departed: Notify,
}

impl Admission {
    /// Room for `flows_max` flows.
    pub fn new(flows_max: u64) -> Arc<Self> {
        Arc::new(Self {
            flows: AtomicU64::new(0),
            flows_max: AtomicU64::new(flows_max),
            gate_shut: AtomicBool::new(false),
            edge: Notify::new(),
            departed: Notify::new(),
        })
    }

    /// Present number of flows.
    pub fn flows(&self) -> u64 {
        self.flows.load(Relaxed)
    }

    /// Changes the limit. Present flows stay.
    pub fn set_limit(&self, flows_max: u64) {
        self.flows_max.store(flows_max, Relaxed);
        self.edge.notify_one();
    }

    /// Whether the next flow should pass by.
    pub fn is_full(&self) -> bool {
        self.flows() >= self.flows_max.load(Relaxed)
    }

    /// Maximum number of flows.
    pub fn limit(&self) -> u64 {
        self.flows_max.load(Relaxed)
    }

    /// Whether the firewall lets new flows pass by, because there are no places.
    pub fn is_gate_shut(&self) -> bool {
        self.gate_shut.load(Relaxed)
    }

    pub(crate) fn gate_moved(&self, shut: bool) {
        self.gate_shut.store(shut, Relaxed);
    }

    /// Enters a flow that the kernel has accepted already: refusing it would be a reset, so it is admitted even if it
    /// exceeds the limit by one.
    pub fn enter(self: &Arc<Self>) -> Ticket {
        if self.flows.fetch_add(1, Relaxed) + 1 == self.flows_max.load(Relaxed) {
            self.edge.notify_one();
        }
        Ticket(self.clone())
    }

    /// Enters a flow that may still pass by.
    pub fn try_enter(self: &Arc<Self>) -> Option<Ticket> {
        (!self.is_full()).then(|| self.enter())
    }
}

/// A flow's place among the flows. Dropping it frees the place.
#[derive(Debug)]
pub struct Ticket(Arc<Admission>);

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.0.flows.fetch_sub(1, Relaxed) == self.0.flows_max.load(Relaxed) {
            self.0.edge.notify_one();
        }
        self.0.departed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back() {
        let admission = Admission::new(1);
        let first = admission.try_enter().expect("the first has a place");
        assert!(admission.try_enter().is_none());
        // One that cannot be sent away goes in all the same.
        let second = admission.enter();
        drop(first);
        assert!(admission.is_full());
        drop(second);
        assert!(admission.try_enter().is_some());
    }
}
