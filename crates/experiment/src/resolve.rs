//! Resolves a spec that passed its checks to a plan.

use crate::agents;
use crate::congestion::{self, CongestionSpec, Leg, Own};
use crate::files;
use crate::handovers::{self, Timeline};
use crate::host_routes::host_routes;
use crate::limit::{Bottleneck, Family, Framing, Hop, Opener};
use crate::naive;
use crate::pep::PepPlan;
use crate::plan::{
    AxisPosition, Crossing, Direction, Interface, MTU, Plan, PlannedLink, PlannedNode, RestartPlan,
    TransferLimit, TransferPlan, Work,
};
use crate::route::{self, Edge};
use crate::spec::{NO_PEP, Spec, TransferSpec};
use crate::tcp::{self, TcpPlan};
use crate::traffic::{self, TrafficPlan};
use crate::tunnel;
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_path::orbit::{Journeys, OrbitError, OrbitPlan};
use midhop_path::presets::{self, UnknownPreset};
use midhop_path::{DirectionPlan, LinkError, LinkSpec, loss::LossPlan, rate::LinkRate};
use midhop_units::{Duration, Loss, Rate};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first port on which a transfer listens; each further transfer uses the next one.
const PORT_FIRST: u16 = 7000;
const CONGESTION: &str = "cubic";
/// How long a transfer waits before it restarts an item.
const RESTART_AFTER: Duration = Duration::from_s(1);

/// Resolves `spec`, which [`crate::check::check`] has accepted with its running proxies, with its
/// first seed. Paths over constellations that `journeys` has are not computed again.
///
/// # Errors
/// When a link cannot be run, or a transfer's nodes are not connected.
pub(crate) fn resolve(
    spec: &Spec,
    peps: BTreeMap<String, PepPlan>,
    document: &Document,
    axes: Vec<AxisPosition>,
    journeys: &mut Journeys,
) -> Result<Plan, ConfigError> {
    let mut spec = spec.clone();
    let orbits = fly(&mut spec, document, journeys)?;
    let spec = &spec;
    let all = edges(spec, document)?;
    let handovers = handovers::resolve(spec, &peps, document)?;
    let timeline = Timeline::new(&handovers, spec.duration);
    let phases = timeline.phases(&all);
    let edges = &phases[0];
    let nodes = nodes(spec, &all, edges, document)?;
    let mut transfers = Vec::new();
    for (port, (name, written)) in (PORT_FIRST..).zip(&spec.transfers) {
        if spec.run.as_ref().is_none_or(|run| run.contains(name)) {
            let planned = transfer(name, written, port, edges, &nodes, document)?;
            transfers.push((planned, written));
        }
    }
    let later = later_ways(&transfers, &phases[1..], document)?;
    let links = links(spec, document, &all, (&transfers, &later), &orbits)?;
    files::check_length(document, &links, spec.duration)?;
    let mut plan = Plan {
        number: 0,
        title: spec.title.clone(),
        axes,
        seed: spec.seed,
        seeds: spec.seeds,
        duration: spec.duration,
        peps,
        naive: naive::resolve(spec, document)?,
        nodes,
        links,
        transfers: Vec::new(),
        traffic: traffic(spec, &phases, document)?,
        handovers: handovers.clone(),
    };
    for (transfer, written) in &mut transfers {
        let ways = later.iter().filter(|way| way.name == transfer.name);
        let limits = ways.map(|way| limit(&plan, way)).chain([limit(&plan, transfer)]);
        transfer.limit = limits.flatten().reduce(TransferLimit::loosest);
        let written = control(written.congestion.as_ref());
        let path = KeyPath::of(["transfers", transfer.name.as_str(), "congestion"]);
        let leg = Leg { path, route: &transfer.route };
        transfer.tuning = congestion::resolve(&written, &leg, &plan, document)?;
    }
    plan.transfers = transfers.into_iter().map(|(transfer, _)| transfer).collect();
    tune_traffic(spec, &mut plan, document)?;
    one_rate_per_leg(&plan, document)?;
    congestion::check_legs(&plan, document)?;
    tunnel::resolve(&mut plan, edges, document)?;
    Ok(plan)
}

/// The written value, or the default.
fn control(written: Option<&CongestionSpec>) -> CongestionSpec {
    written.cloned().unwrap_or_else(|| CONGESTION.into())
}

fn tune_traffic(spec: &Spec, plan: &mut Plan, document: &Document) -> Result<(), ConfigError> {
    let mut traffic = std::mem::take(&mut plan.traffic);
    // The plan has them in the same order as the spec.
    for (flow, written) in traffic.iter_mut().zip(spec.traffic.values()) {
        if flow.load.congestion().is_none() {
            continue;
        }
        let written = control(written.congestion.as_ref());
        let path = KeyPath::of(["traffic", flow.name.as_str(), "congestion"]);
        let leg = Leg { path, route: &flow.route };
        flow.tuning = congestion::resolve(&written, &leg, plan, document)?;
    }
    plan.traffic = traffic;
    Ok(())
}

/// Checks that all flows of known rate which a node sends over a link have one rate.
fn one_rate_per_leg(plan: &Plan, document: &Document) -> Result<(), ConfigError> {
    let transfers = plan.transfers.iter().map(|it| ("transfers", &it.name, &it.from, &it.tuning));
    let traffic = plan.traffic.iter().map(|it| ("traffic", &it.name, &it.from, &it.tuning));
    let mut rates: BTreeMap<(&str, &str), Rate> = BTreeMap::new();
    for (table, name, from, tuning) in transfers.chain(traffic) {
        let Some(Own::KnownRate { link, rate, .. }) = tuning.as_ref().map(|it| &it.own) else {
            continue;
        };
        let known = *rates.entry((from, link)).or_insert(*rate);
        if known != *rate {
            let path = KeyPath::of([table, name, "congestion"]);
            let message = format!(
                "the known rate of {link} at `{from}` is {rate} here, and {known} elsewhere"
            );
            let hint =
                "flows of known rate share the rate of their leg: set the same rate".to_owned();
            return Err(document.fault(&path, message, Some(hint)));
        }
    }
    Ok(())
}

/// Gives links over a constellation their delay and outages, and reports which links these are.
fn fly(
    spec: &mut Spec,
    document: &Document,
    journeys: &mut Journeys,
) -> Result<BTreeMap<String, OrbitPlan>, ConfigError> {
    let mut orbits = BTreeMap::new();
    for (name, link) in &mut spec.links {
        let (flown, orbit) = link
            .with_orbit(spec.duration, journeys)
            .map_err(|error| orbit_error(document, name, &error))?;
        *link = flown;
        orbits.extend(orbit.map(|orbit| (name.clone(), orbit)));
    }
    Ok(orbits)
}

fn traffic(
    spec: &Spec,
    phases: &[Vec<Edge>],
    document: &Document,
) -> Result<Vec<TrafficPlan>, ConfigError> {
    let connected = |edges: &Vec<Edge>, plan: &TrafficPlan| {
        let there = route::path(edges, &plan.from, &plan.to).filter(|there| !there.is_empty());
        there.map(|there| route::crossings(&there))
    };
    (0u16..)
        .zip(&spec.traffic)
        .map(|(number, (name, written))| {
            let plan = traffic::resolve(spec, name, number, written, document)?;
            let routes: Option<Vec<_>> =
                phases.iter().map(|edges| connected(edges, &plan)).collect();
            match routes.map(|mut routes| routes.swap_remove(0)) {
                Some(route) => Ok(TrafficPlan { route, ..plan }),
                None => Err(not_connected(document, "traffic", name, &plan.from, &plan.to)),
            }
        })
        .collect()
}

/// The paths of transfers after handovers: those of a transfer that begins then.
fn later_ways(
    transfers: &[(TransferPlan, &TransferSpec)],
    phases: &[Vec<Edge>],
    document: &Document,
) -> Result<Vec<TransferPlan>, ConfigError> {
    let mut later = Vec::new();
    for edges in phases {
        for (planned, written) in transfers {
            let (from, to) = (&written.from, &written.to);
            let way = |from, to| Some(route::crossings(&route::path(edges, from, to)?));
            let (Some(route), Some(route_back)) = (way(from, to), way(to, from)) else {
                let message = format!("after a handover no links lead from `{from}` to `{to}`");
                let hint = "see where the link leads that it takes".to_owned();
                let path = KeyPath::of(["transfers", planned.name.as_str(), "from"]);
                return Err(document.fault(&path, message, Some(hint)));
            };
            later.push(TransferPlan { route, route_back, ..planned.clone() });
        }
    }
    Ok(later)
}

fn not_connected(
    document: &Document,
    table: &str,
    name: &str,
    from: &str,
    to: &str,
) -> ConfigError {
    let message = format!("no links lead from `{from}` to `{to}`");
    let hint = "add a link, or see whether `between` names the right nodes".to_owned();
    document.fault(&KeyPath::of([table, name, "from"]), message, Some(hint))
}

fn edges(spec: &Spec, document: &Document) -> Result<Vec<Edge>, ConfigError> {
    spec.links
        .iter()
        .map(|(name, link)| {
            let delay = link.rtt_min().map_err(|error| unknown_preset(document, name, &error))?;
            Ok(Edge { name: name.clone(), ends: link.between.clone(), delay_ns: delay.as_ns() })
        })
        .collect()
}

/// The nodes with their ends of `all` links, and their routes over the links in use.
fn nodes(
    spec: &Spec,
    all: &[Edge],
    used: &[Edge],
    document: &Document,
) -> Result<Vec<PlannedNode>, ConfigError> {
    let mut nodes = Vec::new();
    for (name, node) in &spec.nodes {
        nodes.push(PlannedNode {
            name: name.clone(),
            pep: node.pep.clone().filter(|pep| pep != NO_PEP),
            tunnels: None,
            agents: agents::of_node(spec, name, node, document)?,
            programs: node.programs.clone(),
            tcp: tcp::resolve(name, node.tcp.as_ref(), spec.tcp.as_ref(), document)?,
            interfaces: interfaces(name, all),
            routes: Vec::new(),
        });
    }
    let routes = host_routes(&nodes, used);
    for (node, routes) in nodes.iter_mut().zip(routes) {
        node.routes = routes;
    }
    Ok(nodes)
}

/// Link number n is the networks 10.(n/256).(n mod 256).0/24 and fd6d:6964:686f:n::/64, of which the
/// first node of `between` has host 1 and the second host 2.
fn interfaces(node: &str, edges: &[Edge]) -> Vec<Interface> {
    edges
        .iter()
        .enumerate()
        .filter_map(|(number, edge)| {
            let host = 1 + u8::from(edge.ends.iter().position(|end| end == node)? == 1);
            let number = u16::try_from(number).unwrap_or(u16::MAX);
            let [high, low] = number.to_be_bytes();
            Some(Interface {
                link: edge.name.clone(),
                ipv4: Ipv4Addr::new(10, high, low, host),
                ipv6: Ipv6Addr::new(0xfd6d, 0x6964, 0x686f, number, 0, 0, 0, host.into()),
            })
        })
        .collect()
}

fn transfer(
    name: &str,
    spec: &TransferSpec,
    port: u16,
    edges: &[Edge],
    nodes: &[PlannedNode],
    document: &Document,
) -> Result<TransferPlan, ConfigError> {
    let path = KeyPath::of(["transfers", name]);
    let connected = route::path(edges, &spec.from, &spec.to)
        .zip(route::path(edges, &spec.to, &spec.from))
        .filter(|(there, _)| !there.is_empty());
    let Some((there, back)) = connected else {
        return Err(not_connected(document, "transfers", name, &spec.from, &spec.to));
    };
    let (to_listener, listening) = match spec.opens {
        Opener::To => (&back, &spec.from),
        Opener::From => (&there, &spec.to),
    };
    // The opener uses the listener's address on the link over which its packets arrive.
    let last = to_listener.last().map(|(edge, _)| edge.name.as_str());
    let address = nodes
        .iter()
        .find(|node| node.name == *listening)
        .and_then(|node| node.interfaces.iter().find(|own| Some(own.link.as_str()) == last))
        .map(|own| match spec.family {
            Family::Ipv4 => IpAddr::from(own.ipv4),
            Family::Ipv6 => IpAddr::from(own.ipv6),
        });
    let Some(address) = address else {
        let message = format!("`{listening}` has no address");
        return Err(document.fault(&path, message, None));
    };
    Ok(TransferPlan {
        name: name.to_owned(),
        from: spec.from.clone(),
        to: spec.to.clone(),
        work: work(spec),
        congestion: control(spec.congestion.as_ref()).algorithm,
        tuning: None,
        restarts: spec.restarts.map(|most| RestartPlan {
            most,
            after: spec.restart_after.unwrap_or(RESTART_AFTER),
            from: spec.restart_from.unwrap_or_default(),
        }),
        start: spec.start,
        opens: spec.opens,
        family: spec.family,
        listener: SocketAddr::new(address, port),
        route: route::crossings(&there),
        route_back: route::crossings(&back),
        limit: None,
    })
}

fn work(spec: &TransferSpec) -> Work {
    let flows = spec.flows.unwrap_or(1);
    match (&spec.objects, spec.bytes) {
        (Some(sizes), _) => Work::Objects {
            sizes: sizes.clone(),
            connections: spec.connections.unwrap_or_default(),
            parallel: spec.parallel.unwrap_or(1),
        },
        (None, Some(each)) => Work::Bytes { each, flows },
        (None, None) => {
            Work::Time { span: Duration::from_s_f64(spec.seconds.unwrap_or(0.0)), flows }
        }
    }
}

fn links(
    spec: &Spec,
    document: &Document,
    edges: &[Edge],
    (transfers, later): (&[(TransferPlan, &TransferSpec)], &[TransferPlan]),
    orbits: &BTreeMap<String, OrbitPlan>,
) -> Result<Vec<PlannedLink>, ConfigError> {
    let mut rtt: BTreeMap<&str, Duration> = BTreeMap::new();
    // These delays are not checked yet and may be extreme: a sum must not overflow.
    let one_way = |crossings: &[Crossing]| {
        let delays = crossings.iter().map(|crossing| delay_min(spec, crossing));
        delays.fold(Duration::ZERO, Duration::saturating_add)
    };
    for transfer in transfers.iter().map(|(transfer, _)| transfer).chain(later) {
        let both = one_way(&transfer.route).saturating_add(one_way(&transfer.route_back));
        for crossing in transfer.route.iter().chain(&transfer.route_back) {
            let known = rtt.entry(&crossing.link).or_default();
            *known = both.max(*known);
        }
    }
    edges
        .iter()
        .filter_map(|edge| spec.links.get_key_value(&edge.name).map(|link| (edge, link)))
        .map(|(edge, (name, link))| {
            let own = Duration::from_ns(edge.delay_ns);
            let path_rtt = rtt.get(name.as_str()).copied().unwrap_or(own);
            let plan =
                link.resolve(path_rtt).map_err(|error| link_error(document, name, &error))?;
            Ok(PlannedLink {
                name: name.clone(),
                between: link.between.clone(),
                preset: plan.preset,
                orbit: orbits.get(name).cloned(),
                mtu: MTU,
                path_rtt,
                down: plan.down,
                up: plan.up,
            })
        })
        .collect()
}

fn delay_min(spec: &Spec, crossing: &Crossing) -> Duration {
    let directions =
        spec.links.get(&crossing.link).and_then(|link| LinkSpec::directions(link).ok());
    directions.map_or(Duration::ZERO, |[down, up]| match crossing.direction {
        Direction::Down => down.delay_min(),
        Direction::Up => up.delay_min(),
    })
}

fn limit(plan: &Plan, transfer: &TransferPlan) -> Option<TransferLimit> {
    let framing = framing(plan, transfer);
    let hops = |read: &dyn Fn(&DirectionPlan) -> (Option<Rate>, Loss)| -> Vec<(Hop, &Crossing)> {
        transfer
            .route
            .iter()
            .filter_map(|crossing| {
                let direction = plan.link(&crossing.link)?.direction(crossing.direction);
                let (rate, loss) = read(direction);
                let rate = rate.unwrap_or(Rate::from_bits_per_s(u64::MAX));
                let hop = Hop { rate, loss, split: plan.splits_after(crossing) };
                Some((hop, crossing))
            })
            .collect()
    };
    let bottleneck = |hops: &[(Hop, &Crossing)]| {
        Bottleneck::of(&hops.iter().map(|(hop, _)| *hop).collect::<Vec<_>>(), framing)
    };
    let mean = hops(&|direction| {
        (mean_rate(direction, plan.duration), direction.loss_mean(u64::from(MTU)))
    });
    let peak = hops(&|direction| (direction.rate_max(), loss_min(direction)));
    let narrowest = bottleneck(&mean)?;
    if narrowest.rate == Rate::from_bits_per_s(u64::MAX) {
        return None;
    }
    let propagation = |crossings: &[Crossing]| {
        crossings
            .iter()
            .filter_map(|crossing| {
                Some(plan.link(&crossing.link)?.direction(crossing.direction).delay_min())
            })
            .sum::<Duration>()
    };
    Some(TransferLimit {
        goodput: narrowest.goodput,
        goodput_peak: bottleneck(&peak)?.goodput,
        bottleneck: mean.get(narrowest.hop).map(|(_, crossing)| (*crossing).clone())?,
        loss: narrowest.loss,
        rtt: propagation(&transfer.route).saturating_add(propagation(&transfer.route_back)),
        framing,
    })
}

/// The framing with the lowest overhead of all connections that may carry a transfer: the one
/// between its ends, and those between the hosts with proxies on its path. A tunnel is carried over
/// IPv4, and its overhead is at least that of TCP there.
fn framing(plan: &Plan, transfer: &TransferPlan) -> Framing {
    let own = |name: &str| plan.node(name).map(|node| &node.tcp);
    let behind = |crossing: &Crossing| {
        let link = plan.link(&crossing.link)?;
        let end = match crossing.direction {
            Direction::Down => &link.between[0],
            Direction::Up => &link.between[1],
        };
        plan.splits_after(crossing).then_some(end.as_str())
    };
    let linux = TcpPlan::default();
    let ends = [transfer.from.as_str(), transfer.to.as_str()];
    let inner = transfer.route.iter().filter_map(behind);
    let mut hosts: Vec<&TcpPlan> =
        [ends[0]].into_iter().chain(inner).chain([ends[1]]).filter_map(own).collect();
    // A proxy may let the flow pass: then the connection is between the flow's two ends.
    hosts.extend(own(ends[0]));
    let has_peers = |node: &PlannedNode| {
        let pep = node.pep.as_ref().and_then(|name| plan.peps.get(name));
        pep.is_some_and(|pep| !pep.config().peers.is_empty())
    };
    let tunnelled = plan.nodes.iter().any(has_peers);
    let family = if tunnelled { Family::Ipv4 } else { transfer.family };
    hosts
        .windows(2)
        .map(|pair| pair[0].framing(pair[1], family))
        .max_by(|one, other| one.efficiency().total_cmp(&other.efficiency()))
        .unwrap_or_else(|| linux.framing(&linux, transfer.family))
}

/// The minimum loss of a run: that of each packet by itself, and that between bursts. A channel
/// with loss bursts may have none in a whole run.
fn loss_min(direction: &DirectionPlan) -> Loss {
    let by_bits = Loss::from_bit_errors(direction.bit_error_rate, u64::from(MTU));
    direction
        .loss
        .iter()
        .map(|way| match way {
            LossPlan::Bernoulli { probability } => *probability,
            LossPlan::GilbertElliottByPackets { loss_good, .. }
            | LossPlan::GilbertElliottByTime { loss_good, .. } => *loss_good,
        })
        .fold(by_bits, Loss::then)
}

/// The mean over a run of the rate at which a direction sends, limited by its best modulation.
fn mean_rate(direction: &DirectionPlan, duration: Duration) -> Option<Rate> {
    let highest = direction.rate_max();
    let LinkRate::Trace(trace) = &direction.rate else { return highest };
    // One period is enough, and there may be very many.
    let span = trace.repeat.map_or(duration, |period| period.min(duration));
    let (mut bits, mut at) = (0u128, Duration::ZERO);
    while at < span {
        let (rate, change) = trace.at(at);
        let until = change.unwrap_or(span).min(span);
        let rate = highest.map_or(rate, |highest| rate.min(highest));
        bits += u128::from(rate.bits_per_s()) * u128::from(until.saturating_sub(at).as_ns());
        at = until;
    }
    let mean = bits / u128::from(span.as_ns().max(1));
    Some(Rate::from_bits_per_s(u64::try_from(mean).unwrap_or(u64::MAX)))
}

fn unknown_preset(document: &Document, link: &str, error: &UnknownPreset) -> ConfigError {
    let known: Vec<&str> = presets::all().iter().map(|preset| preset.name).collect();
    let hint = suggest::hint(&error.name, "presets", known);
    let path = KeyPath::of(["links", link, "preset"]);
    document.fault(&path, format!("no preset is called `{}`", error.name), hint)
}

/// The place of the key below a link's `orbit` that is at fault.
fn orbit_error(document: &Document, link: &str, error: &OrbitError) -> ConfigError {
    let keys = ["links", link].into_iter().chain(error.key().split('.'));
    document.fault(&KeyPath::of(keys), error.to_string(), None)
}

/// The place of a link's key that is at fault: in the direction, otherwise for both directions.
fn link_error(document: &Document, link: &str, error: &LinkError) -> ConfigError {
    let (direction, source) = match error {
        LinkError::Preset(unknown) => return unknown_preset(document, link, unknown),
        LinkError::Direction { direction, source } => (*direction, source),
        other => return document.fault(&KeyPath::of(["links", link]), other.to_string(), None),
    };
    let below = |above: &[&str]| KeyPath::of(above.iter().copied().chain(source.key().split('.')));
    let own = below(&["links", link, direction]);
    let both = below(&["links", link]);
    // A key that is written in neither place comes from the preset or is missing: then the nearest
    // table.
    let written = |path: &KeyPath| {
        let first = KeyPath::of(path.keys().iter().take(path.keys().len().min(4)).cloned());
        document.get(path).is_some() || document.get(&first).is_some()
    };
    let path = if written(&own) || !written(&both) { own } else { both };
    document.fault(&path, source.to_string(), None)
}
