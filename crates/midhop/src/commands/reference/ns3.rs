//! Plans in ns-3: which plans it can express, their description for the program that is built
//! against it (`crates/midhop/ns3/path.cc`), and its output as a record.
//!
//! Decision 0033.

use super::batch::ReferenceBatch;
use crate::commands::origin::own_build;
use crate::failure::Failure;
use midhop_campaign::{Executor, Origin};
use midhop_experiment::Plan;
use midhop_experiment::congestion::{Own, Tuning};
use midhop_experiment::limit::{Family, Opener};
use midhop_experiment::pep::PepPlan;
use midhop_experiment::plan::{PlannedLink, PlannedNode, TransferPlan, Work};
use midhop_experiment::record::{
    Environment, FlowResult, Record, Restarts, Runner, SCHEMA, TransferResult, Validity,
};
use midhop_experiment::tcp::TcpPlan;
use midhop_path::DirectionPlan;
use midhop_path::delay::LinkDelay;
use midhop_path::queue::QueueLimit;
use midhop_pep::config::LegPlan;
use midhop_testbed::bystander::Bystander;
use midhop_testbed::netem;
use midhop_units::{Bytes, Duration, Rate};
use midhop_workbench::weight;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;

/// The algorithms that ns-3 has under these names; Hybla is the published one.
const CONTROLS: [&str; 6] = ["reno", "cubic", "bbr", "hybla", "vegas", "westwood"];
/// The name in `path.cc` of Hybla without our change, which is also used in records.
const HYBLA_AS_IT_IS: &str = "hybla-as-it-is";
/// The rate of a link without a limit: practically infinite.
const UNLIMITED: Rate = Rate::from_mbit_per_s(100_000);
/// The queue before a link that is never full. Unit: packets.
const PACKETS_MAX: u64 = 1_000_000;
/// The minimum buffer of a connection for one direction.
const BUFFER_MIN: Bytes = Bytes::new(1 << 18);

/// Arguments of `midhop reference ns3`.
#[derive(Debug, clap::Args)]
pub(super) struct Ns3 {
    #[command(flatten)]
    batch: ReferenceBatch,
    /// The program that `scripts/ns3 crates/midhop/ns3/path.cc` builds
    #[arg(long, value_name = "FILE", default_value = "target/peers/ns3-path")]
    program: PathBuf,
    /// Use Hybla as it is in ns-3: its ρ stays 1 if the handshake was the shortest round trip
    #[arg(long)]
    hybla_as_it_is: bool,
}

/// Why ns-3 gave no record.
#[derive(Debug, thiserror::Error)]
enum Ns3Error {
    #[error("cannot {action}: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error("ns-3 ended with {status}: {error}")]
    Ended { status: std::process::ExitStatus, error: String },
    #[error("ns-3 sent no report of a flow: {line}")]
    Answer { line: String },
    #[error("interrupted")]
    Interrupted,
}

impl Ns3 {
    /// Runs all cells. Exit code 1 when a run failed or was not valid.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let plans = self.batch.plans()?;
        if let Some(why) = plans.iter().find_map(refusal) {
            return Err(Failure::usage(why).hint("run the file with `midhop sim run`").into());
        }
        if !self.program.is_file() {
            let why = format!("{} is not there", self.program.display());
            let hint = "make it: scripts/ns3 crates/midhop/ns3/path.cc";
            return Err(Failure::usage(why).hint(hint).into());
        }
        let origin = Origin::new(Runner::Ns3, own_build()?);
        let origin = origin.with(HYBLA_AS_IT_IS, self.hybla_as_it_is.then_some("yes"));
        let simulator = Ns3Simulator { program: self.program, hybla_as_it_is: self.hybla_as_it_is };
        self.batch.run(&plans, origin, &simulator)
    }
}

/// Runs plans in ns-3.
struct Ns3Simulator {
    program: PathBuf,
    hybla_as_it_is: bool,
}

impl Executor for Ns3Simulator {
    type Error = Ns3Error;

    fn run(&self, plan: &Plan, stop: &AtomicBool) -> Result<Record, Ns3Error> {
        run_in(&self.program, plan, self.hybla_as_it_is, stop)
    }

    fn cost(&self, plan: &Plan) -> u64 {
        weight(plan)
    }

    fn interrupted() -> Ns3Error {
        Ns3Error::Interrupted
    }

    fn is_interruption(error: &Ns3Error) -> bool {
        matches!(error, Ns3Error::Interrupted)
    }
}

/// Why ns-3 does not run `plan`; none where it does.
fn refusal(plan: &Plan) -> Option<String> {
    let node = |it: &PlannedNode| {
        let other =
            |what: &str| Some(format!("the program for ns-3 has no {what} (nodes.{})", it.name));
        match it {
            it if it.tunnels.is_some() => other("tunnels"),
            it if !it.agents.is_empty() => other("agents"),
            it if !it.programs.is_empty() => other("programs"),
            it if it.tcp != TcpPlan::default() => other("another TCP"),
            it if it.pep.as_ref().is_some_and(|pep| plan.naive.contains_key(pep)) => {
                other("naive proxies")
            }
            _ => None,
        }
    };
    let transfer = |it: &TransferPlan| {
        let other = |what: &str| {
            Some(format!("the program for ns-3 has no {what} (transfers.{})", it.name))
        };
        match it {
            it if matches!(it.work, Work::Objects { .. }) => other("objects"),
            it if it.restarts.is_some() => other("what begins again"),
            it if it.family != Family::Ipv4 => other("IPv6"),
            it if !it.tuning.as_ref().is_some_and(has) => {
                other(&format!("congestion control {} with these parameters", it.congestion))
            }
            _ => None,
        }
    };
    if let Some(traffic) = plan.traffic.first() {
        return Some(format!(
            "the program for ns-3 has no cross traffic (traffic.{})",
            traffic.name
        ));
    }
    let uneven = plan.links.iter().find(|it| delay(&it.up) != delay(&it.down));
    if let Some(link) = uneven {
        return Some(format!("a link of ns-3 has one delay (links.{})", link.name));
    }
    let first = plan.nodes.iter().find_map(node);
    let first = first.or_else(|| plan.transfers.iter().find_map(transfer));
    let first = first.or_else(|| unlike(plan)).or_else(|| proxy_refusal(plan));
    first.or_else(|| netem::refusal(plan).map(|why| why.replace("netem", "ns-3")))
}

/// Whether ns-3 has this congestion control with these parameters.
fn has(tuning: &Tuning) -> bool {
    let rtt0 = matches!(tuning.own, Own::Hybla(_));
    let plain = tuning.of_kernel().is_some_and(|name| rtt0 || name == tuning.algorithm);
    plain && CONTROLS.contains(&tuning.algorithm.as_str())
}

/// What of a proxy's configuration counts here.
struct Proxy {
    legs: Vec<LegPlan>,
    /// Where flows come from that it takes; none: from anywhere.
    interfaces: Option<Vec<String>>,
    has_rules: bool,
}

impl Proxy {
    fn takes(&self, link: &str) -> bool {
        self.interfaces.as_ref().is_none_or(|all| all.iter().any(|it| it == link))
    }

    /// The first leg that ns-3 cannot model.
    fn foreign(&self) -> Option<(&LegPlan, &str)> {
        let control = |leg: &LegPlan| !CONTROLS.contains(&sends_by(leg)) || leg.rate.is_some();
        let leg = self.legs.iter().find(|leg| control(leg))?;
        Some((leg, sends_by(leg)))
    }
}

/// The congestion control of a leg; the kernel's default where it names none.
fn sends_by(leg: &LegPlan) -> &str {
    leg.congestion.as_deref().unwrap_or("cubic")
}

/// The configurations of all proxies that run, by name.
fn proxies(plan: &Plan) -> Result<BTreeMap<String, Proxy>, String> {
    let used: BTreeSet<&String> = plan.nodes.iter().filter_map(|node| node.pep.as_ref()).collect();
    let read = |name: &String| {
        let pep = plan.peps.get(name);
        if let Some(leg) = pep.and_then(|pep| pep.leg_tables().keys().next()) {
            let place = format!("peps.{name}.legs.{leg}.congestion");
            return Err(format!("the program for ns-3 takes no more than a name ({place})"));
        }
        if let Some(peer) = pep.and_then(|pep| pep.peer_nodes().keys().next()) {
            return Err(format!("the program for ns-3 has no tunnels (peps.{name}.peers.{peer})"));
        }
        let interfaces = pep.and_then(PepPlan::interfaces).map(<[String]>::to_vec);
        let config = pep.map(PepPlan::config).cloned().unwrap_or_default();
        let has_rules = !config.rules.is_empty();
        let resolved = config.resolve().map_err(|error| format!("peps.{name}: {error}"))?;
        Ok((name.clone(), Proxy { legs: resolved.legs, interfaces, has_rules }))
    };
    used.into_iter().map(read).collect()
}

/// Why no proxy of ns-3 is like one of these.
fn proxy_refusal(plan: &Plan) -> Option<String> {
    let proxies = match proxies(plan) {
        Ok(proxies) => proxies,
        Err(why) => return Some(why),
    };
    proxies.into_iter().find_map(|(name, proxy)| {
        if proxy.has_rules {
            return Some(format!("the program for ns-3 has no rules (peps.{name})"));
        }
        let (leg, control) = proxy.foreign()?;
        let place = format!("peps.{name}.legs.{}", leg.name);
        Some(format!("the program for ns-3 has no {control}, or none with a rate ({place})"))
    })
}

/// Why the transfers of one host cannot differ in this way: in ns-3, all its connections send
/// alike.
fn unlike(plan: &Plan) -> Option<String> {
    let ends = |it: &TransferPlan| [it.from.clone(), it.to.clone()];
    plan.transfers.iter().enumerate().find_map(|(at, one)| {
        let differs = |other: &&TransferPlan| {
            let alike = (&one.congestion, &one.tuning) == (&other.congestion, &other.tuning);
            !alike && ends(one).iter().any(|end| ends(other).contains(end))
        };
        let other = plan.transfers[..at].iter().find(differs)?;
        let both = format!("transfers.{} and {}", other.name, one.name);
        Some(format!("a host of the program for ns-3 has one congestion control ({both})"))
    })
}

/// The description of a plan for `path.cc`.
fn description(plan: &Plan) -> Result<String, String> {
    let mut text = format!(
        "seed {}\nduration {}\nnodes {}\n",
        // ns-3 numbers the runs of its generators from 1.
        plan.seed.0 % u64::from(u32::MAX) + 1,
        plan.duration.as_ns(),
        plan.nodes.len()
    );
    let number = |name: &str| plan.nodes.iter().position(|node| node.name == name);
    let missing = |name: &str| format!("the plan names {name}, which it does not describe");
    let at = |name: &str| number(name).ok_or_else(|| missing(name));
    for link in &plan.links {
        let [a, b] = [at(&link.between[0])?, at(&link.between[1])?];
        // Up is towards the second node.
        let ways = [&link.up, &link.down];
        let both = |of: fn(&DirectionPlan) -> String| ways.map(of).join(" ");
        let delay = delay(&link.up).as_ns();
        let (rates, queues, losses) = (both(rate), both(queue), both(loss));
        let _ = writeln!(text, "link {a} {b} {rates} {delay} {queues} {losses}");
    }
    let proxies = proxies(plan)?;
    let neighbours = |node: &str| {
        let at = |link: &PlannedLink| {
            let [a, b] = &link.between;
            let other = if a == node { Some(b) } else { (b == node).then_some(a) };
            other.map(|other| (link.name.clone(), other.clone()))
        };
        plan.links.iter().filter_map(at).collect::<Vec<_>>()
    };
    let buffer = buffer(plan);
    for node in &plan.nodes {
        for (link, neighbour) in neighbours(&node.name) {
            let leg = node
                .pep
                .as_ref()
                .and_then(|pep| proxies.get(pep)?.legs.iter().find(|leg| leg_is_of(leg, &link)));
            let (control, rtt0) = match (&node.pep, leg) {
                (None, _) => host(plan, &node.name),
                (Some(_), None) => ("cubic".to_owned(), None),
                (Some(_), Some(leg)) => {
                    (leg.congestion.clone().unwrap_or_else(|| "cubic".to_owned()), leg.rtt0)
                }
            };
            let rtt0 = rtt0.unwrap_or(Duration::from_ms(25));
            let held = leg.and_then(|leg| leg.buffer).unwrap_or(buffer);
            let (node, neighbour) = (at(&node.name)?, at(&neighbour)?);
            let _ =
                writeln!(text, "leg {node} {neighbour} {control} {} {}", rtt0.as_ns(), held.get());
        }
    }
    for transfer in &plan.transfers {
        let (bytes, span) = match &transfer.work {
            Work::Bytes { each, .. } => (each.get(), Duration::ZERO),
            Work::Time { span, .. } => (u64::from(u32::MAX), *span),
            Work::Objects { .. } => return Err("the program for ns-3 has no objects".to_owned()),
        };
        let sends = if transfer.opens == Opener::From { "opener" } else { "listener" };
        let via = proxies_on(plan, transfer, &proxies);
        let via = via.iter().map(|name| at(name)).collect::<Result<Vec<_>, _>>()?;
        let via: String = via.iter().map(|node| format!(" {node}")).collect();
        let (opener, listener) = (at(transfer.opener())?, at(transfer.listening())?);
        for _ in 0..transfer.work.flows() {
            let (start, span) = (transfer.start.as_ns(), span.as_ns());
            let _ = writeln!(text, "flow {opener} {listener} {start} {bytes} {span} {sends}{via}");
        }
    }
    Ok(text)
}

fn leg_is_of(leg: &LegPlan, link: &str) -> bool {
    leg.interface.as_deref().unwrap_or(&leg.name) == link
}

/// The congestion control of a host without a proxy: that of its transfer.
fn host(plan: &Plan, node: &str) -> (String, Option<Duration>) {
    let own = plan.transfers.iter().find(|it| it.from == node || it.to == node);
    let rtt0 = own.and_then(|it| it.tuning.as_ref()).and_then(|it| match it.own {
        Own::Hybla(own) => Some(own.rtt0),
        _ => None,
    });
    (own.map_or_else(|| "cubic".to_owned(), |it| it.congestion.clone()), rtt0)
}

/// The nodes whose proxies intercept the transfer's flows, from the opener on.
fn proxies_on(
    plan: &Plan,
    transfer: &TransferPlan,
    proxies: &BTreeMap<String, Proxy>,
) -> Vec<String> {
    let mut links: Vec<&str> = transfer.route.iter().map(|it| it.link.as_str()).collect();
    if transfer.opens == Opener::To {
        links.reverse();
    }
    let (mut via, mut here) = (Vec::new(), transfer.opener());
    for link in links.into_iter().filter_map(|name| plan.link(name)) {
        let Some(next) = link.between.iter().find(|name| *name != here) else { continue };
        here = next;
        let proxy = plan.node(here).and_then(|node| proxies.get(node.pep.as_ref()?));
        if here != transfer.listening() && proxy.is_some_and(|it| it.takes(&link.name)) {
            via.push(here.to_owned());
        }
    }
    via
}

/// The default buffer of a connection: twice what the longest path holds, since ns-3's windows do
/// not grow by measurement as a kernel's do.
fn buffer(plan: &Plan) -> Bytes {
    let fits = |transfer: &TransferPlan| {
        let limit = transfer.limit.as_ref()?;
        let link = plan.link(&limit.bottleneck.link)?;
        let queue = link.direction(limit.bottleneck.direction).queue.in_full_packets(link.mtu);
        let queue = queue.min(limit.goodput_peak.bytes_in(limit.rtt));
        Some(limit.goodput_peak.bytes_in(limit.rtt).saturating_add(queue).scale(2.0))
    };
    plan.transfers.iter().filter_map(fits).max().unwrap_or_default().max(BUFFER_MIN)
}

fn rate(way: &DirectionPlan) -> String {
    way.rate_max().unwrap_or(UNLIMITED).bits_per_s().to_string()
}

fn delay(way: &DirectionPlan) -> Duration {
    match way.delay {
        LinkDelay::Constant(delay) => delay,
        _ => Duration::ZERO,
    }
}

fn queue(way: &DirectionPlan) -> String {
    match way.queue {
        QueueLimit::Bytes(bytes) => format!("{}B", bytes.get().min(u64::from(u32::MAX))),
        QueueLimit::Packets(packets) => format!("{}p", packets.min(PACKETS_MAX)),
    }
}

fn loss(way: &DirectionPlan) -> String {
    netem::independent_loss(way).map_or(0.0, |loss| loss.probability()).to_string()
}

/// Lets ns-3 run `plan`.
fn run_in(
    program: &Path,
    plan: &Plan,
    hybla_as_it_is: bool,
    interrupted: &AtomicBool,
) -> Result<Record, Ns3Error> {
    let failed = |action| move |source| Ns3Error::Io { action, source };
    let mut words = description(plan).map_err(|line| Ns3Error::Answer { line })?;
    if hybla_as_it_is {
        words = words.replace(" hybla ", &format!(" {HYBLA_AS_IT_IS} "));
    }
    let piped = |command: &mut Command| {
        command.stdin(Stdio::piped());
    };
    let mut ns3 = Bystander::start(program, piped).map_err(failed("start ns-3"))?;
    ns3.feed(words.as_bytes()).map_err(failed("send ns-3 the plan"))?;
    let output = ns3.wait(interrupted).map_err(failed("wait for ns-3"))?;
    let output = output.ok_or(Ns3Error::Interrupted)?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let error = error.trim().lines().last().unwrap_or("nothing").to_owned();
        return Err(Ns3Error::Ended { status: output.status, error });
    }
    let mut record = record(plan, &String::from_utf8_lossy(&output.stdout))?;
    if hybla_as_it_is {
        record.environment.versions.insert(HYBLA_AS_IT_IS.to_owned(), "yes".to_owned());
    }
    Ok(record)
}

/// One flow as `path.cc` reports it.
struct Reported {
    start: Duration,
    end: Duration,
    handed: u64,
    arrived: u64,
    again: u64,
}

impl Reported {
    fn read(line: &str) -> Result<Self, Ns3Error> {
        let numbers: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[start, end, handed, arrived, again]) => Ok(Self {
                start: Duration::from_ns(start),
                end: Duration::from_ns(end),
                handed,
                arrived,
                again,
            }),
            _ => Err(Ns3Error::Answer { line: line.to_owned() }),
        }
    }
}

fn record(plan: &Plan, answer: &str) -> Result<Record, Ns3Error> {
    let mut lines = answer.lines();
    let mut transfers = Vec::new();
    for transfer in &plan.transfers {
        let flows = (0..transfer.work.flows()).map(|_| {
            let none = || Ns3Error::Answer { line: "no line for a flow".to_owned() };
            Reported::read(lines.next().ok_or_else(none)?)
        });
        transfers.push(result(plan, transfer, &flows.collect::<Result<Vec<_>, _>>()?));
    }
    let mut record = Record {
        schema: SCHEMA,
        title: plan.title.clone(),
        cell: plan.cell(),
        seed: plan.seed,
        plan: plan.to_json().unwrap_or_default(),
        environment: Environment {
            runner: Runner::Ns3.name().to_owned(),
            versions: BTreeMap::from([("midhop".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]),
            ..Environment::default()
        },
        validity: Validity::default(),
        transfers,
        links: Vec::new(),
        legs: Vec::new(),
        traffic: Vec::new(),
        nodes: Vec::new(),
        handovers: None,
        series: Vec::new(),
    };
    record.validity.faults = record.check_limit();
    Ok(record)
}

fn result(plan: &Plan, transfer: &TransferPlan, reported: &[Reported]) -> TransferResult {
    let wanted = |it: &Reported| match &transfer.work {
        Work::Bytes { each, .. } => each.get(),
        _ => it.handed,
    };
    let complete = reported.iter().all(|it| it.arrived == wanted(it) && it.arrived > 0);
    let start = reported.iter().map(|it| it.start).min().unwrap_or_default();
    let last = reported.iter().map(|it| it.end).max().unwrap_or_default();
    // A transfer that was cut short lasted until the end.
    let end = if complete { last } else { plan.duration };
    let took = end.saturating_sub(start);
    let bytes = Bytes::new(reported.iter().map(|it| it.arrived).sum());
    let flow = |(id, it): (u32, &Reported)| FlowResult {
        id,
        client_port: 0,
        server_port: transfer.listener.port(),
        start: it.start,
        end: it.end,
        bytes: Bytes::new(it.arrived),
        goodput: Rate::of(Bytes::new(it.arrived), it.end.saturating_sub(it.start)),
        hash_sent: None,
        hash_received: None,
        retransmissions: it.again,
        rtt_min: None,
        congestion: transfer.congestion.clone(),
        error: None,
        phases: None,
    };
    TransferResult {
        name: transfer.name.clone(),
        complete,
        took,
        bytes,
        goodput: Rate::of(bytes, took),
        limit: transfer.limit_result(complete, bytes, took),
        restarts: Restarts::default(),
        flows: (0..).zip(reported).map(flow).collect(),
        objects: Vec::new(),
    }
}
