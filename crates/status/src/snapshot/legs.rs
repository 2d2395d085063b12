//! Legs at one moment.

use midhop_units::{Bytes, Duration, Number, Rate};
use serde::Serialize;
use std::collections::BTreeMap;

/// One leg at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegSnapshot {
    /// Congestion control by name; empty: the kernel's default.
    pub congestion: String,
    /// Live connections.
    pub connections: u64,
    /// Bytes sent into the leg.
    #[serde(rename = "sent_bytes_total", with = "Number::<Bytes>")]
    pub sent_total: Bytes,
    /// Bytes received from the leg.
    #[serde(rename = "received_bytes_total", with = "Number::<Bytes>")]
    pub received_total: Bytes,
    /// Segments retransmitted, as the kernel counted them.
    pub retransmissions_total: u64,
    /// Segments with data sent, including retransmissions; for a tunnel, packets.
    pub sent_segments_total: u64,
    /// Segments with data received.
    pub received_segments_total: u64,
    /// Of those received, those that arrived out of order: after a loss on the way here, or because
    /// others overtook them.
    pub out_of_order_segments_total: u64,
    /// The rate of the link away from this host, if that is configured.
    pub rate_bit_per_s: Option<u64>,
    /// The rate of the link towards this host.
    pub rate_in_bit_per_s: Option<u64>,
    /// The fastest that one flow may send into it.
    pub flow_rate_bit_per_s: Option<u64>,
    /// Bytes that wait in this host's sockets to be sent into it, as last sampled.
    pub queued_bytes: u64,
    /// Connections with data that wait, by what they wait for (`window`, `rate`, `path`).
    pub waiting: BTreeMap<&'static str, u64>,
    /// Smoothed round-trip time over recent samples of its connections; none before the first.
    #[serde(rename = "rtt_s", with = "Number::<Option<Duration>>")]
    pub rtt: Option<Duration>,
    /// The shortest round-trip time seen.
    #[serde(rename = "rtt_min_s", with = "Number::<Option<Duration>>")]
    pub rtt_min: Option<Duration>,
    /// Round-trip times sampled.
    pub rtt_samples_total: u64,
    /// If its rate is shared: flows that have more to send into it than they may.
    pub senders: Option<u64>,
    /// What each of them may send at most.
    #[serde(rename = "share_bit_per_s", with = "Number::<Option<Rate>>")]
    pub share: Option<Rate>,
}
