//! Tests whether the assumed path contains a queue: with less data in flight for a round trip, a queue shrinks, and a
//! path does not.

use midhop_units::Duration;

/// The data in flight during a dip. Unit: percent.
pub(super) const LEFT_PERCENT: u64 = 85;
/// Cycles after a dip until its effect is visible.
const SETTLING: u32 = 2;
/// Cycles from one dip to the next; the number grows while dips find nothing.
const APART_MIN: u32 = 4;
const APART_MAX: u32 = 64;

#[derive(Debug, Clone, Copy)]
enum State {
    Resting(u32),
    Dipping,
    Settling(u32),
}

/// The state of dips, and their result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dips {
    state: State,
    /// The assumed round-trip time before the dip.
    before: Duration,
    apart: u32,
    wanted: bool,
    agree: bool,
}

impl Default for Dips {
    fn default() -> Self {
        let apart = APART_MIN;
        Self {
            state: State::Resting(apart),
            before: Duration::ZERO,
            apart,
            wanted: true,
            agree: false,
        }
    }
}

impl Dips {
    /// Requests a dip.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// The path was found to be longer.
    pub fn doubt(&mut self) {
        self.apart = APART_MIN;
        self.agree = false;
        self.wanted = true;
        self.state = State::Resting(APART_MIN);
    }

    pub fn is_active(&self) -> bool {
        matches!(self.state, State::Dipping)
    }

    /// Whether a dip affects what a cycle shows.
    pub fn disturb(&self) -> bool {
        !matches!(self.state, State::Resting(_))
    }

    /// A cycle is over; `base` is the assumed round-trip time of the path.
    pub fn step(&mut self, base: Duration) {
        self.state = match self.state {
            State::Resting(0) if self.wanted => {
                self.wanted = false;
                self.before = base;
                State::Dipping
            }
            State::Resting(cycles) => State::Resting(cycles.saturating_sub(1)),
            State::Dipping => State::Settling(SETTLING),
            State::Settling(0) if base < self.before - self.before / 32 => {
                self.apart = APART_MIN;
                self.agree = false;
                self.before = base;
                State::Dipping
            }
            State::Settling(0) => {
                self.agree = true;
                self.apart = (self.apart * 2).min(APART_MAX);
                State::Resting(self.apart)
            }
            State::Settling(cycles) => State::Settling(cycles - 1),
        };
    }

    /// Whether the last dip found no queue.
    pub fn agree(&self) -> bool {
        self.agree
    }
}
