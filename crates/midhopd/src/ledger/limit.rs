//! Which limit let flows pass by.

use super::Counter;

/// A limit that lets a flow pass by when it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `limits.flows`, or the descriptors that there are for flows.
    Flows,
    /// `limits.flows_per_source`.
    Source,
    /// `limits.pending`.
    Pending,
    /// This host's ports, descriptors or memory.
    Host,
    /// The addresses before translation are not known.
    Unknown,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Flows, Self::Source, Self::Pending, Self::Host, Self::Unknown];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Source => "source",
            Self::Pending => "pending",
            Self::Host => "host",
            Self::Unknown => "unknown",
        }
    }
}

/// How many flows each limit let pass by.
#[derive(Debug, Default)]
pub struct LimitsReached([Counter; Limit::ALL.len()]);

impl LimitsReached {
    /// The counter of a limit.
    pub fn of(&self, limit: Limit) -> &Counter {
        &self.0[limit as usize]
    }
}
