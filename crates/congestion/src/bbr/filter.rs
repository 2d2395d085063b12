//! The largest value of a window of time, in constant space.

/// A running maximum over a window, by any measure of time that does not go backwards.
///
/// Keeps the best value of the window and the best of the values after it, twice. So it drops a
/// maximum once the window has passed it, and is never larger than the true maximum of the window.
/// Source: K. Nichols' algorithm as Linux uses it (lib/win_minmax.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowedMax {
    /// Best, second and third best: later and later.
    best: [(u64, u64); 3],
}

impl WindowedMax {
    /// Holds only `value`, seen at `time`.
    pub fn new(time: u64, value: u64) -> Self {
        Self { best: [(time, value); 3] }
    }

    /// The maximum.
    pub fn max(&self) -> u64 {
        self.best[0].1
    }

    /// Adds `value` at `time`; drops values older than `window`. Returns the maximum.
    pub fn update(&mut self, window: u64, time: u64, value: u64) -> u64 {
        let sample = (time, value);
        let age = |seen: (u64, u64)| time.saturating_sub(seen.0);
        if value >= self.best[0].1 || age(self.best[2]) > window {
            *self = Self::new(time, value);
            return value;
        }
        if value >= self.best[1].1 {
            self.best[1] = sample;
            self.best[2] = sample;
        } else if value >= self.best[2].1 {
            self.best[2] = sample;
        }
        if age(self.best[0]) > window {
            self.advance(sample);
            if age(self.best[0]) > window {
                self.advance(sample);
            }
        } else if self.best[1].0 == self.best[0].0 && age(self.best[0]) > window / 4 {
            // A quarter has passed without a second best: take one from the second quarter.
            self.best[1] = sample;
            self.best[2] = sample;
        } else if self.best[2].0 == self.best[1].0 && age(self.best[0]) > window / 2 {
            self.best[2] = sample;
        }
        self.max()
    }

    fn advance(&mut self, sample: (u64, u64)) {
        self.best = [self.best[1], self.best[2], sample];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Draws;
    use midhop_units::Seed;

    #[test]
    fn a_maximum_holds_for_its_window_and_no_longer() {
        let mut filter = WindowedMax::new(0, 100);
        for time in 1..=10 {
            assert_eq!(filter.update(10, time, 50), 100, "at {time}");
        }
        assert_eq!(filter.update(10, 11, 50), 50);
        assert_eq!(filter.update(10, 12, 70), 70);
        assert_eq!(filter.update(10, 30, 10), 10, "after a silence nothing old is left");
    }

    #[test]
    fn it_never_exceeds_the_true_maximum_and_misses_little_of_it() {
        let mut draws = Draws::new(Seed(1));
        let values: Vec<u64> = (0..5000).map(|_| 1000 + draws.below(1000)).collect();
        let mut filter = WindowedMax::default();
        for (time, &value) in values.iter().enumerate() {
            let got = filter.update(100, time as u64, value);
            let window = &values[time.saturating_sub(100)..=time];
            let exact = *window.iter().max().expect("at least one");
            assert!(got <= exact, "{got} > {exact} at {time}");
            assert!(got >= value && got * 10 >= exact * 9, "{got} of {exact} at {time}");
        }
    }
}
