//! Runs a plan and makes its record.

use crate::agent::Agent;
use crate::agents;
use crate::app::{App, Arrivals, Bulk, Datagrams, Transfer, Web};
use crate::control::{Asker, Legs};
use crate::engine::{Engine, Timer};
use crate::fault::RunError;
use crate::handovers::Handovers;
use crate::hop::{Hop, HopId};
use crate::host::{Connect, Hosts};
use crate::network::Network;
use crate::node::Node;
use crate::packet::{End, NodeId};
use crate::pep::{Place, Proxy};
use crate::recorder::INTERVAL;
use crate::routes;
use crate::simulation::{Simulation, Stopped};
use crate::tunnels;
use crate::watch::Watcher;
use midhop_config::KeyPath;
use midhop_experiment::Plan;
use midhop_experiment::handovers::{Freezes, HandoversResult};
use midhop_experiment::limit::Opener;
use midhop_experiment::pep::PepPlan;
use midhop_experiment::plan::TransferPlan;
use midhop_experiment::record::{
    Environment, LegResult, LinkResult, NodeResult, Record, SCHEMA, Validity,
};
use midhop_experiment::traffic::{Beginnings, Departures, Load, TrafficPlan};
use midhop_path::aqm::AqmPlan;
use midhop_path::{Direction, Link};
use midhop_pep::config::Assist;
use midhop_units::{Instant, Seed};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The address of a node without any.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl RunError {
    /// The key of the scenario that is at fault, if one is.
    pub fn key(&self) -> Option<KeyPath> {
        match self {
            Self::Pep { pep, why, .. } => {
                let table = KeyPath::of(["peps", pep.as_str()]);
                Some(why.keys().into_iter().fold(table, |path, key| path.join(key)))
            }
            Self::Programs { node } => Some(KeyPath::of(["nodes", node.as_str(), "programs"])),
            Self::Assist { pep, .. } => Some(KeyPath::of(["peps", pep.as_str(), "assist"])),
            Self::Congestion { key, .. } | Self::Tunnel { key, .. } => Some(key.clone()),
            Self::Timeless { .. } => Some(KeyPath::of(["links"])),
            Self::Plan { .. } | Self::Trace(_) | Self::Interrupted => None,
        }
    }

    /// A hint, if there is one.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Pep { why, .. } => why.hint(),
            Self::Congestion { hint, .. } => hint.as_deref(),
            Self::Programs { .. } | Self::Tunnel { .. } | Self::Assist { .. } => {
                Some("run it with `midhop lab run`")
            }
            _ => None,
        }
    }
}

/// Makes the agents of a plan, each with its node.
pub type Agents<'o> = dyn Fn(&Plan) -> Result<Vec<(NodeId, Box<dyn Agent>)>, RunError> + 'o;

/// Options of a run.
pub struct Options<'o> {
    /// Agents of the caller. A node is given by its index
    /// among the plan's nodes.
    pub agents: &'o Agents<'o>,
    /// Called now and then; once it returns true, the run ends without a record.
    pub interrupted: &'o dyn Fn() -> bool,
    /// Checks every invariant after every event: slow, for tests.
    pub checking: bool,
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("checking", &self.checking).finish_non_exhaustive()
    }
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { agents: &|_| Ok(Vec::new()), interrupted: &|| false, checking: false }
    }
}

/// The cost of a run, to measure the simulator itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effort {
    /// Packets handed to links, each link counted.
    pub link_packets: u64,
    /// Events of the engine.
    pub events: u64,
    /// The most packets in flight at once.
    pub packets_most: usize,
}

/// Whether a plan can be run; checked before the run.
///
/// # Errors
/// When it has something that the simulator lacks.
pub fn check(plan: &Plan) -> Result<(), RunError> {
    build_simulation(plan).map(drop)
}

/// Runs a plan to its end, or until all of its transfers are complete.
///
/// The record's environment states that it is a simulation; the caller fills in the machine and the
/// wall clock. The same plan gives the same record, byte for byte.
///
/// # Errors
/// When the plan has something that the simulator lacks, or an interruption is requested.
pub fn run(plan: &Plan, options: &Options<'_>) -> Result<(Record, Effort), RunError> {
    run_watched(plan, options, Vec::new())
}

/// The same, with watchers.
///
/// # Errors
/// As [`run`], and when a watcher could not write.
pub fn run_watched(
    plan: &Plan,
    options: &Options<'_>,
    watchers: Vec<Box<dyn Watcher>>,
) -> Result<(Record, Effort), RunError> {
    let mut simulation = build_simulation(plan)?;
    simulation.checking = options.checking;
    for (node, agent) in (options.agents)(plan)? {
        simulation.place(node, None, agent);
    }
    watchers.into_iter().for_each(|watcher| simulation.network.watch(watcher));
    let until = Instant::START + plan.duration;
    if simulation.run(until, options.interrupted) == Stopped::Interrupted {
        return Err(RunError::Interrupted);
    }
    simulation.network.finish_watching()?;
    Ok((record(plan, &mut simulation), effort(&simulation)))
}

/// Builds everything in a plan.
fn build_simulation(plan: &Plan) -> Result<Simulation, RunError> {
    refuse_what_is_missing(plan)?;
    let mut engine = Engine::new();
    let ids = Ids::of(plan);
    let mut hops = Vec::new();
    let mut timers: Vec<Timer> = Vec::new();
    let broken = plan.broken_links();
    for link in &plan.links {
        let seed = plan.link_seed(link);
        let [down, up] = match broken.get(link.name.as_str()) {
            Some([down, up]) => [down, up],
            None => [&link.down, &link.up],
        };
        for (way, to, direction) in
            [(Direction::Down, &link.between[0], down), (Direction::Up, &link.between[1], up)]
        {
            let timer = engine.timer();
            timers.push(timer);
            let model = Link::new(direction, way, seed, Instant::START);
            let hop = Hop::new(link.name.clone(), way, ids.node(to)?, model, timer);
            hops.push(if direction.aqm == AqmPlan::Xcp { hop.with_router() } else { hop });
        }
    }
    let network = Network::new(nodes(plan), hops);
    refuse_what_takes_no_time(plan, &ids, &network)?;
    let mut proxies = proxies(plan, &ids, &network)?;
    let stacks = plan.nodes.iter().map(|node| node.tcp.clone()).collect();
    let mut hosts = Hosts::new(plan.seed, stacks);
    tunnels::open(plan, &mut proxies, &mut hosts)?;
    let mut simulation = Simulation::new(engine, network, &timers, hosts);
    agents::place(plan, &mut simulation);
    for (node, proxy) in proxies {
        simulation.place_proxy(node, Box::new(proxy));
    }
    let legs = Legs::of(plan);
    let holdups = plan.timeline().holdups();
    let holdups: Vec<_> = holdups.into_iter().map(|at| Instant::START + at).collect();
    for transfer in &plan.transfers {
        let TransferPlan { name, from, to, congestion, tuning, opens, .. } = transfer;
        let asker = Asker { table: "transfers", name, from, to };
        let control = legs.control(asker, congestion, tuning.as_ref(), *opens)?;
        let connect = Connect {
            nodes: [ids.node(transfer.opener())?, ids.node(transfer.listening())?],
            port: transfer.listener.port(),
            family: transfer.family,
            congestion: Arc::new(control),
        };
        let app = Transfer::new(transfer, connect, holdups.clone());
        simulation.add(Instant::START + transfer.start, |_| Box::new(app));
    }
    if !plan.handovers.is_empty() {
        simulation.hand_over(Box::new(Handovers::of(plan)?));
    }
    for traffic in &plan.traffic {
        let app = traffic_app(traffic, &ids, &legs, plan.seed)?;
        simulation.add(Instant::START + traffic.start, |_| app);
    }
    Ok(simulation)
}

/// The proxies of all nodes that have one.
fn proxies(
    plan: &Plan,
    ids: &Ids<'_>,
    network: &Network,
) -> Result<Vec<(NodeId, Proxy)>, RunError> {
    let mut proxies = Vec::new();
    let listening: BTreeSet<u16> = plan.transfers.iter().map(|it| it.listener.port()).collect();
    for node in &plan.nodes {
        let Some(pep) = &node.pep else { continue };
        let own = plan.peps.get(pep);
        // Peers outside the scenario.
        let tunnel_key = own.and_then(PepPlan::tunnel_key);
        if let Some(below) = tunnel_key.filter(|_| node.tunnels.is_none()) {
            let keys = ["peps", pep].into_iter().chain(below.keys().iter().map(String::as_str));
            return Err(RunError::Tunnel {
                node: node.name.clone(),
                key: KeyPath::of(keys),
                why: "its peer is no node of the scenario".to_owned(),
            });
        }
        if own.is_some_and(|own| own.config().assist != Assist::default()) {
            return Err(RunError::Assist { node: node.name.clone(), pep: pep.clone() });
        }
        let at = ids.node(&node.name)?;
        let places = plan.nodes.iter().zip(0..).map(|(far, number)| {
            let way = network.way(at, NodeId(number));
            let link = |hop: &HopId| network.hops()[hop.index()].name.clone();
            let last = way.last().map(link);
            let own = far.interfaces.iter().find(|own| Some(&own.link) == last.as_ref());
            let own = own.or(far.interfaces.first());
            let addresses =
                own.map_or([NOWHERE, NOWHERE], |own| [own.ipv4.into(), own.ipv6.into()]);
            let link = way.first().map(link);
            let answers_xcp = link.as_ref().is_some_and(|link| plan.answers_xcp(&node.name, link));
            Place { addresses, link, answers_xcp }
        });
        let places: Vec<Place> = places.collect();
        let later = match plan.handovers.is_empty() {
            true => Vec::new(),
            false => node.interfaces.iter().map(|own| own.link.clone()).collect(),
        };
        let proxy = match (own, plan.naive.get(pep)) {
            (Some(own), _) => {
                let own = (own, node.tunnels.as_ref());
                Proxy::new(at, &node.name, own, (places, later), plan.seed)
            }
            (None, Some(naive)) => Proxy::naive(at, &node.name, naive, places, plan.seed),
            (None, None) => return Err(RunError::Plan { what: format!("the proxy {pep}") }),
        };
        let proxy =
            proxy.map(|proxy| proxy.with_tcp(node.tcp.clone()).measuring(listening.clone()));
        proxies.push((
            at,
            proxy.map_err(|why| RunError::Pep {
                node: node.name.clone(),
                pep: pep.clone(),
                why,
            })?,
        ));
    }
    Ok(proxies)
}

/// The application for an entry of cross traffic.
fn traffic_app(
    plan: &TrafficPlan,
    ids: &Ids<'_>,
    legs: &Legs<'_>,
    seed: Seed,
) -> Result<Box<dyn App>, RunError> {
    let (from, to) = (ids.node(&plan.from)?, ids.node(&plan.to)?);
    let TrafficPlan { name, tuning, .. } = plan;
    let asker = Asker { table: "traffic", name, from: &plan.from, to: &plan.to };
    let connect = |congestion: &str, opens: Opener| {
        let nodes = match opens {
            Opener::To => [to, from],
            Opener::From => [from, to],
        };
        let control = legs.control(asker, congestion, tuning.as_ref(), opens)?;
        let congestion = Arc::new(control);
        Ok::<_, RunError>(Connect { nodes, port: plan.port, family: plan.family, congestion })
    };
    let contradiction = || RunError::Plan { what: format!("the traffic {name}") };
    Ok(match &plan.load {
        Load::Bulk { flows, congestion, opens } => {
            let sender = match opens {
                Opener::To => End::Listener,
                Opener::From => End::Opener,
            };
            Box::new(Bulk::new(plan, connect(congestion, *opens)?, sender, *flows))
        }
        Load::Web { sessions, congestion } => {
            Box::new(Web::new(plan, connect(congestion, Opener::To)?, *sessions, seed))
        }
        Load::Arrivals { congestion, .. } => {
            let beginnings = Beginnings::of(plan, seed).ok_or_else(contradiction)?;
            Box::new(Arrivals::new(plan, connect(congestion, Opener::To)?, beginnings))
        }
        Load::Constant { packet, .. } | Load::OnOff { packet, .. } => {
            let departures = Departures::of(plan, seed).ok_or_else(contradiction)?;
            Box::new(Datagrams::new(plan, [from, to], *packet, departures))
        }
    })
}

/// Nodes by their names.
struct Ids<'p>(BTreeMap<&'p str, NodeId>);

impl<'p> Ids<'p> {
    fn of(plan: &'p Plan) -> Self {
        let numbered = plan.nodes.iter().zip(0..);
        Self(numbered.map(|(node, number)| (node.name.as_str(), NodeId(number))).collect())
    }

    fn node(&self, name: &str) -> Result<NodeId, RunError> {
        let known = self.0.get(name).copied();
        known.ok_or_else(|| RunError::Plan { what: format!("the node {name}") })
    }
}

/// All nodes with their routes at the beginning, the same as for the plan's transfers.
fn nodes(plan: &Plan) -> Vec<Node> {
    let unused = plan.timeline().unused_first();
    let named = plan.nodes.iter().zip(routes::table(plan, &unused));
    named.map(|(node, routes)| Node::new(node.name.clone(), routes)).collect()
}

fn refuse_what_is_missing(plan: &Plan) -> Result<(), RunError> {
    for node in &plan.nodes {
        if !node.programs.is_empty() {
            return Err(RunError::Programs { node: node.name.clone() });
        }
    }
    Ok(())
}

/// Between two nodes with only unlimited links without delay, data would flow for ever at one
/// time.
fn refuse_what_takes_no_time(
    plan: &Plan,
    ids: &Ids<'_>,
    network: &Network,
) -> Result<(), RunError> {
    let takes_time = |hop: HopId| {
        plan.links.get(hop.index() / 2).is_some_and(|link| {
            let ways = [&link.down, &link.up];
            ways.iter().any(|way| !way.delay_min().is_zero() || way.rate_max().is_some())
        })
    };
    let transfers = plan.transfers.iter().map(|it| (&it.from, &it.to));
    for (from, to) in transfers.chain(plan.traffic.iter().map(|it| (&it.from, &it.to))) {
        let way = network.way(ids.node(from)?, ids.node(to)?);
        if !way.is_empty() && !way.into_iter().any(takes_time) {
            return Err(RunError::Timeless { from: from.clone(), to: to.clone() });
        }
    }
    Ok(())
}

/// The measurements of the run.
fn record(plan: &Plan, simulation: &mut Simulation) -> Record {
    let now = simulation.engine.now();
    let tick = INTERVAL.as_ns();
    simulation.sample(Instant::from_ns(now.as_ns().div_ceil(tick) * tick));
    let (mut transfers, mut traffic) = (Vec::new(), Vec::new());
    let (mut stall_max, mut stalls) = (None, Vec::new());
    let mut series = simulation.links.series(simulation.network.hops());
    for app in simulation.apps() {
        let waits = simulation.context(app, |app, context| app.waits(context.now()));
        stall_max = waits.longest.max(stall_max);
        stalls.extend(waits.at_holdups());
        let results = simulation.context(app, |app, context| {
            (app.transfer_result(context), app.traffic_result(context.now()))
        });
        if let Some((transfer, curves)) = results.0 {
            transfers.push(transfer);
            series.extend(curves);
        }
        traffic.extend(results.1);
    }
    series.extend(simulation.network.nodes().iter().flat_map(Node::series));
    let handovers = simulation.handovers.as_ref().map(|(handovers, _)| {
        let stalls = Freezes::of(stalls);
        HandoversResult { stall_max, stalls, ..handovers.result(&simulation.network) }
    });
    let mut record = Record {
        schema: SCHEMA,
        title: plan.title.clone(),
        cell: plan.cell(),
        seed: plan.seed,
        // A plan's keys are strings: it always has a form in JSON.
        plan: plan.to_json().unwrap_or_default(),
        environment: Environment {
            runner: "sim".to_owned(),
            versions: BTreeMap::from([("midhop".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]),
            ..Environment::default()
        },
        validity: Validity::default(),
        transfers,
        links: simulation.network.hops().iter().map(|hop| link_result(hop, now)).collect(),
        legs: simulation.network.nodes().iter().flat_map(|node| node.legs(now)).collect(),
        traffic,
        nodes: simulation.network.nodes().iter().filter_map(node_result).collect(),
        handovers,
        series,
    };
    record.set_limits(plan);
    record.validity.faults = record.check_limit();
    if let Some((handovers, _)) = &simulation.handovers {
        record.validity.faults.extend(handovers.faults());
    }
    record.validity.faults.extend(record.legs.iter().filter_map(LegResult::unused));
    record
}

fn link_result(hop: &Hop, now: Instant) -> LinkResult {
    let span = now.saturating_since(Instant::START);
    LinkResult::counted(&hop.name, hop.way, hop.counters(), span)
}

fn node_result(node: &Node) -> Option<NodeResult> {
    let owned = |(name, count): (&&'static str, &u64)| ((*name).to_owned(), *count);
    let drops: BTreeMap<String, u64> = node.drops().iter().map(owned).collect();
    let counts: BTreeMap<String, u64> = node.counts().into_iter().collect();
    let silent = drops.is_empty() && counts.is_empty();
    (!silent).then(|| NodeResult { node: node.name.clone(), drops, counts })
}

fn effort(simulation: &Simulation) -> Effort {
    Effort {
        link_packets: simulation.network.hops().iter().map(|hop| hop.counters().packets_in).sum(),
        events: simulation.engine.fired(),
        packets_most: simulation.network.packets().most(),
    }
}
