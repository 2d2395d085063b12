//! What the receiver has reported of one direction, and which part of it is reported to the source.
//!
//! A receiver repeats a block only a few times, and the source may receive none beyond the first segment
//! that the agent answers for. So this keeps what the receiver has, and what of it must still be
//! reported.
//!
//! Invariant: only what the receiver is known to have is to be reported.

use crate::sequence::position;
use crate::spans::Spans;
use midhop_tcp::{SackBlock, SackBlocks, Segment};
use std::collections::VecDeque;

/// How many retransmissions are remembered, to recognise the reports of needless copies.
const REPAIRS_REMEMBERED: usize = 16;
/// The most blocks of a receiver that are remembered.
const BLOCKS_MAX: usize = 1024;

/// One receiver's reports.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// What the receiver has reported beyond its cumulative acknowledgement.
    has: Spans,
    /// The part of it that was not reported to the source.
    unreported: Spans,
    /// Retransmissions of the agent that have arrived, the latest last.
    repairs: VecDeque<(u64, u64)>,
}

impl Reports {
    /// Whether the receiver has reported everything from `from` to before `to`.
    pub fn has(&self, from: u64, to: u64) -> bool {
        self.has.covers(from, to)
    }

    /// The receiver acknowledges everything before a position.
    pub fn on_acknowledged(&mut self, position: u64) {
        self.has.remove_below(position);
        self.unreported.remove_below(position);
        if self.has.containing(position).is_some() {
            // The receiver has dropped data that it had reported (RFC 2018 §8).
            self.has.clear();
            self.unreported.clear();
        }
    }

    /// The receiver reports that it has the data from `from` to before `to`.
    pub fn on_report(&mut self, from: u64, to: u64) {
        if self.has.len() < BLOCKS_MAX {
            for (from, to) in self.has.insert(from, to) {
                self.unreported.insert(from, to);
            }
        }
    }

    /// Data that the agent retransmitted has arrived, as the copy or as the original.
    pub fn on_repaired(&mut self, from: u64, to: u64) {
        self.repairs.push_back((from, to));
        if self.repairs.len() > REPAIRS_REMEMBERED {
            self.repairs.pop_front();
        }
    }

    /// Removes from an acknowledgement what would report losses to the source that are repaired here. Adds what was
    /// removed earlier and may be reported by now. Returns whether it reported nothing but a needless copy of this
    /// agent. `limit`: the start of the first segment that the agent answers for.
    ///
    /// Blocks are reported from the lowest up, as they would have come: the source takes a hole between two of them
    /// for lost.
    pub fn silence(&mut self, segment: &mut Segment, ack: u64, limit: u64) -> bool {
        if segment.sack.is_empty() && self.unreported.len() == 0 {
            return false;
        }
        // A segment with payload has no room for more blocks than it has.
        let room = match (segment.length, segment.timestamps) {
            (0, Some(_)) => SackBlocks::MAX - 1,
            (0, None) => SackBlocks::MAX,
            _ => segment.sack.len(),
        };
        let repeat = is_repeat(segment, ack);
        let only = repeat && segment.sack.len() == 1;
        let (mut blocks, mut silenced) = (SackBlocks::default(), false);
        let mut spans: Vec<(u64, u64)> = Vec::new();
        if let Some(first) = segment.sack.iter().next().filter(|_| repeat) {
            let span = (position(first.start, ack), position(first.end, ack));
            silenced = self.repairs.iter().any(|own| own.0 <= span.0 && span.1 <= own.1);
            if !silenced {
                blocks.push(first);
            }
        }
        while blocks.len() + spans.len() < room {
            let Some((start, end)) = self.unreported.pop_below(limit) else { break };
            spans.push(self.has.containing(start).unwrap_or((start, end)));
        }
        // The latest block comes first.
        spans.reverse();
        for block in segment.sack.iter().skip(usize::from(repeat)) {
            let span = (position(block.start, ack), position(block.end, ack));
            let known = spans.iter().any(|it| it.0 <= span.0 && span.1 <= it.1);
            if span.1 <= limit && !known && blocks.len() + spans.len() < room {
                spans.push(span);
            }
        }
        for (start, end) in spans {
            blocks.push(SackBlock { start: start as u32, end: end as u32 });
        }
        segment.sack = blocks;
        silenced && only
    }

    /// Whether something was not reported to the source.
    pub fn is_behind(&self) -> bool {
        self.unreported.len() > 0
    }

    /// An acknowledgement that passes unchanged reports everything to the source.
    pub fn on_passed(&mut self) {
        self.unreported.clear();
    }

    /// Whether something below `limit` is to be reported.
    pub fn is_behind_below(&self, limit: u64) -> bool {
        self.unreported.any_below(limit)
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When something does not.
    pub fn check_invariants(&self, acknowledged: u64) {
        assert!(self.repairs.len() <= REPAIRS_REMEMBERED);
        assert!(self.has.len() <= BLOCKS_MAX && self.has.containing(acknowledged).is_none());
    }
}

/// Whether the first block reports a duplicate (RFC 2883 §4).
pub(super) fn is_repeat(segment: &Segment, ack: u64) -> bool {
    let [first, others @ ..] = segment.sack.as_slice() else { return false };
    let span = (position(first.start, ack), position(first.end, ack));
    span.0 < ack
        || others.first().is_some_and(|second| {
            position(second.start, ack) <= span.0 && span.1 <= position(second.end, ack)
        })
}
