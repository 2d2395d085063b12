//! The data plane at one moment: what metrics, page and control socket show.
//!
//! Invariant: a counter (`…_total`) never falls while the daemon lives; everything else is a gauge.

mod flows;
mod legs;
mod peers;

pub use flows::{FlowSnapshot, SideSnapshot, SourceSnapshot};
pub use legs::LegSnapshot;
pub use peers::{Carrier, ConditionSnapshot, PeerSnapshot};

use midhop_pki::trouble::PeerTrouble;
use midhop_units::{Bytes, Number};
use serde::Serialize;
use std::collections::BTreeMap;

/// One worker's part of the tunnels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerSnapshot {
    /// Tunnels that are open on this worker.
    pub tunnels: u64,
    /// Datagrams received on its sockets.
    pub datagrams_total: u64,
    /// Those of them that belonged to connections of other workers, and were handed over to these.
    pub handed_datagrams_total: u64,
}

/// The data plane at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// Live flows.
    pub flows: u64,
    /// Clients that wait for the far side to answer.
    pub held_syns: u64,
    /// Bytes that flows hold now.
    #[serde(rename = "buffered_bytes", with = "Number::<Bytes>")]
    pub buffered: Bytes,
    /// Bytes that flows may hold together.
    #[serde(rename = "buffered_max_bytes", with = "Number::<Bytes>")]
    pub buffered_max: Bytes,
    /// Flows that may live at a time.
    pub flows_max: u64,
    /// Flows that have been split, whatever their end.
    pub split_total: u64,
    /// Flows that were let pass by a rule that the firewall cannot apply.
    pub bypassed_by_rule_total: u64,
    /// Flows that were let pass because a limit was reached.
    pub bypassed_by_limit_total: u64,
    /// Of these, those that each limit let pass (`flows`, `source`, `pending`, `host`, `unknown`).
    pub limits_reached_total: BTreeMap<String, u64>,
    /// What waits now, by what it waits for: clients for the `far-side` to answer; sides of flows
    /// for the far end's `window`, for their part of a leg's `rate`, or for the `path`'s congestion
    /// control.
    pub waiting: BTreeMap<String, u64>,
    /// Clients, by source prefix; the last of them are counted together as `other`.
    pub source_prefixes: BTreeMap<String, PrefixSnapshot>,
    /// When this daemon's `own` certificate and its `authority`'s expire.
    pub certificates_expire_unix_s: BTreeMap<String, i64>,
    /// Flows that were let pass because no flows came about here, or their far side did not answer.
    pub bypassed_by_watchdog_total: u64,
    /// SYNs that the firewall let pass on its own, by reason (`multipath`, `signed`,
    /// `routing_header`, `rule`, `limit`); a retransmitted SYN counts again.
    pub firewall_passed_total: BTreeMap<String, u64>,
    /// Flows that were let pass by a rule that repairs their losses.
    pub assisted_total: u64,
    /// Directions of assisted flows for which state is kept.
    pub assist_flows: u64,
    /// Size of their cache.
    #[serde(rename = "assist_cached_bytes", with = "Number::<Bytes>")]
    pub assist_cached: Bytes,
    /// What was done for them: segments retransmitted, acknowledgements held back, …
    pub assist_total: BTreeMap<String, u64>,
    /// Flows that a rule refused.
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
    pub moved_flows_total: BTreeMap<String, u64>,
    /// Flows and connections that peers were denied, by reason.
    pub peers_denied_total: BTreeMap<String, u64>,
    /// Flows that peers requested in the name of clients that are not theirs.
    pub claims_ignored_total: u64,
    /// What happened to flows whose tunnel was gone or had changed its carrier: those that
    /// continued (`resumed`), and those that did not (`lost`); and requests of peers to resume
    /// unknown flows (`refused`).
    pub resumptions_total: BTreeMap<String, u64>,
    /// Flows that wait for another tunnel.
    pub flows_without_tunnel: u64,
    /// Handshakes that this end refused because of the certificate or the requested name, by
    /// reason.
    pub handshakes_refused_total: BTreeMap<String, u64>,
    /// The last refused handshake.
    pub last_refusal: Option<PeerTrouble>,
    /// Handshakes beyond those that are served at once, by response: those that had to prove their
    /// address (`retry`), and those that got no response (`none`).
    pub handshakes_limited_total: BTreeMap<String, u64>,
    /// Flows whose far side refused or could not be reached, by its answer (`refused`,
    /// `unreachable`, `timeout`, `local`).
    pub refused_total: BTreeMap<String, u64>,
    /// Flows that have ended, by how (`fin`, `reset-client`, `reset-server`, `dead`, `drained`, …).
    pub ended_total: BTreeMap<String, u64>,
    /// Bytes moved from clients to servers.
    #[serde(rename = "up_bytes_total", with = "Number::<Bytes>")]
    pub up_total: Bytes,
    /// Bytes moved from servers to clients.
    #[serde(rename = "down_bytes_total", with = "Number::<Bytes>")]
    pub down_total: Bytes,
    /// How often a direction had to wait because all flows together held as much as the limit
    /// allows.
    pub memory_waits_total: u64,
    /// How often a receive buffer was set because memory was short.
    pub windows_bounded_total: u64,
    /// Each worker, by its number.
    pub workers: Vec<WorkerSnapshot>,
    /// Each leg by name.
    pub legs: BTreeMap<String, LegSnapshot>,
    /// Each peer by name.
    pub peers: BTreeMap<String, PeerSnapshot>,
    /// Some of the live flows, the fastest first; among equals, those that have moved the most
    /// bytes.
    pub busiest: Vec<FlowSnapshot>,
}

/// The traffic of the clients of one prefix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrefixSnapshot {
    /// Live flows.
    pub flows: u64,
    /// Flows that have begun.
    pub started_total: u64,
    /// Bytes from these clients.
    pub up_bytes_total: u64,
    /// Bytes to these clients.
    pub down_bytes_total: u64,
}
