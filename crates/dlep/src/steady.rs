//! The part of a changing rate that may be relied upon.

use midhop_units::{Duration, Instant, Rate};
use std::collections::VecDeque;

/// The least of the recent rates: a lower rate counts at once, a higher one when it has lasted.
///
/// A tunnel that sends more than its link carries fills a queue; one that sends less for a moment loses only that
/// moment.
#[derive(Debug, Clone)]
pub struct Steady {
    lasts: Duration,
    /// Each rate, and since when no lower rate was reported. Rates and times ascend.
    rates: VecDeque<(Instant, Rate)>,
}

impl Steady {
    /// A higher rate counts once it has lasted for `lasts`.
    pub fn new(lasts: Duration) -> Self {
        Self { lasts, rates: VecDeque::new() }
    }

    /// `rate` is reported now. Returns the rate that may be relied upon.
    pub fn take(&mut self, now: Instant, rate: Rate) -> Rate {
        let mut since = now;
        while let Some(&(earlier, last)) = self.rates.back()
            && last >= rate
        {
            since = earlier;
            self.rates.pop_back();
        }
        self.rates.push_back((since, rate));
        // A lower rate no longer counts once the following one has lasted.
        while let Some((since, _)) = self.rates.get(1)
            && now.saturating_since(*since) >= self.lasts
        {
            self.rates.pop_front();
        }
        self.rates.front().map_or(rate, |(_, least)| *least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_falls_counts_at_once_and_what_rises_when_it_has_lasted() {
        let mut steady = Steady::new(Duration::from_s(1));
        let reports = [
            (0, 20, 20),
            (100, 5, 5),
            (200, 10, 5),
            (900, 8, 5),
            (1_000, 12, 5),
            // Eight and more for a second, since the 200th millisecond.
            (1_200, 12, 8),
            (2_000, 12, 12),
            (9_000, 30, 12),
            (9_999, 30, 12),
            (10_000, 30, 30),
        ];
        for (ms, rate, relied) in reports {
            let now = Instant::START + Duration::from_ms(ms);
            let found = steady.take(now, Rate::from_mbit_per_s(rate));
            assert_eq!(found, Rate::from_mbit_per_s(relied), "after {ms} ms");
        }
    }
}
