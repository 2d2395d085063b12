//! What flows hold, and which of them is reset when that is too much.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The one store of all flows.
#[derive(Debug, Default)]
pub(super) struct Store {
    room: u64,
    held: u64,
    flows: BTreeMap<u64, [Way; 2]>,
}

/// Data for one end of a flow. Unit: bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    taken: u64,
    acknowledged: u64,
}

impl Way {
    fn held(self) -> u64 {
        self.taken.saturating_sub(self.acknowledged)
    }
}

impl Store {
    /// A store with room for `room` bytes.
    pub(super) fn new(room: u64) -> Self {
        Self { room, ..Self::default() }
    }

    /// Accounts `bytes` that were read of a flow, for one of its ends.
    pub(super) fn take(&mut self, flow: u64, end: usize, bytes: u64) {
        self.change(flow, end, |way| way.taken += bytes);
    }

    /// Accounts the total that an end of a flow has acknowledged.
    pub(super) fn acknowledge(&mut self, flow: u64, end: usize, total: u64) {
        if self.flows.contains_key(&flow) {
            self.change(flow, end, |way| way.acknowledged = total.max(way.acknowledged));
        }
    }

    /// Removes a flow that is over.
    pub(super) fn forget(&mut self, flow: u64) {
        self.held -= self.held_by(flow);
        self.flows.remove(&flow);
    }

    /// Whether more is held than there is room for.
    pub(super) fn is_over(&self) -> bool {
        self.held > self.room
    }

    /// What a flow holds for both of its ends. Unit: bytes.
    pub(super) fn held_by(&self, flow: u64) -> u64 {
        self.flows.get(&flow).map_or(0, |ways| ways.iter().map(|way| way.held()).sum())
    }

    /// The flow that holds the most; among equals the oldest.
    pub(super) fn largest(&self) -> Option<u64> {
        let held = self.flows.keys().map(|&flow| (self.held_by(flow), Reverse(flow)));
        held.max().map(|(_, Reverse(flow))| flow)
    }

    fn change(&mut self, flow: u64, end: usize, how: impl FnOnce(&mut Way)) {
        let ways = self.flows.entry(flow).or_default();
        let Some(way) = ways.get_mut(end) else { return };
        let before = way.held();
        how(way);
        self.held = self.held - before + way.held();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_the_most_goes_first_and_what_is_acknowledged_is_not_held() {
        let mut store = Store::new(100);
        store.take(1, 0, 60);
        store.take(2, 0, 30);
        store.take(2, 1, 40);
        assert!(store.is_over());
        assert_eq!(store.largest(), Some(2));
        store.acknowledge(2, 0, 30);
        assert!(!store.is_over(), "{store:?}");
        assert_eq!((store.held_by(2), store.largest()), (40, Some(1)));
        store.take(2, 1, 1);
        assert!(store.is_over());
        store.forget(1);
        assert_eq!((store.held, store.largest()), (41, Some(2)));
        // The kernel counts a FIN as one byte.
        store.acknowledge(2, 1, 42);
        store.forget(2);
        assert_eq!((store.held, store.largest()), (0, None));
        store.acknowledge(2, 1, 50);
        assert_eq!(store.largest(), None);
    }

    #[test]
    fn among_equals_the_oldest_goes() {
        let mut store = Store::new(1);
        store.take(5, 0, 10);
        store.take(3, 1, 10);
        assert_eq!(store.largest(), Some(3));
    }
}
