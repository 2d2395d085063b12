//! The daemon's configuration as written: one type per table of the file, every default visible.
//!
//! Invariant: [`Config::default`] is what an empty file means, and printing a [`Config`] as TOML and
//! reading that again gives an equal one. Whether the numbers make sense is decided in
//! [`Config::resolve`], and nowhere else.

mod assist;
mod class;
mod control;
mod intercept;
mod list;
mod loops;
mod modem;
mod name;
mod plan;
mod resolve;
mod sources;
mod tunnel;
mod written;

pub use assist::{AckDecimation, AckSpacing, Assist, AssistPeer, Repairer};
pub use class::{Class, ClassPlan};
pub use control::Control;
pub use intercept::{Accept, Conntrack, Hooks, Intercept};
pub use list::{Dscp, OneOrMany, Ports};
pub use modem::{Modem, ModemPlan, REPORTED_MAX, REPORTED_MIN, ReportSource};
pub use plan::{LegPlan, Plan};
pub use resolve::{ReadError, ResolveError};
pub use sources::{PREFIXES_MAX, Sources};
pub use tunnel::{
    Credentials, Fallback, Moves, Peer, PeerPlan, Repair, RequestForm, Tunnel, TunnelPlan,
};

use ipnet::IpNet;
use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr};

/// A whole configuration file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which flows are taken from the wire.
    pub intercept: Intercept,
    /// How flows are helped that are not split.
    pub assist: Assist,
    /// Listeners for clients that address the proxy itself.
    pub explicit: Explicit,
    /// Limits of the whole daemon.
    pub limits: Limits,
    /// Which clients are counted, and limited, as one.
    pub sources: Sources,
    /// Metrics and the status page.
    pub admin: Admin,
    /// The socket of `midhopd status` and the other commands that query a running daemon.
    pub control: Control,
    /// What is logged, and how.
    pub log: Log,
    /// The process itself.
    pub daemon: Daemon,
    /// The sides of a flow, by name.
    pub legs: BTreeMap<String, Leg>,
    /// This daemon's own end of tunnels.
    pub tunnel: Tunnel,
    /// The proxies at the other ends of links, by name.
    pub peers: BTreeMap<String, Peer>,
    /// Classes of the flows in tunnels, by name.
    pub classes: BTreeMap<String, Class>,
    /// What happens to which flow; the first rule that matches decides.
    pub rules: Vec<Rule>,
}

impl Config {
    /// The JSON Schema of the file: every key, what it takes, its default and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> schemars::Schema {
        let mut schema = schemars::schema_for!(Self);
        // The library's pattern for IPv6 takes IPv4 as well, so that "one of" takes no IPv4.
        let network = schema.pointer_mut("/$defs/IpNet").and_then(serde_json::Value::as_object_mut);
        if let Some(network) = network
            && let Some(forms) = network.remove("oneOf")
        {
            network.insert("anyOf".to_owned(), forms);
        }
        schema
    }
}

/// How long one address of a target may take to answer, where nothing else is configured.
const CONNECT_TIMEOUT: Duration = Duration::from_s(30);

/// Listeners for clients that address the proxy itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Explicit {
    /// Addresses at which HTTP/1.1 CONNECT is served.
    #[serde(deserialize_with = "written::endpoints")]
    pub http_connect: OneOrMany<SocketAddr>,
    /// Addresses at which SOCKS5 is served.
    #[serde(deserialize_with = "written::endpoints")]
    pub socks5: OneOrMany<SocketAddr>,
    /// Addresses of the clients that may use these listeners.
    #[serde(deserialize_with = "written::networks")]
    pub clients: OneOrMany<IpNet>,
    /// Whether clients may request targets by name, which this host then resolves.
    pub resolve: bool,
    /// Whether this host's own addresses may be targets: loopback, and those of its interfaces.
    pub local_targets: bool,
    /// Special-purpose addresses (private networks, the link …) that may be targets. An address of
    /// this host may be a target if it is listed alone, as a /32 or /128.
    #[serde(deserialize_with = "written::networks")]
    pub targets: OneOrMany<IpNet>,
    /// How long a client may take to send its request.
    pub request_timeout: Duration,
    /// How long one address of a target may take to answer.
    pub connect_timeout: Duration,
}

impl Default for Explicit {
    fn default() -> Self {
        Self {
            http_connect: OneOrMany::default(),
            socks5: OneOrMany::default(),
            clients: OneOrMany(vec![
                IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(127, 0, 0, 0), 8)),
                IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128)),
            ]),
            resolve: true,
            local_targets: false,
            targets: OneOrMany::default(),
            request_timeout: Duration::from_s(10),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }
}

/// One kind of side that a flow may have, such as the satellite, the LAN or the internet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Leg {
    /// The interface that the leg's packets take; without `prefixes` it defaults to the leg's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The far addresses of the leg; none: all behind the interface.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    #[serde(deserialize_with = "written::networks")]
    pub prefixes: OneOrMany<IpNet>,
    /// Congestion control by name; unset: the kernel's default.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "name::read")]
    pub congestion: Option<String>,
    /// Used if `congestion` is not available; unset: that is an error at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Hybla's reference round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt0: Option<Duration>,
    /// The rate of the link away from this host; with `rtt` it determines the buffer of a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The rate of the link towards this host; unset: `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_in: Option<Rate>,
    /// The round-trip time of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Duration>,
    /// Whether the flows that send into the leg share `rate`; unset: yes if `rate` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<bool>,
    /// How a flow begins to send; unset: at its share if `rate` and `rtt` are set and `congestion`
    /// supports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// The fastest that one flow may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing: Option<Rate>,
    /// What a flow may hold for this leg; unset: `rate` × `rtt`, or as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<Bytes>,
    /// How a dead far end is found.
    pub keepalive: Keepalive,
    /// How long a far end may leave data unacknowledged, or keep its window closed; unset: the
    /// kernel's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_timeout: Option<Duration>,
}

/// How a flow begins to send into a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// As the congestion control does by itself: slowly, until it knows the path.
    #[default]
    Slow,
    /// At its share of the leg's rate, paced. `hybla-plus` supports this.
    Rate,
}

/// TCP keep-alive of a leg.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the end is dead; 0: no keep-alive.
    pub count: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_s(600), interval: Duration::from_s(60), count: 5 }
    }
}

/// Limits of the whole daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Data that is held for all flows together, including what open receive windows allow to
    /// arrive. At this limit, windows close. Beyond it, each flow may hold `flow_buffer` in each
    /// direction, and up to 1 MiB that was read before it was counted.
    pub memory: Bytes,
    /// The most flows at a time; beyond it, new flows bypass the daemon.
    pub flows: u32,
    /// The most flows at a time of one source, as `[sources]` defines it; beyond it, new flows of
    /// this source bypass the daemon. Unset: as many as `flows`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows_per_source: Option<u32>,
    /// What every flow may always hold in each direction: no receive window becomes smaller,
    /// however short memory is.
    pub flow_buffer: Bytes,
    /// The most clients at a time that wait for the far side to answer; beyond it, new flows bypass
    /// the daemon.
    pub pending: u32,
    /// How long data is kept for an end that acknowledges nothing, after the other end is gone.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: Bytes::new(1 << 30),
            flows: 20_000,
            flows_per_source: None,
            flow_buffer: Bytes::new(256 << 10),
            pending: 4096,
            linger: Duration::from_s(60),
        }
    }
}

/// Metrics and the status page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Addresses at which they are served over HTTP; none: they are not served.
    #[serde(deserialize_with = "written::endpoints")]
    pub listen: OneOrMany<SocketAddr>,
    /// Host names under which they are served, besides addresses and `localhost`. All other names
    /// are refused, so that a foreign page cannot read them through a browser under a name of its
    /// own.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub names: OneOrMany<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: OneOrMany(vec![SocketAddr::from(([127, 0, 0, 1], 9310))]),
            names: OneOrMany::default(),
        }
    }
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// The form of a log line: text for people, or JSON for machines.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives such as `midhopd::relay=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".to_owned() }
    }
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// One line of text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The process itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// Threads that move bytes; 0: one per core.
    pub workers: u16,
    /// How long live flows may continue after the daemon is asked to stop.
    pub drain: Duration,
}

impl Default for Daemon {
    fn default() -> Self {
        Self { workers: 0, drain: Duration::from_s(30) }
    }
}

/// What happens to the flows that match.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Which flows; every key that is given must match.
    #[serde(rename = "match")]
    pub matches: Match,
    /// What happens to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The peer through whose tunnel they go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    /// What happens to them while the tunnel is not available; unset: this host splits them alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Action>,
    /// Their class in tunnels; unset: by their DSCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// When their SYNs are answered; unset: as in `[intercept]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept: Option<Accept>,
    /// What this rule changes on a leg for these flows, by the leg's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub legs: BTreeMap<String, LegOverride>,
}

/// What a rule changes on a leg.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LegOverride {
    /// Congestion control by name.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "name::read")]
    pub congestion: Option<String>,
    /// The fastest that one flow may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing: Option<Rate>,
}

/// The flows to which a rule applies. All keys that are given must match; a key matches if one of
/// its values does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// The client's address.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    #[serde(deserialize_with = "written::networks")]
    pub source: OneOrMany<IpNet>,
    /// The server's address.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    #[serde(deserialize_with = "written::networks")]
    pub destination: OneOrMany<IpNet>,
    /// The client's port.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub source_port: OneOrMany<Ports>,
    /// The server's port.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub destination_port: OneOrMany<Ports>,
    /// The interface on which the flow arrives.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub interface: OneOrMany<String>,
    /// The peer through whose tunnel the flow arrives.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub peer: OneOrMany<String>,
    /// The client's DSCP.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub dscp: OneOrMany<Dscp>,
}

/// What happens to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Two connections, one per leg.
    Split,
    /// It bypasses the daemon untouched.
    Bypass,
    /// It is not split, but what it loses beyond the interfaces of `[assist]` is retransmitted from
    /// here. A flow that is not intercepted on the wire, but requested by a client or a peer, is
    /// split.
    Assist,
    /// It is refused.
    Reject,
}

#[cfg(test)]
mod tests;
