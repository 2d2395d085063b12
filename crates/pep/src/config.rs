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
    /// Listeners for clients that ask for the proxy.
    pub explicit: Explicit,
    /// What the whole daemon may hold.
    pub limits: Limits,
    /// Which clients are counted, and limited, as one.
    pub sources: Sources,
    /// Metrics and the status page.
    pub admin: Admin,
    /// The socket of `midhopd status` and the other commands that ask a running daemon.
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
    /// What becomes of which flow; the first rule that matches decides.
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

/// Listeners for clients that ask for the proxy by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Explicit {
    /// Addresses that speak HTTP/1.1 CONNECT.
    #[serde(deserialize_with = "written::endpoints")]
    pub http_connect: OneOrMany<SocketAddr>,
    /// Addresses that speak SOCKS5.
    #[serde(deserialize_with = "written::endpoints")]
    pub socks5: OneOrMany<SocketAddr>,
    /// Who may ask.
    #[serde(deserialize_with = "written::networks")]
    pub clients: OneOrMany<IpNet>,
    /// Whether targets may be named, and are then looked up here.
    pub resolve: bool,
    /// Whether this host's own addresses may be targets: loopback, and those of its interfaces.
    pub local_targets: bool,
    /// Special-purpose addresses (private networks, the link …) that may be targets. An address of this host
    /// may where it is listed alone, as a /32 or /128.
    #[serde(deserialize_with = "written::networks")]
    pub targets: OneOrMany<IpNet>,
    /// How long a client may take to say what it wants.
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

/// One kind of side that a flow may have: the satellite, the lan, the internet.
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
    /// Taken where `congestion` is not to be had; unset: that is an error at start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Hybla's reference round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt0: Option<Duration>,
    /// What the link carries away from this host; with `rtt` it gives the buffer of a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// What it carries towards this host; unset: `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_in: Option<Rate>,
    /// Its round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Duration>,
    /// Whether the flows that send into the leg divide `rate`; unset: yes where `rate` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<bool>,
    /// How a flow begins; unset: at its share where `rate` and `rtt` are given and `congestion` can.
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
    /// How long a far end may leave data unacknowledged, or its window closed; unset: as the kernel has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_timeout: Option<Duration>,
}

/// How a flow begins to send into a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// As the congestion control does: slowly, until it knows the path.
    #[default]
    Slow,
    /// At its share of the leg's rate, paced. Our Hybla can.
    Rate,
}

/// TCP keep-alive of a leg.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Between probes.
    pub interval: Duration,
    /// Unanswered probes after which the end is dead; 0: no keep-alive.
    pub count: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_s(600), interval: Duration::from_s(60), count: 5 }
    }
}

/// What the whole daemon may hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Data held for all flows together, with what open receive windows allow to arrive; at the limit windows close.
    /// Beyond it each flow may hold `flow_buffer` in each direction, and up to 1 MiB that was read before it was counted.
    pub memory: Bytes,
    /// Flows at a time; beyond it new flows pass by.
    pub flows: u32,
    /// Flows at a time of one source, as `[sources]` has it; beyond it its new flows pass by. Unset: as many as
    /// `flows`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows_per_source: Option<u32>,
    /// What every flow may hold at least, in each direction: no receive window is made smaller than that, however short
    /// memory is.
    pub flow_buffer: Bytes,
    /// Clients waiting for the far side to answer at a time; beyond it new flows pass by.
    pub pending: u32,
    /// How long an end that acknowledges nothing may keep what it is still owed when the other has gone.
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
    /// Where they are served over HTTP; none: nowhere.
    #[serde(deserialize_with = "written::endpoints")]
    pub listen: OneOrMany<SocketAddr>,
    /// Names by which they may be asked for, besides addresses and `localhost`: a page elsewhere cannot have a
    /// browser ask by a name of its own.
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
    /// For people or for machines.
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
    /// How long live flows may go on after the daemon was told to end.
    pub drain: Duration,
}

impl Default for Daemon {
    fn default() -> Self {
        Self { workers: 0, drain: Duration::from_s(30) }
    }
}

/// What becomes of the flows that match.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Which flows; every key given must match.
    #[serde(rename = "match")]
    pub matches: Match,
    /// What becomes of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The peer whose tunnel takes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    /// What becomes of them while the tunnel cannot be had; unset: they are split here alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Action>,
    /// Their class in tunnels; unset: by their DSCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// When their SYNs are answered; unset: as in `[intercept]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept: Option<Accept>,
    /// What differs on which leg for these flows.
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

/// Which flows a rule means: all of the keys given, any of the values of each.
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
    /// The peer by whose tunnel the flow comes.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub peer: OneOrMany<String>,
    /// The client's DSCP.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub dscp: OneOrMany<Dscp>,
}

/// What becomes of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Two connections, one per leg.
    Split,
    /// It passes by untouched.
    Bypass,
    /// It passes by, and what of it is lost beyond the interfaces of `[assist]` is sent again from here. A flow that comes
    /// by another way than the wire is split.
    Assist,
    /// It is refused.
    Reject,
}

#[cfg(test)]
mod tests;
