//! Requests and answers of the control socket. Their JSON Schemas are what `midhopd schema --of` prints.

use midhop_pep::config::Match;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The version of these types. It grows when a key changes its meaning or is removed.
pub const VERSION: u32 = 1;

/// The daemon at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonStatus {
    /// The version of this format.
    pub format: u32,
    /// The version of the program.
    pub version: String,
    /// The daemon's name among others on this host.
    pub instance: String,
    /// The process of the data plane.
    pub pid: u32,
    /// The interfaces whose flows are taken.
    pub interfaces: Vec<String>,
    /// Time since the start.
    pub uptime_s: f64,
    /// Whether no new flows are taken because the daemon ends.
    pub draining: bool,
    /// What is wrong; none: all is well.
    pub illness: Option<String>,
    /// Why new flows pass by at this moment; none: they are taken.
    pub passing: Option<String>,
    /// The last reload; none: there was none.
    pub reload: Option<Reload>,
    /// How often the configuration was read again, by result: `applied` or `refused`.
    pub reloads_total: BTreeMap<String, u64>,
    /// Failures of what the daemon replaces, such as sockets.
    pub failures_total: u64,
    /// Errors and warnings that were logged, by level: `error` or `warn`.
    pub log_messages_total: BTreeMap<String, u64>,
    /// Live flows.
    pub flows: u64,
    /// The most flows at a time.
    pub flows_max: u64,
    /// Clients whose SYN waits for the far side.
    pub held_syns: u64,
    /// Data that waits in the proxy, its sockets included.
    pub buffered_bytes: u64,
    /// The most of it.
    pub buffered_max_bytes: u64,
    /// Flows that were taken.
    pub split_total: u64,
    /// Flows that passed by, by reason.
    pub bypassed_total: BTreeMap<String, u64>,
    /// Flows that a rule rejected.
    pub rejected_total: u64,
    /// Data planes of this daemon that were killed before this one.
    pub data_planes_killed_total: u64,
    /// How often another program has taken over.
    pub upgrades_total: u64,
    /// Flows that the last of them left: how many go on (`adopted`), and how many were `lost`.
    pub orphaned_flows_total: BTreeMap<String, u64>,
    /// Flows that have moved `away` to a peer and `here` from one, and those that were `lost` in between.
    #[serde(default)]
    pub moved_flows_total: BTreeMap<String, u64>,
    /// Flows whose far side did not accept, by reason.
    pub refused_total: BTreeMap<String, u64>,
    /// Flows that have ended, by how.
    pub ended_total: BTreeMap<String, u64>,
    /// Moved from clients to servers.
    pub up_bytes_total: u64,
    /// Moved from servers to clients.
    pub down_bytes_total: u64,
    /// How often a direction began to wait for memory.
    pub memory_waits_total: u64,
    /// What waits now: clients for the `far-side`; sides of flows for the far end's `window`, for their part of a leg's
    /// `rate`, or for the `path`.
    pub waiting: BTreeMap<String, u64>,
    /// Flows that passed by at a limit, by limit.
    pub limits_reached_total: BTreeMap<String, u64>,
    /// Clients by source prefix; those beyond what is counted each are `other`.
    pub sources: BTreeMap<String, SourcePrefix>,
    /// Until when the `own` certificate and that of its `authority` are valid.
    pub certificates_expire_unix_s: BTreeMap<String, i64>,
    /// Handshakes that were refused because of a certificate or the name asked for, by reason.
    pub handshakes_refused_total: BTreeMap<String, u64>,
    /// The last of them; none: there was none.
    pub last_refusal: Option<PeerFailure>,
    /// Handshakes beyond what is served at once, by response: `retry`, they had to prove their address; `none`.
    pub handshakes_limited_total: BTreeMap<String, u64>,
    /// The legs, by name.
    pub legs: BTreeMap<String, LegStatus>,
    /// The peers, by name.
    pub peers: BTreeMap<String, PeerStatus>,
}

/// The clients of one source prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourcePrefix {
    /// Live flows.
    pub flows: u64,
    /// Flows that have begun.
    pub started_total: u64,
    /// From these clients.
    pub up_bytes_total: u64,
    /// To them.
    pub down_bytes_total: u64,
}

/// One leg.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegStatus {
    /// Congestion control; empty: the kernel's default.
    pub congestion: String,
    /// Live connections.
    pub connections: u64,
    /// The configured rate away from this host.
    pub rate_bit_per_s: Option<u64>,
    /// The configured rate towards this host.
    pub rate_in_bit_per_s: Option<u64>,
    /// Sent into the leg.
    pub sent_bytes_total: u64,
    /// Received from it.
    pub received_bytes_total: u64,
    /// Segments with data sent, again or for the first time; of a tunnel, packets.
    pub sent_segments_total: u64,
    /// Of these, those sent again; of a tunnel, those that were lost.
    pub retransmissions_total: u64,
    /// Segments with data received.
    pub received_segments_total: u64,
    /// Of these, those that arrived out of order: after a loss on the way here, or overtaken.
    pub out_of_order_segments_total: u64,
    /// What waits in this host's sockets to be sent into it.
    pub queued_bytes: u64,
    /// Smoothed round-trip time over its connections.
    pub rtt_s: Option<f64>,
    /// The shortest one seen.
    pub rtt_min_s: Option<f64>,
    /// Flows that have more to send than their share.
    pub senders: Option<u64>,
    /// The share of each of them.
    pub share_bit_per_s: Option<u64>,
}

/// The tunnels to one peer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerStatus {
    /// Open tunnels; 0: the peer cannot be reached, or has not come.
    pub tunnels: u64,
    /// Those of them over TCP.
    pub tcp_tunnels: u64,
    /// Those of all that accept no new flows, until theirs have ended.
    pub closing_tunnels: u64,
    /// Tunnels that were opened.
    pub opened_total: u64,
    /// Those of them over TCP.
    pub tcp_opened_total: u64,
    /// Attempts in vain to open one.
    pub open_failures_total: u64,
    /// The pause before the next attempt, after one in vain; none: the last one succeeded.
    pub retry_pause_s: Option<f64>,
    /// What carries new flows, with the reason, at the end that opens tunnels.
    pub carrier: Option<String>,
    /// How often new flows went over to another carrier.
    pub carrier_changes_total: u64,
    /// Trials of TCP because UDP may be throttled.
    pub tcp_trials_total: u64,
    /// Those of them in which TCP carried no more.
    pub vain_tcp_trials_total: u64,
    /// Flows in its tunnels.
    pub flows: u64,
    /// Smoothed round-trip time.
    pub rtt_s: Option<f64>,
    /// The shortest one seen.
    pub rtt_min_s: Option<f64>,
    /// What may be in flight.
    pub window_bytes: u64,
    /// What is in flight.
    pub in_flight_bytes: u64,
    /// The send rate, headers included; none: only the window limits it.
    pub rate_bit_per_s: Option<u64>,
    /// What the link carries instead of the rate that it is taken for, headers included; none: that is believed.
    pub carried_bit_per_s: Option<u64>,
    /// What is reported of the link instead of the rate that is configured, headers included; none: nothing, or not any
    /// more.
    pub reported_bit_per_s: Option<u64>,
    /// The part of the datagrams to it that is lost, before repairs.
    pub loss_ratio: Option<f64>,
    /// What repairs add to what they cover.
    pub repair_overhead_ratio: Option<f64>,
    /// Packets sent to it.
    pub sent_packets_total: u64,
    /// Those of them that were lost.
    pub lost_packets_total: u64,
    /// Tunnels closed because it broke a rule.
    pub violations_total: u64,
    /// The last failure between it and this daemon; none: there was none.
    pub failure: Option<PeerFailure>,
    /// Flows by the condition of their sources: `near-idle`, `near-congested`, `far-idle`, `far-congested`.
    pub conditions: BTreeMap<String, u64>,
}

/// A failure between a peer and this daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerFailure {
    /// What is wrong: `unknown-name`, `authority`, `expired`, `not-yet-valid`, `revoked`, `wrong-name`, `missing`,
    /// `invalid`, or `unreachable` where no certificate is the reason.
    pub reason: String,
    /// Whose certificate it concerns: `peer` or `own`; none: no certificate.
    pub certificate: Option<String>,
    /// What happened: what the certificate says, and which peers are known.
    pub message: String,
    /// The remedy.
    pub hint: Option<String>,
    /// The other end's address.
    pub address: SocketAddr,
    /// When.
    pub at_unix_s: i64,
}

/// Which flows to list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct FlowsQuery {
    /// As in a rule; empty: all.
    #[serde(rename = "match")]
    pub matches: Match,
    /// The most to list, those that moved most bytes first; 0: all.
    pub limit: u64,
}

/// Live flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flows {
    /// The version of this format.
    pub format: u32,
    /// How many match.
    pub matching: u64,
    /// Those listed.
    pub flows: Vec<LiveFlow>,
}

/// One live flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LiveFlow {
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// The leg, or the peer, towards the client.
    pub client_leg: String,
    /// The leg, or the peer, towards the server.
    pub server_leg: String,
    /// The peer whose tunnel it goes through.
    pub tunnel: Option<String>,
    /// The rule that decided, from 0 as errors number it, in the configuration that the flow began with; none: the default.
    pub rule: Option<u64>,
    /// The interface on which it arrived; none: it was requested, here or by a peer.
    pub interface: Option<String>,
    /// Since both sides are open.
    pub age_s: f64,
    /// Moved from client to server.
    pub up_bytes: u64,
    /// Moved from server to client.
    pub down_bytes: u64,
    /// Speed from client to server over the last second or so.
    pub up_bit_per_s: u64,
    /// Speed from server to client.
    pub down_bit_per_s: u64,
    /// The most that its faster direction may have now; none where nothing is configured.
    pub limit_bit_per_s: Option<u64>,
    /// What that which goes to the server waits for: `memory`, room in the `tunnel`, the far end's `window`, its part of
    /// the leg's `rate`, or the `path`.
    pub up_waits_for: Option<String>,
    /// The same of what goes to the client.
    pub down_waits_for: Option<String>,
    /// Accepted from the client, and not yet with the server: in a socket's queue or on its way, as last sampled; through a
    /// tunnel what the other proxy has not yet confirmed as passed on. None where that is not known.
    pub up_undelivered_bytes: Option<u64>,
    /// The same of what goes to the client.
    pub down_undelivered_bytes: Option<u64>,
    /// Its socket towards the client; none where that side is a tunnel, or was not sampled yet.
    pub to_client: Option<FlowSide>,
    /// Its socket towards the server.
    pub to_server: Option<FlowSide>,
    /// What is known of its end on this side of a tunnel.
    pub source: Option<FlowSource>,
}

/// One socket of a flow, as last sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowSide {
    /// Smoothed round-trip time.
    pub rtt_s: f64,
    /// Written into it, and not sent yet.
    pub queued_bytes: u64,
    /// Sent, and neither acknowledged nor taken for lost.
    pub in_flight_bytes: u64,
    /// Segments with data sent, again or for the first time.
    pub sent_segments: u64,
    /// Of these, those sent again.
    pub retransmitted_segments: u64,
}

/// The end of a tunnel's flow on this side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowSource {
    /// Its smoothed round-trip time to this proxy.
    pub rtt_s: f64,
    /// The part of its segments that arrived out of order.
    pub loss_ratio: f64,
    /// Its recent send rate.
    pub rate_bit_per_s: u64,
    /// The condition of its flow: `near-idle`, `near-congested`, `far-idle` or `far-congested`.
    pub condition: String,
    /// The part of the configured rate of its tunnel that its flow gets.
    pub bandwidth_ratio: Option<f64>,
}

/// A flow to explain, live or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WhyQuery {
    /// The client. Port 0: any.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// The interface on which its SYN arrives; none: the one of the route back to the client.
    #[serde(default)]
    pub interface: Option<String>,
    /// The DSCP of its SYN.
    #[serde(default)]
    pub dscp: u8,
}

/// What becomes of a flow, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Why {
    /// The version of this format.
    pub format: u32,
    /// What becomes of it.
    pub outcome: FlowOutcome,
    /// The live flow with these ends; none: there is none, and the answer is what would become of one that begins now.
    pub live: Option<LiveFlow>,
    /// What was asked, in order, up to what decided.
    pub steps: Vec<Step>,
    /// The leg towards the client, where the flow is carried.
    pub client_leg: Option<String>,
    /// The leg towards the server, or the peer.
    pub server_leg: Option<String>,
    /// When the client's SYN is answered, where the flow is carried.
    pub accept: Option<String>,
}

/// What becomes of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FlowOutcome {
    /// It is split by this host alone.
    Split,
    /// It goes through a tunnel.
    Tunnel,
    /// It passes by.
    Bypass,
    /// It passes by, and its losses are repaired.
    Assist,
    /// It is refused.
    Reject,
    /// This daemon does not see it.
    NotIntercepted,
}

/// One step of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// What was asked: the configuration's key, or a part of the host.
    pub subject: String,
    /// What was found.
    pub finding: String,
    /// Whether this decided.
    pub decides: bool,
}

/// The result of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reload {
    /// Why the configuration was refused, in which case the old one stays; none: it is in force.
    pub error: Option<ErrorAnswer>,
    /// Keys that have changed and stay as they were until a restart.
    pub kept: Vec<String>,
}

/// What the link to a peer carries away from this host at this moment, as its modem says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RateReport {
    /// The peer.
    pub peer: String,
    /// What its link carries, headers included: 8 kbit/s to 100 Gbit/s.
    pub rate_bit_per_s: u64,
    /// How long that counts, unless another report comes before: a second to a day.
    pub valid_s: f64,
}

/// A report that counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RateTaken {
    /// The version of this format.
    pub format: u32,
    /// The report.
    pub report: RateReport,
}

/// Which flows are to move, and to which peer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MoveQuery {
    /// As in a rule; empty: all.
    #[serde(rename = "match")]
    pub matches: Match,
    /// The peer.
    pub to: String,
}

/// What has become of flows that were to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MoveOutcome {
    /// The version of this format.
    pub format: u32,
    /// Split flows that matched.
    pub matching: u64,
    /// Those that go on at the peer.
    pub moved: u64,
    /// Those that were reset: nobody knew whether they had moved.
    pub lost: u64,
    /// Those that go on here, by reason: `ended` or about to; `busy`, it did not stand still in time; `addresses`, they are
    /// this host's or translated; `queues`, too much is in them; `kernel`; `time`, it was over; `peer-silent`; and what the
    /// peer found: `peer-policy`, its rules do not split it; `peer-route`, it does not pass there; `peer-full`;
    /// `peer-kernel`; `peer-malformed`; `peer-discarded`.
    pub stayed: BTreeMap<String, u64>,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorAnswer {
    /// What is wrong.
    pub error: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}
