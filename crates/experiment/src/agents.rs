//! Agents on the path: what may stand at nodes besides a proxy and process their packets.
//!
//! ```toml
//! [nodes]
//! terminal = { agents = ["thin"] }
//!
//! [agents.thin]
//! kind = "ack-filter"
//! links = ["satellite"]
//! ```
//!
//! A table of the file is an [`AgentSpec`]. For each node that names it, it becomes a
//! [`PlannedAgent`], checked and with its defaults filled in. A kind refuses keys that it does not
//! use, so that no key is ignored silently.

mod repair;

pub use repair::{DProxy, Snoop};

use crate::own_keys::{self, Key};
use crate::spec::{NodeSpec, Spec};
use midhop_assist::{AckDecimationSettings, AckSpacingSettings};
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize};

/// The most agents at a node.
const AGENTS_MAX: usize = 16;

/// An agent as a person writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// What it does.
    pub kind: AgentKind,
    /// `ack-filter`, `snoop`, `ack-decimation`: the links before which it acts; `ack-spacing`: the
    /// links over which the ACKs arrive. Default: all links of its node.
    pub links: Option<Vec<String>>,
    /// `ack-filter`: what happens to ACKs with SACK blocks. Default: `covered`.
    pub sack: Option<SackRule>,
    /// `d-proxy`: the two nodes between which it works; both name this agent.
    pub peers: Option<Vec<String>>,
    /// `snoop`, `d-proxy`: data that may be kept for retransmission. Default: 4 MB.
    pub cache: Option<Bytes>,
    /// `snoop`: how many later segments must arrive before one counts as lost. Default: 3.
    pub threshold: Option<u64>,
    /// `snoop`: the minimum of its timer. Default: 100 ms.
    pub timer_min: Option<Duration>,
    /// `snoop`: how often a segment is retransmitted. Default: 10.
    pub resends: Option<u32>,
    /// `snoop`, `d-proxy`: whether it estimates from round trips what a queue on the lossy path
    /// drops, as midhopd must, instead of being informed. Default: false.
    pub judges_queue: Option<bool>,
    /// `d-proxy`: data that may be held behind gaps. Default: 4 MB.
    pub held: Option<Bytes>,
    /// `d-proxy`: how long to wait until a gap is filled. Default: 1 s. `ack-decimation`: how long
    /// after the first suppressed ACK the latest one is forwarded after all; zero: never. Default:
    /// 50 ms.
    pub hold: Option<Duration>,
    /// `d-proxy`: how often the same segment is requested. Default: 3.
    pub requests: Option<u32>,
    /// `snoop`, `d-proxy`: the most directions of flows for which it keeps state. Default: 10000.
    pub flows: Option<usize>,
    /// `snoop`, `d-proxy`: how long the state of a flow is kept after its last packet. Default: 2
    /// min.
    pub idle: Option<Duration>,
    /// `ack-decimation`: of this many ACKs, one is forwarded. Range: 2 to 64. Default: 4.
    pub keep_one_in: Option<u32>,
    /// `ack-spacing`: the rate at which the data leave that ACKs release; an ACK waits until the
    /// data that earlier ones released have left. Default: none, ACKs do not wait for them.
    pub rate: Option<Rate>,
    /// `ack-spacing`: bytes from one reconstructed ACK to the next. Default: none are
    /// reconstructed.
    pub rebuild: Option<Bytes>,
    /// `ack-spacing`: the longest time for which an ACK is held back. Default: 100 ms.
    pub delay_max: Option<Duration>,
    /// `ack-spacing`: the most ACKs of a flow that are held back. Range: 2 to 4096. Default: 256.
    pub waiting_max: Option<u32>,
}

/// What an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AgentKind {
    /// Drops acknowledgements that are superfluous because of later ones in the same queue.
    AckFilter,
    /// Repairs losses behind it from a cache, and hides them from the source.
    Snoop,
    /// One of two agents that together repair losses between them.
    DProxy,
    /// Forwards only one of several acknowledgements.
    AckDecimation,
    /// Spaces acknowledgements that arrived in a burst evenly, and reconstructs missing ones.
    AckSpacing,
}

/// An agent at a node, with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlannedAgent {
    /// Its name.
    pub name: String,
    /// What it does, in numbers.
    pub role: Role,
}

/// What an agent does, in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Role {
    /// See [`AgentKind::AckFilter`].
    AckFilter(AckFilter),
    /// See [`AgentKind::Snoop`].
    Snoop(Snoop),
    /// See [`AgentKind::DProxy`].
    DProxy(DProxy),
    /// See [`AgentKind::AckDecimation`].
    AckDecimation(AckDecimation),
    /// See [`AgentKind::AckSpacing`].
    AckSpacing(AckSpacing),
}

/// ACK decimation (RFC 3449 §5.2.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AckDecimation {
    /// The links over which the ACKs leave on which it acts.
    pub links: Vec<String>,
    /// Of this many ACKs, one is forwarded.
    pub keep_one_in: u32,
    /// How long after the first suppressed ACK the latest one is forwarded after all; zero: never.
    pub hold: Duration,
}

/// ACK spacing and reconstruction (RFC 3449 §5.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AckSpacing {
    /// The links over which the ACKs arrive on which it acts.
    pub links: Vec<String>,
    /// The rate at which the data leave that ACKs release; none: ACKs do not wait for them.
    pub rate: Option<Rate>,
    /// Bytes from one reconstructed ACK to the next.
    pub rebuild: Option<Bytes>,
    /// The longest time for which an ACK is held back.
    pub delay_max: Duration,
    /// The most ACKs of a flow that are held back.
    pub waiting_max: u32,
}

impl From<&AckDecimation> for AckDecimationSettings {
    fn from(plan: &AckDecimation) -> Self {
        Self { keep_one_in: plan.keep_one_in, hold: plan.hold }
    }
}

impl From<&AckSpacing> for AckSpacingSettings {
    fn from(plan: &AckSpacing) -> Self {
        let AckSpacing { links: _, rate, rebuild, delay_max, waiting_max } = *plan;
        Self { rate, rebuild, delay_max, waiting_max }
    }
}

/// ACK filtering (RFC 3449 §5.2.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AckFilter {
    /// The links before which it acts.
    pub links: Vec<String>,
    /// What happens to ACKs with SACK blocks.
    pub sack: SackRule,
}

/// What an ACK filter does with acknowledgements that carry SACK blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SackRule {
    /// Drops those whose blocks the later one covers.
    #[default]
    Covered,
    /// Drops none of them.
    Keep,
}

/// Checks every agent's table by itself, whether a node names it or not.
///
/// # Errors
/// When a key is missing, out of range, or belongs to another kind.
pub(crate) fn check(spec: &Spec, document: &Document) -> Result<(), ConfigError> {
    spec.agents.iter().try_for_each(|(name, written)| {
        let path = KeyPath::of(["agents", name.as_str()]);
        let links = written.links.clone().unwrap_or_default();
        if name.is_empty()
            || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')
        {
            let hint = Some("letters, digits, '-' and '_'".to_owned());
            return Err(document.fault(&path, format!("`{name}` is no name for an agent"), hint));
        }
        let nowhere = written.links.as_ref().is_some_and(Vec::is_empty);
        Reader { written, path: &path, document }.role(links)?;
        if nowhere {
            let hint = Some("leave `links` out for all of its node's".to_owned());
            let message = "without links it would do nothing";
            return Err(document.fault(&path.join("links"), message, hint));
        }
        Ok(())
    })
}

/// The agents of a node, in order.
///
/// # Errors
/// When one is not defined, is named twice, or cannot be at this node.
pub(crate) fn of_node(
    spec: &Spec,
    name: &str,
    node: &NodeSpec,
    document: &Document,
) -> Result<Vec<PlannedAgent>, ConfigError> {
    let place = KeyPath::of(["nodes", name, "agents"]);
    if node.agents.len() > AGENTS_MAX {
        let message = format!("{} agents are too many", node.agents.len());
        return Err(document.fault(&place, message, Some(format!("at most {AGENTS_MAX}"))));
    }
    let own: Vec<&String> = spec
        .links
        .iter()
        .filter(|(_, link)| link.between.iter().any(|end| end == name))
        .map(|(link, _)| link)
        .collect();
    let mut agents: Vec<PlannedAgent> = Vec::new();
    for (at, agent) in node.agents.iter().enumerate() {
        let place = place.join(at.to_string());
        let fault = |message: String, hint| Err(document.fault(&place, message, hint));
        let Some(written) = spec.agents.get(agent) else {
            let hint = suggest::hint(agent, "defined", spec.agents.keys())
                .unwrap_or_else(|| format!("write a table [agents.{agent}]"));
            return fault(format!("no agent `{agent}` is defined"), Some(hint));
        };
        if node.agents[..at].contains(agent) {
            return fault(format!("`{agent}` is there twice"), None);
        }
        let path = KeyPath::of(["agents", agent.as_str()]);
        let links = match &written.links {
            None => own.iter().map(|link| (*link).clone()).collect(),
            Some(links) => links.clone(),
        };
        if let Some((at, link)) = links.iter().enumerate().find(|(_, link)| !own.contains(link)) {
            let hint = suggest::hint(link, "its links", &own);
            let message = format!("no link of `{name}` is called `{link}`");
            return Err(document.fault(&path.join("links").join(at.to_string()), message, hint));
        }
        if let Some((message, hint)) = repair::refusal(node, agent, written.kind) {
            return Err(document.fault(&place, message, hint));
        }
        let mut role = Reader { written, path: &path, document }.role(links)?;
        if let Role::DProxy(half) = &mut role {
            half.peer = repair::peer(spec, name, agent, written)
                .map_err(|(message, hint)| document.fault(&place, message, hint))?;
        }
        let filters = |agent: &PlannedAgent| matches!(agent.role, Role::AckFilter(_));
        if matches!(role, Role::AckFilter(_)) && agents.iter().any(filters) {
            let hint = "one ack-filter looks into the queues of all its `links`".to_owned();
            return fault("a second ack-filter at the same node".to_owned(), Some(hint));
        }
        agents.push(PlannedAgent { name: agent.clone(), role });
    }
    Ok(agents)
}

struct Reader<'r> {
    written: &'r AgentSpec,
    path: &'r KeyPath,
    document: &'r Document,
}

impl Reader<'_> {
    /// The role that the table describes, at a node where its `links` are these.
    fn role(&self, links: Vec<String>) -> Result<Role, ConfigError> {
        self.only_its_own_keys()?;
        let written = self.written;
        Ok(match written.kind {
            AgentKind::AckFilter => {
                Role::AckFilter(AckFilter { links, sack: written.sack.unwrap_or_default() })
            }
            AgentKind::Snoop => {
                let snoop = repair::snoop(written, links);
                Role::Snoop(snoop.map_err(|(key, what, hint)| self.fault(key, what, hint))?)
            }
            AgentKind::DProxy => {
                let half = repair::d_proxy(written);
                Role::DProxy(half.map_err(|(key, what, hint)| self.fault(key, what, hint))?)
            }
            AgentKind::AckDecimation => {
                let default = AckDecimationSettings::default();
                let decimation = AckDecimation {
                    links,
                    keep_one_in: written.keep_one_in.unwrap_or(default.keep_one_in),
                    hold: written.hold.unwrap_or(default.hold),
                };
                self.checked(AckDecimationSettings::from(&decimation).check())?;
                Role::AckDecimation(decimation)
            }
            AgentKind::AckSpacing => {
                let default = AckSpacingSettings::default();
                let spacing = AckSpacing {
                    links,
                    rate: written.rate,
                    rebuild: written.rebuild,
                    delay_max: written.delay_max.unwrap_or(default.delay_max),
                    waiting_max: written.waiting_max.unwrap_or(default.waiting_max),
                };
                self.checked(AckSpacingSettings::from(&spacing).check())?;
                Role::AckSpacing(spacing)
            }
        })
    }

    fn checked(&self, outcome: Result<(), midhop_assist::Fault>) -> Result<(), ConfigError> {
        outcome.map_err(|fault| {
            // A key that is not written has no place in the file.
            let key = self.path.join(fault.key);
            let is_there = self.document.get(&key).is_some();
            let place = if is_there { &key } else { self.path };
            self.document.fault(place, fault.what, Some(fault.hint))
        })
    }

    fn fault(&self, key: &str, message: impl Into<String>, hint: Option<String>) -> ConfigError {
        self.document.fault(&self.path.join(key), message.into(), hint)
    }

    fn only_its_own_keys(&self) -> Result<(), ConfigError> {
        use AgentKind::{AckDecimation, AckFilter, AckSpacing, DProxy, Snoop};
        let written = self.written;
        let keys: [Key<'_, AgentKind>; 18] = [
            ("links", written.links.is_some(), &[AckFilter, Snoop, AckDecimation, AckSpacing]),
            ("sack", written.sack.is_some(), &[AckFilter]),
            ("peers", written.peers.is_some(), &[DProxy]),
            ("cache", written.cache.is_some(), &[Snoop, DProxy]),
            ("threshold", written.threshold.is_some(), &[Snoop]),
            ("timer_min", written.timer_min.is_some(), &[Snoop]),
            ("resends", written.resends.is_some(), &[Snoop]),
            ("judges_queue", written.judges_queue.is_some(), &[Snoop]),
            ("held", written.held.is_some(), &[DProxy]),
            ("hold", written.hold.is_some(), &[DProxy, AckDecimation]),
            ("requests", written.requests.is_some(), &[DProxy]),
            ("flows", written.flows.is_some(), &[Snoop, DProxy]),
            ("idle", written.idle.is_some(), &[Snoop, DProxy]),
            ("keep_one_in", written.keep_one_in.is_some(), &[AckDecimation]),
            ("rate", written.rate.is_some(), &[AckSpacing]),
            ("rebuild", written.rebuild.is_some(), &[AckSpacing]),
            ("delay_max", written.delay_max.is_some(), &[AckSpacing]),
            ("waiting_max", written.waiting_max.is_some(), &[AckSpacing]),
        ];
        match own_keys::foreign(&written.kind, &keys) {
            None => Ok(()),
            Some((key, own)) => {
                let message = "this kind of agent has no such key";
                Err(self.fault(key, message, Some(own_keys::hint(&own))))
            }
        }
    }
}
