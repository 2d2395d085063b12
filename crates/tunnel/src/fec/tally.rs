//! The receiver's counts: extends datagram numbers, and counts missing datagrams.

use super::SPAN;
use super::wire::{NUMBERS, Report};

/// A datagram counts as lost once so many newer ones have arrived.
const JUDGED_AFTER: u64 = 32;
/// A longer run of losses is an outage, which repairs cannot cover.
const RUN_MAX: u32 = 64;
/// After so many numbers in a row far behind the newest, the newest was the false one.
const STRAYS_MAX: u8 = 16;

/// Extends the 21 bits on the wire to full numbers.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    newest: Option<u64>,
    strays: u8,
}

impl Sequence {
    /// The full number; `None` if it is too old to matter.
    pub fn admit(&mut self, bits: u32) -> Option<u64> {
        let whole = u64::from(NUMBERS);
        let newest = *self.newest.get_or_insert(whole + u64::from(bits));
        let ahead = (u64::from(bits) + whole - newest % whole) % whole;
        let behind = whole - ahead;
        let mut number = newest + ahead;
        if behind < SPAN as u64 {
            number -= whole;
        } else if ahead >= whole / 2 {
            self.strays += 1;
            if self.strays < STRAYS_MAX {
                return None;
            }
        }
        self.strays = 0;
        self.newest = Some(number.max(newest));
        Some(number)
    }
}

/// Counts received and missing datagrams.
#[derive(Debug)]
pub(super) struct Tally {
    /// By place: the last number received there, not counting recovered ones.
    came: [u64; SPAN],
    /// The next number to be judged, `None` before the first.
    next: Option<u64>,
    newest: u64,
    /// How many in a row are missing so far.
    run: u32,
    counts: Report,
}

impl Default for Tally {
    fn default() -> Self {
        Self { came: [0; SPAN], next: None, newest: 0, run: 0, counts: Report::default() }
    }
}

impl Tally {
    /// A datagram was received.
    pub fn on_source(&mut self, number: u64) {
        self.came[(number % SPAN as u64) as usize] = number;
        self.on_known(number);
    }

    /// A datagram of this number is known to exist.
    pub fn on_known(&mut self, number: u64) {
        let next = self.next.get_or_insert(number);
        if number.saturating_sub(self.newest) >= SPAN as u64 {
            // An outage, or garbage: the numbers between are not judged.
            *next = number;
            self.run = 0;
        }
        self.newest = self.newest.max(number);
        while *next + JUDGED_AFTER <= self.newest {
            let came = self.came[(*next % SPAN as u64) as usize] == *next;
            *next += 1;
            if !came {
                self.run = self.run.saturating_add(1);
                continue;
            }
            let run = std::mem::take(&mut self.run);
            let counts = &mut self.counts;
            counts.judged = counts.judged.wrapping_add(1);
            if (1..=RUN_MAX).contains(&run) {
                counts.judged = counts.judged.wrapping_add(run);
                counts.lost = counts.lost.wrapping_add(run);
                counts.runs = counts.runs.wrapping_add(1);
            }
        }
    }

    pub fn on_repaired(&mut self) {
        self.counts.repaired = self.counts.repaired.wrapping_add(1);
    }

    pub fn on_marked(&mut self) {
        self.counts.marked = self.counts.marked.wrapping_add(1);
    }

    pub fn report(&self) -> Report {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_where_their_bits_begin_again() {
        let mut sequence = Sequence::default();
        let whole = u64::from(NUMBERS);
        assert_eq!(sequence.admit(NUMBERS - 2), Some(2 * whole - 2));
        assert_eq!(sequence.admit(1), Some(2 * whole + 1));
        assert_eq!(sequence.admit(NUMBERS - 1), Some(2 * whole - 1));
        assert_eq!(sequence.admit(2), Some(2 * whole + 2));
    }

    #[test]
    fn one_forged_number_is_got_over() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.admit(100), Some(u64::from(NUMBERS) + 100));
        assert!(sequence.admit(900_000).is_some());
        let lost = (101..).map(|bits| sequence.admit(bits)).take_while(Option::is_none).count();
        assert_eq!(lost, usize::from(STRAYS_MAX) - 1);
        assert!(sequence.admit(117).is_some());
    }

    fn counted(came: impl Iterator<Item = u64>) -> (u32, u32, u32) {
        let mut tally = Tally::default();
        came.for_each(|number| tally.on_source(number));
        let report = tally.report();
        (report.judged, report.lost, report.runs)
    }

    #[test]
    fn losses_are_counted_in_runs_once_it_is_certain() {
        let missing = [50, 51, 52, 70, 990];
        let came = |to: u64| (1000..1000 + to).filter(move |at| !missing.contains(&(at - 1000)));
        assert_eq!(counted(came(82)), (50, 0, 0));
        assert_eq!(counted(came(1000)), (968, 4, 2));
        // Reordered within the limit.
        let turned = came(1000).map(|at| (at / 20) * 20 + 19 - at % 20);
        assert_eq!(counted(turned).1, 4);
        assert_eq!(counted((0..400).chain(0..400).map(|at| at + 1000)), (368, 0, 0));
    }

    #[test]
    fn an_outage_is_not_counted_as_loss() {
        assert_eq!(counted((1000..1100).chain(1200..1300)), (168, 0, 0));
        assert_eq!(counted((1000..1100).chain(9000..9100)), (136, 0, 0));
    }
}
