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
    /// Since the client's SYN.
    #[serde(rename = "age_s", with = "Number::<Duration>")]
    pub age: Duration,
    /// From client to server.
    #[serde(rename = "up_bytes", with = "Number::<Bytes>")]
    pub up: Bytes,
    /// From server to client.
    #[serde(rename = "down_bytes", with = "Number::<Bytes>")]
    pub down: Bytes,
    /// Its speed from client to server over the last second or so.
    pub up_bit_per_s: u64,
    /// Its speed from server to client.
    pub down_bit_per_s: u64,
    /// The most that its faster direction may have now: the least of what the leg carries that it comes by, of the part
    /// of a flow in the rate of the leg that it goes by (all of it, where that is not divided), and of that leg's bound
    /// on a flow. None where nothing is configured.
    pub limit_bit_per_s: Option<u64>,
    /// What it has of that.
    pub limit_ratio: Option<f64>,
    /// What that which goes to the server waits for: `memory`, room in the `tunnel`, the far end's `window`, its part of
    /// the leg's `rate`, or the `path`.
    pub up_waits_for: Option<&'static str>,
    /// The same of what goes to the client.
    pub down_waits_for: Option<&'static str>,
    /// Accepted from the client, and not yet with the server: in a socket's queue or on its way, as last sampled; through a
    /// tunnel what the other proxy has not yet confirmed as passed on. None where that is not known.
    pub up_undelivered_bytes: Option<u64>,
    /// The same of what goes to the client.
    pub down_undelivered_bytes: Option<u64>,
    /// Its socket towards the client; none where that side is a tunnel, or was not sampled yet.
    pub to_client: Option<SideSnapshot>,
    /// Its socket towards the server.
    pub to_server: Option<SideSnapshot>,
    /// The peer whose tunnel it goes through.
    pub tunnel: Option<String>,
    /// The rule that decided, from 0, in the plan that it began with; none: the default.
    pub rule: Option<usize>,
    /// The interface on which it arrived; none: it was requested, here or by a peer.
    pub interface: Option<String>,
    /// Its end on this side of a tunnel, where it goes through one.
    pub source: Option<SourceSnapshot>,
}

/// One socket of a flow, as last sampled.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SideSnapshot {
    /// Smoothed round-trip time.
    pub rtt_s: f64,
    /// Written into it, and not sent yet.
    pub queued_bytes: u64,
    /// Sent and not acknowledged, lost or not.
    pub in_flight_bytes: u64,
    /// Segments with data sent, again or for the first time.
    pub sent_segments: u64,
    /// Of these, those that were sent again.
    pub retransmitted_segments: u64,
}

/// A flow's end on this side of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceSnapshot {
    /// Smoothed round-trip time between it and this proxy.
    #[serde(rename = "rtt_s", with = "Number::<Duration>")]
    pub rtt: Duration,
    /// The part of its segments that arrived out of order: after a loss, or overtaken.
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
