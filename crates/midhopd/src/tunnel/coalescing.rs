//! Coalesces received bytes of a flow before they are written to its client or server.
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
pub struct Coalescing {
    looks: bool,
    /// Unit: bytes. Bytes coalesced up to the last look.
    coalesced: usize,
    /// Looks that found nothing more.
    vain: u32,
}

impl Coalescing {
    /// Records the bytes coalesced now. Returns whether to look for more before they are written.
    pub fn look(&mut self, coalesced: usize) -> bool {
        self.vain = if self.looks { self.vain + u32::from(coalesced == self.coalesced) } else { 0 };
        self.coalesced = coalesced;
        self.looks = (WORD_BYTES..WORTH_BYTES).contains(&coalesced) && self.vain < VAIN_LOOKS;
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
        let mut coalescing = Coalescing::default();
        for bytes in [0, 1, 100, 999, 32 << 10, 1 << 20] {
            assert!(!coalescing.look(bytes) && !coalescing.looks(), "{bytes}");
        }
    }

    #[test]
    fn pieces_are_coalesced_until_they_are_worth_a_call() {
        let mut coalescing = Coalescing::default();
        let mut coalesced = 1400;
        while coalescing.look(coalesced) {
            coalesced += 1400;
        }
        assert_eq!(coalesced, 33_600, "the first of that sum that is enough");
    }

    #[test]
    fn where_nothing_more_comes_it_is_written_all_the_same() {
        let mut coalescing = Coalescing::default();
        let looks = [1400, 1400, 1400, 2800, 2800].map(|coalesced| coalescing.look(coalesced));
        assert_eq!(looks, [true, true, true, true, false]);
        assert!(coalescing.look(1400), "the next piece is looked at afresh");
        assert!(coalescing.stop() && !coalescing.stop() && !coalescing.looks());
    }
}
