//! A set of positions kept as few sorted ranges: data that arrived out of order, or was selectively
//! acknowledged.

use std::collections::VecDeque;

/// Positions from `start` up to but without `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: u64,
    pub end: u64,
}

/// Disjoint, non-adjacent spans in ascending order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranges {
    spans: VecDeque<Span>,
}

impl Ranges {
    /// Adds a span; calls `new` with each new part of it, in ascending order.
    ///
    /// Costs a binary search and the ranges that it adds or merges.
    pub fn insert(&mut self, span: Span, mut new: impl FnMut(Span)) {
        if span.start >= span.end {
            return;
        }
        // The common case first: the last range grows, or a new one follows it.
        let first = match self.spans.back_mut() {
            Some(last) if span.start >= last.start && span.start <= last.end => {
                if span.end > last.end {
                    new(Span { start: last.end, end: span.end });
                    last.end = span.end;
                }
                return;
            }
            Some(last) if span.start > last.end => self.spans.len(),
            _ => self.spans.partition_point(|known| known.end < span.start),
        };
        let mut merged = span;
        let mut at = span.start;
        let mut past = first;
        while let Some(known) = self.spans.get(past).filter(|known| known.start <= span.end) {
            if at < known.start {
                new(Span { start: at, end: known.start });
            }
            at = at.max(known.end);
            merged.start = merged.start.min(known.start);
            merged.end = merged.end.max(known.end);
            past += 1;
        }
        if at < span.end {
            new(Span { start: at, end: span.end });
        }
        if past == first {
            self.spans.insert(first, merged);
        } else {
            self.spans[first] = merged;
            if past > first + 1 {
                self.spans.drain(first + 1..past);
            }
        }
    }

    /// Forgets what lies below `position`.
    pub fn remove_below(&mut self, position: u64) {
        while let Some(first) = self.spans.front_mut() {
            if first.end > position {
                first.start = first.start.max(position);
                break;
            }
            self.spans.pop_front();
        }
    }

    /// The span that holds `position`.
    pub fn containing(&self, position: u64) -> Option<Span> {
        // The last span is requested most often.
        let last = self.spans.back()?;
        if position >= last.start {
            return (position < last.end).then_some(*last);
        }
        let at = self.spans.partition_point(|known| known.end <= position);
        self.spans.get(at).copied().filter(|known| known.start <= position)
    }

    /// Whether `span` is completely covered.
    pub fn covers(&self, span: Span) -> bool {
        self.containing(span.start).is_some_and(|known| known.end >= span.end)
    }

    pub fn first(&self) -> Option<Span> {
        self.spans.front().copied()
    }

    pub fn last(&self) -> Option<Span> {
        self.spans.back().copied()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Span> + '_ {
        self.spans.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub fn clear(&mut self) {
        self.spans.clear();
    }

    /// When no span is left, frees the memory beyond a few spans.
    pub fn release(&mut self) {
        if self.spans.is_empty() && self.spans.capacity() > 8 {
            self.spans = VecDeque::new();
        }
    }

    /// Memory on the heap. Unit: bytes.
    pub fn memory(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_set_is_the_union(spans in prop::collection::vec((0_u64..60, 1_u64..20), 0..40)) {
            let mut ranges = Ranges::default();
            let mut model = [false; 80];
            for (start, length) in spans {
                let span = Span { start, end: start + length };
                let mut added = Vec::new();
                ranges.insert(span, |part| added.extend(part.start..part.end));
                let expected: Vec<u64> =
                    (span.start..span.end).filter(|&at| !model[at as usize]).collect();
                prop_assert_eq!(added, expected);
                for at in span.start..span.end {
                    model[at as usize] = true;
                }
                prop_assert!(ranges.covers(span));
                let mut before = None;
                for known in ranges.iter() {
                    prop_assert!(known.start < known.end);
                    prop_assert!(before.is_none_or(|end| end < known.start));
                    before = Some(known.end);
                }
                for (at, &there) in model.iter().enumerate() {
                    prop_assert_eq!(ranges.containing(at as u64).is_some(), there);
                }
            }
            ranges.remove_below(30);
            for (at, &there) in model.iter().enumerate() {
                prop_assert_eq!(ranges.containing(at as u64).is_some(), there && at >= 30);
            }
        }
    }
}
