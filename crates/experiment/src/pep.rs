//! The proxies of a scenario: their tables as written, and their configuration for midhopd.
//!
//! A table under `[peps]` is a configuration file of midhopd ([`Config`]). It may contain three
//! things that only the laboratory knows: the `node` of a peer; its `modem` without an address or a
//! file, which is the one at this end of the link to that node; and, in simulations, a table in the
//! place of the name of a leg's congestion control.
//!
//! ```toml
//! [peps.gw]
//! legs.satellite = { congestion = { algorithm = "cubic", slow_start = "search" } }
//! peers.terminal = { node = "terminal", modem = {} }
//! ```
//!
//! A table is read for each cell in which its proxy runs: a case of an axis may complete what the
//! file leaves open.
//!
//! Decision 0043.

use crate::congestion::CongestionSpec;
use midhop_config::tree::{Node, Table, Value};
use midhop_config::{ConfigError, Document, KeyPath};
use midhop_pep::config::{Action, Config, OneOrMany, Rule, Tunnel};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The key by which a scenario names a peer's node.
pub(crate) const NODE: &str = "node";
/// The key of a peer's modem, and that of its address.
pub(crate) const MODEM: &str = "modem";
const ADDRESS: &str = "address";
const FILE: &str = "file";
/// The placeholder for the address of a laboratory's modem, until a node has one.
const SOMEWHERE: &str = "127.0.0.1:854";
const CONGESTION: &str = "congestion";

/// The allowed forms of a leg's congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegCongestion {
    /// Names, as in midhopd.
    Names,
    /// Tables too, as in simulations.
    NamesAndTables,
}

/// A proxy's configuration.
///
/// Its form in a plan, and so in a record, is the table as written, by which records are compared.
/// [`Config`] cannot restore it: it has no keys of the laboratory, has every default filled in, and
/// does not distinguish an empty list from a missing one.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct PepPlan {
    written: toml::Table,
    config: Config,
    peer_nodes: BTreeMap<String, String>,
    modems: BTreeSet<String>,
    leg_tables: BTreeMap<String, CongestionSpec>,
}

impl Serialize for PepPlan {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.written.serialize(to)
    }
}

impl TryFrom<toml::Table> for PepPlan {
    type Error = ConfigError;

    fn try_from(written: toml::Table) -> Result<Self, ConfigError> {
        let document = Document::parse("the proxy's table", &written.to_string())?;
        Self::read(&document, &KeyPath::ROOT, LegCongestion::NamesAndTables)
    }
}

impl PepPlan {
    /// Reads the table at `path`.
    ///
    /// # Errors
    /// At the first key that neither midhopd nor the laboratory knows, and at the first value of the wrong kind.
    pub(crate) fn read(
        document: &Document,
        path: &KeyPath,
        legs: LegCongestion,
    ) -> Result<Self, ConfigError> {
        let mut own = Cow::Borrowed(document);
        let mut peer_nodes = BTreeMap::new();
        let mut modems = BTreeSet::new();
        let peers = path.join("peers");
        for peer in keys(document, &peers) {
            let node = peers.join(peer).join(NODE);
            if document.get(&node).is_none() {
                continue;
            }
            peer_nodes.insert(peer.to_owned(), document.read_at(&node)?);
            own.to_mut().remove(&node);
            let modem = peers.join(peer).join(MODEM);
            let address = modem.join(ADDRESS);
            if let Some(Node { value: Value::Table(_), span }) = document.get(&modem)
                && [ADDRESS, FILE].iter().all(|key| document.get(&modem.join(*key)).is_none())
            {
                modems.insert(peer.to_owned());
                let somewhere = Value::String(SOMEWHERE.to_owned());
                own.to_mut().set(&address, Node { value: somewhere, span: *span })?;
            }
        }
        let mut leg_tables = BTreeMap::new();
        if legs == LegCongestion::NamesAndTables {
            no_tables_in_rules(document, path)?;
            for (leg, at, table) in tables_in_legs(document, &path.join("legs")) {
                leg_tables.insert(leg.to_owned(), document.read_at(&at)?);
                if let Some(name) = table.get("algorithm") {
                    own.to_mut().set(&at, name.clone())?;
                }
            }
        }
        let config = own.read_at(path)?;
        Ok(Self { written: document.read_at(path)?, config, peer_nodes, modems, leg_tables })
    }

    /// The configuration for midhopd, without what [`configuration`](Self::configuration) and a
    /// node's tunnels fill in. A table of congestion control is replaced by its algorithm's name.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A daemon's configuration as a file with every key.
    ///
    /// # Errors
    /// The reason why TOML cannot represent it.
    pub fn written(config: &Config) -> Result<String, toml::ser::Error> {
        toml::to_string(config)
    }

    /// The configuration `text` with a rule before all others, by which new flows bypass the proxy.
    ///
    /// # Errors
    /// The reason why it cannot be read or written.
    pub fn draining(&self, text: &str) -> Result<String, String> {
        let mut config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        let bypass = Rule { action: Some(Action::Bypass), ..Rule::default() };
        config.rules.insert(0, bypass);
        Self::written(&config).map_err(|error| error.to_string())
    }

    /// The configuration on a node with these `interfaces`, on all of which it intercepts unless
    /// the table has a list.
    pub fn configuration(&self, interfaces: impl IntoIterator<Item = String>) -> Config {
        let mut config = self.config.clone();
        if self.interfaces().is_none() {
            config.intercept.interfaces = OneOrMany(interfaces.into_iter().collect());
        }
        config
    }

    /// The interfaces on which it intercepts; none: all of its node's.
    pub fn interfaces(&self) -> Option<&[String]> {
        let written = self.is_written(["intercept", "interfaces"]);
        written.then(|| &*self.config.intercept.interfaces)
    }

    /// The nodes of peers: peer → node.
    pub fn peer_nodes(&self) -> &BTreeMap<String, String> {
        &self.peer_nodes
    }

    /// The peers with a modem of the laboratory.
    pub fn modems(&self) -> &BTreeSet<String> {
        &self.modems
    }

    /// The congestion control tables of legs, by leg.
    pub fn leg_tables(&self) -> &BTreeMap<String, CongestionSpec> {
        &self.leg_tables
    }

    /// The key about tunnels, if there is one.
    pub fn tunnel_key(&self) -> Option<KeyPath> {
        let peer = self.config.peers.keys().next().map(|name| KeyPath::of(["peers", name]));
        peer.or_else(|| (self.config.tunnel != Tunnel::default()).then(|| KeyPath::of(["tunnel"])))
    }

    /// Whether a list is written, even an empty one.
    pub(crate) fn is_written(&self, [table, key]: [&str; 2]) -> bool {
        self.written.get(table).is_some_and(|table| table.get(key).is_some())
    }
}

fn keys<'d>(document: &'d Document, path: &KeyPath) -> impl Iterator<Item = &'d str> {
    let table = document.get(path).and_then(|node| node.value.as_table());
    table.into_iter().flat_map(Table::keys)
}

/// The legs at `path` with a table of congestion control: leg, its path, the table.
fn tables_in_legs<'d>(
    document: &'d Document,
    path: &KeyPath,
) -> impl Iterator<Item = (&'d str, KeyPath, &'d Table)> {
    keys(document, path).filter_map(move |leg| {
        let at = path.join(leg).join(CONGESTION);
        let table = document.get(&at)?.value.as_table()?;
        Some((leg, at, table))
    })
}

/// Refuses such tables in the rules of the proxy at `path`: its own configuration has names there.
fn no_tables_in_rules(document: &Document, path: &KeyPath) -> Result<(), ConfigError> {
    let path = path.join("rules");
    let Some(Value::Array(rules)) = document.get(&path).map(|node| &node.value) else {
        return Ok(());
    };
    for rule in 0..rules.len() {
        let legs = path.join(rule.to_string()).join("legs");
        if let Some((leg, at, _)) = tables_in_legs(document, &legs).next() {
            let hint =
                format!("a table stands at the leg: legs.{leg}.{CONGESTION}, outside of rules");
            let message = "in a rule a congestion control is a name";
            return Err(document.fault(&at, message, Some(hint)));
        }
    }
    Ok(())
}
