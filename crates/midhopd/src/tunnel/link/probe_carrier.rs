//! The probe carrier: a second carrier beside a tunnel's own. A few new flows are sent over it to measure its throughput.

use super::OpenTunnel;
use std::cell::{Cell, RefCell};

/// The second carrier, if there is one. Each link has one such value.
#[derive(Debug, Default)]
pub struct ProbeCarrier {
    way: RefCell<Option<OpenTunnel>>,
    /// Flows that it may still receive.
    left: Cell<u32>,
    /// Whether the next new flow uses it: every second one does.
    next: Cell<bool>,
    /// Whether it has received a flow.
    tried: Cell<bool>,
}

impl ProbeCarrier {
    /// Sends every second new flow over `way`, up to this number.
    pub fn put(&self, way: OpenTunnel, flows: u32) {
        self.way.replace(Some(way));
        self.left.set(flows);
        self.next.set(true);
        self.tried.set(false);
    }

    /// Sends no more flows over it. Returns the carrier.
    pub fn clear(&self) -> Option<OpenTunnel> {
        self.way.take()
    }

    /// Whether a flow was sent over it.
    pub fn was_tried(&self) -> bool {
        self.tried.get()
    }

    /// Returns the carrier of a new flow, if it is this one.
    pub fn take(&self) -> Option<OpenTunnel> {
        let way = self.way.borrow().clone().filter(OpenTunnel::is_open)?;
        if self.left.get() == 0 || !self.next.replace(!self.next.get()) {
            return None;
        }
        self.left.set(self.left.get() - 1);
        self.tried.set(true);
        Some(way)
    }
}
