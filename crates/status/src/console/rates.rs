//! The changes between two looks at a daemon, as rates.

use crate::control::answer::{DaemonStatus, LiveFlow};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What `midhopd top --json` prints for each sample, on a line of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rates {
    /// The version of this format.
    pub format: u32,
    /// Time since the daemon's start.
    pub uptime_s: f64,
    /// Time since the previous sample: rates are means over it.
    pub interval_s: f64,
    /// What is wrong; none: all is well.
    pub illness: Option<String>,
    /// Why new flows bypass the daemon at this moment; none: they are taken.
    pub passing: Option<String>,
    /// Live flows.
    pub flow_count: u64,
    /// Flows that were taken.
    pub new_flows_per_s: f64,
    /// From clients to servers.
    pub up_bit_per_s: f64,
    /// From servers to clients.
    pub down_bit_per_s: f64,
    /// Data buffered in the proxy, including its sockets.
    pub buffered_bytes: u64,
    /// The legs, by name.
    pub legs: BTreeMap<String, LegRates>,
    /// Flows, the fastest first: at most 2000, those that have moved the most bytes.
    pub flows: Vec<LiveFlow>,
}

/// One leg over the interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegRates {
    /// Live connections.
    pub connections: u64,
    /// Sent into the leg.
    pub sent_bit_per_s: f64,
    /// What is sent, as a part of its configured rate; none if no rate is configured.
    pub utilisation_ratio: Option<f64>,
    /// Received from it.
    pub received_bit_per_s: f64,
    /// Segments retransmitted; for a tunnel, packets lost.
    pub retransmissions_per_s: f64,
}

impl Rates {
    /// The rates between the samples `before` and `now`, `passed_s` later; `flows` are live now.
    pub(super) fn between(
        before: &DaemonStatus,
        now: &DaemonStatus,
        mut flows: Vec<LiveFlow>,
        passed_s: f64,
    ) -> Self {
        let interval_s = passed_s.max(1e-3);
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / interval_s;
        let bits = |now: u64, before: u64| per_s(now, before) * 8.0;
        let mut legs = BTreeMap::new();
        for (name, leg) in &now.legs {
            let was = before.legs.get(name).cloned().unwrap_or_default();
            let sent_bit_per_s = bits(leg.sent_bytes_total, was.sent_bytes_total);
            let rates = LegRates {
                connections: leg.connections,
                sent_bit_per_s,
                utilisation_ratio: leg
                    .rate_bit_per_s
                    .map(|whole| sent_bit_per_s / whole.max(1) as f64),
                received_bit_per_s: bits(leg.received_bytes_total, was.received_bytes_total),
                retransmissions_per_s: per_s(leg.retransmissions_total, was.retransmissions_total),
            };
            legs.insert(name.clone(), rates);
        }
        flows.sort_by_key(|flow| {
            Reverse((flow.up_bit_per_s + flow.down_bit_per_s, flow.up_bytes + flow.down_bytes))
        });
        Self {
            format: now.format,
            uptime_s: now.uptime_s,
            interval_s,
            illness: now.illness.clone(),
            passing: now.passing.clone(),
            flow_count: now.flows,
            new_flows_per_s: per_s(now.split_total, before.split_total),
            up_bit_per_s: bits(now.up_bytes_total, before.up_bytes_total),
            down_bit_per_s: bits(now.down_bytes_total, before.down_bytes_total),
            buffered_bytes: now.buffered_bytes,
            legs,
            flows,
        }
    }
}
