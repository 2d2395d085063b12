//! Handovers: a host leaves its link to one node and takes one to another, and with it the proxy
//! there.
//!
//! ```toml
//! [[handovers]]
//! at = "20 s"                 # again and again with `every`
//! from = "sat-a"
//! to = "sat-b"
//! leaves = "user-a"           # from a host to `from`: unused from now on
//! takes = "user-b"            # from the same host to `to`: unused before
//! announced = "2 s"           # so long before, both proxies know of it
//! flows = "moved"             # what becomes of live flows
//! over = "isl"                # the way of their state
//! outage = "50 ms"            # how long the host is without a link
//! ```
//!
//! A setting satellite is one example, a gateway that fails over another. The links in use follow
//! from the handovers alone ([`Timeline`]): a link that a handover takes is not in use before it,
//! one that it leaves not after it. Routes are the shortest ones over links in use.
//!
//! Invariant: at every moment of a run, all transfers and cross traffic have a path.
//!
//! Decision 0055.

mod check;
mod result;
mod timeline;
mod waits;

pub(crate) use check::resolve;
pub use result::{Freezes, HandoversResult};
pub use timeline::{Moment, Timeline};
pub use waits::Waits;

use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize};

/// A handover as a person writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandoverSpec {
    /// When it takes place, after the run's start.
    pub at: Duration,
    /// The interval at which it is repeated. By then, other handovers must have put the link that
    /// it leaves into use again. Default: it takes place once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// The node that is left.
    pub from: String,
    /// The node that takes over. If `from` has a proxy, it has one too.
    pub to: String,
    /// The link to `from` that is left: after the handover it carries nothing.
    pub leaves: String,
    /// The link to `to` that is taken, from the same host: before the handover it carries nothing.
    pub takes: String,
    /// How long in advance it is announced to both proxies. From then on, state of flows that will
    /// move is copied, and a drained proxy takes no new flows. Default: it is not announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<Duration>,
    /// What happens to flows that are live at the proxy on `from`. Default: `reset`.
    #[serde(default)]
    pub flows: LiveFlows,
    /// The path from `from` to `to`, for the state of flows that move and the packets of flows that
    /// stay. It is the name of a link between the two nodes. State may also have a path of its own,
    /// `{ rate = "1 Gbit/s", delay = "10 ms" }`, which carries no packets. Default: the link
    /// between the two, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<StateWay>,
    /// How long the host is without a link: packets sent over the link that it takes are lost.
    /// Default: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Duration>,
    /// How long flows of a drained proxy may continue after the handover; then they are reset.
    /// Default: 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Duration>,
    /// The size of a flow's state, in addition to the bytes in its buffers: both connections, and
    /// the decision about the flow. Default: 1 kB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Bytes>,
}

/// What happens to flows that are live at a proxy when its node is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LiveFlows {
    /// Their state moves to the other proxy. Meanwhile they stand still; then they continue there.
    Moved,
    /// Both of their ends are reset.
    #[default]
    Reset,
    /// From the announcement on, new flows bypass the proxy. After the handover, the others stay
    /// where they are, and their packets take the path `over` there, until they end or `drain` is
    /// over: then they are reset.
    Drained,
    /// They stay where they are until they end, and their packets take the path `over` there.
    Anchored,
}

impl LiveFlows {
    /// The name in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Reset => "reset",
            Self::Drained => "drained",
            Self::Anchored => "anchored",
        }
    }
}

/// The path of state from one proxy to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a link's name, or a table { rate = …, delay = … }")]
pub enum StateWay {
    /// A link of the scenario, with its rate and delay at the time.
    Link(String),
    /// A path of its own.
    Own(OwnWay),
}

/// A path of state that is no link of the scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OwnWay {
    /// Its rate.
    pub rate: Rate,
    /// Its delay, one way.
    pub delay: Duration,
}

impl StateWay {
    /// The link of the scenario, where it is one.
    pub fn link(&self) -> Option<&str> {
        match self {
            Self::Link(name) => Some(name),
            Self::Own(_) => None,
        }
    }
}

/// A handover, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HandoverPlan {
    /// When it first takes place, after the run's start.
    pub at: Duration,
    /// The interval at which it is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// The node that is left.
    pub from: String,
    /// The node that takes over.
    pub to: String,
    /// The link to `from` that is left.
    pub leaves: String,
    /// The link to `to` that is taken.
    pub takes: String,
    /// How long in advance it is announced.
    pub announced: Duration,
    /// What happens to live flows.
    pub flows: LiveFlows,
    /// The path from `from` to `to`; none if it needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<StateWay>,
    /// How long the host is without a link.
    pub outage: Duration,
    /// How long flows of a drained proxy may continue.
    pub drain: Duration,
    /// The size of a flow's state, in addition to the bytes in its buffers.
    pub state: Bytes,
}
