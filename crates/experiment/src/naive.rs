//! Deliberately naive proxies: what a PEP does that acknowledges whatever comes and trusts to luck.
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
//! Its windows say nothing of how full its store is, so it acknowledges data that it may never deliver;
//! when the store is full, the connection that holds the most of it is reset. It exists to be compared
//! with, in simulations and in nodes of the laboratory: no configuration makes a proxy that ships behave so.

use crate::congestion::{CongestionSpec, ProxyLeg, Tuning, resolve_for_proxy};
use crate::plan::MTU;
use crate::spec::Spec;
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_units::{Bytes, Duration, Rate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The largest window without scaling (RFC 9293).
const WINDOW: Bytes = Bytes::new(65_535);
/// The largest window that can be offered (RFC 7323 §2.3).
const WINDOW_MAX: Bytes = Bytes::new(1 << 30);
const TIMERS: std::ops::RangeInclusive<Duration> = Duration::from_ms(10)..=Duration::from_s(60);
const CONGESTION: &str = "reno";

/// A naive proxy as a person writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NaiveSpec {
    /// What may be held of all flows together: acknowledged to the one side and not yet by the other.
    /// One byte more resets the flow that holds the most.
    pub buffer: Bytes,
    /// What its connections over each link are like. Those over other links have only defaults.
    #[serde(default)]
    pub legs: BTreeMap<String, NaiveLegSpec>,
}

/// The connections of a naive proxy over one link, as a person writes it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NaiveLegSpec {
    /// The window that is offered always. Default: 65535 B.
    pub window: Option<Bytes>,
    /// How it sends. Default: `reno`.
    pub congestion: Option<CongestionSpec>,
    /// What the link carries, for congestion controls that want to know.
    pub rate: Option<Rate>,
    /// Whether nothing but a timer of this length finds losses: no selective acknowledgements, no fast
    /// retransmission, no round trip measured for it, and everything outstanding is sent again.
    /// Default: losses are repaired as on any host.
    pub timer: Option<Duration>,
}

/// A naive proxy, with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NaivePlan {
    /// What may be held of all flows together.
    pub buffer: Bytes,
    /// Its connections by link.
    pub legs: BTreeMap<String, NaiveLeg>,
    /// Those over other links.
    pub other: NaiveLeg,
}

/// The connections of a naive proxy over one link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NaiveLeg {
    /// The window that is offered always.
    pub window: Bytes,
    /// Congestion control, and all that it is told.
    pub tuning: Tuning,
    /// What alone finds losses; none: losses are repaired as on any host.
    pub timer: Option<Duration>,
}

impl NaivePlan {
    /// The connections over the link called `link`.
    pub fn leg(&self, link: Option<&str>) -> &NaiveLeg {
        link.and_then(|link| self.legs.get(link)).unwrap_or(&self.other)
    }
}

/// Checks every naive proxy, whether a node names it or not, and gives those that one does.
///
/// # Errors
/// When an amount is out of its range, a leg is no link, or a congestion control is not to be had.
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
        let mut legs = BTreeMap::new();
        for (link, leg) in &written.legs {
            let path = path.join("legs").join(link.as_str());
            if !spec.links.contains_key(link) {
                let hint = suggest::hint(link, "links", spec.links.keys());
                return Err(document.fault(&path, format!("no link is called `{link}`"), hint));
            }
            legs.insert(link.clone(), resolve_leg(link, leg, &path, document)?);
        }
        if used(name) {
            let other = resolve_leg("other", &NaiveLegSpec::default(), &path, document)?;
            plans.insert(name.clone(), NaivePlan { buffer: written.buffer, legs, other });
        }
    }
    Ok(plans)
}

fn resolve_leg(
    link: &str,
    written: &NaiveLegSpec,
    path: &KeyPath,
    document: &Document,
) -> Result<NaiveLeg, ConfigError> {
    let window = written.window.unwrap_or(WINDOW);
    let least = Bytes::new(MTU.into());
    if !(least..=WINDOW_MAX).contains(&window) {
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
        let names = midhop_congestion::Algorithm::ALL.map(midhop_congestion::Algorithm::name);
        let hint = suggest::hint(name, "there are", names.iter());
        document.fault(&path, format!("nobody knows the congestion control `{name}`"), hint)
    })?;
    Ok(NaiveLeg { window, tuning, timer: written.timer })
}
