//! Pure acknowledgements that wait in a queue, and when one makes another superfluous.
//!
//! Source: RFC 3449 §5.2.1. An acknowledgement may be dropped where the `ack-filter` of Linux' CAKE
//! drops it (net/sched/sch_cake.c). The caller that sends packets into a [`crate::Link`] reads an
//! [`Ack`] from each and calls [`crate::Link::supersede`], so that simulator and emulator filter by
//! the same rule.
//!
//! An ACK is dropped only when it is a pure ACK and reports no duplicate (RFC 2883), its timestamp
//! is not later than that of the new ACK, and the new ACK, itself a pure ACK, reports all that it
//! reports:
//! - its acknowledgment number is beyond the other's, and it covers the other's SACK blocks; or
//! - the number is the same, both have SACK blocks, and it covers the other's;
//!
//! and in both cases the new ACK has the ECE and CWR of the other, or the other has neither. So
//! while a receiver echoes a mark, echoes replace each other, but the first one keeps its place,
//! and the last one stays when an ACK without an echo follows.
//!
//! A duplicate ACK without SACK blocks is therefore never dropped for another duplicate, and a
//! window update never for a later one: each stays until the acknowledgment number advances.

/// A block of a selective acknowledgement: its first sequence number, and the first one after it.
pub type Block = (u32, u32);

/// The most blocks that a TCP header has room for.
pub const BLOCKS_MAX: usize = 4;

/// The contents of a pure acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ack {
    /// The acknowledgment number.
    pub number: u32,
    /// The value of its timestamp, where it has one.
    pub timestamp: Option<u32>,
    /// Whether it has ECE, and CWR (RFC 3168 §6.1).
    pub congestion: (bool, bool),
    blocks: [Block; BLOCKS_MAX],
    count: usize,
}

impl Ack {
    /// An acknowledgement without SACK blocks.
    pub fn new(number: u32, timestamp: Option<u32>, congestion: (bool, bool)) -> Self {
        Self { number, timestamp, congestion, ..Self::default() }
    }

    /// The same with these SACK blocks, the latest first.
    ///
    /// None where there are more than [`BLOCKS_MAX`]: no TCP header has them.
    pub fn with_blocks(mut self, blocks: impl IntoIterator<Item = Block>) -> Option<Self> {
        for block in blocks {
            *self.blocks.get_mut(self.count)? = block;
            self.count += 1;
        }
        Some(self)
    }

    /// Its SACK blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks[..self.count]
    }

    /// Whether `older`, of the same direction of the same connection, may be dropped when this one
    /// follows it. With `keep_blocks`, none with SACK blocks may.
    pub fn makes_superfluous(&self, older: &Self, keep_blocks: bool) -> bool {
        let replaceable = (older.congestion == (false, false)
            || older.congestion == self.congestion)
            && match keep_blocks {
                true => older.blocks().is_empty(),
                false => !older.reports_duplicate() && self.covers(older),
            };
        let in_time = match (older.timestamp, self.timestamp) {
            (Some(older), Some(newer)) => !is_beyond(older, newer),
            (older, newer) => older.is_none() && newer.is_none(),
        };
        let reports_more = is_beyond(self.number, older.number)
            || (self.number == older.number
                && !older.blocks().is_empty()
                && !self.blocks().is_empty());
        replaceable && in_time && reports_more
    }

    /// Whether its first block reports data that arrived twice (RFC 2883 §4): no other ACK reports
    /// that again.
    pub fn reports_duplicate(&self) -> bool {
        let Some(first) = self.blocks().first() else { return false };
        !is_beyond(first.1, self.number)
            || self.blocks().get(1).is_some_and(|second| is_within(*first, *second))
    }

    /// Whether it reports all that the SACK blocks of `earlier` report.
    pub fn covers(&self, earlier: &Self) -> bool {
        earlier.blocks().iter().all(|block| {
            !is_beyond(block.1, self.number)
                || self.blocks().iter().any(|known| is_within(*block, *known))
        })
    }
}

/// Whether the sequence number `later` is after `earlier` (RFC 9293 §3.4).
pub fn is_beyond(later: u32, earlier: u32) -> bool {
    (later.wrapping_sub(earlier) as i32) > 0
}

fn is_within(block: Block, other: Block) -> bool {
    !is_beyond(other.0, block.0) && !is_beyond(block.1, other.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(number: u32) -> Ack {
        Ack { number, timestamp: Some(7), ..Ack::default() }
    }

    fn with_blocks(number: u32, blocks: &[Block]) -> Ack {
        ack(number).with_blocks(blocks.iter().copied()).expect("room for them")
    }

    fn goes(newer: &Ack, older: &Ack) -> bool {
        newer.makes_superfluous(older, false)
    }

    #[test]
    fn a_later_number_makes_an_earlier_one_superfluous_also_past_the_wrap() {
        assert!(goes(&ack(2000), &ack(1000)));
        assert!(goes(&ack(500), &ack(u32::MAX - 500)));
        assert!(!goes(&ack(1000), &ack(2000)));
        // Duplicates and window updates have the same number, and stay.
        assert!(!goes(&ack(1000), &ack(1000)));
    }

    #[test]
    fn what_reports_congestion_goes_only_for_what_reports_the_same() {
        let all = [(false, false), (true, false), (false, true), (true, true)];
        for older in all {
            for newer in all {
                let flagged = |congestion, number| Ack { congestion, ..ack(number) };
                let may_go = older == (false, false) || older == newer;
                assert_eq!(goes(&flagged(newer, 2000), &flagged(older, 1000)), may_go);
            }
        }
    }

    #[test]
    fn sack_blocks_go_only_when_all_of_them_are_reported_again() {
        let older = with_blocks(1000, &[(3000, 4000), (6000, 7000)]);
        assert!(goes(&with_blocks(1000, &[(8000, 9000), (3000, 4500), (6000, 7000)]), &older));
        assert!(!goes(&with_blocks(1000, &[(8000, 9000), (3000, 4500)]), &older));
        assert!(goes(&with_blocks(4000, &[(5000, 9000)]), &older));
        assert!(goes(&ack(7000), &older));
        assert!(!goes(&ack(6500), &older));
        assert!(!ack(7000).makes_superfluous(&older, true));
        assert!(ack(7000).makes_superfluous(&ack(1000), true));
        assert_eq!(ack(1).with_blocks([(1, 2); BLOCKS_MAX + 1]), None);
    }

    #[test]
    fn a_report_of_a_duplicate_stays() {
        let below = with_blocks(5000, &[(2000, 3000), (6000, 7000)]);
        let inside = with_blocks(5000, &[(6200, 6400), (6000, 7000)]);
        assert!(!goes(&ack(9000), &below) && !goes(&ack(9000), &inside));
    }

    #[test]
    fn time_does_not_go_backwards() {
        let older = Ack { timestamp: Some(9), ..ack(1000) };
        assert!(!goes(&ack(2000), &older));
        assert!(!goes(&Ack { timestamp: None, ..ack(2000) }, &ack(1000)));
    }
}
