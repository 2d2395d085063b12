//! One run, resolved: every default is visible, every address is assigned, nothing is left open.

use crate::agents::PlannedAgent;
pub use crate::bounds::MTU;
use crate::congestion::Tuning;
use crate::handovers::HandoverPlan;
use crate::limit::{Demand, Family, Framing, Handshake, Limit, Opener, by_window};
use crate::naive::NaivePlan;
use crate::pep::PepPlan;
use crate::record::LimitResult;
pub use crate::route::Crossing;
use crate::spec::{Connections, RestartFrom};
use crate::tcp::TcpPlan;
use crate::traffic::{Load, TrafficPlan};
use crate::tunnel::NodeTunnels;
pub use midhop_path::Direction;
use midhop_path::DirectionPlan;
use midhop_path::aqm::AqmPlan;
use midhop_path::orbit::OrbitPlan;
use midhop_units::{Bytes, Duration, Loss, Rate, Seed};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length of the network part of a link's IPv4 addresses.
pub const IPV4_PREFIX: u8 = 24;
/// Length of the network part of a link's IPv6 addresses.
pub const IPV6_PREFIX: u8 = 64;

/// One run. Made by [`crate::Scenario::plans`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its number among the plans of its scenario, from 0.
    pub number: u32,
    /// The title of the scenario.
    pub title: String,
    /// Its position on each axis, in the order of the file.
    pub axes: Vec<AxisPosition>,
    /// The seed of every random draw.
    pub seed: Seed,
    /// How many seeds its cell runs with.
    pub seeds: u32,
    /// When it ends, even if transfers are unfinished.
    pub duration: Duration,
    /// The hosts, in the order of their names.
    pub nodes: Vec<PlannedNode>,
    /// The links, in the order of their names.
    pub links: Vec<PlannedLink>,
    /// The proxy configurations that run on at least one node.
    pub peps: BTreeMap<String, PepPlan>,
    /// The naive proxies that run on at least one node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub naive: BTreeMap<String, NaivePlan>,
    /// The transfers, in the order of their names.
    pub transfers: Vec<TransferPlan>,
    /// The cross traffic, in the order of the names.
    #[serde(default)]
    pub traffic: Vec<TrafficPlan>,
    /// The handovers, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handovers: Vec<HandoverPlan>,
}

/// A position on an axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AxisPosition {
    /// The name of the axis.
    pub axis: String,
    /// The label of the case.
    pub label: String,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedNode {
    /// Its name.
    pub name: String,
    /// The proxy that runs on it.
    pub pep: Option<String>,
    /// Its proxy's end of tunnels to other proxies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnels: Option<NodeTunnels>,
    /// Its agents, in the order in which packets pass them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<PlannedAgent>,
    /// Commands, each for a shell, that run on it.
    pub programs: Vec<String>,
    /// Its TCP.
    #[serde(default, skip_serializing_if = "TcpPlan::is_default")]
    pub tcp: TcpPlan,
    /// Its ends of links, in the order of the links' names.
    pub interfaces: Vec<Interface>,
    /// The routes to addresses that are on none of its links in use.
    pub routes: Vec<Route>,
}

impl PlannedNode {
    /// The link that leads to `remote`; none where that is the node itself, or unreachable.
    pub fn link_to(&self, remote: IpAddr) -> Option<&str> {
        let own = |interface: &Interface| remote == interface.ipv4 || remote == interface.ipv6;
        if self.interfaces.iter().any(own) {
            return None;
        }
        // Addresses on links that are not in use have routes.
        let route = self.routes.iter().find(|route| route.to == remote);
        route.map(|route| route.link.as_str()).or_else(|| {
            let mut near = self.interfaces.iter();
            Some(near.find(|interface| interface.shares_network(remote))?.link.as_str())
        })
    }
}

/// A node's end of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// The link, and the name of the interface.
    pub link: String,
    /// Its IPv4 address, of a network of [`IPV4_PREFIX`] bits.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address, of a network of [`IPV6_PREFIX`] bits.
    pub ipv6: Ipv6Addr,
}

impl Interface {
    /// Whether `address` is in a network of this interface.
    fn shares_network(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                let differing = u32::from(address) ^ u32::from(self.ipv4);
                differing.leading_zeros() >= u32::from(IPV4_PREFIX)
            }
            IpAddr::V6(address) => {
                let differing = u128::from(address) ^ u128::from(self.ipv6);
                differing.leading_zeros() >= u32::from(IPV6_PREFIX)
            }
        }
    }
}

/// The route to one address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// The destination: a host, not a network.
    pub to: IpAddr,
    /// The neighbour that forwards packets.
    pub via: IpAddr,
    /// The link to it.
    pub link: String,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedLink {
    /// Its name, and that of the interface on both nodes.
    pub name: String,
    /// Its nodes.
    pub between: [String; 2],
    /// The preset it was made from.
    pub preset: Option<String>,
    /// The constellation from which its delay and outages come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orbit: Option<OrbitPlan>,
    /// Largest IP packet. Unit: bytes.
    pub mtu: u32,
    /// The round trip from which its queues were computed: the longest of the transfers that cross
    /// it, otherwise its own.
    pub path_rtt: Duration,
    /// Towards the first node.
    pub down: DirectionPlan,
    /// Towards the second node.
    pub up: DirectionPlan,
}

impl PlannedLink {
    /// The direction in which `node` sends over it; none where it is at neither end.
    pub fn outwards(&self, node: &str) -> Option<Direction> {
        let [first, second] = &self.between;
        let directions = [(first, Direction::Up), (second, Direction::Down)];
        directions.into_iter().find_map(|(end, direction)| (end == node).then_some(direction))
    }

    /// The plan of `direction`.
    pub fn direction(&self, direction: Direction) -> &DirectionPlan {
        match direction {
            Direction::Down => &self.down,
            Direction::Up => &self.up,
        }
    }
}

/// A transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferPlan {
    /// Its name.
    pub name: String,
    /// The node that sends the data.
    pub from: String,
    /// The node that receives it.
    pub to: String,
    /// What is sent.
    pub work: Work,
    /// Congestion control at both ends, as the kernel names it.
    pub congestion: String,
    /// All its parameters; none for an algorithm that only a kernel has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,
    /// How an item of a broken connection is restarted; none: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartPlan>,
    /// When it begins, after the run's start.
    pub start: Duration,
    /// Which end opens the connection.
    pub opens: Opener,
    /// The version of IP.
    pub family: Family,
    /// Where the other end listens.
    pub listener: SocketAddr,
    /// The path of the data.
    pub route: Vec<Crossing>,
    /// The path of the acknowledgements.
    pub route_back: Vec<Crossing>,
    /// The physical limit; none on a path without any limit.
    pub limit: Option<TransferLimit>,
}

impl TransferPlan {
    /// The node that opens the connection.
    pub fn opener(&self) -> &str {
        match self.opens {
            Opener::To => &self.to,
            Opener::From => &self.from,
        }
    }

    /// The node that listens.
    pub fn listening(&self) -> &str {
        match self.opens {
            Opener::To => &self.from,
            Opener::From => &self.to,
        }
    }

    /// Compares a measurement with the limit that is known before a run: `bytes` of payload in
    /// `took`, from the first SYN to the last byte. An incomplete page is judged by its bytes
    /// alone. For a run of the plan itself, use [`Plan::limit_of`], which includes the draws.
    pub fn limit_result(
        &self,
        complete: bool,
        bytes: Bytes,
        took: Duration,
    ) -> Option<LimitResult> {
        let limit = self.limit.as_ref()?;
        let time = limit.mean(self.opens).time(self.demand(complete, bytes), Handshake::Spared);
        let efficiency = if bytes == Bytes::ZERO || took.is_zero() {
            0.0
        } else {
            time.as_s_f64() / took.as_s_f64()
        };
        Some(LimitResult { goodput: limit.goodput, time, efficiency, drawn: None })
    }

    /// The shortest time in which `bytes` can arrive, at any development of the links' rates.
    pub(crate) fn time_min(&self, complete: bool, bytes: Bytes) -> Option<Duration> {
        let limit = self.limit.as_ref()?.peak(self.opens);
        Some(limit.time(self.demand(complete, bytes), Handshake::Spared))
    }

    /// What has to arrive: for an incomplete page, only its bytes.
    pub(crate) fn demand(&self, complete: bool, bytes: Bytes) -> Demand<'_> {
        match &self.work {
            Work::Objects { sizes, connections, parallel } if complete => Demand::Page {
                objects: sizes,
                parallel: *parallel,
                new_connections: *connections == Connections::New,
            },
            _ => Demand::Bulk(bytes),
        }
    }
}

/// How an item of a broken connection is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPlan {
    /// How often each file or object may be restarted.
    pub most: u32,
    /// How long after its connection broke.
    pub after: Duration,
    /// What is requested then.
    #[serde(default, skip_serializing_if = "RestartFrom::is_all")]
    pub from: RestartFrom,
}

/// The kind and amount of a transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Work {
    /// A page: objects, requested in order.
    Objects {
        /// Size of each.
        sizes: Vec<Bytes>,
        /// Whether connections are reused.
        connections: Connections,
        /// How many connections are open at once.
        parallel: u32,
    },
    /// A fixed amount on each flow.
    Bytes {
        /// On each flow.
        each: Bytes,
        /// Connections at once.
        flows: u32,
    },
    /// As much as possible in a time.
    Time {
        /// How long the sender sends.
        span: Duration,
        /// Connections at once.
        flows: u32,
    },
}

impl Work {
    /// All payload, where it is known beforehand.
    pub fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Objects { sizes, .. } => {
                Some(sizes.iter().fold(Bytes::ZERO, |sum, &size| sum.saturating_add(size)))
            }
            Self::Bytes { each, flows } => {
                Some(Bytes::new(each.get().saturating_mul(u64::from(*flows))))
            }
            Self::Time { .. } => None,
        }
    }

    /// Connections that carry data at once.
    pub fn flows(&self) -> u32 {
        match self {
            Self::Objects { sizes, parallel, .. } => {
                (*parallel).min(u32::try_from(sizes.len()).unwrap_or(u32::MAX))
            }
            Self::Bytes { flows, .. } | Self::Time { flows, .. } => *flows,
        }
    }
}

/// The physical limit of a transfer, as far as it is known before the run: where rates are drawn,
/// the highest possible one. The limit with the draws is in [`Plan::drawn_path`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferLimit {
    /// Payload per time at the narrowest hop; where its rate changes, the mean over the run.
    pub goodput: Rate,
    /// The same with the highest rate of each hop, and without a burst of losses.
    pub goodput_peak: Rate,
    /// The narrowest hop.
    pub bottleneck: Crossing,
    /// Packets lost at or after the bottleneck that its sender must repair.
    pub loss: Loss,
    /// The shortest propagation delay there and back.
    pub rtt: Duration,
    /// How the stream is cut into packets.
    pub framing: Framing,
}

impl TransferLimit {
    /// A limit that neither of two paths exceeds. A transfer may take one after the other.
    pub(crate) fn loosest(self, other: Self) -> Self {
        let rtt = self.rtt.min(other.rtt);
        let goodput_peak = self.goodput_peak.max(other.goodput_peak);
        let framing = if self.framing.efficiency() < other.framing.efficiency() {
            other.framing
        } else {
            self.framing
        };
        let looser = if self.goodput < other.goodput { other } else { self };
        Self { rtt, goodput_peak, framing, ..looser }
    }

    /// The mean limit.
    pub fn mean(&self, opens: Opener) -> Limit {
        Limit { goodput: self.goodput, rtt: self.rtt, opens }
    }

    /// The limit at any moment.
    pub fn peak(&self, opens: Opener) -> Limit {
        Limit { goodput: self.goodput_peak, rtt: self.rtt, opens }
    }
}

impl Plan {
    /// Its name in results: the labels of its cell, and its seed where there are several.
    pub fn label(&self) -> String {
        let mut parts: Vec<String> =
            self.axes.iter().map(|at| format!("{}={}", at.axis, at.label)).collect();
        if self.seeds > 1 || parts.is_empty() {
            parts.push(format!("seed={}", self.seed));
        }
        parts.join(" ")
    }

    /// Its cell in the form of a record: axis → label.
    pub fn cell(&self) -> BTreeMap<String, String> {
        self.axes.iter().map(|at| (at.axis.clone(), at.label.clone())).collect()
    }

    /// Whether a node has a proxy that is a daemon, and not a naive one.
    pub fn has_daemons(&self) -> bool {
        let daemon = |pep: &String| self.peps.contains_key(pep);
        self.nodes.iter().any(|node| node.pep.as_ref().is_some_and(daemon))
    }

    /// The node called `name`.
    pub fn node(&self, name: &str) -> Option<&PlannedNode> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// The link called `name`.
    pub fn link(&self, name: &str) -> Option<&PlannedLink> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The transfer called `name`.
    pub fn transfer(&self, name: &str) -> Option<&TransferPlan> {
        self.transfers.iter().find(|transfer| transfer.name == name)
    }

    /// Every congestion control that the run needs, by the kernel's names: those of its transfers
    /// and its cross traffic, and those that the legs, rules and peers of its proxies name.
    pub fn congestion_controls(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> =
            self.transfers.iter().map(|transfer| transfer.congestion.clone()).collect();
        let traffic = self.traffic.iter().filter_map(|traffic| traffic.load.congestion());
        names.extend(traffic.map(str::to_owned));
        for config in self.peps.values().map(PepPlan::config) {
            let legs = config.legs.values().map(|leg| &leg.congestion);
            let changed = config.rules.iter().flat_map(|rule| rule.legs.values());
            let changed = changed.map(|leg| &leg.congestion);
            let peers = config.peers.values().map(|peer| &peer.congestion);
            names.extend(legs.chain(changed).chain(peers).flatten().cloned());
        }
        names
    }

    /// The plan in the form of a record.
    ///
    /// # Errors
    /// Never for a plan made by [`crate::Scenario::plans`]: all its keys are strings.
    pub fn to_json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    /// The plan in a record.
    ///
    /// # Errors
    /// When `json` is no plan, or that of a release with another form.
    pub fn from_json(json: &serde_json::Value) -> serde_json::Result<Self> {
        Self::deserialize(json)
    }

    /// An estimate of how long the run takes, for starting the longest first. No more than
    /// [`Plan::duration`].
    pub fn expected_time(&self) -> Duration {
        let longest = self
            .transfers
            .iter()
            .map(|transfer| transfer.start.saturating_add(self.expected_transfer_time(transfer)));
        longest.max().map_or(self.duration, |longest| longest.min(self.duration))
    }

    /// An estimate of the additional time in the laboratory: tunnels are opened before a run.
    pub fn expected_preparation(&self) -> Duration {
        let tunnels = self.nodes.iter().filter_map(|node| node.tunnels.as_ref());
        let rtt = tunnels.flat_map(|tunnels| &tunnels.peers).map(|peer| peer.rtt).max();
        match rtt {
            None => Duration::from_ms(300),
            Some(rtt) => Duration::from_s(3) + rtt.unwrap_or_default() * 8,
        }
    }

    fn expected_transfer_time(&self, transfer: &TransferPlan) -> Duration {
        let Some(limit) = &transfer.limit else { return Duration::from_s(1) };
        let Some(bytes) = transfer.work.bytes() else {
            let Work::Time { span, .. } = transfer.work else { return self.duration };
            return span.saturating_add(limit.rtt * 2);
        };
        let split = transfer.route.iter().any(|crossing| self.splits_after(crossing));
        let loss = transfer
            .route
            .iter()
            .filter_map(|crossing| self.link(&crossing.link).map(|link| (link, crossing.direction)))
            .map(|(link, direction)| link.direction(direction).loss_mean(u64::from(MTU)))
            .fold(Loss::NONE, Loss::then)
            .probability();
        // Flows that send all the time leave it its part.
        let own = f64::from(transfer.work.flows().max(1));
        let rivals: u32 = self.rivals(transfer).map(|(_, flows)| flows).sum();
        let goodput = limit.goodput.bits_per_s() as f64 / (1.0 + f64::from(rivals) / own);
        let rate = if split || transfer.congestion.starts_with("bbr") || loss == 0.0 {
            goodput * 0.7
        } else {
            // RFC 9438 section 5.1, with RFC 5681's response as the floor.
            let rtt = limit.rtt.as_s_f64().max(1e-4);
            let cubic = 1.054 * (rtt / loss).powf(0.75);
            let reno = 1.22 / loss.sqrt();
            let segment_bits = f64::from(limit.framing.payload()) * 8.0;
            let flow = cubic.max(reno) * segment_bits / rtt;
            (flow * f64::from(transfer.work.flows())).min(goodput * 0.7)
        };
        let windows =
            self.windows_rate(transfer).map_or(f64::INFINITY, |it| it.bits_per_s() as f64);
        let rate = rate.min(windows * own);
        let moving = Duration::from_s_f64(bytes.get() as f64 * 8.0 / rate.max(1.0));
        let waiting =
            transfer.limit_result(true, bytes, Duration::ZERO).map_or(Duration::ZERO, |ideal| {
                ideal.time.saturating_sub(limit.goodput.time_for(bytes))
            });
        waiting.saturating_add(limit.rtt * 5).saturating_add(moving)
    }

    /// The rate that the configured windows of proxies on the path allow, each over the round trip
    /// to the sender before it.
    fn windows_rate(&self, transfer: &TransferPlan) -> Option<Rate> {
        let (mut least, mut rtt) = (None::<Rate>, Duration::ZERO);
        for crossing in &transfer.route {
            let link = self.link(&crossing.link)?;
            rtt = rtt + link.down.delay_min() + link.up.delay_min();
            let Some(pep) = self.proxy_after(crossing) else { continue };
            if let Some(window) = self.window_offered(pep, &link.name).filter(|_| !rtt.is_zero()) {
                let rate = by_window(window, rtt);
                least = Some(least.map_or(rate, |least| least.min(rate)));
            }
            rtt = Duration::ZERO;
        }
        least
    }

    /// The window that a proxy is configured to offer over a link: half of a daemon's buffer is
    /// offered.
    fn window_offered(&self, pep: &str, link: &str) -> Option<Bytes> {
        if let Some(naive) = self.naive.get(pep) {
            return naive.leg(Some(link)).window;
        }
        let buffer = self.peps.get(pep)?.config().legs.get(link)?.buffer;
        buffer.map(|buffer| buffer.scale(0.5))
    }

    /// Whether the queue through which `node` sends over `link` is an XCP router.
    pub fn answers_xcp(&self, node: &str, link: &str) -> bool {
        self.link(link).is_some_and(|link| {
            link.outwards(node).is_some_and(|way| link.direction(way).aqm == AqmPlan::Xcp)
        })
    }

    /// The cross traffic that sends all the time over the narrowest link of `transfer`, in the same
    /// direction, and the number of flows of each.
    pub fn rivals(&self, transfer: &TransferPlan) -> impl Iterator<Item = (&TrafficPlan, u32)> {
        let narrowest = transfer.limit.as_ref().map(|limit| limit.bottleneck.clone());
        self.traffic.iter().filter_map(move |traffic| match traffic.load {
            Load::Bulk { flows, .. } if traffic.route.contains(narrowest.as_ref()?) => {
                Some((traffic, flows))
            }
            _ => None,
        })
    }

    /// Whether there is a proxy at the end of `crossing`.
    pub(crate) fn splits_after(&self, crossing: &Crossing) -> bool {
        self.proxy_after(crossing).is_some()
    }

    /// The proxy to which a crossing leads.
    fn proxy_after(&self, crossing: &Crossing) -> Option<&str> {
        let [_, end] = self.ends(crossing)?;
        self.node(end)?.pep.as_deref()
    }

    /// The nodes that a crossing connects: from, to.
    pub fn ends(&self, crossing: &Crossing) -> Option<[&str; 2]> {
        let [first, second] = self.link(&crossing.link)?.between.each_ref().map(String::as_str);
        Some(match crossing.direction {
            Direction::Down => [second, first],
            Direction::Up => [first, second],
        })
    }
}
