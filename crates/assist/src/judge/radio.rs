//! Whether the path behind the agent loses segments that no queue can have dropped.
//!
//! A queue drops nothing while it is empty; a radio loses as much then as at other times. Until an agent that does not
//! see the queue has met such losses, it has nothing to repair, and may do harm: disciplines that drop before a queue
//! is full (CoDel, PIE) show no other sign by which their drops could be known.
//!
//! Bound: four counts, however much passes.

use super::queue::Waits;
use midhop_units::{Duration, Instant};

/// Counts are kept for once to twice this time, because the path may change.
const LATELY: Duration = Duration::from_s(60);
/// So many losses are no accident.
const LOSSES_MIN: u64 = 3;
/// Fewer losses are not compared: their rate is chance.
const LOSSES_COMPARED: u64 = 8;

/// Arrivals and losses, while the queue was empty and while something waited. A loss while it is full is attributed to
/// the queue in any case.
#[derive(Debug, Default)]
pub(crate) struct Radio {
    /// Since `since`, and in the period before.
    lately: [Met; 2],
    since: Instant,
}

#[derive(Debug, Clone, Copy, Default)]
struct Met {
    empty: Tally,
    some: Tally,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    passed: u64,
    lost: u64,
}

impl Radio {
    /// A segment has arrived. `waits`: how much waited when it was sent.
    pub fn on_arrival(&mut self, now: Instant, waits: Waits) {
        if let Some(tally) = self.tally(now, waits) {
            tally.passed += 1;
        }
    }

    /// A segment was lost. `waits`: how much waited when it was sent, if that is known.
    pub fn on_loss(&mut self, now: Instant, waits: Option<Waits>) {
        if let Some(tally) = waits.and_then(|waits| self.tally(now, waits)) {
            tally.lost += 1;
        }
    }

    /// Whether segments are lost while nothing waits, at least half as often as while something waits.
    pub fn loses(&self) -> bool {
        let [one, other] = self.lately;
        let sum = |of: fn(Met) -> u64| of(one) + of(other);
        let (lost, passed) = (sum(|met| met.empty.lost), sum(|met| met.empty.passed));
        let (lost_behind, passed_behind) = (sum(|met| met.some.lost), sum(|met| met.some.passed));
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let as_often = 2 * product(lost, passed_behind) >= product(lost_behind, passed);
        lost >= LOSSES_MIN && (as_often || lost_behind < LOSSES_COMPARED)
    }

    fn tally(&mut self, now: Instant, waits: Waits) -> Option<&mut Tally> {
        if now.saturating_since(self.since) >= LATELY {
            (self.lately, self.since) = ([Met::default(), self.lately[0]], now);
        }
        let [met, _] = &mut self.lately;
        match waits {
            Waits::Nothing => Some(&mut met.empty),
            Waits::Some => Some(&mut met.some),
            Waits::Full => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(empty: (u32, u32), some: (u32, u32)) -> Radio {
        let mut radio = Radio::default();
        for (waits, (passed, lost)) in [(Waits::Nothing, empty), (Waits::Some, some)] {
            (0..passed).for_each(|_| radio.on_arrival(Instant::START, waits));
            (0..lost).for_each(|_| radio.on_loss(Instant::START, Some(waits)));
        }
        radio
    }

    #[test]
    fn a_radio_loses_whatever_waits_and_a_queue_does_not() {
        assert!(!met((0, 0), (0, 0)).loses());
        assert!(!met((1000, 2), (1000, 2)).loses(), "too few");
        assert!(met((1000, 10), (1000, 10)).loses());
        assert!(met((1000, 5), (1000, 10)).loses());
        assert!(!met((1000, 4), (1000, 10)).loses());
        assert!(!met((10_000, 0), (1000, 30)).loses(), "drops of a queue");
        assert!(met((1000, 3), (0, 0)).loses());
    }

    #[test]
    fn what_was_met_long_ago_shows_nothing() {
        let mut radio = met((1000, 10), (1000, 10));
        let later = |s| Instant::START + Duration::from_s(s);
        radio.on_arrival(later(61), Waits::Nothing);
        assert!(radio.loses());
        radio.on_arrival(later(122), Waits::Nothing);
        assert!(!radio.loses());
    }
}
