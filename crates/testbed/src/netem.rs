//! Links that the kernel's own netem carries, for the emulated machine of a reference: an
//! independent implementation.
//!
//! ```text
//! node A ══ hub: bridge ── veth ── bridge ══ node B
//!                      rate, queue →     → delay, loss     towards B
//!      delay, loss ←     ← rate, queue                     towards A
//! ```
//! A netem counts the packets that it delays as queued. One netem for both would let packets in
//! flight fill the queue, so rate and queue are one netem, and delay and loss another behind it.
//! Neither is on a node's own device: there, a full queue is reported to TCP at once, which no
//! queue in the middle of a path does.

use crate::emulator::{Wire, WireReport};
use crate::namespace::{Namespace, NamespaceError, veth};
use midhop_experiment::plan::Plan;
use midhop_experiment::record::LinkResult;
use midhop_path::aqm::AqmPlan;
use midhop_path::delay::LinkDelay;
use midhop_path::jitter::JitterPlan;
use midhop_path::loss::LossPlan;
use midhop_path::queue::QueueLimit;
use midhop_path::rate::LinkRate;
use midhop_path::{Direction, DirectionPlan};
use midhop_units::{Duration, Instant, Loss};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;

/// The bytes of a frame that netem counts and our links do not. Unit: bytes.
const ETHERNET_HEADER: u64 = 14;
/// Limit of packets in flight: more than any path holds, since packets beyond it would be dropped.
const UNDER_WAY_MAX: u64 = 1_000_000;

/// Why a link could not be carried by netem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetemError {
    /// The hub's devices could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// `ip` or `tc` failed.
    #[error("cannot {action} link {link}: {source}")]
    Tool {
        /// What was tried.
        action: &'static str,
        /// The link's name.
        link: String,
        /// What failed.
        source: io::Error,
    },
}

/// Why netem cannot carry the links of `plan`; none where it can.
pub fn refusal(plan: &Plan) -> Option<String> {
    if let Some(node) = plan.nodes.iter().find(|node| !node.agents.is_empty()) {
        return Some(format!("netem has no agents (nodes.{})", node.name));
    }
    if let Some(handover) = plan.handovers.first() {
        return Some(format!("netem has no handovers (from {} to {})", handover.from, handover.to));
    }
    plan.links.iter().find_map(|link| {
        let mut both = [(Direction::Down, &link.down), (Direction::Up, &link.up)].into_iter();
        both.find_map(|(direction, way)| {
            let lacking = lacking(way)?;
            Some(format!("netem has no {lacking} (links.{}.{})", link.name, direction.name()))
        })
    })
}

/// The first thing that a direction needs and that netem, as it is used here, does not have.
fn lacking(way: &DirectionPlan) -> Option<&'static str> {
    let has = [
        ("rate that changes", !matches!(way.rate, LinkRate::Trace(_)) && way.acm.is_none()),
        ("delay that changes", matches!(way.delay, LinkDelay::Constant(_))),
        ("AQM", way.aqm == AqmPlan::None),
        ("loss in bursts", independent_loss(way).is_some()),
        ("bit errors", way.bit_error_rate == 0.0),
        ("outages", way.outages.is_empty() && way.reconfiguration.is_none()),
        ("jitter", way.jitter == JitterPlan::None),
        ("reordering", way.reorder.is_none() && way.overtaking.is_none()),
        ("duplicates", way.duplicate == Loss::NONE),
        ("capacity on demand", way.dama.is_none()),
    ];
    has.into_iter().find(|(_, has)| !has).map(|(what, _)| what)
}

/// The probability with which each packet is lost independently; none where losses depend on each
/// other.
pub fn independent_loss(way: &DirectionPlan) -> Option<Loss> {
    match way.loss.as_slice() {
        [] => Some(Loss::NONE),
        [LossPlan::Bernoulli { probability }] => Some(*probability),
        _ => None,
    }
}

/// One link, carried by the kernel. It carries nothing before it is started and after it has been
/// finished.
#[derive(Debug)]
pub struct Netem {
    hub: Namespace,
    wire: Wire,
    epoch: Instant,
    ends: [End; 2],
}

/// The devices in the hub through which frames for one node pass.
#[derive(Debug)]
struct End {
    /// The device to the node: applies delay and loss towards it.
    outer: String,
    /// The device to the other end: applies rate and queue towards that.
    inner: String,
    bridge: String,
}

impl End {
    fn new(outer: &str) -> Self {
        // A device's name has at most 15 characters.
        let short = outer.trim_start_matches("link");
        Self {
            outer: outer.to_owned(),
            inner: format!("queue{short}"),
            bridge: format!("bridge{short}"),
        }
    }
}

impl Netem {
    /// Starts carrying frames between the two devices of `wire` in `hub`.
    ///
    /// # Errors
    /// When a device or a queue is refused: the kernel may lack bridges or netem.
    pub fn start(hub: &Namespace, wire: Wire) -> Result<Self, NetemError> {
        let ends = [End::new(&wire.first), End::new(&wire.second)];
        let netem = Self { hub: hub.clone(), wire, epoch: Instant::START, ends };
        let [first, second] = &netem.ends;
        veth(hub, &first.inner, hub, &second.inner, netem.wire.mtu)?;
        for (end, towards, away) in
            [(first, &netem.wire.down, &netem.wire.up), (second, &netem.wire.up, &netem.wire.down)]
        {
            netem.shape(&end.inner, &before_channel(away, netem.wire.mtu))?;
            netem.shape(&end.outer, &on_channel(towards))?;
            netem.ip(&["link", "add", &end.bridge, "type", "bridge"])?;
            for device in [&end.outer, &end.inner] {
                netem.ip(&["link", "set", device, "master", &end.bridge])?;
            }
            netem.ip(&["link", "set", &end.bridge, "up"])?;
        }
        Ok(netem)
    }

    /// Counts from `epoch`, the start of the run.
    pub fn begin(&mut self, epoch: Instant) {
        self.epoch = epoch;
    }

    /// Stops and reports what the link did.
    ///
    /// # Errors
    /// When the queues report nothing, or a device cannot be removed.
    pub fn finish(self, now: Instant) -> Result<WireReport, NetemError> {
        let [first, second] = &self.ends;
        let span = now.saturating_since(self.epoch);
        let directions = [
            self.report(Direction::Down, second, first, span)?,
            self.report(Direction::Up, first, second, span)?,
        ];
        // This removes its peer too.
        self.ip(&["link", "del", &first.inner])?;
        for end in &self.ends {
            self.ip(&["link", "del", &end.bridge])?;
            self.run("tc", "clear", &["qdisc", "del", "dev", &end.outer, "root"])?;
        }
        Ok(WireReport {
            directions,
            series: Vec::new(),
            missed: 0,
            nodes: Vec::new(),
            policy: None,
        })
    }

    /// The result of one direction, by the kernel's own counters.
    fn report(
        &self,
        direction: Direction,
        from: &End,
        to: &End,
        span: Duration,
    ) -> Result<LinkResult, NetemError> {
        let (sent, arrived) = (self.counts(&from.inner)?, self.counts(&to.outer)?);
        let drops = [("queue", sent.drops), ("loss", arrived.drops)];
        let drops: BTreeMap<String, u64> =
            drops.map(|(cause, count)| (cause.to_owned(), count)).into();
        Ok(LinkResult {
            name: self.wire.name.clone(),
            direction: direction.name().to_owned(),
            packets_in: sent.packets + sent.waiting + sent.drops,
            // netem does not report the sizes of what it drops.
            bytes_in: sent.payload(),
            packets_out: arrived.packets,
            bytes_out: arrived.payload(),
            drops,
            marks: 0,
            bytes_sent: sent.payload(),
            capacity_bytes: None,
            span,
            queue_bytes_max: 0,
            lateness: None,
            cpu: None,
        })
    }

    fn counts(&self, device: &str) -> Result<Counts, NetemError> {
        let text = self.run(
            "tc",
            "read the counts of",
            &["-s", "-j", "qdisc", "show", "dev", device, "root"],
        )?;
        let all: Vec<Counts> = serde_json::from_str(&text)
            .map_err(|error| self.failed("read the counts of", io::Error::other(error)))?;
        let missing = || io::Error::other(format!("{device} has no queue"));
        all.into_iter().next().ok_or_else(|| self.failed("read the counts of", missing()))
    }

    fn shape(&self, device: &str, how: &[String]) -> Result<(), NetemError> {
        let mut arguments = vec!["qdisc", "replace", "dev", device, "root", "netem"];
        arguments.extend(how.iter().map(String::as_str));
        self.run("tc", "shape", &arguments).map(drop)
    }

    fn ip(&self, arguments: &[&str]) -> Result<(), NetemError> {
        self.run("ip", "wire up", arguments).map(drop)
    }

    /// Runs a tool of iproute2 in the hub.
    fn run(
        &self,
        tool: &str,
        action: &'static str,
        arguments: &[&str],
    ) -> Result<String, NetemError> {
        let output = self.hub.command(tool).args(arguments).output();
        let output = output.map_err(|source| self.failed(action, source))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = format!("{tool} {}: {}", arguments.join(" "), stderr.trim());
        Err(self.failed(action, io::Error::other(message)))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> NetemError {
        NetemError::Tool { action, link: self.wire.name.clone(), source }
    }
}

/// The arguments of `tc` for rate and queue.
fn before_channel(way: &DirectionPlan, mtu: u32) -> Vec<String> {
    // netem still counts a packet that is being sent.
    let waiting = match way.queue {
        QueueLimit::Bytes(bytes) => bytes.get() / u64::from(mtu.max(1)),
        QueueLimit::Packets(packets) => packets,
    };
    let mut words = vec!["limit".to_owned(), waiting.saturating_add(1).to_string()];
    if let Some(rate) = way.rate.highest() {
        words.extend(["rate".to_owned(), format!("{}bit", rate.bits_per_s())]);
        words.push(format!("-{ETHERNET_HEADER}"));
    } else {
        words[1] = UNDER_WAY_MAX.to_string();
    }
    words
}

/// The arguments of `tc` for delay and loss.
fn on_channel(way: &DirectionPlan) -> Vec<String> {
    let mut words = vec!["limit".to_owned(), UNDER_WAY_MAX.to_string()];
    // Not every `tc` knows nanoseconds by name; all accept fractions.
    let delay = way.delay.shortest().as_ns() as f64 / 1e3;
    words.extend(["delay".to_owned(), format!("{delay}us")]);
    let loss = independent_loss(way).unwrap_or(Loss::NONE);
    if loss != Loss::NONE {
        words.extend(["loss".to_owned(), format!("{}%", loss.probability() * 100.0)]);
    }
    words
}

/// What `tc` reports of a queueing discipline.
#[derive(Debug, Default, Deserialize)]
struct Counts {
    bytes: u64,
    packets: u64,
    drops: u64,
    #[serde(rename = "qlen", default)]
    waiting: u64,
}

impl Counts {
    /// Bytes from the IP header on.
    fn payload(&self) -> u64 {
        self.bytes.saturating_sub(ETHERNET_HEADER * self.packets)
    }
}
