//! The times at which a proxy's flows must be processed.
//!
//! A heap in which each flow knows its place, so that a flow's time moves without a search. An ordered
//! set would do the same, but frees its memory with its last entry and allocates it again with the
//! next: for a proxy with one flow that is an allocation for each packet.
//!
//! Invariants: of flows with the same time the one that began first comes first; once the heap has grown to
//! the number of flows, nothing is allocated.

use crate::packet::FlowId;
use midhop_units::Instant;

/// The place of a flow without a time.
const NOWHERE: u32 = u32::MAX;

/// The times of all flows that have one.
#[derive(Debug, Default)]
pub(super) struct Due {
    heap: Vec<(Instant, FlowId)>,
    /// By the flow's number.
    places: Vec<u32>,
}

impl Due {
    /// The first flow and its time.
    pub fn first(&self) -> Option<(Instant, FlowId)> {
        self.heap.first().copied()
    }

    /// Sets a flow's time; [`Instant::NEVER`]: it has none.
    pub fn set(&mut self, flow: FlowId, at: Instant) {
        if self.places.len() <= flow.index() {
            self.places.resize(flow.index() + 1, NOWHERE);
        }
        match (self.places[flow.index()], at) {
            (NOWHERE, Instant::NEVER) => {}
            (NOWHERE, _) => {
                self.heap.push((at, flow));
                self.rise(self.heap.len() - 1);
            }
            (place, Instant::NEVER) => self.remove(place as usize),
            (place, _) => {
                let place = place as usize;
                let before = std::mem::replace(&mut self.heap[place].0, at);
                if at < before { self.rise(place) } else { self.sink(place) }
            }
        }
    }

    fn remove(&mut self, place: usize) {
        let (_, flow) = self.heap.swap_remove(place);
        self.places[flow.index()] = NOWHERE;
        if place < self.heap.len() {
            // The entry moved from the end may belong above or below.
            self.sink(place);
            self.rise(place);
        }
    }

    fn rise(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if self.heap[above] < entry {
                break;
            }
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while let Some(&left) = self.heap.get(2 * place + 1) {
            let right = self.heap.get(2 * place + 2).filter(|right| **right < left);
            let (least, at) = right.map_or((left, 2 * place + 1), |&right| (right, 2 * place + 2));
            if entry < least {
                break;
            }
            self.put(place, least);
            place = at;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (Instant, FlowId)) {
        self.heap[place] = entry;
        self.places[entry.1.index()] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_an_ordered_set(steps in prop::collection::vec((0..12_u32, 0..20_u64), 1..300)) {
            let mut due = Due::default();
            let mut model = BTreeSet::new();
            for (flow, at) in steps {
                let flow = FlowId(flow);
                let at = if at == 0 { Instant::NEVER } else { Instant::from_ns(at) };
                due.set(flow, at);
                model.retain(|(_, known)| *known != flow);
                if at != Instant::NEVER {
                    model.insert((at, flow));
                }
                prop_assert_eq!(due.first(), model.first().copied());
                prop_assert_eq!(due.heap.len(), model.len());
            }
        }
    }
}
