//! A scenario as a person writes it, for one cell: the changes of `vary` are applied.
//!
//! ```toml
//! title = "GEO: one proxy at the gateway against none"
//! duration = "60 s"
//! seeds = 5
//!
//! [nodes]
//! client = {}
//! terminal = {}
//! gateway = { pep = "gw" }
//! server = {}
//!
//! [links.lan]
//! between = ["client", "terminal"]
//!
//! [links.satellite]
//! between = ["terminal", "gateway"]
//! preset = "geo"
//! down = { rate = "20 Mbit/s", loss = 0.01 }
//!
//! [links.internet]
//! between = ["gateway", "server"]
//! delay = "10 ms"
//!
//! [peps.gw]
//! legs.satellite = { congestion = "hybla-plus" }
//!
//! [transfers.page]
//! from = "server"
//! to = "client"
//! objects = ["50 kB", "817 kB"]
//! ```

use crate::agents::AgentSpec;
use crate::congestion::CongestionSpec;
use crate::handovers::HandoverSpec;
use crate::limit::{Family, Opener};
use crate::naive::NaiveSpec;
use crate::tcp::TcpSpec;
use crate::traffic::TrafficSpec;
use midhop_path::LinkSpec;
use midhop_units::{Bytes, Duration, Seed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name for no proxy, in the place of a proxy's name.
pub const NO_PEP: &str = "none";

/// A scenario without its `vary` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What it shows, in a line.
    pub title: String,
    /// When a run ends, even if transfers are unfinished.
    pub duration: Duration,
    /// How often each cell runs, each time with the next seed. Range: 1 to 10,000.
    #[serde(default = "one")]
    pub seeds: u32,
    /// The first seed.
    #[serde(default = "first_seed")]
    pub seed: Seed,
    /// The TCP of all hosts, unless a host sets a key itself. Default: that of Linux.
    pub tcp: Option<TcpSpec>,
    /// The hosts, by name.
    pub nodes: BTreeMap<String, NodeSpec>,
    /// The links, by name; the name is also that of the interface on both of its nodes.
    #[serde(default)]
    pub links: BTreeMap<String, LinkSpec>,
    /// Proxy configurations, by name: tables in the form that the proxy daemon reads, kept as
    /// written. A peer may also have the key `node`: the node on which that peer runs.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, serde_json::Value>"))]
    pub peps: BTreeMap<String, toml::Table>,
    /// Deliberately naive proxies, by name. A node names one in place of one of `peps`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub naive: BTreeMap<String, NaiveSpec>,
    /// Agents that may act on the packets of nodes, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, AgentSpec>,
    /// The transfers, by name.
    #[serde(default)]
    pub transfers: BTreeMap<String, TransferSpec>,
    /// Cross traffic over the links, by name. All of it runs, whichever transfers run.
    #[serde(default)]
    pub traffic: BTreeMap<String, TrafficSpec>,
    /// Handovers of hosts from one link to another, and from one proxy to another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handovers: Vec<HandoverSpec>,
    /// Which transfers run. Default: all.
    pub run: Option<Vec<String>>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Which proxy of `peps` or `naive` runs here. Default: none.
    pub pep: Option<String>,
    /// Which of `agents` act here, in the order in which packets pass them. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Shell commands that run here from before the first transfer until after the last.
    #[serde(default)]
    pub programs: Vec<String>,
    /// The keys of TCP that differ on this host.
    pub tcp: Option<TcpSpec>,
}

/// A transfer. Exactly one of `objects`, `bytes` and `seconds` sets how much is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TransferSpec {
    /// The node that sends the data.
    pub from: String,
    /// The node that receives it.
    pub to: String,
    /// A page: objects of these sizes, requested one after another or `parallel` at once.
    pub objects: Option<Vec<Bytes>>,
    /// The payload of each flow.
    pub bytes: Option<Bytes>,
    /// How long each flow sends.
    pub seconds: Option<f64>,
    /// Parallel connections, for `bytes` and `seconds`. Default: 1.
    pub flows: Option<u32>,
    /// Which connections carry the objects of a page. Default: persistent ones.
    pub connections: Option<Connections>,
    /// Objects of a page that are transferred at once. Default: 1.
    pub parallel: Option<u32>,
    /// Congestion control at both ends. Default: `cubic`.
    pub congestion: Option<CongestionSpec>,
    /// How often a file or object begins again, over a new connection, when its connection is cut
    /// short. Default: never.
    pub restarts: Option<u32>,
    /// How long after that it begins again. Default: 1 s.
    pub restart_after: Option<Duration>,
    /// What is requested then. Default: `all` of it.
    pub restart_from: Option<RestartFrom>,
    /// When it begins, after the run's start. Default: at once.
    #[serde(default)]
    pub start: Duration,
    /// Which end opens the connection. Default: the receiver.
    #[serde(default)]
    pub opens: Opener,
    /// The version of IP. Default: 4.
    #[serde(default)]
    pub family: Family,
}

/// Which connections carry the objects of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Connections {
    /// Connections that stay open from object to object.
    #[default]
    Persistent,
    /// A connection for each object.
    New,
}

/// What is requested of a file or object whose connection was cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RestartFrom {
    /// All of it, from its beginning: what had arrived is discarded.
    #[default]
    All,
    /// The part that has not arrived.
    Rest,
}

impl RestartFrom {
    /// Whether it is the default.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }
}

fn one() -> u32 {
    1
}

fn first_seed() -> Seed {
    Seed(1)
}
