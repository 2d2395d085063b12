//! The rule by which late runs are run again.
//!
//! A run is late where its machine could not keep up, so it gets more of the machine: each attempt has half as many
//! runs at once as the one before, and in the end one. A run that is late alone may be so by chance, or because the
//! machine has other work: it has a few attempts, and the record of the last one stays whatever it is. A campaign that
//! somebody waits for may allow fewer.

/// How often a run is run alone before a late record is kept: what makes it late then is not its company.
const ATTEMPTS_ALONE: u32 = 3;

/// One attempt at the runs of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// How many go at once.
    pub(crate) at_once: usize,
    /// How many attempts were alone, this one included.
    alone: u32,
    /// How many may follow; none: as many as it takes.
    repeats: Option<u32>,
}

impl Attempt {
    /// The first one, with `at_once` runs at once. At most `repeats` others follow.
    pub(crate) fn first(at_once: usize, repeats: Option<u32>) -> Self {
        Self { at_once, alone: u32::from(at_once == 1), repeats }
    }

    /// Whether no other one follows: what is late now stays late.
    pub(crate) fn is_last(self) -> bool {
        self.alone >= ATTEMPTS_ALONE || self.repeats == Some(0)
    }

    /// The attempt after this one. The last that is allowed is alone.
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
