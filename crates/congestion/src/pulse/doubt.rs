//! What a wait is: way, or others' queue.

/// Whether a wait is way or others' queue: the way is tried, and if still all waits, it was others'.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Doubt {
    /// Cycles in a row that waited although the link delivers more of a pulse.
    waits: u32,
    /// Cycles in a row in which the link delivered more of a pulse, whatever waited.
    idle: u32,
    /// Cycles in a row that waited and lost more than the radio loses.
    crowd: u32,
    /// Cycles left in which a way that was tried may fail.
    trial: u32,
}

/// What a wait is found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    Nothing,
    /// The path is to be taken for longer.
    Longer,
    /// Others fill the queue.
    Others,
}

impl Doubt {
    const WAITS: u32 = 2;
    const TRIAL: u32 = 6;
    const IDLE: u32 = 8;
    const CROWD: u32 = 3;

    pub fn consider(&mut self, waits: bool, idle: bool) -> Finding {
        self.trial = self.trial.saturating_sub(1);
        self.waits = if waits && idle { self.waits + 1 } else { 0 };
        self.idle = if idle { self.idle + 1 } else { 0 };
        if self.idle >= Self::IDLE || (self.waits >= Self::WAITS && self.trial > 0) {
            *self = Self::default();
            return Finding::Others;
        }
        if self.waits >= Self::WAITS {
            self.waits = 0;
            self.trial = Self::TRIAL;
            return Finding::Longer;
        }
        Finding::Nothing
    }

    /// Whether the queue is one that others fill until it drops.
    pub fn overflows(&mut self, crowded: bool) -> bool {
        self.crowd = if crowded { self.crowd + 1 } else { 0 };
        self.crowd >= Self::CROWD
    }

    pub fn forget(&mut self) {
        *self = Self::default();
    }
}
