//! Congestion control in the legs of a scenario's proxies.
//!
//! A leg's `congestion` is a name, as in a file of midhopd. A simulation also accepts a table, as
//! for transfers. The table need not repeat what the leg itself has (`rate`, `rtt0`, `start`).
//!
//! ```toml
//! [peps.gw]
//! legs.satellite = { congestion = { algorithm = "known-rate", window = 2 }, rate = "20 Mbit/s" }
//! ```

use super::{CongestionSpec, Tuning, resolve::resolve_for_proxy};
use crate::plan::Plan;
use midhop_config::{ConfigError, Document, KeyPath};
use midhop_units::{Duration, Rate};

/// The parameters of a proxy's leg that its congestion control needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyLeg {
    /// The leg's name.
    pub name: String,
    /// The rate of its link away from the proxy, if it is given.
    pub rate: Option<Rate>,
    /// The rate towards the proxy.
    pub rate_in: Option<Rate>,
    /// Hybla's reference round-trip time.
    pub rtt0: Option<Duration>,
    /// Whether a flow starts at a known rate.
    pub start_at_rate: bool,
    /// Whether the queue of its link is an XCP router.
    pub answers_xcp: bool,
}

impl ProxyLeg {
    /// The tuning of `written` for the leg's connections; none for a name that only some kernel may
    /// have.
    ///
    /// # Errors
    /// When a key or value does not fit the algorithm, or the leg lacks what it needs.
    pub fn tuning(&self, written: &CongestionSpec) -> Result<Option<Tuning>, ConfigError> {
        let path = KeyPath::of(["legs", self.name.as_str(), "congestion"]);
        resolve_for_proxy(written, &path, self, &Document::parse("the plan", "")?)
    }
}

/// Checks the congestion control tables of all proxies that run.
///
/// # Errors
/// At the first key that is not valid.
pub(crate) fn check_legs(plan: &Plan, document: &Document) -> Result<(), ConfigError> {
    for node in &plan.nodes {
        let Some((name, pep)) =
            node.pep.as_ref().and_then(|name| Some((name, plan.peps.get(name)?)))
        else {
            continue;
        };
        for (leg, written) in pep.leg_tables() {
            let path = KeyPath::of(["peps", name, "legs", leg, "congestion"]);
            let configured = pep.config().legs.get(leg).cloned().unwrap_or_default();
            let link = configured.interface.as_deref().unwrap_or(leg);
            let leg = ProxyLeg {
                name: leg.clone(),
                rate: configured.rate,
                rate_in: configured.rate_in,
                rtt0: configured.rtt0,
                start_at_rate: false,
                answers_xcp: plan.answers_xcp(&node.name, link),
            };
            if resolve_for_proxy(written, &path, &leg, document)?.is_none() {
                let message = format!("no algorithm of ours is called `{}`", written.algorithm);
                return Err(document.fault(&path.join("algorithm"), message, None));
            }
        }
    }
    Ok(())
}
