//! The times in which a connection received no payload.

use serde::{Deserialize, Serialize};

/// A gap that is shorter is not kept. Unit: nanoseconds.
const SHORTEST_NS: u64 = 10_000_000;
/// Of the gaps that end within this time the longest is kept. Unit: nanoseconds.
const STEP_NS: u64 = 100_000_000;
/// Most gaps; from then on, the steps are twice as long.
const MOST: usize = 1 << 14;

/// The gaps between arrivals of payload on one connection.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Gaps {
    /// When the first payload arrived, after the connection's origin. Unit: nanoseconds.
    pub(super) first_ns: Option<u64>,
    /// When the last of it arrived.
    pub(super) last_ns: u64,
    /// Beginning and end of each gap that is kept, in their order.
    pub(super) kept: Vec<(u64, u64)>,
    #[serde(skip)]
    doublings: u32,
}

impl Gaps {
    /// Payload has arrived `at_ns` after the origin.
    pub(super) fn arrived(&mut self, at_ns: u64) {
        if self.first_ns.is_none() {
            (self.first_ns, self.last_ns) = (Some(at_ns), at_ns);
            return;
        }
        let gap = (self.last_ns, at_ns);
        self.last_ns = at_ns;
        if length(gap) < SHORTEST_NS {
            return;
        }
        self.keep(gap);
        if self.kept.len() > MOST {
            self.doublings += 1;
            for gap in std::mem::take(&mut self.kept) {
                self.keep(gap);
            }
        }
    }

    fn keep(&mut self, gap: (u64, u64)) {
        let step = |gap: (u64, u64)| gap.1 / (STEP_NS << self.doublings);
        match self.kept.last_mut() {
            Some(last) if step(*last) == step(gap) => {
                if length(gap) > length(*last) {
                    *last = gap;
                }
            }
            _ => self.kept.push(gap),
        }
    }
}

fn length((from, to): (u64, u64)) -> u64 {
    to.saturating_sub(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_longest_gap_of_each_step_is_kept() {
        let mut gaps = Gaps::default();
        for at in [5, 8, 30, 45, 99, 101, 120, 1_320, 1_325] {
            gaps.arrived(at * MS);
        }
        assert_eq!((gaps.first_ns, gaps.last_ns), (Some(5 * MS), 1_325 * MS));
        let kept = [(45, 99), (101, 120), (120, 1_320)];
        assert_eq!(gaps.kept, kept.map(|(from, to)| (from * MS, to * MS)));
    }

    #[test]
    fn a_slow_connection_that_lasts_takes_no_more_memory() {
        let mut gaps = Gaps::default();
        for number in 0..3 * MOST as u64 {
            let pause = if number == 7 { 900 } else { 0 };
            gaps.arrived((number * 100 + pause) * MS);
        }
        assert!(gaps.kept.len() <= MOST);
        assert!(gaps.kept.iter().any(|gap| length(*gap) == 1_000 * MS), "the longest stays");
    }
}
