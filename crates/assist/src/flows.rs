//! The flows of an agent that holds acknowledgements back.
//!
//! A flow is known from its first pure acknowledgement to its FIN or RST. A later packet of that direction, as from
//! an end that has only finished sending, makes it known again.
//!
//! Invariants: at most [`FLOWS_MAX`] flows are known. When one more comes, flows without held packets are forgotten.
//! If there are none, the new flow passes unchanged. A flow is due at most once.

use super::Way;
use midhop_units::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// The most flows that an agent knows at once.
pub(crate) const FLOWS_MAX: usize = 10_000;

/// The flows that an agent knows, and when held packets of each are due.
#[derive(Debug)]
pub(crate) struct Flows<W, F> {
    known: BTreeMap<W, Known<F>>,
    due: BTreeSet<(Instant, W)>,
    limit: usize,
}

#[derive(Debug)]
struct Known<F> {
    flow: F,
    /// When it is due; none: nothing of it is held back.
    due: Option<Instant>,
}

impl<W: Way, F> Flows<W, F> {
    pub fn new() -> Self {
        Self::of(FLOWS_MAX)
    }

    fn of(limit: usize) -> Self {
        Self { known: BTreeMap::new(), due: BTreeSet::new(), limit }
    }

    pub fn get_mut(&mut self, key: W) -> Option<&mut F> {
        self.known.get_mut(&key).map(|known| &mut known.flow)
    }

    /// Adds a flow that is not due, if there is room.
    pub fn begin(&mut self, key: W, flow: F) {
        // If all flows have held packets, none can be forgotten.
        if self.known.len() >= self.limit && self.due.len() < self.limit {
            self.known.retain(|_, known| known.due.is_some());
        }
        if self.known.len() < self.limit {
            self.known.insert(key, Known { flow, due: None });
        }
    }

    /// Sets when a flow is due; none: it is not due.
    pub fn schedule(&mut self, key: W, at: Option<Instant>) {
        let Some(known) = self.known.get_mut(&key) else { return };
        if known.due == at {
            return;
        }
        if let Some(before) = known.due {
            self.due.remove(&(before, key));
        }
        known.due = at;
        self.due.extend(at.map(|at| (at, key)));
    }

    /// Removes a flow; its held packets must have been sent.
    pub fn end(&mut self, key: W) {
        self.schedule(key, None);
        self.known.remove(&key);
    }

    /// The first flow that is due by `now`, the earliest first. It is no longer due.
    pub fn pop_due(&mut self, now: Instant) -> Option<(W, &mut F)> {
        let &(at, key) = self.due.first()?;
        if at > now {
            return None;
        }
        self.schedule(key, None);
        self.get_mut(key).map(|flow| (key, flow))
    }

    /// When the next is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Line;
    use midhop_units::Duration;

    fn key(number: u32) -> Line {
        Line(number, true)
    }

    fn at(ms: u64) -> Option<Instant> {
        Some(Instant::START + Duration::from_ms(ms))
    }

    fn known(flows: &Flows<Line, char>) -> String {
        flows.known.values().map(|known| known.flow).collect()
    }

    #[test]
    fn beyond_the_limit_idle_flows_are_forgotten_and_waiting_ones_kept() {
        let mut flows = Flows::of(3);
        (0..3).zip("abc".chars()).for_each(|(number, name)| flows.begin(key(number), name));
        flows.schedule(key(1), at(10));
        flows.begin(key(3), 'd');
        assert_eq!(known(&flows), "bd");
        flows.begin(key(4), 'e');
        flows.schedule(key(3), at(20));
        flows.schedule(key(4), at(20));
        // All hold something back: a fourth passes unchanged.
        flows.begin(key(5), 'f');
        assert_eq!((known(&flows).as_str(), flows.get_mut(key(5))), ("bde", None));
        flows.schedule(key(5), at(1));
        assert_eq!(flows.next_due(), at(10));
        flows.end(key(1));
        flows.begin(key(5), 'f');
        assert_eq!((known(&flows).as_str(), flows.next_due()), ("def", at(20)));
    }

    #[test]
    fn a_flow_is_due_once_at_the_time_that_was_scheduled_last() {
        let mut flows = Flows::new();
        flows.begin(key(1), 'a');
        flows.begin(key(2), 'b');
        flows.schedule(key(1), at(10));
        flows.schedule(key(2), at(10));
        flows.schedule(key(1), at(30));
        assert_eq!(flows.pop_due(at(9).expect("a time")), None);
        assert_eq!(flows.pop_due(at(20).expect("a time")), Some((key(2), &mut 'b')));
        assert_eq!(flows.pop_due(at(20).expect("a time")), None);
        assert_eq!(flows.next_due(), at(30));
        flows.schedule(key(1), None);
        assert_eq!(flows.next_due(), None);
        flows.schedule(key(2), at(40));
        flows.end(key(2));
        assert_eq!((flows.next_due(), known(&flows).as_str()), (None, "a"));
    }
}
