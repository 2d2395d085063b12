//! Controlled delay: drops from the head when packets have waited too long for too long.

use midhop_units::Duration;
use serde::{Deserialize, Serialize};

/// CoDel's two times.
///
/// Source: RFC 8289 §4.2 and §4.3 (5 ms and 100 ms, good for round-trip times of 10 ms to 1 s).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodelPlan {
    /// The waiting time that may stand.
    pub target: Duration,
    /// How long it must be exceeded before the first drop; about the longest round-trip time.
    pub interval: Duration,
}

impl Default for CodelPlan {
    fn default() -> Self {
        Self { target: Duration::from_ms(5), interval: Duration::from_ms(100) }
    }
}
