//! Positions that an end is known to have, as few spans.

use std::collections::BTreeMap;

/// Disjoint spans that do not touch each other, by their starts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Adds the span from `from` to before `to`; returns the parts that were new, in order.
    pub fn insert(&mut self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut new = Vec::new();
        if from >= to {
            return new;
        }
        let (mut start, mut end, mut at) = (from, to, from);
        let before = self.0.range(..from).next_back().filter(|(_, end)| **end >= from);
        if let Some((&known, &until)) = before {
            start = known;
            at = until;
            end = end.max(until);
        }
        let inside: Vec<(u64, u64)> = self.0.range(from..=to).map(|(a, b)| (*a, *b)).collect();
        for (known, until) in inside {
            if known > at {
                new.push((at, known));
            }
            at = at.max(until);
            end = end.max(until);
            self.0.remove(&known);
        }
        if at < to {
            new.push((at, to));
        }
        self.0.insert(start, end);
        new
    }

    /// The span that holds a position.
    pub fn containing(&self, position: u64) -> Option<(u64, u64)> {
        let (&start, &end) = self.0.range(..=position).next_back()?;
        (end > position).then_some((start, end))
    }

    /// Whether everything from `from` to before `to` is there.
    pub fn covers(&self, from: u64, to: u64) -> bool {
        self.containing(from).is_some_and(|(_, end)| end >= to)
    }

    /// Whether a span begins before `limit`.
    pub fn any_below(&self, limit: u64) -> bool {
        self.0.first_key_value().is_some_and(|(start, _)| *start < limit)
    }

    /// Removes the first span, if it begins before `limit`.
    pub fn pop_below(&mut self, limit: u64) -> Option<(u64, u64)> {
        let entry = self.0.first_entry().filter(|entry| *entry.key() < limit)?;
        Some(entry.remove_entry())
    }

    /// Removes everything before a position.
    pub fn remove_below(&mut self, position: u64) {
        while let Some((start, end)) = self.pop_below(position) {
            if end > position {
                self.0.insert(position, end);
                return;
            }
            debug_assert!(start < end);
        }
    }

    /// How many spans there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_are_the_union_of_what_was_added(
            added in prop::collection::vec((0_u64..60, 0_u64..20), 0..40),
            cut in 0_u64..80,
        ) {
            let (mut spans, mut model) = (Spans::default(), [false; 80]);
            for (from, length) in added {
                let new = spans.insert(from, from + length);
                let parts: Vec<u64> = new.iter().flat_map(|(from, to)| *from..*to).collect();
                let expected: Vec<u64> =
                    (from..from + length).filter(|at| !model[*at as usize]).collect();
                prop_assert_eq!(parts, expected);
                (from..from + length).for_each(|at| model[at as usize] = true);
            }
            spans.remove_below(cut);
            let mut last = None;
            for (start, end) in &spans.0 {
                prop_assert!(start < end && last.is_none_or(|last| last < *start));
                last = Some(*end);
            }
            for (at, there) in model.iter().enumerate() {
                let at = at as u64;
                prop_assert_eq!(spans.containing(at).is_some(), *there && at >= cut);
            }
        }
    }
}
