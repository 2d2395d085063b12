//! Tunnels between the proxies of a scenario.
//!
//! A proxy's table names the node of a peer, and what else a tunnel takes comes from the topology: where
//! the peer listens, who shows which certificate, and what the way between the two carries. What the
//! table says itself stays.
//!
//! ```toml
//! [peps.terminal]
//! peers.gw = { node = "gateway" }
//! rules = [{ tunnel = "gw" }]
//! [peps.gw]
//! ```
//!
//! The end whose rules name the peer opens the tunnel, and the other one listens. That one need not name
//! its peer in turn, unless it has something to say of it.

use crate::plan::{Crossing, Plan, PlannedNode};
use crate::route::{self, Edge};
use midhop_config::tree::Table;
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_units::{Duration, Rate};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use toml::Value;

/// The UDP port on which peers are awaited.
const PORT: u16 = 4433;
/// Where the laboratory's servers are: private networks, which a far end serves only if it is told.
const NETWORKS: [&str; 2] = ["10.0.0.0/8", "fd00::/8"];
/// What follows a node's name in its certificate. The authority's own files have none of it.
const DOMAIN: &str = "midhop";
/// The longest part of a name in DNS.
const LABEL_MAX: usize = 63;
/// The key by which a scenario names a peer's node.
const NODE: &str = "node";

/// A node's end of all of its tunnels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeTunnels {
    /// The name in its certificate.
    pub identity: String,
    /// Where peers come to it; none where it goes to all of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub listen: BTreeSet<SocketAddr>,
    /// Its peers, in the order of their names.
    pub peers: Vec<TunnelPeer>,
}

/// A proxy at the other end of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunnelPeer {
    /// What this end's configuration calls it.
    pub name: String,
    /// Its node.
    pub node: String,
    /// The name in its certificate.
    pub identity: String,
    /// The link on which the way to it begins.
    pub link: String,
    /// Where it listens; none: it comes to us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// What the way there carries, at its best; none where nothing limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// What the way back carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_in: Option<Rate>,
    /// Propagation there and back; none where it takes no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Duration>,
}

impl NodeTunnels {
    /// The configuration that the node's proxy reads: what is `written`, and what that leaves out. Its
    /// certificate, its key and the authority's certificate are in `directory`.
    pub fn configuration(&self, written: &toml::Table, directory: &str) -> toml::Table {
        let mut table = written.clone();
        let file = |name: &str| Some(Value::String(format!("{directory}/{name}")));
        let text = |it: Option<String>| it.map(Value::String);
        within(&mut table, "tunnel", |own| {
            fill(own, "certificate", file(&format!("{}.pem", self.identity)));
            fill(own, "key", file(&format!("{}.key", self.identity)));
            fill(own, "authority", file("ca.pem"));
            let listen: Vec<Value> = self.listen.iter().map(|it| it.to_string().into()).collect();
            let targets = NETWORKS.map(|prefix| Value::String(prefix.to_owned()));
            fill(own, "targets", (!listen.is_empty()).then(|| Value::Array(targets.to_vec())));
            fill(own, "listen", (!listen.is_empty()).then_some(Value::Array(listen)));
        });
        within(&mut table, "peers", |peers| {
            for peer in &self.peers {
                within(peers, &peer.name, |own| {
                    own.remove(NODE);
                    fill(own, "name", text(Some(peer.identity.clone())));
                    fill(own, "address", text(peer.address.map(|it| it.to_string())));
                    fill(own, "rate", text(peer.rate.map(|it| it.to_string())));
                    fill(own, "rate_in", text(peer.rate_in.map(|it| it.to_string())));
                    fill(own, "rtt", text(peer.rtt.map(|it| it.to_string())));
                });
            }
        });
        table
    }
}

fn fill(table: &mut toml::Table, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        table.entry(key).or_insert(value);
    }
}

/// Changes the table at `key`, which is made where there is none.
fn within(table: &mut toml::Table, key: &str, change: impl FnOnce(&mut toml::Table)) {
    let mut inner = match table.remove(key) {
        Some(Value::Table(inner)) => inner,
        _ => toml::Table::new(),
    };
    change(&mut inner);
    table.insert(key.to_owned(), Value::Table(inner));
}

/// The key below a proxy's table that speaks of tunnels, if one does.
pub fn key_of(pep: &toml::Table) -> Option<KeyPath> {
    let peer = pep.get("peers").and_then(|peers| peers.as_table()?.keys().next().cloned());
    let peer = peer.map(|name| KeyPath::of(["peers".to_owned(), name]));
    peer.or_else(|| pep.contains_key("tunnel").then(|| KeyPath::of(["tunnel"])))
}

/// Gives each node of `plan` its end of the tunnels that tables of proxies speak of.
///
/// # Errors
/// When a peer's node is none, has no proxy, or nobody goes to the other.
pub(crate) fn resolve(
    plan: &mut Plan,
    edges: &[Edge],
    document: &Document,
) -> Result<(), ConfigError> {
    let pairs = pairs(plan, document)?;
    let mut ends: BTreeMap<String, NodeTunnels> = BTreeMap::new();
    for Pair { path, near, far, names, goes } in pairs {
        let ways = route::path(edges, &near, &far).zip(route::path(edges, &far, &near));
        let Some((there, back)) = ways else {
            let message = format!("no links lead from `{near}` to `{far}`");
            return Err(document.fault(&path, message, None));
        };
        let [there, back] = [&there, &back].map(|way| route::crossings(way));
        for (end, (own, other)) in [(&near, &far), (&far, &near)].into_iter().enumerate() {
            let (out, home) = if end == 0 { (&there, &back) } else { (&back, &there) };
            let propagation = delay(plan, out).saturating_add(delay(plan, home));
            let listens = goes[1 - end].then(|| listener(plan, own, home)).flatten();
            let peer = TunnelPeer {
                name: names[end].clone(),
                node: other.clone(),
                identity: identity(other),
                link: out.first().map(|crossing| crossing.link.clone()).unwrap_or_default(),
                address: if goes[end] { listener(plan, other, out) } else { None },
                rate: rate(plan, out),
                rate_in: rate(plan, home),
                rtt: (!propagation.is_zero()).then_some(propagation),
            };
            let tunnels = ends.entry(own.clone()).or_default();
            tunnels.identity = identity(own);
            tunnels.listen.extend(listens);
            tunnels.peers.push(peer);
        }
    }
    for node in &mut plan.nodes {
        node.tunnels = ends.remove(&node.name);
        if let Some(tunnels) = &mut node.tunnels {
            tunnels.peers.sort_by(|one, other| one.name.cmp(&other.name));
        }
    }
    Ok(())
}

/// Two nodes with a tunnel between them.
struct Pair {
    /// Where the scenario says so.
    path: KeyPath,
    near: String,
    far: String,
    /// What each end calls the other.
    names: [String; 2],
    /// Which end goes to the other.
    goes: [bool; 2],
}

fn pairs(plan: &Plan, document: &Document) -> Result<Vec<Pair>, ConfigError> {
    let mut pairs: Vec<Pair> = Vec::new();
    for node in &plan.nodes {
        for (name, far) in named(plan, node) {
            let pep = node.pep.as_deref().unwrap_or_default();
            let path = KeyPath::of(["peps", pep, "peers", name.as_str(), NODE]);
            let known = |pair: &&mut Pair| pair.near == far && pair.far == node.name;
            if let Some(pair) = pairs.iter_mut().find(known) {
                // The other end was here before.
                pair.goes[1] = goes(plan, node, &name);
                pair.names[1] = name;
                continue;
            }
            let other = peer_node(plan, node, &far, &path, document)?;
            for own in [&node.name, &far] {
                check_name(own, &path, document)?;
            }
            pairs.push(Pair {
                path,
                near: node.name.clone(),
                names: [name.clone(), name_at(plan, other, &node.name)],
                goes: [goes(plan, node, &name), false],
                far,
            });
        }
    }
    match pairs.iter().find(|pair| !pair.goes.contains(&true)) {
        None => Ok(pairs),
        Some(Pair { path, names, .. }) => {
            let message = "no flow goes by this tunnel: no rule of either end names it";
            let hint =
                format!("add rules = [{{ tunnel = \"{}\" }}] to the proxy's table", names[0]);
            Err(document.fault(path, message, Some(hint)))
        }
    }
}

/// The peers of a node's proxy whose nodes are named: name, node.
fn named(plan: &Plan, node: &PlannedNode) -> Vec<(String, String)> {
    let peers = table(plan, node).and_then(|table| table.get("peers")?.as_table());
    let named = |(name, peer): (&String, &Value)| {
        Some((name.clone(), peer.get(NODE)?.as_str()?.to_owned()))
    };
    peers.into_iter().flatten().filter_map(named).collect()
}

fn table<'p>(plan: &'p Plan, node: &PlannedNode) -> Option<&'p toml::Table> {
    plan.peps.get(node.pep.as_ref()?)
}

/// Whether the proxy of `node` opens the tunnel to `peer`: its table says where to, or has a rule for it.
fn goes(plan: &Plan, node: &PlannedNode, peer: &str) -> bool {
    let Some(table) = table(plan, node) else { return false };
    let written = table.get("peers").and_then(|peers| peers.get(peer)?.get("address"));
    let rules = table.get("rules").and_then(Value::as_array).into_iter().flatten();
    let by_rule = |rule: &Value| rule.get("tunnel").and_then(Value::as_str) == Some(peer);
    written.is_some() || rules.into_iter().any(by_rule)
}

/// What the table of `node` calls the peer at `far`, or may call it.
fn name_at(plan: &Plan, node: &PlannedNode, far: &str) -> String {
    if let Some((name, _)) = named(plan, node).into_iter().find(|(_, at)| at == far) {
        return name;
    }
    let taken = |name: &str| {
        let of = |key: &str| table(plan, node)?.get(key)?.get(name).map(|_| ());
        of("legs").or_else(|| of("peers")).is_some()
    };
    let mut name = far.to_owned();
    while taken(&name) {
        name.push_str("-peer");
    }
    name
}

/// The node at the other end, which has a proxy that can have tunnels.
fn peer_node<'p>(
    plan: &'p Plan,
    node: &PlannedNode,
    far: &str,
    path: &KeyPath,
    document: &Document,
) -> Result<&'p PlannedNode, ConfigError> {
    let refuse = |message: String, hint: Option<String>| Err(document.fault(path, message, hint));
    if far == node.name {
        return refuse(format!("`{far}` is the proxy's own node"), None);
    }
    let Some(other) = plan.node(far) else {
        let hint = suggest::hint(far, "nodes", plan.nodes.iter().map(|node| &node.name));
        return refuse(format!("no node is called `{far}`"), hint);
    };
    if table(plan, other).is_none() {
        let hint = format!("give it one: nodes.{far}.pep = \"NAME\", and a table [peps.NAME]");
        return refuse(format!("no proxy with tunnels runs on `{far}`"), Some(hint));
    }
    Ok(other)
}

/// A node's name becomes a part of one in DNS.
fn check_name(node: &str, path: &KeyPath, document: &Document) -> Result<(), ConfigError> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let edges = node.starts_with('-') || node.ends_with('-');
    if node.len() <= LABEL_MAX && node.chars().all(plain) && !edges {
        return Ok(());
    }
    let message = format!("`{node}` cannot be the name in a certificate");
    let hint = "call the node by letters, digits and hyphens".to_owned();
    Err(document.fault(path, message, Some(hint)))
}

fn identity(node: &str) -> String {
    format!("{node}.{DOMAIN}")
}

/// Where the proxy of `node` listens for who comes by `way`: as its table says, else at the address at
/// which the way arrives.
fn listener(plan: &Plan, node: &str, way: &[Crossing]) -> Option<SocketAddr> {
    let node = plan.node(node)?;
    let last = way.last()?;
    let own = node.interfaces.iter().find(|own| own.link == last.link)?;
    let own = SocketAddr::new(IpAddr::from(own.ipv4), PORT);
    let written = table(plan, node).and_then(|table| table.get("tunnel")?.get("listen"));
    let first = written.and_then(|it| it.as_str().or_else(|| it.as_array()?.first()?.as_str()));
    let written: Option<SocketAddr> = first.and_then(|text| text.parse().ok());
    Some(match written {
        None => own,
        Some(any) if any.ip().is_unspecified() => SocketAddr::new(own.ip(), any.port()),
        Some(address) => address,
    })
}

fn rate(plan: &Plan, way: &[Crossing]) -> Option<Rate> {
    let of =
        |crossing: &Crossing| plan.link(&crossing.link)?.direction(crossing.direction).rate_max();
    way.iter().filter_map(of).min()
}

fn delay(plan: &Plan, way: &[Crossing]) -> Duration {
    let of = |crossing: &Crossing| {
        Some(plan.link(&crossing.link)?.direction(crossing.direction).delay_min())
    };
    way.iter().filter_map(of).fold(Duration::ZERO, Duration::saturating_add)
}

/// Gives each proxy's table in `document` what its tunnels take and the runner fills in, so that the rest
/// can be judged as the proxy would, and takes out what the proxy does not know.
pub(crate) fn stand_in(document: &mut Document) -> Result<(), ConfigError> {
    let Some(peps) = document.root().get("peps").and_then(|it| it.value.as_table()) else {
        return Ok(());
    };
    let tables = |table: &Table| -> Vec<(String, Table)> {
        let all = table.entries().iter();
        all.filter_map(|it| Some((it.key.clone(), it.node.value.as_table()?.clone()))).collect()
    };
    let mut missing = Vec::new();
    let mut foreign = Vec::new();
    for (pep, written) in tables(peps) {
        let path = KeyPath::of(["peps", pep.as_str()]);
        let peers = written.get("peers").and_then(|it| it.value.as_table());
        let mut own = false;
        for (name, peer) in peers.map(tables).unwrap_or_default() {
            let path = path.join("peers").join(name);
            if peer.get(NODE).is_some() {
                own = true;
                foreign.push(path.join(NODE));
                if peer.get("address").is_none() {
                    missing.push((path.join("address"), format!("192.0.2.1:{PORT}")));
                }
            }
        }
        let tunnel = written.get("tunnel").and_then(|it| it.value.as_table());
        for key in ["certificate", "key", "authority"] {
            if own && tunnel.is_none_or(|tunnel| tunnel.get(key).is_none()) {
                missing.push((path.join("tunnel").join(key), format!("{key}.pem")));
            }
        }
    }
    for path in foreign {
        document.remove(&path);
    }
    for (path, value) in missing {
        let text = document.add_text("what a tunnel takes", &format!("value = {value:?}"))?;
        if let Some(node) = text.get("value") {
            document.set(&path, node.clone())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
