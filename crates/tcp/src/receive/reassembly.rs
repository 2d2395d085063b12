//! Received data: in order, and beyond a gap. It holds positions, not bytes.
//!
//! Source: RFC 9293 §3.10.7.4, RFC 2018 §4 for the reports, RFC 2883 for duplicates.

use crate::{
    ranges::{Ranges, Span},
    segment::SackBlocks,
};

/// The effect of an arriving segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It carried nothing new.
    Duplicate,
    /// It follows the data received, and nothing was or is missing.
    InOrder,
    /// It fills a gap, in whole or in part.
    Fills,
    /// It lies beyond a gap.
    Beyond,
}

/// The receiver's map of the stream, in positions of the sequence space.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reassembly {
    /// The next position expected.
    pub nxt: u64,
    /// Data received out of order, once there is any: boxed, since most streams need none.
    disorder: Option<Box<Disorder>>,
}

/// State of a stream that did not arrive in order.
#[derive(Debug, Clone, Default)]
struct Disorder {
    beyond: Ranges,
    /// A position in each of the ranges reported last, the latest first.
    recent: [u64; SackBlocks::MAX],
    duplicate: Option<Span>,
}

impl Reassembly {
    pub fn new(nxt: u64) -> Self {
        Self { nxt, disorder: None }
    }

    /// Adds the data within the window.
    pub fn on_segment(&mut self, span: Span) -> Arrival {
        if span.end <= self.nxt {
            self.note_duplicate(span);
            return Arrival::Duplicate;
        }
        if span.start < self.nxt {
            self.note_duplicate(Span { start: span.start, end: self.nxt });
        }
        let span = Span { start: span.start.max(self.nxt), end: span.end };
        if span.start == self.nxt && !self.has_gap() {
            self.nxt = span.end;
            return Arrival::InOrder;
        }
        let disorder = self.disorder.get_or_insert_default();
        if disorder.beyond.covers(span) {
            disorder.duplicate = Some(span);
            disorder.remember(span.start);
            return Arrival::Duplicate;
        }
        disorder.beyond.insert(span, |_| {});
        if span.start > self.nxt {
            disorder.remember(span.start);
            return Arrival::Beyond;
        }
        if let Some(first) = disorder.beyond.first() {
            self.nxt = first.end;
            disorder.beyond.remove_below(self.nxt);
        }
        Arrival::Fills
    }

    /// The ranges to report, the latest first; a duplicate before all, once.
    pub fn report(&mut self, limit: usize, each: impl FnMut(Span)) {
        if let Some(disorder) = &mut self.disorder {
            disorder.report(limit, each);
        }
    }

    /// Received data was a duplicate, and lies outside of the accepted range.
    pub fn note_duplicate(&mut self, span: Span) {
        self.disorder.get_or_insert_default().duplicate = Some(span);
    }

    /// How many ranges there would be to report.
    pub fn reports(&self) -> usize {
        self.disorder
            .as_ref()
            .map_or(0, |disorder| disorder.beyond.len() + usize::from(disorder.duplicate.is_some()))
    }

    /// Memory on the heap. Unit: bytes.
    pub fn memory(&self) -> usize {
        self.disorder
            .as_ref()
            .map_or(0, |disorder| size_of::<Disorder>() + disorder.beyond.memory())
    }

    /// Frees memory that is not needed.
    pub fn release(&mut self) {
        if let Some(disorder) = &mut self.disorder {
            disorder.beyond.release();
        }
    }

    /// Whether anything is missing below the received data.
    pub fn has_gap(&self) -> bool {
        self.disorder.as_ref().is_some_and(|disorder| !disorder.beyond.is_empty())
    }

    pub fn has_report(&self) -> bool {
        let some =
            |disorder: &Disorder| !disorder.beyond.is_empty() || disorder.duplicate.is_some();
        self.disorder.as_deref().is_some_and(some)
    }

    /// The position after the last received byte.
    pub fn end(&self) -> u64 {
        let last = self.disorder.as_ref().and_then(|disorder| disorder.beyond.last());
        last.map_or(self.nxt, |span| span.end)
    }

    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut end = self.nxt;
        for span in self.disorder.iter().flat_map(|disorder| disorder.beyond.iter()) {
            if span.start <= end || span.end <= span.start {
                return Err(format!("{}..{} lies at or below {end}", span.start, span.end));
            }
            end = span.end;
        }
        Ok(())
    }
}

impl Disorder {
    fn remember(&mut self, position: u64) {
        let range = self.beyond.containing(position);
        let same =
            |known: u64| range.is_some_and(|range| (range.start..range.end).contains(&known));
        let known = self.recent.iter().position(|&known| same(known));
        let last = known.unwrap_or(self.recent.len() - 1);
        self.recent.copy_within(..last, 1);
        self.recent[0] = position;
    }

    fn report(&mut self, limit: usize, mut each: impl FnMut(Span)) {
        let mut left = limit;
        if left == 0 {
            return;
        }
        if let Some(duplicate) = self.duplicate.take() {
            each(duplicate);
            left -= 1;
        }
        let mut reported = [0; SackBlocks::MAX];
        let mut count = 0;
        for position in self.recent {
            if count == left {
                break;
            }
            let Some(span) = self.beyond.containing(position) else { continue };
            if reported[..count].contains(&span.start) {
                continue;
            }
            reported[count] = span.start;
            count += 1;
            each(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    fn report(reassembly: &mut Reassembly) -> Vec<(u64, u64)> {
        let mut blocks = Vec::new();
        reassembly.report(3, |block| blocks.push((block.start, block.end)));
        blocks
    }

    #[test]
    fn the_latest_block_is_reported_first() {
        let mut reassembly = Reassembly::new(1);
        assert_eq!(reassembly.on_segment(span(1, 10)), Arrival::InOrder);
        assert_eq!(reassembly.on_segment(span(20, 30)), Arrival::Beyond);
        assert_eq!(reassembly.on_segment(span(40, 50)), Arrival::Beyond);
        assert_eq!(reassembly.on_segment(span(60, 70)), Arrival::Beyond);
        assert_eq!(report(&mut reassembly), [(60, 70), (40, 50), (20, 30)]);
        assert_eq!(reassembly.on_segment(span(30, 40)), Arrival::Beyond);
        assert_eq!(report(&mut reassembly), [(20, 50), (60, 70)]);
        assert_eq!(reassembly.on_segment(span(10, 20)), Arrival::Fills);
        assert_eq!(reassembly.nxt, 50);
        assert_eq!(report(&mut reassembly), [(60, 70)]);
        assert_eq!(reassembly.on_segment(span(50, 60)), Arrival::Fills);
        assert_eq!(reassembly.nxt, 70);
        assert!(report(&mut reassembly).is_empty());
    }

    #[test]
    fn a_duplicate_is_reported_once_and_before_all() {
        let mut reassembly = Reassembly::new(1);
        reassembly.on_segment(span(1, 10));
        reassembly.on_segment(span(20, 30));
        assert_eq!(reassembly.on_segment(span(5, 10)), Arrival::Duplicate);
        assert_eq!(report(&mut reassembly), [(5, 10), (20, 30)]);
        assert_eq!(report(&mut reassembly), [(20, 30)]);
        assert_eq!(reassembly.on_segment(span(20, 25)), Arrival::Duplicate);
        assert_eq!(report(&mut reassembly), [(20, 25), (20, 30)]);
    }
}
