//! The invariants that hold after every call, recounted from scratch.

use std::fmt;

use crate::endpoint::{Endpoint, Life};

/// An endpoint is inconsistent. Only a fault of ours can cause that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant broken: {}", self.0)
    }
}

impl std::error::Error for Broken {}

impl Endpoint {
    /// Recounts the endpoint's counters; for tests, since it looks at everything outstanding.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), Broken> {
        if self.life == Life::Open {
            self.sender.check().map_err(Broken)?;
        }
        self.receiver.check().map_err(Broken)
    }
}
