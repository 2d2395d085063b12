//! The results of the handovers of a run.

use midhop_units::{Bytes, Duration, Number};
use serde::{Deserialize, Serialize};

/// All handovers of a run together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HandoversResult {
    /// Handovers that took place.
    pub count: u64,
    /// Flows that moved to another proxy; one that moved twice counts twice.
    pub flows_moved: u64,
    /// Flows that were reset, at a handover or at the end of a drain.
    pub flows_reset: u64,
    /// Flows that stayed at a proxy whose node was left, and whose packets were forwarded to it.
    pub flows_chained: u64,
    /// State of flows that moved, copies from before the handovers included.
    #[serde(with = "Number::<Bytes>")]
    pub state_bytes: Bytes,
    /// The part of it that was transferred while flows stood still.
    #[serde(with = "Number::<Bytes>")]
    pub state_frozen_bytes: Bytes,
    /// Packets of flows that stood still, which both proxies dropped; none where nobody counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_dropped: Option<u64>,
    /// How long flows stood still: from the handover until they continued at the other proxy.
    pub freeze: Freezes,
    /// The longest time that a transfer's flow, including its successors after a reset, waited for
    /// its next payload in the second from a handover on, or from the end of a drain: one value for
    /// each flow and handover.
    #[serde(default)]
    pub stalls: Freezes,
    /// The longest time that a transfer's flow, including its successors after a reset, waited for
    /// its next payload, beginning with its first; none if no payload arrived.
    #[serde(rename = "stall_max_s", with = "Number::<Option<Duration>>")]
    pub stall_max: Option<Duration>,
}

/// How long flows stood still, or waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Freezes {
    /// Median.
    #[serde(rename = "p50_s", with = "Number::<Duration>")]
    pub p50: Duration,
    /// 99th percentile.
    #[serde(rename = "p99_s", with = "Number::<Duration>")]
    pub p99: Duration,
    /// Longest.
    #[serde(rename = "max_s", with = "Number::<Duration>")]
    pub max: Duration,
}

impl Freezes {
    /// The statistics of these freezes.
    pub fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        let rank = |share: usize| {
            let rank = (all.len() * share).div_ceil(100).max(1);
            all.get(rank - 1).copied().unwrap_or_default()
        };
        Self { p50: rank(50), p99: rank(99), max: rank(100) }
    }
}
