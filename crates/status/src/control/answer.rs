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
    /// Whether no new flows are taken because the daemon is shutting down.
    pub draining: bool,
    /// What is wrong; none: all is well.
    pub illness: Option<String>,
    /// Why new flows bypass the daemon at this moment; none: they are taken.
    pub passing: Option<String>,
    /// The last reload; none: there was none.
    pub reload: Option<Reload>,
    /// How often the configuration was read again, by result: `applied` or `refused`.
    pub reloads_total: BTreeMap<String, u64>,
    /// Failures of parts that the daemon replaces, such as sockets.
    pub failures_total: u64,
    /// Errors and warnings that were logged, by level: `error` or `warn`.
    pub log_messages_total: BTreeMap<String, u64>,
    /// Live flows.
    pub flows: u64,
    /// The most flows at a time.
    pub flows_max: u64,
    /// Clients whose SYN waits for the far side to answer.
    pub held_syns: u64,
    /// Data buffered in the proxy, including its sockets.
    pub buffered_bytes: u64,
    /// The limit of `buffered_bytes`.
    pub buffered_max_bytes: u64,
    /// Flows that were taken.
    pub split_total: u64,
    /// Flows that bypassed the daemon, by reason.
    pub bypassed_total: BTreeMap<String, u64>,
    /// Flows that a rule rejected.
    pub rejected_total: u64,
    /// Data planes of this daemon that were killed before this one.
    pub data_planes_killed_total: u64,
    /// How often another program has taken over.
    pub upgrades_total: u64,
    /// Flows that were live at the last takeover: how many continue (`adopted`), and how many were
    /// `lost`.
    pub orphaned_flows_total: BTreeMap<String, u64>,
    /// Flows that have moved `away` to a peer and `here` from one, and those that were `lost`
    /// during a move.
    #[serde(default)]
    pub moved_flows_total: BTreeMap<String, u64>,
    /// Flows whose far side did not accept, by reason.
    pub refused_total: BTreeMap<String, u64>,
    /// Flows that have ended, by how.
    pub ended_total: BTreeMap<String, u64>,
    /// Bytes moved from clients to servers.
    pub up_bytes_total: u64,
    /// Bytes moved from servers to clients.
    pub down_bytes_total: u64,
    /// How often a direction of a flow began to wait for memory.
    pub memory_waits_total: u64,
    /// What waits now, by what it waits for: clients for the `far-side` to answer; sides of flows
    /// for the far end's `window`, for their part of a leg's `rate`, or for the `path`.
    pub waiting: BTreeMap<String, u64>,
    /// Flows that bypassed the daemon because a limit was reached, by limit.
    pub limits_reached_total: BTreeMap<String, u64>,
    /// Clients by source prefix; those without a count of their own are `other`.
    pub sources: BTreeMap<String, SourcePrefix>,
    /// When the `own` certificate and that of its `authority` expire.
    pub certificates_expire_unix_s: BTreeMap<String, i64>,
    /// Handshakes that were refused because of a certificate or the requested name, by reason.
    pub handshakes_refused_total: BTreeMap<String, u64>,
    /// The last refused handshake; none: there was none.
    pub last_refusal: Option<PeerFailure>,
    /// Handshakes beyond those that are served at once, by response: `retry`, they had to prove
    /// their address; `none`, they got no response.
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
    /// Bytes from these clients.
    pub up_bytes_total: u64,
    /// Bytes to these clients.
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
    /// Bytes sent into the leg.
    pub sent_bytes_total: u64,
    /// Bytes received from the leg.
    pub received_bytes_total: u64,
    /// Segments with data sent, including retransmissions; for a tunnel, packets.
    pub sent_segments_total: u64,
    /// Of these, the retransmissions; for a tunnel, the packets that were lost.
    pub retransmissions_total: u64,
    /// Segments with data received.
    pub received_segments_total: u64,
    /// Of these, those that arrived out of order: after a loss on the way here, or because others
    /// overtook them.
    pub out_of_order_segments_total: u64,
    /// Bytes that wait in this host's sockets to be sent into the leg.
    pub queued_bytes: u64,
    /// Smoothed round-trip time over its connections.
    pub rtt_s: Option<f64>,
    /// The shortest round-trip time seen.
    pub rtt_min_s: Option<f64>,
    /// Flows that have more to send than their share.
    pub senders: Option<u64>,
    /// The share of each of these flows.
    pub share_bit_per_s: Option<u64>,
}

/// The tunnels to one peer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerStatus {
    /// Open tunnels; 0: the peer cannot be reached, or has not connected.
    pub tunnels: u64,
    /// Those of them that are over TCP.
    pub tcp_tunnels: u64,
    /// Of all open tunnels, those that accept no new flows and close when their flows have ended.
    pub closing_tunnels: u64,
    /// Tunnels that were opened.
    pub opened_total: u64,
    /// Those of them that are over TCP.
    pub tcp_opened_total: u64,
    /// Failed attempts to open a tunnel.
    pub open_failures_total: u64,
    /// The pause before the next attempt, after a failed one; none: the last one succeeded.
    pub retry_pause_s: Option<f64>,
    /// The carrier of new flows, with the reason; only at the end that opens tunnels.
    pub carrier: Option<String>,
    /// How often new flows changed to another carrier.
    pub carrier_changes_total: u64,
    /// Trials of TCP because UDP may be throttled.
    pub tcp_trials_total: u64,
    /// Those of them in which TCP carried no more than UDP.
    pub vain_tcp_trials_total: u64,
    /// Flows in its tunnels.
    pub flows: u64,
    /// Smoothed round-trip time.
    pub rtt_s: Option<f64>,
    /// The shortest round-trip time seen.
    pub rtt_min_s: Option<f64>,
    /// Bytes that may be in flight.
    pub window_bytes: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// The send rate, headers included; none: only the window limits it.
    pub rate_bit_per_s: Option<u64>,
    /// The measured rate of the link, headers included, if it contradicts the assumed rate; none:
    /// it does not.
    pub carried_bit_per_s: Option<u64>,
    /// The reported rate of the link, headers included, which replaces the configured one; none: no
    /// report is valid.
    pub reported_bit_per_s: Option<u64>,
    /// The part of the datagrams to the peer that is lost, before repairs.
    pub loss_ratio: Option<f64>,
    /// Bytes of repair packets, relative to the bytes that they cover.
    pub repair_overhead_ratio: Option<f64>,
    /// Packets sent to the peer.
    pub sent_packets_total: u64,
    /// Those of them that were lost.
    pub lost_packets_total: u64,
    /// Tunnels closed because the peer violated the protocol.
    pub violations_total: u64,
    /// The last failure between the peer and this daemon; none: there was none.
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
    /// What happened: what the certificate contains, and which peers are known.
    pub message: String,
    /// The remedy.
    pub hint: Option<String>,
    /// The other end's address.
    pub address: SocketAddr,
    /// When it happened.
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
    /// The most flows to list, those that have moved the most bytes first; 0: all.
    pub limit: u64,
}

/// Live flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flows {
    /// The version of this format.
    pub format: u32,
    /// How many flows match.
    pub matching: u64,
    /// The flows that are listed.
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
    /// The number of the rule that decided, from 0 as in error messages, in the configuration with
    /// which the flow began; none: the default.
    pub rule: Option<u64>,
    /// The interface on which it arrived; none: it was requested, here or by a peer.
    pub interface: Option<String>,
    /// Time since both sides are open.
    pub age_s: f64,
    /// Bytes moved from client to server.
    pub up_bytes: u64,
    /// Bytes moved from server to client.
    pub down_bytes: u64,
    /// Rate from client to server over about the last second.
    pub up_bit_per_s: u64,
    /// Rate from server to client over about the last second.
    pub down_bit_per_s: u64,
    /// The highest rate that its faster direction may have now; none if nothing is configured.
    pub limit_bit_per_s: Option<u64>,
    /// What data to the server wait for: `memory`, room in the `tunnel`, the far end's `window`,
    /// their part of the leg's `rate`, or the `path`.
    pub up_waits_for: Option<String>,
    /// The same for data to the client.
    pub down_waits_for: Option<String>,
    /// Bytes accepted from the client and not yet delivered to the server: in a socket's queue or
    /// in flight, as last sampled; through a tunnel, those that the other proxy has not yet
    /// confirmed as passed on. None if that is not known.
    pub up_undelivered_bytes: Option<u64>,
    /// The same for data to the client.
    pub down_undelivered_bytes: Option<u64>,
    /// Its socket towards the client; none if that side is a tunnel, or was not sampled yet.
    pub to_client: Option<FlowSide>,
    /// Its socket towards the server; none likewise.
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
    /// Bytes written into it and not sent yet.
    pub queued_bytes: u64,
    /// Bytes sent, and neither acknowledged nor considered lost.
    pub in_flight_bytes: u64,
    /// Segments with data sent, including retransmissions.
    pub sent_segments: u64,
    /// Of these, the retransmissions.
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
    /// The interface on which its SYN arrives; none: that of the route back to the client.
    #[serde(default)]
    pub interface: Option<String>,
    /// The DSCP of its SYN.
    #[serde(default)]
    pub dscp: u8,
}

/// What happens to a flow, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Why {
    /// The version of this format.
    pub format: u32,
    /// What happens to it.
    pub outcome: FlowOutcome,
    /// The live flow between these ends; none: there is none, and the answer is about a flow that
    /// would begin now.
    pub live: Option<LiveFlow>,
    /// What was checked, in order, up to the step that decided.
    pub steps: Vec<Step>,
    /// The leg towards the client, if the flow is carried.
    pub client_leg: Option<String>,
    /// The leg towards the server, or the peer.
    pub server_leg: Option<String>,
    /// When the client's SYN is answered, if the flow is carried.
    pub accept: Option<String>,
}

/// What happens to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FlowOutcome {
    /// It is split by this host alone.
    Split,
    /// It goes through a tunnel.
    Tunnel,
    /// It bypasses the daemon.
    Bypass,
    /// It is not split, but its losses are repaired.
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
    /// What was checked: a key of the configuration, or a part of the host.
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
    /// Why the configuration was refused, in which case the old one stays in force; none: it is in
    /// force.
    pub error: Option<ErrorAnswer>,
    /// Keys that have changed, but keep their old values until a restart.
    pub kept: Vec<String>,
}

/// The current rate of the link to a peer, away from this host, as its modem reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RateReport {
    /// The peer.
    pub peer: String,
    /// The rate of its link, headers included: 8 kbit/s to 100 Gbit/s.
    pub rate_bit_per_s: u64,
    /// How long the report is valid, unless another one replaces it: a second to a day.
    pub valid_s: f64,
}

/// A report that was accepted.
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
    /// How long flows go on before they stand still; what they hold is copied meanwhile. Unit:
    /// milliseconds. Range: up to 5,000; more counts as that.
    #[serde(default)]
    pub still_in_ms: u64,
}

/// What has happened to flows that were to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MoveOutcome {
    /// The version of this format.
    pub format: u32,
    /// Split flows that matched.
    pub matching: u64,
    /// Those that continue at the peer.
    pub moved: u64,
    /// Those that were reset, because it was not known whether they had moved.
    pub lost: u64,
    /// The state of flows that was sent to the peer, copies included. Unit: bytes.
    #[serde(default)]
    pub state_bytes: u64,
    /// The part of it that was sent while the flows stood still. The rest was copied before. Unit: bytes.
    #[serde(default)]
    pub state_frozen_bytes: u64,
    /// Those that continue here, by reason: `ended`, it has ended or is about to; `busy`, it could
    /// not be stopped in time; `addresses`, they are this host's or translated; `queues`, they hold
    /// too much; `kernel`; `time`, it was over; `peer-silent`; and the reasons of the peer:
    /// `peer-policy`, its rules do not split the flow; `peer-route`, the flow does not pass there;
    /// `peer-full`; `peer-kernel`; `peer-malformed`; `peer-discarded`.
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
