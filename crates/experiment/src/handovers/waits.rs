//! How long flows of transfers wait for payload.

use midhop_units::{Duration, Instant};
use std::collections::BTreeMap;

/// How soon the effect of a handover on a flow shows: packets in flight still arrive until then.
const SHOWS: Duration = Duration::from_s(1);

/// The waits of a transfer's flows.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    /// The longest; none where no payload arrived.
    pub longest: Option<Duration>,
    /// The longest of each flow from a holdup on, by the number of both.
    at_holdups: BTreeMap<(usize, u32), Duration>,
}

impl Waits {
    /// A flow has received payload at `from` and then none until `to`. `holdups` are in their order.
    pub fn count(&mut self, flow: u32, from: Instant, to: Instant, holdups: &[Instant]) {
        let waited = to.saturating_since(from);
        self.longest = self.longest.max(Some(waited));
        let first = holdups.partition_point(|at| *at + SHOWS <= from);
        let held = holdups[first..].iter().take_while(|at| **at < to).enumerate();
        for (number, _) in held {
            let longest = self.at_holdups.entry((first + number, flow)).or_default();
            *longest = waited.max(*longest);
        }
    }

    /// For each holdup, the longest wait of each flow that was active at that time.
    pub fn at_holdups(&self) -> impl Iterator<Item = Duration> + '_ {
        self.at_holdups.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_from_a_handover_on_is_counted_and_others_are_not() {
        let at = |ms| Instant::START + Duration::from_ms(ms);
        let holdups = [at(100), at(5000)];
        let mut waits = Waits::default();
        assert_eq!(waits.longest, None);
        // The packet in flight arrives in between.
        let arrivals = [0, 99, 104, 170, 1090, 4500, 4999, 5001];
        for pair in arrivals.windows(2) {
            waits.count(7, at(pair[0]), at(pair[1]), &holdups);
        }
        waits.count(8, at(50), at(5050), &holdups);
        assert_eq!(waits.longest, Some(Duration::from_ms(5000)));
        let all: Vec<_> = waits.at_holdups().collect();
        assert_eq!(all, [3410, 5000, 2, 5000].map(Duration::from_ms));
    }
}
