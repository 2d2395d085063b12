//! Congestion control in the legs of a scenario's proxies.
//!
//! A leg's `congestion` is a name, as in a file of midhopd. A simulation takes a table too, as
//! transfers do; what the leg says itself (`rate`, `rtt0`, `start`) the table need not repeat.
//!
//! ```toml
//! [peps.gw]
//! legs.satellite = { congestion = { algorithm = "known-rate", window = 2 }, rate = "20 Mbit/s" }
//! ```

use super::{CongestionSpec, Tuning, resolve::resolve_for_proxy};
use crate::plan::Plan;
use midhop_config::tree::Table;
use midhop_config::{ConfigError, Document, KeyPath};
use midhop_units::{Duration, Rate};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a proxy's leg says that its congestion control needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyLeg {
    /// The leg's name.
    pub name: String,
    /// What its link carries away from the proxy, where it is said.
    pub rate: Option<Rate>,
    /// What it carries towards it.
    pub rate_in: Option<Rate>,
    /// Hybla's reference round-trip time.
    pub rtt0: Option<Duration>,
    /// Whether a flow begins at a known rate.
    pub start_at_rate: bool,
    /// Whether the queue of its link answers XCP.
    pub answers_xcp: bool,
}

impl ProxyLeg {
    /// What `written` means for the leg's connections; none for a name that some kernel may know.
    ///
    /// # Errors
    /// When a key or value is not for the algorithm, or the leg lacks what it needs.
    pub fn tuning(&self, written: &CongestionSpec) -> Result<Option<Tuning>, ConfigError> {
        let path = KeyPath::of(["legs", self.name.as_str(), "congestion"]);
        resolve_for_proxy(written, &path, self, &Document::parse("the plan", "")?)
    }
}

/// The tables of congestion control that a proxy's configuration has and midhopd's has not.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LegTables(BTreeMap<String, CongestionSpec>);

impl LegTables {
    /// Takes them out of `configuration`: each leaves its algorithm's name in its place.
    ///
    /// # Errors
    /// The leg whose table is none.
    pub fn take(configuration: &mut toml::Table) -> Result<Self, toml::de::Error> {
        let mut tables = BTreeMap::new();
        for (name, congestion) in legs_with_tables(configuration) {
            let spec = CongestionSpec::deserialize(congestion.clone())?;
            *congestion = toml::Value::String(spec.algorithm.clone());
            tables.insert(name.clone(), spec);
        }
        Ok(Self(tables))
    }

    /// What the leg called `name` is told, where it is more than a name.
    pub fn leg(&self, name: &str) -> Option<&CongestionSpec> {
        self.0.get(name)
    }
}

fn legs_with_tables(
    configuration: &mut toml::Table,
) -> impl Iterator<Item = (&String, &mut toml::Value)> {
    let legs = configuration.get_mut("legs").and_then(|legs| legs.as_table_mut());
    legs.into_iter().flatten().filter_map(|(name, leg)| {
        let congestion = leg.as_table_mut()?.get_mut("congestion")?;
        congestion.is_table().then_some((name, congestion))
    })
}

/// What the legs of proxies may say of their congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegCongestion {
    /// Names, as midhopd has them.
    Names,
    /// Tables too, as simulations have them.
    NamesAndTables,
}

/// Leaves of each table in the legs of `document` its algorithm's name.
pub(crate) fn leave_names(document: &mut Document) -> Result<(), ConfigError> {
    let peps = document.root().get("peps").and_then(|it| it.value.as_table());
    let mut names = Vec::new();
    for (pep, configuration) in peps.into_iter().flat_map(tables) {
        let legs = configuration.get("legs").and_then(|it| it.value.as_table());
        for (leg, written) in legs.into_iter().flat_map(tables) {
            let congestion = written.get("congestion").and_then(|it| it.value.as_table());
            if let Some(name) = congestion.and_then(|table| table.get("algorithm")) {
                let path = KeyPath::of(["peps", pep, "legs", leg, "congestion"]);
                names.push((path, name.clone()));
            }
        }
    }
    names.into_iter().try_for_each(|(path, name)| document.set(&path, name))
}

fn tables(table: &Table) -> impl Iterator<Item = (&str, &Table)> {
    table.keys().filter_map(|key| Some((key, table.get(key)?.value.as_table()?)))
}

/// Whether the tables of all proxies that run mean something.
///
/// # Errors
/// At the first key that does not.
pub(crate) fn check_legs(plan: &Plan, document: &Document) -> Result<(), ConfigError> {
    /// What it says itself; whatever else it says is the proxy's business.
    #[derive(Deserialize, Default)]
    struct Written {
        interface: Option<String>,
        rate: Option<Rate>,
        rate_in: Option<Rate>,
        rtt0: Option<Duration>,
    }
    for node in &plan.nodes {
        let Some((pep, configuration)) =
            node.pep.as_ref().and_then(|pep| Some((pep, plan.peps.get(pep)?)))
        else {
            continue;
        };
        no_tables_in_rules(pep, configuration, document)?;
        for (name, _) in legs_with_tables(&mut configuration.clone()) {
            let path = KeyPath::of(["peps", pep.as_str(), "legs", name.as_str()]);
            let leg = configuration.get("legs").and_then(|legs| legs.get(name));
            let written: Written =
                leg.and_then(|leg| leg.clone().try_into().ok()).unwrap_or_default();
            let link = written.interface.as_deref().unwrap_or(name);
            let leg = ProxyLeg {
                name: name.clone(),
                rate: written.rate,
                rate_in: written.rate_in,
                rtt0: written.rtt0,
                start_at_rate: false,
                answers_xcp: plan.answers_xcp(&node.name, link),
            };
            let path = path.join("congestion");
            let written: CongestionSpec = document.read_at(&path)?;
            if resolve_for_proxy(&written, &path, &leg, document)?.is_none() {
                let message = format!("no algorithm of ours is called `{}`", written.algorithm);
                return Err(document.fault(&path.join("algorithm"), message, None));
            }
        }
    }
    Ok(())
}

/// Refuses tables in the rules of a proxy, whose own configuration has names there: it would say that a
/// simulation takes them.
fn no_tables_in_rules(
    pep: &str,
    configuration: &toml::Table,
    document: &Document,
) -> Result<(), ConfigError> {
    let rules = configuration.get("rules").and_then(|rules| rules.as_array());
    for (at, rule) in rules.into_iter().flatten().enumerate() {
        let legs = rule.get("legs").and_then(|legs| legs.as_table());
        let congestion = |leg: &toml::Value| leg.get("congestion").is_some_and(|it| it.is_table());
        if let Some((leg, _)) = legs.into_iter().flatten().find(|(_, leg)| congestion(leg)) {
            let path = KeyPath::of(["peps", pep, "rules", &at.to_string(), "legs", leg]);
            let hint =
                format!("a table stands at the leg: legs.{leg}.congestion, outside of rules");
            let message = "in a rule a congestion control is a name";
            return Err(document.fault(&path.join("congestion"), message, Some(hint)));
        }
    }
    Ok(())
}
