//! Tunnels between the proxies of a scenario.
//!
//! A proxy's table names the node of a peer. What else a tunnel needs comes from the topology:
//! where the peer listens, which end has which certificate, and the rate of the path between the
//! two. What the table has itself is kept.
//!
//! ```toml
//! [peps.terminal]
//! peers.gw = { node = "gateway" }
//! rules = [{ tunnel = "gw" }]
//! [peps.gw]
//! ```
//!
//! The end whose rules name the peer opens the tunnel, and the other end listens. That one need not
//! name its peer, unless it has settings for it.

use crate::handovers::{HandoverPlan, LiveFlows};
use crate::pep::{MODEM, NODE, PepPlan};
use crate::plan::{Crossing, Plan, PlannedNode};
use crate::route::{self, Edge};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_pep::config::{Config, Fallback, Moves, OneOrMany};
use midhop_units::{Duration, Rate};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// The UDP port on which ends listen for peers.
const PORT: u16 = 4433;
/// The TCP port of a node's first modem; further ones use the ports after it.
const MODEM_PORT: u16 = 854;
/// The networks of the laboratory's servers: private ones, which a far end serves only if
/// configured.
const NETWORKS: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 8)),
];
/// The suffix of a node's name in its certificate. The authority's own files do not have it.
const DOMAIN: &str = "midhop";
/// The longest part of a name in DNS.
const LABEL_MAX: usize = 63;

/// A node's end of all of its tunnels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeTunnels {
    /// The name in its certificate.
    pub identity: String,
    /// Where it listens for peers; none where it connects to all of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub listen: BTreeSet<SocketAddr>,
    /// Its peers, in the order of their names.
    pub peers: Vec<TunnelPeer>,
}

/// A proxy at the other end of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunnelPeer {
    /// The peer's name in this end's configuration.
    pub name: String,
    /// Its node.
    pub node: String,
    /// The name in its certificate.
    pub identity: String,
    /// The link on which the path to it begins.
    pub link: String,
    /// Where it listens; none: it connects to this end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// The highest rate of the path there; none where nothing limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The rate of the path back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_in: Option<Rate>,
    /// Propagation delay there and back; none where it is zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Duration>,
    /// Where the modem at this end of the link listens for sessions; none: the laboratory has no
    /// modem there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modem: Option<SocketAddr>,
    /// Whether it only serves to move flows: no flow takes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves: bool,
}

impl NodeTunnels {
    /// Fills in what the table of `pep`, the node's proxy, leaves open in `config`. Its
    /// certificate, its key and the authority's certificate are in `directory`.
    pub fn complete(&self, config: &mut Config, pep: &PepPlan, directory: &str) {
        let file = |name: &str| PathBuf::from(format!("{directory}/{name}"));
        let own = &mut config.tunnel;
        own.certificate.get_or_insert_with(|| file(&format!("{}.pem", self.identity)));
        own.key.get_or_insert_with(|| file(&format!("{}.key", self.identity)));
        own.authority.get_or_insert_with(|| file("ca.pem"));
        if !self.listen.is_empty() {
            if !pep.is_written(["tunnel", "listen"]) {
                own.listen = OneOrMany(self.listen.iter().copied().collect());
            }
            if !pep.is_written(["tunnel", "targets"]) {
                own.targets = OneOrMany(NETWORKS.to_vec());
            }
        }
        for peer in &self.peers {
            let own = config.peers.entry(peer.name.clone()).or_default();
            own.name.get_or_insert_with(|| peer.identity.clone());
            own.address = own.address.or(peer.address);
            own.rate = own.rate.or(peer.rate);
            own.rate_in = own.rate_in.or(peer.rate_in);
            own.rtt = own.rtt.or(peer.rtt);
            if peer.moves {
                own.moves = Moves::Accept;
                // Flows do not move over TCP: the tunnel waits for UDP, however late its datagrams are.
                own.fallback = Fallback::Off;
            }
            if let (Some(modem), Some(address)) = (&mut own.modem, peer.modem) {
                modem.address = Some(address);
            }
        }
    }
}

/// Gives each node of `plan` its end of the tunnels in the tables of proxies.
///
/// # Errors
/// When a peer's node does not exist or has no proxy, or neither end opens the tunnel.
pub(crate) fn resolve(
    plan: &mut Plan,
    edges: &[Edge],
    document: &Document,
) -> Result<(), ConfigError> {
    let mut ends: BTreeMap<String, NodeTunnels> = BTreeMap::new();
    for pair in pairs(plan, document)? {
        if !pair.place(plan, edges, &mut ends) {
            let message = format!("no links lead from `{}` to `{}`", pair.near, pair.far);
            return Err(document.fault(&pair.path, message, None));
        }
    }
    for (name, tunnels) in &mut ends {
        tunnels.peers.sort_by(|one, other| one.name.cmp(&other.name));
        place_modems(plan, name, &mut tunnels.peers, document)?;
    }
    for node in &mut plan.nodes {
        node.tunnels = ends.remove(&node.name);
    }
    Ok(())
}

impl Plan {
    /// The plan with a tunnel between each two proxies of which one takes over live flows of the
    /// other: daemons move flows over tunnels.
    ///
    /// # Errors
    /// When two of them cannot have one; why not.
    pub fn with_tunnels_for_moves(&self) -> Result<Self, String> {
        let mut plan = self.clone();
        let timeline = self.timeline();
        let Some(edges) = timeline.phases(&self.edges()).into_iter().next() else {
            return Ok(plan);
        };
        let mut known = BTreeSet::new();
        for HandoverPlan { from, to, flows, .. } in &self.handovers {
            let proxied = |name: &str| self.node(name).and_then(|node| pep(self, node)).is_some();
            let is_new = *flows == LiveFlows::Moved
                && proxied(from)
                && proxied(to)
                && known.insert(BTreeSet::from([from, to]));
            if !is_new {
                continue;
            }
            if let Some(name) = [from, to].into_iter().find(|name| !can_be_certified(name)) {
                return Err(format!("`{name}` cannot be the name in a certificate"));
            }
            let name = |at: &str, far: &str| {
                self.node(at).map_or_else(|| far.to_owned(), |node| name_at(self, node, far))
            };
            let pair = Pair {
                path: KeyPath::of(["handovers"]),
                names: [name(from, to), name(to, from)],
                near: from.clone(),
                far: to.clone(),
                goes: [true, true],
                moves: true,
            };
            let mut ends = BTreeMap::new();
            if !pair.place(self, &edges, &mut ends) {
                return Err(format!("no links lead from `{from}` to `{to}`"));
            }
            for node in &mut plan.nodes {
                let Some(own) = ends.remove(&node.name) else { continue };
                let tunnels = node.tunnels.get_or_insert_default();
                tunnels.identity = own.identity;
                tunnels.listen.extend(own.listen);
                let known: BTreeSet<&String> = tunnels.peers.iter().map(|it| &it.node).collect();
                if own.peers.iter().any(|peer| known.contains(&peer.node)) {
                    return Err(format!(
                        "`{from}` and `{to}` have a tunnel for flows, which cannot move"
                    ));
                }
                tunnels.peers.extend(own.peers);
            }
        }
        Ok(plan)
    }
}

/// Gives those `peers` of the proxy on `node` a modem for which its table has one.
fn place_modems(
    plan: &Plan,
    node: &str,
    peers: &mut [TunnelPeer],
    document: &Document,
) -> Result<(), ConfigError> {
    let Some(node) = plan.node(node) else { return Ok(()) };
    let Some(own) = pep(plan, node) else { return Ok(()) };
    let modems = peers.iter_mut().filter(|peer| own.modems().contains(&peer.name));
    for (peer, port) in modems.zip(MODEM_PORT..) {
        if let Err((message, hint)) = check_modem(plan, &node.name, &peer.link) {
            let name = node.pep.as_deref().unwrap_or_default();
            let path = KeyPath::of(["peps", name, "peers", peer.name.as_str(), MODEM]);
            return Err(document.fault(&path, message, Some(hint)));
        }
        peer.modem = Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    }
    Ok(())
}

/// Checks that a modem at `node` can report the rate of `link`; the error says why not, and what
/// helps.
fn check_modem(plan: &Plan, node: &str, link: &str) -> Result<(), (String, String)> {
    let found = plan.link(link).and_then(|it| Some(it.direction(it.outwards(node)?)));
    let Some(direction) = found else {
        let message = format!("no link of `{node}` leads to the peer");
        return Err((message, "leave `modem` out".to_owned()));
    };
    if direction.rate_max().is_none() {
        let message = format!("`{link}` has no rate that a modem could report");
        return Err((message, format!("give it one: links.{link}.rate = \"20 Mbit/s\"")));
    }
    if direction.dama.is_some() {
        let message = format!(
            "the capacity of `{link}` is granted on demand, which no modem can report in advance"
        );
        return Err((message, "leave `modem` out".to_owned()));
    }
    Ok(())
}

/// Two nodes with a tunnel between them.
struct Pair {
    /// The path of its key in the scenario.
    path: KeyPath,
    near: String,
    far: String,
    /// The name of the other end in each end's configuration.
    names: [String; 2],
    /// Which end connects to the other.
    goes: [bool; 2],
    /// Whether it only serves to move flows.
    moves: bool,
}

impl Pair {
    /// Adds its two ends to those of other tunnels. Returns false if no links join its nodes.
    fn place(&self, plan: &Plan, edges: &[Edge], ends: &mut BTreeMap<String, NodeTunnels>) -> bool {
        let Self { near, far, names, goes, moves, .. } = self;
        let ways = route::path(edges, near, far).zip(route::path(edges, far, near));
        let Some((there, back)) = ways else { return false };
        let [there, back] = [&there, &back].map(|way| route::crossings(way));
        for (end, (own, other)) in [(near, far), (far, near)].into_iter().enumerate() {
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
                modem: None,
                moves: *moves,
            };
            let tunnels = ends.entry(own.clone()).or_default();
            tunnels.identity = identity(own);
            tunnels.listen.extend(listens);
            tunnels.peers.push(peer);
        }
        true
    }
}

fn pairs(plan: &Plan, document: &Document) -> Result<Vec<Pair>, ConfigError> {
    let mut pairs: Vec<Pair> = Vec::new();
    for node in &plan.nodes {
        let Some(own) = pep(plan, node) else { continue };
        for (name, far) in own.peer_nodes() {
            let pep = node.pep.as_deref().unwrap_or_default();
            let path = KeyPath::of(["peps", pep, "peers", name.as_str(), NODE]);
            let known = |pair: &&mut Pair| pair.near == *far && pair.far == node.name;
            if let Some(pair) = pairs.iter_mut().find(known) {
                // The other end was added before.
                pair.goes[1] = goes(own, name);
                pair.names[1].clone_from(name);
                continue;
            }
            let other = peer_node(plan, node, far, &path, document)?;
            for end in [&node.name, far] {
                check_name(end, &path, document)?;
            }
            pairs.push(Pair {
                path,
                near: node.name.clone(),
                names: [name.clone(), name_at(plan, other, &node.name)],
                goes: [goes(own, name), false],
                far: far.clone(),
                moves: false,
            });
        }
    }
    match pairs.iter().find(|pair| !pair.goes.contains(&true)) {
        None => Ok(pairs),
        Some(Pair { path, names, .. }) => {
            let message = "no flow uses this tunnel: no rule of either end names it";
            let hint =
                format!("add rules = [{{ tunnel = \"{}\" }}] to the proxy's table", names[0]);
            Err(document.fault(path, message, Some(hint)))
        }
    }
}

fn pep<'p>(plan: &'p Plan, node: &PlannedNode) -> Option<&'p PepPlan> {
    plan.peps.get(node.pep.as_ref()?)
}

/// Whether a proxy opens the tunnel to `peer`: its table has an address, or a rule for it.
fn goes(pep: &PepPlan, peer: &str) -> bool {
    let config = pep.config();
    config.peers.get(peer).is_some_and(|peer| peer.address.is_some())
        || config.rules.iter().any(|rule| rule.tunnel.as_deref() == Some(peer))
}

/// The name of the peer at `far` in the table of `node`, or an unused name.
fn name_at(plan: &Plan, node: &PlannedNode, far: &str) -> String {
    let Some(pep) = pep(plan, node) else { return far.to_owned() };
    if let Some((name, _)) = pep.peer_nodes().iter().find(|(_, at)| *at == far) {
        return name.clone();
    }
    let Config { legs, peers, .. } = pep.config();
    let mut name = far.to_owned();
    while legs.contains_key(&name) || peers.contains_key(&name) {
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
    if pep(plan, other).is_none() {
        let hint = format!("give it one: nodes.{far}.pep = \"NAME\", and a table [peps.NAME]");
        return refuse(format!("no proxy with tunnels runs on `{far}`"), Some(hint));
    }
    Ok(other)
}

/// Checks that a node's name can be part of a DNS name.
fn check_name(node: &str, path: &KeyPath, document: &Document) -> Result<(), ConfigError> {
    if can_be_certified(node) {
        return Ok(());
    }
    let message = format!("`{node}` cannot be the name in a certificate");
    let hint = "call the node by letters, digits and hyphens".to_owned();
    Err(document.fault(path, message, Some(hint)))
}

fn can_be_certified(node: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let edges = node.starts_with('-') || node.ends_with('-');
    node.len() <= LABEL_MAX && node.chars().all(plain) && !edges
}

fn identity(node: &str) -> String {
    format!("{node}.{DOMAIN}")
}

/// Where the proxy of `node` listens for peers on `way`: as in its table, otherwise at the address
/// at which the path arrives.
fn listener(plan: &Plan, node: &str, way: &[Crossing]) -> Option<SocketAddr> {
    let node = plan.node(node)?;
    let last = way.last()?;
    let own = node.interfaces.iter().find(|own| own.link == last.link)?;
    let own = SocketAddr::new(IpAddr::from(own.ipv4), PORT);
    Some(match pep(plan, node).and_then(|pep| pep.config().tunnel.listen.first()) {
        None => own,
        Some(any) if any.ip().is_unspecified() => SocketAddr::new(own.ip(), any.port()),
        Some(address) => *address,
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

/// The configuration of `pep` with placeholders where the runner fills in values of tunnels, so
/// that the rest can be checked as in midhopd.
pub(crate) fn stand_in(pep: &PepPlan) -> Config {
    let mut config = pep.config().clone();
    for name in pep.peer_nodes().keys() {
        let somewhere = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), PORT);
        let peer = config.peers.entry(name.clone()).or_default();
        peer.address.get_or_insert(somewhere);
        if pep.modems().contains(name) {
            peer.rate.get_or_insert(Rate::from_mbit_per_s(1));
        }
    }
    if !pep.peer_nodes().is_empty() {
        let Config { tunnel, .. } = &mut config;
        for file in [&mut tunnel.certificate, &mut tunnel.key, &mut tunnel.authority] {
            file.get_or_insert_with(|| "stand-in.pem".into());
        }
    }
    config
}

#[cfg(test)]
mod tests;
