//! Plans in ns-3: what of them it can express, in the words of the program that is built against it
//! (`crates/midhop/ns3/path.cc`), and its answer as a record.

use super::batch::{Batch, RunError};
use crate::failure::Failure;
use midhop_experiment::Plan;
use midhop_experiment::congestion::{Own, Tuning};
use midhop_experiment::limit::{Family, Opener};
use midhop_experiment::plan::{PlannedLink, PlannedNode, TransferPlan, Work};
use midhop_experiment::record::{
    Environment, FlowResult, Record, Restarts, Runner, SCHEMA, TransferResult, Validity,
};
use midhop_experiment::tcp::TcpPlan;
use midhop_path::DirectionPlan;
use midhop_path::delay::LinkDelay;
use midhop_path::queue::QueueLimit;
use midhop_pep::config::{Config, LegPlan};
use midhop_testbed::netem;
use midhop_units::{Bytes, Duration, Rate};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The laws that ns-3 has under these names; Hybla's is the published one.
const CONTROLS: [&str; 6] = ["reno", "cubic", "bbr", "hybla", "vegas", "westwood"];
/// What `path.cc` calls Hybla without our change, and where a record says so.
const HYBLA_AS_IT_IS: &str = "hybla-as-it-is";
/// What a link of no rate sends at: as good as at once.
const UNLIMITED: Rate = Rate::from_mbit_per_s(100_000);
/// What waits before a link that is never full. Unit: packets.
const PACKETS_MAX: u64 = 1_000_000;
/// The least that a connection holds of a direction.
const BUFFER_MIN: Bytes = Bytes::new(1 << 18);

/// Arguments of `midhop reference ns3`.
#[derive(Debug, clap::Args)]
pub(super) struct Ns3 {
    #[command(flatten)]
    batch: Batch,
    /// The program that `scripts/ns3 crates/midhop/ns3/path.cc` makes
    #[arg(long, value_name = "FILE", default_value = "target/peers/ns3-path")]
    program: PathBuf,
    /// Take Hybla as ns-3 has it: its ρ stays 1 where the handshake was the shortest round trip
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
        let is_own = |record: &Record| {
            let as_it_is = record.environment.versions.contains_key(HYBLA_AS_IT_IS);
            Runner::of(record) == Runner::Ns3 && as_it_is == self.hybla_as_it_is
        };
        self.batch.run(&plans, is_own, |plan, _| run_in(&self.program, plan, self.hybla_as_it_is))
    }
}

impl RunError for Ns3Error {
    fn interrupted() -> Self {
        Self::Interrupted
    }

    fn is_interruption(&self) -> bool {
        matches!(self, Self::Interrupted)
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
    let legs = || {
        match legs(plan) {
        Err(why) => Some(why),
        Ok(legs) => legs.into_iter().find_map(|(at, leg)| {
            let control = leg.congestion.as_deref().unwrap_or("cubic");
            let known = CONTROLS.contains(&control) && leg.rate.is_none();
            (!known).then(|| {
                format!(
                    "the program for ns-3 has no {control}, or none with a rate (peps.{at}.legs.{})",
                    leg.name
                )
            })
        }),
    }
    };
    let uneven = plan.links.iter().find(|it| delay(&it.up) != delay(&it.down));
    if let Some(link) = uneven {
        return Some(format!("a link of ns-3 has one delay (links.{})", link.name));
    }
    let first = plan.nodes.iter().find_map(node);
    let first = first.or_else(|| plan.transfers.iter().find_map(transfer)).or_else(legs);
    first.or_else(|| netem::refusal(plan).map(|why| why.replace("netem", "ns-3")))
}

/// Whether ns-3 has this congestion control with these parameters.
fn has(tuning: &Tuning) -> bool {
    let rtt0 = matches!(tuning.own, Own::Hybla { .. });
    let plain = tuning.of_kernel().is_some_and(|name| rtt0 || name == tuning.algorithm);
    plain && CONTROLS.contains(&tuning.algorithm.as_str())
}

/// The legs of all proxies that run, each with its proxy's name.
fn legs(plan: &Plan) -> Result<Vec<(String, LegPlan)>, String> {
    let used: BTreeSet<&String> = plan.nodes.iter().filter_map(|node| node.pep.as_ref()).collect();
    let mut all = Vec::new();
    for name in used {
        let written = plan.peps.get(name).cloned().unwrap_or_default();
        let config: Config = written.try_into().map_err(|error| format!("peps.{name}: {error}"))?;
        let resolved = config.resolve().map_err(|error| format!("peps.{name}: {error}"))?;
        all.extend(resolved.legs.into_iter().map(|leg| (name.clone(), leg)));
    }
    Ok(all)
}

/// A plan in the words of `path.cc`.
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
    let legs = legs(plan)?;
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
            let leg = node.pep.as_ref().and_then(|pep| {
                legs.iter().find(|(at, leg)| at == pep && leg_is_of(leg, &link)).map(|(_, leg)| leg)
            });
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
        let mut via = proxies_on(plan, transfer);
        if transfer.opens == Opener::To {
            via.reverse();
        }
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
        Own::Hybla { rtt0 } => Some(rtt0),
        _ => None,
    });
    (own.map_or_else(|| "cubic".to_owned(), |it| it.congestion.clone()), rtt0)
}

/// The nodes with proxies on the way of the data, in its order.
fn proxies_on(plan: &Plan, transfer: &TransferPlan) -> Vec<String> {
    let ends = [&transfer.from, &transfer.to];
    let mut via = Vec::new();
    for crossing in &transfer.route {
        let Some(link) = plan.link(&crossing.link) else { continue };
        for name in &link.between {
            let has_proxy = plan.node(name).is_some_and(|node| node.pep.is_some());
            if has_proxy && !ends.contains(&name) && !via.contains(name) {
                via.push(name.clone());
            }
        }
    }
    via
}

/// What a connection holds by default: twice what the longest path holds, since ns-3's windows do not grow by
/// measuring as a kernel's do.
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

/// Has ns-3 run `plan`.
fn run_in(program: &Path, plan: &Plan, hybla_as_it_is: bool) -> Result<Record, Ns3Error> {
    let failed = |action| move |source| Ns3Error::Io { action, source };
    let mut words = description(plan).map_err(|line| Ns3Error::Answer { line })?;
    if hybla_as_it_is {
        words = words.replace(" hybla ", &format!(" {HYBLA_AS_IT_IS} "));
    }
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed("start ns-3"))?;
    let mut input = child.stdin.take().expect("it is piped");
    // Its answer comes when all is read, so this cannot wait for that.
    input.write_all(words.as_bytes()).map_err(failed("send ns-3 the plan"))?;
    drop(input);
    let output = child.wait_with_output().map_err(failed("wait for ns-3"))?;
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
    // What is cut short took until the end.
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
