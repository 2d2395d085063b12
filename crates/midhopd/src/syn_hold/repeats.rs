//! One SYN out for each SYN in: the kernel's retransmission of a SYN to a server waits in the queue until the client
//! has retransmitted its SYN.
//!
//! Invariant: while its client is held, a flow sends no more SYNs than its client did, and at most
//! one packet of it waits. There is one exception: a client that is let go with its third SYN may
//! cause one SYN more.

use crate::ends::Ends;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The attempts of one queue to open far sides, by their addresses as they leave.
#[derive(Debug, Default)]
pub struct Repeats {
    attempts: RefCell<HashMap<Ends, Attempt>>,
}

#[derive(Debug, Default)]
struct Attempt {
    /// SYNs that the client has retransmitted and that have not yet been matched by a retransmission of ours.
    credit: u32,
    /// The queue's number of the retransmission that waits.
    waiting: Option<u32>,
}

/// The verdict on a retransmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It leaves: the client's retransmission arrived before.
    Leaves,
    /// It waits for the client's retransmission.
    Waits,
    /// No answer to it is awaited, or another one waits already.
    Stale,
}

impl Repeats {
    /// Begins an attempt. Its first SYN corresponds to the client's first.
    pub fn begin(&self, leaving: Ends) {
        self.attempts.borrow_mut().insert(leaving, Attempt::default());
    }

    /// Ends an attempt. Returns the retransmission that waited.
    pub fn end(&self, leaving: &Ends) -> Option<u32> {
        self.attempts.borrow_mut().remove(leaving)?.waiting
    }

    /// The client has retransmitted its SYN. Returns the retransmission that may leave now.
    pub fn client_repeated(&self, leaving: &Ends) -> Option<u32> {
        let mut attempts = self.attempts.borrow_mut();
        let attempt = attempts.get_mut(leaving)?;
        let waiting = attempt.waiting.take();
        if waiting.is_none() {
            attempt.credit += 1;
        }
        waiting
    }

    /// The kernel retransmits a SYN of ours.
    pub fn repeated(&self, leaving: Ends, packet: u32) -> Repeat {
        let mut attempts = self.attempts.borrow_mut();
        let Entry::Occupied(mut attempt) = attempts.entry(leaving) else { return Repeat::Stale };
        let attempt = attempt.get_mut();
        if attempt.credit > 0 {
            attempt.credit -= 1;
            Repeat::Leaves
        } else if attempt.waiting.is_some() {
            Repeat::Stale
        } else {
            attempt.waiting = Some(packet);
            Repeat::Waits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: fn() -> Ends =
        || Ends { client: ([10, 0, 0, 1], 5).into(), server: ([10, 0, 0, 2], 80).into() };

    #[test]
    fn a_repeat_waits_for_the_clients() {
        let repeats = Repeats::default();
        repeats.begin(ENDS());
        assert_eq!(repeats.repeated(ENDS(), 7), Repeat::Waits);
        assert_eq!(repeats.repeated(ENDS(), 8), Repeat::Stale, "one waits already");
        assert_eq!(repeats.client_repeated(&ENDS()), Some(7));
        assert_eq!(repeats.repeated(ENDS(), 9), Repeat::Waits);
        assert_eq!(repeats.end(&ENDS()), Some(9), "whoever ends the attempt answers the queue");
        assert_eq!(repeats.repeated(ENDS(), 10), Repeat::Stale);
        assert!(repeats.attempts.borrow().is_empty());
    }

    #[test]
    fn a_client_that_was_first_is_not_asked_twice() {
        let repeats = Repeats::default();
        repeats.begin(ENDS());
        assert_eq!(repeats.client_repeated(&ENDS()), None);
        assert_eq!(repeats.repeated(ENDS(), 7), Repeat::Leaves);
        assert_eq!(repeats.repeated(ENDS(), 8), Repeat::Waits);
    }

    proptest::proptest! {
        /// In any order: no more retransmissions leave than the client has sent.
        #[test]
        fn no_more_leave_than_came(orders in proptest::collection::vec(proptest::bool::ANY, 0..50)) {
            let repeats = Repeats::default();
            repeats.begin(ENDS());
            let (mut came, mut left) = (0, 0);
            for (packet, client) in (0..).zip(orders) {
                if client {
                    came += 1;
                    left += u32::from(repeats.client_repeated(&ENDS()).is_some());
                } else {
                    left += u32::from(repeats.repeated(ENDS(), packet) == Repeat::Leaves);
                }
                assert!(left <= came, "{left} left, {came} came");
            }
        }
    }
}
