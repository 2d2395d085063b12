//! The rule by which late runs are run again.
//!
//! A run is late where its machine could not keep up, so it gets more of the machine: each attempt has half as many
//! runs at once as the one before, and in the end one. A run that is late alone may be so by chance, or because the
//! machine has other work: it has a few attempts, and the record of the last one stays whatever it is.

/// How often a run is run alone before a late record is kept: what makes it late then is not its company.
const ATTEMPTS_ALONE: u32 = 3;

/// One attempt at the runs of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// How many go at once.
    pub(crate) at_once: usize,
    /// How many attempts were alone, this one included.
    alone: u32,
}

impl Attempt {
    /// The first one, with `at_once` runs at once.
    pub(crate) fn first(at_once: usize) -> Self {
        Self { at_once, alone: u32::from(at_once == 1) }
    }

    /// Whether no other one follows: what is late now stays late.
    pub(crate) fn is_last(self) -> bool {
        self.alone >= ATTEMPTS_ALONE
    }

    /// The attempt after this one.
    pub(crate) fn next(self) -> Self {
        let at_once = (self.at_once / 2).max(1);
        Self { at_once, alone: self.alone + u32::from(at_once == 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_go_at_once_each_time_and_a_few_times_one() {
        let mut attempts = vec![Attempt::first(5)];
        while !attempts[attempts.len() - 1].is_last() {
            attempts.push(attempts[attempts.len() - 1].next());
        }
        let at_once: Vec<usize> = attempts.iter().map(|it| it.at_once).collect();
        assert_eq!(at_once, [5, 2, 1, 1, 1]);
        let alone = Attempt::first(1);
        assert!(!alone.is_last() && !alone.next().is_last() && alone.next().next().is_last());
    }
}
