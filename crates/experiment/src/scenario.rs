//! A scenario file: from its text to the plans of all its runs.

use crate::pep::{LegCongestion, PepPlan};
use crate::plan::{AxisPosition, Plan};
use crate::spec::{NO_PEP, Spec};
use crate::vary::{self, Axis, Case};
use crate::{check, files, resolve, tunnel};
use midhop_config::tree::{Node, Value};
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_path::orbit::Journeys;
use midhop_units::Seed;
use std::collections::{BTreeMap, BTreeSet};

/// The keys of a scenario that are in no table.
const TOP: [&str; 14] = [
    "title",
    "duration",
    "seeds",
    "seed",
    "tcp",
    "nodes",
    "links",
    "peps",
    "naive",
    "agents",
    "transfers",
    "traffic",
    "handovers",
    "run",
];
/// Keys that each link may have.
const OF_LINKS: [&str; 4] = ["rate", "delay", "loss", "queue"];
/// How many full keys are named for an ambiguous short key.
const SHOWN_MAX: usize = 4;

/// The most plans of one scenario.
const PLANS_MAX: usize = 100_000;

/// A scenario file, parsed but not yet read: what it varies is still open.
#[derive(Debug, Clone)]
pub struct Scenario {
    document: Document,
    axes: Vec<Axis>,
    /// Values fixed from outside; they take precedence over the cases of every axis.
    fixed: Vec<(KeyPath, Node)>,
    texts: BTreeMap<String, String>,
}

impl Scenario {
    /// The JSON Schema of the file: every key, what it takes, its default and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> schemars::Schema {
        let mut schema = schemars::schema_for!(Spec);
        let vary = schemars::json_schema!({
            "type": "object",
            "description": "What is varied: a dotted key with its values, or a name with a table of cases."
        });
        let properties = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut);
        if let Some(properties) = properties {
            properties.insert("vary".to_owned(), vary.into());
        }
        schema.insert("description".to_owned(), "A scenario.".into());
        schema
    }

    /// Parses `text`; errors name it `file_name`.
    ///
    /// # Errors
    /// When it is not TOML, or its `[vary]` table is not valid.
    pub fn parse(file_name: &str, text: &str) -> Result<Self, ConfigError> {
        let mut document = Document::parse(file_name, text)?;
        let path = KeyPath::of(["vary"]);
        let axes = match document.get(&path).map(|node| &node.value) {
            None => Vec::new(),
            Some(Value::Table(axes)) => axes
                .entries()
                .iter()
                .map(|entry| Axis::read(&document, entry))
                .collect::<Result<_, _>>()?,
            Some(_) => {
                let hint = "begin it with a line [vary]".to_owned();
                return Err(document.fault(&path, "what is varied is a table", Some(hint)));
            }
        };
        document.take("vary");
        vary::refuse_hidden(&document)?;
        Ok(Self { document, axes, fixed: Vec::new(), texts: BTreeMap::new() })
    }

    /// The axes, in the order of the file.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The values fixed from outside, in that order; they take precedence over those of a case.
    pub fn fixed(&self) -> &[(KeyPath, Node)] {
        &self.fixed
    }

    /// The positions of all cells, in the order of their plans: axis → label.
    pub fn positions(&self) -> Vec<BTreeMap<String, String>> {
        let position = |cell: Vec<&Case>| {
            let labels = cell.iter().map(|case| case.label.clone());
            self.axes.iter().map(|axis| axis.name.clone()).zip(labels).collect()
        };
        vary::cross(&self.axes).map(position).collect()
    }

    /// Fixes a value from outside, as the option `--set KEY=VALUE` does. The name of an axis with
    /// one of its labels, or several separated by commas, leaves only those cases. Any other dotted
    /// key gets the value in every case, and an axis that varies it is removed. A value that is not
    /// TOML is taken as a string, so that `duration=30 s` needs no quotes.
    ///
    /// # Errors
    /// When there is no `=`, the key is not valid, or it leads to a place for no value.
    pub fn set(&mut self, assignment: &str) -> Result<(), ConfigError> {
        let (key, value) = assignment.split_once('=').unwrap_or((assignment, ""));
        let (key, value) = (key.trim(), value.trim());
        let text = format!("{key} = {value}");
        let path: KeyPath = key.parse().map_err(|error: midhop_config::ParseKeyPathError| {
            self.document.option_fault("--set", assignment, error.to_string(), Some(EXAMPLE))
        })?;
        if let Some(axis) = self.axes.iter_mut().find(|axis| axis.name == key) {
            if let Some(only) = axis.only(value) {
                *axis = only;
                return Ok(());
            }
            if axis
                .cases
                .iter()
                .all(|case| case.changes.iter().all(|(changed, _)| *changed != path))
            {
                let labels: Vec<&str> = axis.cases.iter().map(|case| case.label.as_str()).collect();
                let hint = suggest::hint(value, "cases", labels);
                let message = format!("axis `{key}` has no case `{value}`");
                return Err(self.document.option_fault(
                    "--set",
                    assignment,
                    message,
                    hint.as_deref(),
                ));
            }
        }
        self.refuse_short("--set", assignment, &path)?;
        if !assignment.contains('=') || value.is_empty() {
            let message = "no value is given";
            return Err(self.document.option_fault("--set", assignment, message, Some(EXAMPLE)));
        }
        let name = "--set";
        let table = match self.document.add_text(name, &text) {
            Ok(table) => table,
            Err(error) if value.starts_with(['"', '\'', '[', '{']) => return Err(error),
            Err(_) => self.document.add_text(name, &format!("{key} = {value:?}"))?,
        };
        let Some(node) = table.at(&path) else {
            let message = "the value reaches beyond its key";
            return Err(self.document.option_fault("--set", assignment, message, Some(EXAMPLE)));
        };
        vary::apply(&mut self.document, &path, node)?;
        self.axes.retain(|axis| axis.name != key);
        self.fixed.push((path, node.clone()));
        Ok(())
    }

    /// The names of all files from which links of some cell take text, as written in the scenario.
    /// Each has to be supplied with [`Scenario::supply`] before plans are made.
    ///
    /// # Errors
    /// As [`Scenario::plans`].
    pub fn files(&self) -> Result<BTreeSet<String>, ConfigError> {
        let mut names = BTreeSet::new();
        for (document, _) in self.cells() {
            names.extend(files::named(&document?).into_iter().map(|file| file.name));
        }
        Ok(names)
    }

    /// Supplies the text of the file that the scenario names `name`.
    pub fn supply(&mut self, name: &str, text: String) {
        self.texts.insert(name.to_owned(), text);
    }

    /// Varies a value from outside, as the option `--vary KEY=VALUE,VALUE…` does. It becomes the
    /// last axis, and replaces one of the same name. For an axis of named cases, the values may be
    /// some of its labels; then only those are left. Commas inside quotes and brackets do not
    /// separate.
    ///
    /// # Errors
    /// When there is no `=`, a value is missing or repeated, or the key is not valid.
    pub fn vary(&mut self, assignment: &str) -> Result<(), ConfigError> {
        const EXAMPLE: &str = "write it as --vary links.satellite.down.loss=0,0.001,0.01";
        let fault = |document: &Document, message: String| {
            document.option_fault("--vary", assignment, message, Some(EXAMPLE))
        };
        let Some((key, values)) = assignment.split_once('=') else {
            return Err(fault(&self.document, "no values are given".to_owned()));
        };
        let (key, values) = (key.trim(), split_values(values));
        if values.iter().any(String::is_empty) {
            return Err(fault(&self.document, "a value is empty".to_owned()));
        }
        if let Some(twice) = (1..values.len()).find(|&at| values[..at].contains(&values[at])) {
            return Err(fault(&self.document, format!("`{}` is there twice", values[twice])));
        }
        if let Some(axis) = self.axes.iter_mut().find(|axis| axis.name == key) {
            let named: Option<Vec<Case>> = values
                .iter()
                .map(|value| axis.cases.iter().find(|case| case.label == *value).cloned())
                .collect();
            if let Some(cases) = named {
                axis.cases = cases;
                return Ok(());
            }
        }
        if let Ok(path) = key.parse() {
            self.refuse_short("--vary", assignment, &path)?;
        }
        let array = |values: &[String]| format!("{key:?} = [{}]", values.join(", "));
        // A value that is not TOML is a string, so that `rate=5 Mbit/s,20 Mbit/s` needs no quotes.
        let written: Vec<String> = values
            .iter()
            .map(|value| match self.document.clone().add_text("--vary", &format!("v = {value}")) {
                Ok(_) => value.clone(),
                Err(_) => format!("{value:?}"),
            })
            .collect();
        let table = self.document.add_text("--vary", &array(&written))?;
        let Some(entry) = table.entries().first() else {
            return Err(fault(&self.document, "there is no key".to_owned()));
        };
        let axis = Axis::read(&self.document, entry)?;
        self.axes.retain(|known| known.name != axis.name);
        self.axes.push(axis);
        Ok(())
    }

    /// The plans of all runs: cell by cell, with the last axis changing fastest, and in each cell
    /// seed by seed.
    ///
    /// # Errors
    /// When a cell cannot be run: the error names the line at fault, which may be one under
    /// `[vary]`.
    pub fn plans(&self) -> Result<Vec<Plan>, ConfigError> {
        let too_many = |document: &Document| {
            let message = format!("cells times seeds make more than {PLANS_MAX} runs");
            let hint = "vary less at once, or take fewer seeds".to_owned();
            document.fault(&KeyPath::of(["seeds"]), message, Some(hint))
        };
        if vary::cells(&self.axes).is_none_or(|cells| cells > PLANS_MAX) {
            return Err(too_many(&self.document));
        }
        let mut plans = Vec::new();
        let mut journeys = Journeys::default();
        for (document, cell) in self.cells() {
            let document = document?;
            let spec: Spec = document.read()?;
            let peps = running(&spec, &document, LegCongestion::NamesAndTables)?;
            check::check(&spec, &peps, &document)?;
            let axes: Vec<AxisPosition> = self
                .axes
                .iter()
                .zip(&cell)
                .map(|(axis, case)| AxisPosition {
                    axis: axis.name.clone(),
                    label: case.label.clone(),
                })
                .collect();
            let first = resolve::resolve(&spec, peps, &document, axes, &mut journeys)?;
            if plans.len() + spec.seeds as usize > PLANS_MAX {
                return Err(too_many(&document));
            }
            for repetition in 0..spec.seeds {
                plans.push(Plan {
                    number: u32::try_from(plans.len()).unwrap_or(u32::MAX),
                    seed: Seed(spec.seed.0.wrapping_add(u64::from(repetition))),
                    ..first.clone()
                });
            }
        }
        Ok(plans)
    }

    /// An error at `path` in the cell of `plan`, which is one of [`Scenario::plans`]: for callers
    /// that detect only later that it cannot be run.
    pub fn fault(
        &self,
        plan: &Plan,
        path: &KeyPath,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> ConfigError {
        let is_its = |cell: &[&Case]| {
            let labels = plan.axes.iter().map(|position| &position.label);
            cell.iter().map(|case| &case.label).eq(labels)
        };
        let cell = self.cells().find(|(_, cell)| is_its(cell)).and_then(|(it, _)| it.ok());
        cell.as_ref().unwrap_or(&self.document).fault(path, message, hint)
    }

    /// Resolves the configuration of each proxy that runs in some cell as midhopd would, so that a
    /// refusal is reported on its line in the scenario, before any run. Values of tunnels that the
    /// runner fills in are included.
    ///
    /// # Errors
    /// At the first table that midhopd would refuse, or whose legs have what `legs` does not allow;
    /// and as [`Scenario::plans`].
    pub fn check_peps(&self, legs: LegCongestion) -> Result<(), ConfigError> {
        for (document, _) in self.cells() {
            let document = document?;
            let spec: Spec = document.read()?;
            for (name, plan) in running(&spec, &document, legs)? {
                tunnel::stand_in(&plan).resolve().map_err(|fault| {
                    let table = ["peps", name.as_str()].into_iter();
                    let keys = table.chain(fault.key.keys().iter().map(String::as_str));
                    document.fault(&KeyPath::of(keys), fault.message, fault.hint)
                })?;
            }
        }
        Ok(())
    }

    /// Refuses a key without its table, such as `loss`, and names the keys that it may mean. A key
    /// that is entirely unknown is left to the reader of the scenario.
    fn refuse_short(
        &self,
        option: &str,
        assignment: &str,
        path: &KeyPath,
    ) -> Result<(), ConfigError> {
        let [key] = path.keys() else { return Ok(()) };
        let is_axis = self.axes.iter().any(|axis| axis.name == *key);
        if is_axis || TOP.contains(&key.as_str()) || self.document.get(path).is_some() {
            return Ok(());
        }
        let is_meant = |last: &str| last == key || suggest::synonym(key, [last]).is_some();
        let mut full: Vec<String> = Vec::new();
        let mut add = |path: String| {
            let known = full.contains(&path);
            if !known && path.rsplit('.').next().is_some_and(is_meant) {
                full.push(path);
            }
        };
        self.axes.iter().for_each(|axis| add(axis.name.clone()));
        let changes = self.axes.iter().flat_map(|axis| &axis.cases).flat_map(|it| &it.changes);
        changes.for_each(|(path, _)| add(path.to_string()));
        leaves(self.document.root(), &KeyPath::ROOT, &mut add);
        let links = self.document.root().get("links").and_then(|links| links.value.as_table());
        for link in links.into_iter().flat_map(|links| links.entries()) {
            OF_LINKS.iter().for_each(|of| add(format!("links.{}.{of}", link.key)));
        }
        full.truncate(SHOWN_MAX);
        if full.is_empty() {
            return Ok(());
        }
        let message = format!("no key of a scenario is called `{key}`");
        let full: Vec<String> = full.iter().map(|path| format!("`{path}`")).collect();
        let hint = format!("did you mean {}?", full.join(" or "));
        Err(self.document.option_fault(option, assignment, message, Some(&hint)))
    }

    fn cells(&self) -> impl Iterator<Item = (Result<Document, ConfigError>, Vec<&Case>)> {
        vary::cross(&self.axes).map(|cell| {
            let mut document = self.document.clone();
            let changed = cell
                .iter()
                .flat_map(|case| &case.changes)
                .chain(&self.fixed)
                .try_for_each(|(path, node)| vary::apply(&mut document, path, node));
            let changed = changed.and_then(|()| files::put(&mut document, &self.texts));
            (changed.map(|()| document), cell)
        })
    }
}

/// The proxies of `spec` that run on at least one node.
///
/// # Errors
/// As [`PepPlan::read`].
fn running(
    spec: &Spec,
    document: &Document,
    legs: LegCongestion,
) -> Result<BTreeMap<String, PepPlan>, ConfigError> {
    let runs = |name: &str| spec.nodes.values().any(|node| node.pep.as_deref() == Some(name));
    let names = spec.peps.keys().filter(|name| *name != NO_PEP && runs(name));
    names
        .map(|name| {
            let path = KeyPath::of(["peps", name.as_str()]);
            Ok((name.clone(), PepPlan::read(document, &path, legs)?))
        })
        .collect()
}

/// Calls `add` with the dotted path of each value below `table` that is no table.
fn leaves(table: &midhop_config::tree::Table, above: &KeyPath, add: &mut impl FnMut(String)) {
    for entry in table.entries() {
        let path = above.join(entry.key.as_str());
        match entry.node.value.as_table() {
            Some(table) => leaves(table, &path, add),
            None => add(path.to_string()),
        }
    }
}

/// Splits at the commas outside quotes and brackets.
fn split_values(text: &str) -> Vec<String> {
    let (mut values, mut depth, mut quote) = (vec![String::new()], 0u32, None);
    for letter in text.chars() {
        match (quote, letter) {
            (None, ',') if depth == 0 => {
                values.push(String::new());
                continue;
            }
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
        if let Some(value) = values.last_mut() {
            value.push(letter);
        }
    }
    values.iter().map(|value| value.trim().to_owned()).collect()
}

const EXAMPLE: &str = "write it as --set links.satellite.down.rate=\"20 Mbit/s\"";
