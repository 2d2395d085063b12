//! Deliberately naive proxies: a PEP that acknowledges everything that arrives, whether or not it
//! can deliver it.
//!
//! ```toml
//! [nodes]
//! gateway = { pep = "box" }
//!
//! [naive.box]
//! buffer = "1 MB"
//! legs.internet = { window = "18750 B" }
//! legs.satellite = { congestion = "cubic", timer = "1 s" }
//! ```
//!
//! Its windows do not depend on how full its store is, so it acknowledges data that it may never
//! deliver. When the store is full, the connection that holds the most of it is reset. It exists
//! for comparison, in simulations and on nodes of the laboratory: no configuration makes the
//! shipped proxy behave like this.
//!
//! With `holds = "each"` it is a proxy of the open kind that studies used instead, which stops
//! reading. Further known properties of PEPsal are one option each, after its sources
//! (github.com/CNES/pepsal). It accepts before it connects (`accept`; `listener.c`: `accept`, then
//! `connect`). It holds two pages of each direction (`pepdefs.h`: `PEPBUF_PAGES`). It has its
//! congestion control and a cork on outgoing sockets only (`dialled`, `cork`; `pep.c`:
//! `--congestion-algo`, `--cork`). Its server sees the proxy's address, which has no effect in a
//! simulation.
//!
//! With `forwards = "bundles"` it is a hop of a store-and-forward network: data crosses the next
//! leg once all of it has arrived.

use crate::bounds::MTU;
use crate::congestion::{CongestionSpec, ProxyLeg, Tuning, resolve_for_proxy};
use crate::spec::Spec;
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The largest window without scaling (RFC 9293).
const WINDOW: Bytes = Bytes::new(65_535);
/// The largest window that can be offered (RFC 7323 §2.3).
const WINDOW_MAX: Bytes = Bytes::new(1 << 30);
const TIMERS: std::ops::RangeInclusive<Duration> = Duration::from_ms(10)..=Duration::from_s(60);
const CONGESTION: &str = "reno";
/// The host's default.
const HOST_CONGESTION: &str = midhop_congestion::Algorithm::Cubic.name();

/// A naive proxy as a person writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NaiveSpec {
    /// The most data that may be held: acknowledged to one side, but not yet by the other. `holds`
    /// determines whose data share it, and what happens beyond it.
    pub buffer: Bytes,
    /// Who shares the buffer. Default: `all`.
    #[serde(default)]
    pub holds: Holds,
    /// When the client is answered. Default: `early`.
    #[serde(default)]
    pub accept: NaiveAccept,
    /// Whether the congestion control of `legs` applies only to connections that the proxy opens;
    /// those that it accepts then have the host's default, `cubic`. Default: it applies to all.
    #[serde(default)]
    pub dialled: bool,
    /// Whether the connections that the proxy opens send only full segments; less data wait for
    /// more, for the end, or for 200 ms. Default: data leave at once.
    #[serde(default)]
    pub cork: bool,
    /// How much data must have arrived before any of them are forwarded. Default: `stream`.
    #[serde(default)]
    pub forwards: Forwards,
    /// Its connections over each link. Those over other links have only defaults.
    #[serde(default)]
    pub legs: BTreeMap<String, NaiveLegSpec>,
}

/// Who shares the buffer of a naive proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// All flows together; one byte beyond it resets the flow that holds the most.
    #[default]
    All,
    /// Each direction of each flow has its own between its sockets; data that find no room stay
    /// with their sender.
    Each,
}

/// How much data must have arrived before a naive proxy forwards any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Forwards {
    /// Any amount: bytes are forwarded as they arrive.
    #[default]
    Stream,
    /// All of them, as in a hop that stores and forwards: until the sender ends, sends nothing for
    /// 200 ms, or has filled the buffer.
    Bundles,
}

/// When a naive proxy answers a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NaiveAccept {
    /// At once.
    #[default]
    Early,
    /// When the server has answered.
    AfterConnect,
}

/// The connections of a naive proxy over one link, as a person writes it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NaiveLegSpec {
    /// The window that is always offered. Default: 65535 B; with `holds = "each"`, the window that
    /// the host finds by measuring.
    pub window: Option<Bytes>,
    /// Its congestion control. Default: `reno`.
    pub congestion: Option<CongestionSpec>,
    /// The rate of the link, for congestion controls that need it.
    pub rate: Option<Rate>,
    /// If set, only a timer of this length detects losses: no selective acknowledgements, no fast
    /// retransmission, no round trip measured for it, and all outstanding data are retransmitted.
    /// Default: losses are repaired as on any host.
    pub timer: Option<Duration>,
}

/// A naive proxy, with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NaivePlan {
    /// The most data that may be held.
    pub buffer: Bytes,
    /// Who shares it.
    #[serde(default)]
    pub holds: Holds,
    /// When the client is answered.
    #[serde(default)]
    pub accept: NaiveAccept,
    /// The congestion control of connections that it accepts; none: that of connections that it
    /// opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<Tuning>,
    /// Whether connections that it opens send only full segments.
    #[serde(default)]
    pub cork: bool,
    /// How much data must have arrived before any of them are forwarded.
    #[serde(default)]
    pub forwards: Forwards,
    /// Its connections by link.
    pub legs: BTreeMap<String, NaiveLeg>,
    /// Its connections over other links.
    pub other: NaiveLeg,
}

/// The connections of a naive proxy over one link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NaiveLeg {
    /// The window that is always offered; none: the one that the host finds by measuring.
    pub window: Option<Bytes>,
    /// Congestion control and its parameters.
    pub tuning: Tuning,
    /// The timer that alone detects losses; none: losses are repaired as on any host.
    pub timer: Option<Duration>,
}

impl NaivePlan {
    /// The connections over the link called `link`.
    pub fn leg(&self, link: Option<&str>) -> &NaiveLeg {
        link.and_then(|link| self.legs.get(link)).unwrap_or(&self.other)
    }
}

/// Checks every naive proxy, whether a node names it or not, and returns those that a node names.
///
/// # Errors
/// When an amount is out of range, a leg is no link, or a congestion control is not available.
pub(crate) fn resolve(
    spec: &Spec,
    document: &Document,
) -> Result<BTreeMap<String, NaivePlan>, ConfigError> {
    let used = |name: &str| spec.nodes.values().any(|node| node.pep.as_deref() == Some(name));
    let mut plans = BTreeMap::new();
    for (name, written) in &spec.naive {
        let path = KeyPath::of(["naive", name.as_str()]);
        if spec.peps.contains_key(name) {
            let hint = Some("give one of them another name".to_owned());
            let message = format!("`{name}` is a table of [peps] too");
            return Err(document.fault(&path, message, hint));
        }
        let least = Bytes::new(MTU.into());
        if written.buffer < least {
            let message = format!("{} hold no packet", written.buffer);
            return Err(document.fault(
                &path.join("buffer"),
                message,
                Some(format!("at least {MTU} B")),
            ));
        }
        if (written.holds, written.forwards) == (Holds::All, Forwards::Bundles) {
            let message =
                "a store of all flows that overflows would never forward a bundle that is larger";
            let hint = Some("holds = \"each\": a flow's buffer is its largest bundle".to_owned());
            return Err(document.fault(&path.join("forwards"), message, hint));
        }
        let mut legs = BTreeMap::new();
        for (link, leg) in &written.legs {
            let path = path.join("legs").join(link.as_str());
            if !spec.links.contains_key(link) {
                let hint = suggest::hint(link, "links", spec.links.keys());
                return Err(document.fault(&path, format!("no link is called `{link}`"), hint));
            }
            legs.insert(link.clone(), resolve_leg(link, leg, written.holds, &path, document)?);
        }
        if used(name) {
            let plain = NaiveLegSpec::default();
            let other = resolve_leg("other", &plain, written.holds, &path, document)?;
            let host = NaiveLegSpec { congestion: Some(HOST_CONGESTION.into()), ..plain };
            let host = resolve_leg("other", &host, written.holds, &path, document)?;
            let accepted = written.dialled.then_some(host.tuning);
            let &NaiveSpec { buffer, holds, accept, cork, forwards, .. } = written;
            plans.insert(
                name.clone(),
                NaivePlan { buffer, holds, accept, accepted, cork, forwards, legs, other },
            );
        }
    }
    Ok(plans)
}

fn resolve_leg(
    link: &str,
    written: &NaiveLegSpec,
    holds: Holds,
    path: &KeyPath,
    document: &Document,
) -> Result<NaiveLeg, ConfigError> {
    let window = written.window.or((holds == Holds::All).then_some(WINDOW));
    let least = Bytes::new(MTU.into());
    if let Some(window) = window.filter(|window| !(least..=WINDOW_MAX).contains(window)) {
        let hint = Some(format!("{MTU} B to 1 GiB"));
        let message = format!("a window of {window} is impossible");
        return Err(document.fault(&path.join("window"), message, hint));
    }
    if let Some(timer) = written.timer.filter(|timer| !TIMERS.contains(timer)) {
        let hint = Some(format!("{} to {}", TIMERS.start(), TIMERS.end()));
        let message = format!("a timer of {timer} is out of range");
        return Err(document.fault(&path.join("timer"), message, hint));
    }
    let congestion = written.congestion.clone().unwrap_or_else(|| CONGESTION.into());
    let path = path.join("congestion");
    let leg = ProxyLeg { name: link.to_owned(), rate: written.rate, ..ProxyLeg::default() };
    let tuning = resolve_for_proxy(&congestion, &path, &leg, document)?;
    let tuning = tuning.ok_or_else(|| {
        let name = &congestion.algorithm;
        let hint = suggest::hint(name, "there are", midhop_congestion::Algorithm::names());
        document.fault(&path, format!("there is no congestion control `{name}`"), hint)
    })?;
    Ok(NaiveLeg { window, tuning, timer: written.timer })
}
