//! Decides whether waiting data shows a longer path or the queue of other flows.

/// A longer path is assumed first. If all data still waits, other flows fill the queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Doubt {
    /// Cycles in a row in which all data waited although the link can deliver more.
    waits: u32,
    /// Cycles in a row in which the link could deliver more, whether data waited or not.
    idle: u32,
    /// Cycles in a row in which data waited, and more was lost than the radio loses.
    crowd: u32,
    /// Cycles left in which a longer path that was assumed may be disproved.
    trial: u32,
}

/// Why data waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    Nothing,
    /// The path is to be assumed longer.
    Longer,
    /// Other flows fill the queue.
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

    /// Whether other flows fill the queue until it drops.
    pub fn overflows(&mut self, crowded: bool) -> bool {
        self.crowd = if crowded { self.crowd + 1 } else { 0 };
        self.crowd >= Self::CROWD
    }

    pub fn forget(&mut self) {
        *self = Self::default();
    }
}
