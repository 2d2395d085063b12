//! Times at which the link is down.

use crate::resolve::{ResolveError, check_positive_time, check_time};
use midhop_units::Duration;
use serde::{Deserialize, Serialize};

/// One outage, or one that comes again and again. Times count from the start of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// When it begins first.
    pub start: Duration,
    /// How long it lasts.
    pub length: Duration,
    /// The time from one beginning to the next; once only without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// Whether packets wait in the queue till the link is back (`true`) or are sent and lost
    /// (`false`, the default: a transmitter seldom knows that nobody hears it).
    #[serde(default)]
    pub hold: bool,
}

impl Outage {
    pub(crate) fn check(&self) -> Result<(), ResolveError> {
        check_positive_time("outages.length", self.length)?;
        check_time("outages.start", self.start)?;
        if let Some(every) = self.every {
            check_time("outages.every", every)?;
            if every <= self.length {
                return Err(ResolveError::out_of_range(
                    "outages.every",
                    every,
                    format!("must be longer than the outage itself, {}", self.length),
                ));
            }
        }
        Ok(())
    }
}
