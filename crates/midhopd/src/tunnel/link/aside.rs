//! A second carrier beside a tunnel's, on which a few new flows are put to see what it carries.

use super::OpenTunnel;
use std::cell::{Cell, RefCell};

/// The second carrier, where there is one. One for each link.
#[derive(Debug, Default)]
pub struct Aside {
    way: RefCell<Option<OpenTunnel>>,
    /// Flows that it may still get.
    left: Cell<u32>,
    /// Whether the next new flow is one for it: every other is.
    next: Cell<bool>,
    /// Whether it got one.
    tried: Cell<bool>,
}

impl Aside {
    /// Puts every other new flow on `way`, up to so many.
    pub fn put(&self, way: OpenTunnel, flows: u32) {
        self.way.replace(Some(way));
        self.left.set(flows);
        self.next.set(true);
        self.tried.set(false);
    }

    /// Puts no more flows there; gives what it was.
    pub fn clear(&self) -> Option<OpenTunnel> {
        self.way.take()
    }

    /// Whether a flow was put there.
    pub fn was_tried(&self) -> bool {
        self.tried.get()
    }

    /// The carrier of a new flow, if it is this one.
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
