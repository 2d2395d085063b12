//! PIE: turns arrivals away with a probability that steers the waiting time to its target.

use midhop_units::Duration;
use serde::{Deserialize, Serialize};

/// PIE's times.
///
/// Source: RFC 8033 §4 and §5 (15 ms, 15 ms, 150 ms).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PiePlan {
    /// The waiting time aimed at.
    pub target: Duration,
    /// How often the probability is reckoned anew.
    pub update: Duration,
    /// How long a burst passes untouched.
    pub burst: Duration,
}

impl Default for PiePlan {
    fn default() -> Self {
        Self {
            target: Duration::from_ms(15),
            update: Duration::from_ms(15),
            burst: Duration::from_ms(150),
        }
    }
}
