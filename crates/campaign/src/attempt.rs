//! The rule by which late runs are repeated.
//!
//! A run is late where its machine could not keep up, so a repetition gets more of the machine.
//! Each attempt has half as many parallel runs as the one before, and the last ones only one. A run
//! that is late when run alone may be so by chance, or because the machine has other work. So it
//! has a few attempts, and the record of the last one is kept in any case. An interactive campaign
//! may allow fewer.

/// How often a run is run alone before a late record is kept: other runs are not the cause then.
const ATTEMPTS_ALONE: u32 = 3;

/// One attempt at the runs of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The number of parallel runs.
    pub(crate) at_once: usize,
    /// How many attempts were alone, this one included.
    alone: u32,
    /// The number of attempts that may follow; none: as many as necessary.
    repeats: Option<u32>,
}

impl Attempt {
    /// The first attempt, with `at_once` parallel runs. At most `repeats` others follow.
    pub(crate) fn first(at_once: usize, repeats: Option<u32>) -> Self {
        Self { at_once, alone: u32::from(at_once == 1), repeats }
    }

    /// Whether no other attempt follows: runs that are late now stay late.
    pub(crate) fn is_last(self) -> bool {
        self.alone >= ATTEMPTS_ALONE || self.repeats == Some(0)
    }

    /// The next attempt. The last one that is allowed runs alone.
    pub(crate) fn next(self) -> Self {
        let half = if self.repeats == Some(1) { 1 } else { (self.at_once / 2).max(1) };
        Self {
            at_once: half,
            alone: self.alone + u32::from(half == 1),
            repeats: self.repeats.map(|left| left.saturating_sub(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_go_at_once_each_time_and_a_few_times_one() {
        let mut attempts = vec![Attempt::first(5, None)];
        while !attempts[attempts.len() - 1].is_last() {
            attempts.push(attempts[attempts.len() - 1].next());
        }
        let at_once: Vec<usize> = attempts.iter().map(|it| it.at_once).collect();
        assert_eq!(at_once, [5, 2, 1, 1, 1]);
        let alone = Attempt::first(1, None);
        assert!(!alone.is_last() && !alone.next().is_last() && alone.next().next().is_last());
    }

    #[test]
    fn no_more_repeats_than_are_allowed_and_the_last_is_alone() {
        let mut attempts = vec![Attempt::first(6, Some(2))];
        while !attempts[attempts.len() - 1].is_last() {
            attempts.push(attempts[attempts.len() - 1].next());
        }
        let at_once: Vec<usize> = attempts.iter().map(|it| it.at_once).collect();
        assert_eq!(at_once, [6, 3, 1]);
        assert_eq!(Attempt::first(6, Some(1)).next().at_once, 1);
        assert!(Attempt::first(6, Some(0)).is_last());
    }
}
