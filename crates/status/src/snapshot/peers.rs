//! Peers at one moment.

use midhop_pki::trouble::PeerTrouble;
use midhop_units::{Bytes, Duration, Number, Rate};
use serde::Serialize;
use std::collections::BTreeMap;

/// The tunnels to one peer at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerSnapshot {
    /// Open tunnels; 0: the peer cannot be reached, or has not connected.
    pub tunnels: u64,
    /// Those of them that are over TCP.
    pub tcp_tunnels: u64,
    /// Of all open tunnels, those that accept no new flows and close when their flows have ended.
    pub closing_tunnels: u64,
    /// Tunnels that were opened.
    pub opened_total: u64,
    /// Those of them over TCP.
    pub tcp_opened_total: u64,
    /// Failed attempts to open a tunnel.
    pub open_failures_total: u64,
    /// The pause before the next attempt, after a failed one; none: the last one succeeded.
    #[serde(rename = "retry_pause_s", with = "Number::<Option<Duration>>")]
    pub retry_pause: Option<Duration>,
    /// The carrier of new flows, with the reason, at the end that opens tunnels.
    pub carrier: Option<Carrier>,
    /// How often new flows changed to another carrier.
    pub carrier_changes_total: u64,
    /// Trials of TCP because UDP may be throttled.
    pub tcp_trials_total: u64,
    /// Those of them in which TCP carried no more than UDP.
    pub vain_tcp_trials_total: u64,
    /// Smoothed round-trip time of one of them.
    #[serde(rename = "rtt_s", with = "Number::<Option<Duration>>")]
    pub rtt: Option<Duration>,
    /// The shortest round-trip time seen.
    #[serde(rename = "rtt_min_s", with = "Number::<Option<Duration>>")]
    pub rtt_min: Option<Duration>,
    /// Bytes that may be in flight.
    #[serde(rename = "window_bytes", with = "Number::<Bytes>")]
    pub window: Bytes,
    /// The send rate of one of them, headers included; none: only the window limits it.
    #[serde(rename = "rate_bit_per_s", with = "Number::<Option<Rate>>")]
    pub rate: Option<Rate>,
    /// The measured rate of the link of one of them, headers included, if it contradicts the
    /// assumed rate; none: it does not.
    #[serde(rename = "carried_bit_per_s", with = "Number::<Option<Rate>>")]
    pub carried: Option<Rate>,
    /// The reported rate of that link, headers included, while the report is valid.
    #[serde(rename = "reported_bit_per_s", with = "Number::<Option<Rate>>")]
    pub reported: Option<Rate>,
    /// Bytes in flight.
    #[serde(rename = "in_flight_bytes", with = "Number::<Bytes>")]
    pub in_flight: Bytes,
    /// Flows in its tunnels.
    pub streams: u64,
    /// Tunnels that this end has closed because the peer violated the protocol.
    pub violations_total: u64,
    /// Packets sent to the peer.
    pub sent_packets_total: u64,
    /// Packets of these that were lost.
    pub lost_packets_total: u64,
    /// Datagrams sent to it that repair others.
    pub repairs_sent_total: u64,
    /// Datagrams from it that were lost, and recovered by repairs.
    pub repaired_total: u64,
    /// Bytes sent to it that repairs may cover.
    #[serde(rename = "protected_bytes_total", with = "Number::<Bytes>")]
    pub protected_total: Bytes,
    /// Bytes of repairs, and of reports of losses.
    #[serde(rename = "repair_bytes_total", with = "Number::<Bytes>")]
    pub repair_total: Bytes,
    /// The part of the recent datagrams to it that was lost, before repairs; none if losses are not
    /// counted.
    #[serde(rename = "loss_ratio")]
    pub loss: Option<f64>,
    /// When the certificates expire that the peer last presented.
    pub certificate_expires_unix_s: Option<i64>,
    /// The last failure between it and this end; none: there was none.
    pub failure: Option<PeerTrouble>,
    /// Its flows, by condition: the four are always there once a tunnel was measured.
    pub conditions: BTreeMap<&'static str, ConditionSnapshot>,
}

impl PeerSnapshot {
    /// Bytes of repairs, relative to the bytes that they cover; none if nothing is covered.
    pub fn repair_overhead(&self) -> Option<f64> {
        let protected = self.protected_total.get();
        (protected > 0).then(|| self.repair_total.get() as f64 / protected as f64)
    }
}

/// The carrier of new flows to a peer, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// QUIC.
    Quic,
    /// TCP, as UDP got no response.
    TcpBlocked,
    /// TCP, as UDP gets no response any more.
    TcpSilent,
    /// TCP, as UDP was measured to carry less.
    TcpThrottled,
    /// TCP, as it is configured.
    TcpOnly,
}

impl Carrier {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Quic, Self::TcpBlocked, Self::TcpSilent, Self::TcpThrottled, Self::TcpOnly];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::TcpBlocked => "tcp-blocked",
            Self::TcpSilent => "tcp-silent",
            Self::TcpThrottled => "tcp-throttled",
            Self::TcpOnly => "tcp-only",
        }
    }
}

/// The flows of one peer that are in one condition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConditionSnapshot {
    /// How many.
    pub flows: u64,
    /// The mean part of the link's rate that one of them got, over those whose source has recently
    /// sent data.
    pub bandwidth_ratio: Option<f64>,
}
