//! Agents that repair losses on the path by the sequence numbers of passing TCP segments.

use super::{AgentKind, AgentSpec};
use crate::spec::{NO_PEP, NodeSpec, Spec};
use midhop_assist::{DProxySettings, SnoopSettings};
use midhop_units::{Bytes, Duration};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Snoop: one agent before lossy links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Snoop {
    /// The lossy links: what leaves over them is cached.
    pub links: Vec<String>,
    /// Packets that may be cached of all flows together. Unit: bytes.
    pub cache: Bytes,
    /// How many later segments or duplicate acknowledgements must arrive before a segment counts as
    /// lost. Range: ≥ 1.
    pub threshold: u64,
    /// The minimum of the local timer.
    pub timer_min: Duration,
    /// How often a segment is retransmitted from here before it is left to its source.
    pub resends: u32,
    /// Whether it estimates from round trips what a queue behind it drops, as midhopd must, instead
    /// of being informed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub judges_queue: bool,
    /// The most directions of flows for which state is kept.
    pub flows: usize,
    /// How long the state of a flow is kept after its last packet.
    pub idle: Duration,
}

impl Default for Snoop {
    fn default() -> Self {
        let SnoopSettings { cache, threshold, timer_min, resends, judges_queue, flows, idle } =
            SnoopSettings::default();
        Self { links: Vec::new(), cache, threshold, timer_min, resends, judges_queue, flows, idle }
    }
}

/// D-Proxy: one of two agents at the ends of a lossy path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DProxy {
    /// The node of the other agent.
    pub peer: String,
    /// Packets that are kept for the peer, of all flows together. Unit: bytes.
    pub cache: Bytes,
    /// Packets that are held behind gaps, of all flows together. Unit: bytes.
    pub held: Bytes,
    /// How long to wait until a gap is filled.
    pub hold: Duration,
    /// How often the same segment is requested from the peer. Range: ≥ 1.
    pub requests: u32,
    /// Whether it estimates from the delay of segments what a queue between the two drops, as
    /// midhopd must.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub judges_queue: bool,
    /// The most directions of flows for which state is kept, on either side.
    pub flows: usize,
    /// How long the state of a flow is kept after its last packet.
    pub idle: Duration,
}

impl Default for DProxy {
    fn default() -> Self {
        let DProxySettings { cache, held, hold, requests, judges_queue, flows, idle } =
            DProxySettings::default();
        Self { peer: String::new(), cache, held, hold, requests, judges_queue, flows, idle }
    }
}

impl From<&Snoop> for SnoopSettings {
    fn from(plan: &Snoop) -> Self {
        let Snoop { links: _, cache, threshold, timer_min, resends, judges_queue, flows, idle } =
            *plan;
        Self { cache, threshold, timer_min, resends, judges_queue, flows, idle }
    }
}

impl From<&DProxy> for DProxySettings {
    fn from(plan: &DProxy) -> Self {
        let DProxy { peer: _, cache, held, hold, requests, judges_queue, flows, idle } = *plan;
        Self { cache, held, hold, requests, judges_queue, flows, idle }
    }
}

/// A fault of a table: the key, the problem, and a hint.
pub(super) type Wrong = (&'static str, String, Option<String>);

/// A snoop agent before these links.
pub(super) fn snoop(written: &AgentSpec, links: Vec<String>) -> Result<Snoop, Wrong> {
    let default = Snoop::default();
    Ok(Snoop {
        links,
        cache: size("cache", written.cache, default.cache)?,
        threshold: within("threshold", written.threshold, default.threshold, 1..=1000)?,
        timer_min: time("timer_min", written.timer_min, default.timer_min)?,
        resends: within("resends", written.resends, default.resends, 1..=100)?,
        judges_queue: written.judges_queue.unwrap_or(default.judges_queue),
        flows: within("flows", written.flows, default.flows, 1..=1_000_000)?,
        idle: time("idle", written.idle, default.idle)?,
    })
}

/// A D-Proxy whose table is valid; its peer is not known yet.
pub(super) fn d_proxy(written: &AgentSpec) -> Result<DProxy, Wrong> {
    let default = DProxy::default();
    match written.peers.as_deref() {
        Some([one, other]) if one != other => {}
        peers => {
            let hint = Some("name the two nodes: peers = [\"gateway\", \"terminal\"]".to_owned());
            let key = if peers.is_some() { "peers" } else { "kind" };
            return Err((key, "a D-Proxy works between two nodes".to_owned(), hint));
        }
    }
    Ok(DProxy {
        peer: default.peer,
        cache: size("cache", written.cache, default.cache)?,
        held: size("held", written.held, default.held)?,
        hold: time("hold", written.hold, default.hold)?,
        requests: within("requests", written.requests, default.requests, 1..=100)?,
        judges_queue: written.judges_queue.unwrap_or(default.judges_queue),
        flows: within("flows", written.flows, default.flows, 1..=1_000_000)?,
        idle: time("idle", written.idle, default.idle)?,
    })
}

/// The node of a D-Proxy's other half.
///
/// # Errors
/// The problem with the places of the two, and a hint.
pub(super) fn peer(
    spec: &Spec,
    node: &str,
    agent: &str,
    written: &AgentSpec,
) -> Result<String, (String, Option<String>)> {
    let peers = written.peers.as_deref().unwrap_or_default();
    if !peers.iter().any(|peer| peer == node) {
        let hint = Some(format!("its `peers` are {}", peers.join(" and ")));
        return Err((format!("`{agent}` does not work at `{node}`"), hint));
    }
    let peer = peers.iter().find(|peer| *peer != node).cloned().unwrap_or_default();
    match spec.nodes.get(&peer) {
        Some(there) if there.agents.iter().any(|name| name == agent) => Ok(peer),
        Some(_) => {
            let hint = Some(format!("write `{peer} = {{ agents = [\"{agent}\"] }}` as well"));
            Err((format!("`{agent}` has no other half at `{peer}`"), hint))
        }
        None => {
            Err((format!("the other half of `{agent}` is at `{peer}`, which is no node"), None))
        }
    }
}

/// Why an agent of this kind cannot be at a node.
pub(super) fn refusal(
    node: &NodeSpec,
    agent: &str,
    kind: AgentKind,
) -> Option<(String, Option<String>)> {
    let proxy = node.pep.as_ref().is_some_and(|pep| pep != NO_PEP);
    let reads_numbers = matches!(kind, AgentKind::Snoop | AgentKind::DProxy);
    (proxy && reads_numbers).then(|| {
        let pep = node.pep.as_deref().unwrap_or_default();
        let what = format!(
            "`{agent}` cannot repair flows at the node of the proxy `{pep}`, which ends them there"
        );
        (what, Some("put it at the next node beside the proxy's".to_owned()))
    })
}

fn size(key: &'static str, written: Option<Bytes>, default: Bytes) -> Result<Bytes, Wrong> {
    match written {
        Some(size) if size < Bytes::new(1500) => {
            Err((key, format!("{size} hold no packet"), Some("at least 1500 B".to_owned())))
        }
        written => Ok(written.unwrap_or(default)),
    }
}

fn time(
    key: &'static str,
    written: Option<Duration>,
    default: Duration,
) -> Result<Duration, Wrong> {
    match written {
        Some(time) if !(Duration::from_ms(1)..=Duration::from_s(3600)).contains(&time) => {
            Err((key, format!("{time} is out of range"), Some("from 1 ms to 1 h".to_owned())))
        }
        written => Ok(written.unwrap_or(default)),
    }
}

fn within<T: PartialOrd + Copy + std::fmt::Display>(
    key: &'static str,
    written: Option<T>,
    default: T,
    range: RangeInclusive<T>,
) -> Result<T, Wrong> {
    match written {
        Some(value) if !range.contains(&value) => {
            let hint = Some(format!("from {} to {}", range.start(), range.end()));
            Err((key, format!("{value} is out of range"), hint))
        }
        written => Ok(written.unwrap_or(default)),
    }
}
