//! Decides what one direction of a flow does next. Its ends may be two sockets, a socket and a stream of a tunnel,
//! or endpoints of a simulation.
//!
//! Invariants: what waits is written before more is read, so that the sender's window closes by itself; the
//! sender's end is passed on only after its last byte; a direction that holds nothing may always move a little,
//! however full the [budget] is.
//!
//! Decision 0044 describes what its users keep for themselves.
//!
//! [budget]: crate::budget::Budget

/// What a direction does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Write what waits.
    Write,
    /// Read more from the sender.
    Read,
    /// Pass on that the sender has ended, then [`Direction::finish`].
    End,
    /// Pass on that the sender broke, if that is possible, then [`Direction::finish`]. All that it sent before has
    /// been written.
    Cut,
    /// Let other flows go first: this one has moved enough for one turn.
    Yield,
    /// Wait until the budget has room, or what it wrote has arrived.
    Wait {
        /// Whether the wait begins with this step.
        begins: bool,
    },
    /// Nothing more.
    Done,
}

/// The state of the sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Sender {
    /// It may send more.
    #[default]
    Open,
    /// All was read, and its end.
    Ended,
    /// It broke; what it sent before may still be read.
    Cut,
    /// It broke, and all that it sent before was read.
    Dry,
}

/// How much a direction may move before other flows have their turn.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    left: u64,
}

impl Turn {
    /// A turn of so many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self { left: bytes }
    }

    /// So many bytes of it have been moved.
    pub fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}

/// The state of one direction of a flow.
#[derive(Debug, Default)]
pub struct Direction {
    sender: Sender,
    done: bool,
    waits: bool,
    moved: u64,
}

impl Direction {
    /// The next step. `staged`: whether bytes that can be written wait between the two ends; `must_wait`: whether
    /// the budget [allows no further reading](crate::budget::Budget::must_wait) for now.
    pub fn step(&mut self, staged: bool, turn: Turn, must_wait: impl FnOnce() -> bool) -> Step {
        match self.sender {
            _ if self.done => return Step::Done,
            _ if staged => return Step::Write,
            Sender::Ended => return Step::End,
            Sender::Dry => return Step::Cut,
            Sender::Open | Sender::Cut if turn.left == 0 => return Step::Yield,
            Sender::Open | Sender::Cut => {}
        }
        let waited = std::mem::replace(&mut self.waits, must_wait());
        if self.waits { Step::Wait { begins: !waited } } else { Step::Read }
    }

    /// Whether it waits for the budget, as of the last step.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// So many bytes were written.
    pub fn count(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// Unit: bytes. How much was written in total.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// The sender has no more: it has ended, or all was read after it broke.
    pub fn end(&mut self) {
        self.sender = match self.sender {
            Sender::Cut | Sender::Dry => Sender::Dry,
            Sender::Open | Sender::Ended => Sender::Ended,
        };
    }

    /// The sender broke. What can still be read of it follows, but no end of the flow.
    pub fn cut(&mut self) {
        self.sender = match self.sender {
            Sender::Open | Sender::Cut => Sender::Cut,
            // Its end was read before.
            over @ (Sender::Ended | Sender::Dry) => over,
        };
    }

    /// Whether the sender broke.
    pub fn is_cut(&self) -> bool {
        matches!(self.sender, Sender::Cut | Sender::Dry)
    }

    /// Whether the sender's end has been read.
    pub fn has_ended(&self) -> bool {
        self.sender == Sender::Ended
    }

    /// Whether all that the sender sent has been read.
    pub fn is_exhausted(&self) -> bool {
        matches!(self.sender, Sender::Ended | Sender::Dry)
    }

    /// The end has been passed on.
    pub fn finish(&mut self) {
        self.done = true;
    }

    /// Whether the end has been passed on.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TURN: Turn = Turn::new(1 << 20);

    #[test]
    fn an_end_is_passed_on_behind_the_last_byte_and_once() {
        let mut direction = Direction::default();
        assert_eq!(direction.step(false, TURN, || false), Step::Read);
        direction.end();
        assert_eq!(direction.step(true, TURN, || true), Step::Write);
        assert_eq!(direction.step(false, Turn::new(0), || true), Step::End);
        direction.finish();
        assert_eq!(direction.step(false, TURN, || false), Step::Done);
    }

    #[test]
    fn a_sender_that_broke_has_no_end() {
        let mut direction = Direction::default();
        direction.cut();
        assert_eq!(direction.step(false, TURN, || false), Step::Read, "what it sent before");
        direction.end();
        assert_eq!(direction.step(true, TURN, || false), Step::Write);
        assert_eq!(direction.step(false, TURN, || false), Step::Cut);
        assert!(!direction.has_ended());
    }

    #[test]
    fn an_end_that_was_read_stays_one() {
        let mut direction = Direction::default();
        direction.end();
        direction.cut();
        assert_eq!(direction.step(false, TURN, || false), Step::End);
    }

    #[test]
    fn a_wait_begins_once() {
        let mut direction = Direction::default();
        let mut step = |full| direction.step(false, TURN, || full);
        assert_eq!(step(true), Step::Wait { begins: true });
        assert_eq!(step(true), Step::Wait { begins: false });
        assert_eq!(step(false), Step::Read);
        assert_eq!(step(true), Step::Wait { begins: true });
    }

    proptest! {
        /// Between ends that read and write in any order, all that was sent arrives, then its end.
        #[test]
        fn all_arrives_whatever_the_ends_do(
            reads in prop::collection::vec(1_u64..5000, 0..20),
            writes in prop::collection::vec(0_u64..5000, 1..20),
            turn in 1_u64..10_000,
            full in prop::collection::vec(any::<bool>(), 1..5),
        ) {
            let sent: u64 = reads.iter().sum();
            let mut direction = Direction::default();
            let (mut reads, mut writes) = (reads.into_iter(), writes.into_iter().chain([5000]).cycle());
            let mut full = full.into_iter().chain([false]).cycle();
            let (mut staged, mut left) = (0, Turn::new(turn));
            loop {
                match direction.step(staged > 0, left, || full.next().unwrap_or(false)) {
                    Step::Write => {
                        let written = writes.next().unwrap_or(1).min(staged);
                        staged -= written;
                        direction.count(written);
                    }
                    Step::Read => {
                        prop_assert_eq!(staged, 0, "more is read while something waits");
                        match reads.next() {
                            Some(bytes) => { staged = bytes; left.spend(bytes); }
                            None => direction.end(),
                        }
                    }
                    Step::Yield => left = Turn::new(turn),
                    Step::Wait { .. } => {}
                    Step::End => {
                        prop_assert_eq!((staged, direction.moved()), (0, sent));
                        direction.finish();
                    }
                    Step::Cut => prop_assert!(false, "nobody broke"),
                    Step::Done => break,
                }
            }
        }
    }
}
