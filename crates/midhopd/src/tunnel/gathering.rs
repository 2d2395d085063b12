//! Gathers received bytes of a flow before they are written to its client or server.
//!
//! The flows of a tunnel take turns by the datagram, so a batch of datagrams has a little for each
//! of many flows. A system call for each of these pieces, and the wakeups at the far end of the
//! connection, cost more than the bytes. So a flow looks for more bytes first, while the worker
//! polls its sockets. It uses no timer, and it does not hold back a message that is shorter than a
//! datagram.

/// A piece shorter than this is a whole message. Unit: bytes.
const WORD_BYTES: usize = 1000;
/// This many bytes are worth a system call. Unit: bytes.
const WORTH_BYTES: usize = 32 << 10;
/// Number of polls that may find nothing more.
const VAIN_LOOKS: u32 = 3;

/// Whether a flow looks for more.
#[derive(Debug, Default)]
pub struct Gathering {
    looks: bool,
    /// Unit: bytes. Bytes gathered up to the last look.
    gathered: usize,
    /// Looks that found nothing more.
    vain: u32,
}

impl Gathering {
    /// Records the bytes gathered now. Returns whether to look for more before they are written.
    pub fn look(&mut self, gathered: usize) -> bool {
        self.vain = if self.looks { self.vain + u32::from(gathered == self.gathered) } else { 0 };
        self.gathered = gathered;
        self.looks = (WORD_BYTES..WORTH_BYTES).contains(&gathered) && self.vain < VAIN_LOOKS;
        self.looks
    }

    /// Whether it looks for more, so that nothing is written yet.
    pub fn looks(&self) -> bool {
        self.looks
    }

    /// Stops looking for more. Returns whether it was looking.
    pub fn stop(&mut self) -> bool {
        std::mem::take(&mut self.looks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_written_at_once_and_so_is_what_is_worth_a_call() {
        let mut gathering = Gathering::default();
        for bytes in [0, 1, 100, 999, 32 << 10, 1 << 20] {
            assert!(!gathering.look(bytes) && !gathering.looks(), "{bytes}");
        }
    }

    #[test]
    fn pieces_are_gathered_until_they_are_worth_a_call() {
        let mut gathering = Gathering::default();
        let mut gathered = 1400;
        while gathering.look(gathered) {
            gathered += 1400;
        }
        assert_eq!(gathered, 33_600, "the first of that sum that is enough");
    }

    #[test]
    fn where_nothing_more_comes_it_is_written_all_the_same() {
        let mut gathering = Gathering::default();
        let looks = [1400, 1400, 1400, 2800, 2800].map(|gathered| gathering.look(gathered));
        assert_eq!(looks, [true, true, true, true, false]);
        assert!(gathering.look(1400), "the next piece is looked at afresh");
        assert!(gathering.stop() && !gathering.stop() && !gathering.looks());
    }
}
