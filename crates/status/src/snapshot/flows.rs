//! Live flows at one moment.

use midhop_pep::source::Condition;
use midhop_units::{Bytes, Duration, Number, Rate};
use serde::Serialize;
use std::net::SocketAddr;

/// One live flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowSnapshot {
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// The leg towards the client.
    pub client_leg: String,
    /// The leg towards the server.
    pub server_leg: String,
    /// Time since the client's SYN.
    #[serde(rename = "age_s", with = "Number::<Duration>")]
    pub age: Duration,
    /// Bytes from client to server.
    #[serde(rename = "up_bytes", with = "Number::<Bytes>")]
    pub up: Bytes,
    /// Bytes from server to client.
    #[serde(rename = "down_bytes", with = "Number::<Bytes>")]
    pub down: Bytes,
    /// Its rate from client to server over about the last second.
    pub up_bit_per_s: u64,
    /// Its rate from server to client over about the last second.
    pub down_bit_per_s: u64,
    /// The highest rate that its faster direction may have now: the lowest of the rate of the leg
    /// by which it arrives, its share of the rate of the leg by which it leaves (all of this rate,
    /// if it is not shared), and that leg's limit for a flow. None if nothing is configured.
    pub limit_bit_per_s: Option<u64>,
    /// Its rate, as a part of that limit.
    pub limit_ratio: Option<f64>,
    /// What data to the server wait for: `memory`, room in the `tunnel`, the far end's `window`,
    /// their part of the leg's `rate`, or the `path`.
    pub up_waits_for: Option<&'static str>,
    /// The same for data to the client.
    pub down_waits_for: Option<&'static str>,
    /// Bytes accepted from the client and not yet delivered to the server: in a socket's queue or
    /// in flight, as last sampled; through a tunnel, those that the other proxy has not yet
    /// confirmed as passed on. None if that is not known.
    pub up_undelivered_bytes: Option<u64>,
    /// The same for data to the client.
    pub down_undelivered_bytes: Option<u64>,
    /// Its socket towards the client; none if that side is a tunnel, or was not sampled yet.
    pub to_client: Option<SideSnapshot>,
    /// Its socket towards the server; none likewise.
    pub to_server: Option<SideSnapshot>,
    /// The peer whose tunnel it goes through.
    pub tunnel: Option<String>,
    /// The rule that decided, from 0, in the plan that it began with; none: the default.
    pub rule: Option<usize>,
    /// The interface on which it arrived; none: it was requested, here or by a peer.
    pub interface: Option<String>,
    /// Its end on this side of a tunnel, if it goes through one.
    pub source: Option<SourceSnapshot>,
}

/// One socket of a flow, as last sampled.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SideSnapshot {
    /// Smoothed round-trip time.
    pub rtt_s: f64,
    /// Bytes written into it and not sent yet.
    pub queued_bytes: u64,
    /// Bytes sent and not acknowledged, whether lost or not.
    pub in_flight_bytes: u64,
    /// Segments with data sent, including retransmissions.
    pub sent_segments: u64,
    /// Of these, the retransmissions.
    pub retransmitted_segments: u64,
}

/// A flow's end on this side of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceSnapshot {
    /// Smoothed round-trip time between it and this proxy.
    #[serde(rename = "rtt_s", with = "Number::<Duration>")]
    pub rtt: Duration,
    /// The part of its segments that arrived out of order: after a loss, or because others overtook
    /// them.
    #[serde(rename = "loss_ratio")]
    pub loss: f64,
    /// Its recent send rate.
    #[serde(rename = "rate_bit_per_s", with = "Number::<Rate>")]
    pub rate: Rate,
    /// Its flow's condition, as the study of far proxies orders them.
    pub condition: Condition,
    /// The part of the configured rate of its tunnel's link that its flow gets.
    pub bandwidth_ratio: Option<f64>,
}
