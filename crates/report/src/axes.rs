//! The axes that varied between runs, and the role of each in a picture.
//!
//! A *condition* is a number that the environment sets (loss, rate, delay). A *configuration* is a
//! choice (which proxy, which congestion control). Pictures have conditions along the axis and
//! configurations side by side, since readers compare configurations.

use midhop_experiment::record::{Record, Runner};
use midhop_units::{Bytes, Duration, Loss, Rate};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of cells that are searched for missing ones.
const CELLS_MAX: usize = 100_000;

/// The role of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Every label is a number: along the horizontal axis.
    Condition,
    /// A choice: side by side.
    Configuration,
    /// It selects the transfers, so the transfer's name contains the same information.
    Workload,
    /// The same in every run.
    Constant,
}

/// One `vary` axis over all records.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    /// The key in the scenario.
    pub(crate) key: String,
    /// The shortest ending of the key that no other axis shares.
    pub(crate) name: String,
    /// Its labels in the order in which they are shown.
    pub(crate) labels: Vec<String>,
    /// See [`Role`].
    pub(crate) role: Role,
}

impl Axis {
    /// The index of `label` among the labels.
    pub(crate) fn place(&self, label: Option<&String>) -> usize {
        self.labels.iter().position(|known| Some(known) == label).unwrap_or(usize::MAX)
    }
}

/// All axes of a set of records.
#[derive(Debug, Clone)]
pub(crate) struct Axes {
    /// In the order of their keys.
    pub(crate) all: Vec<Axis>,
    /// The name of the configuration where nothing is chosen, after the kind of its figures.
    pub(crate) unnamed: &'static str,
}

impl Axes {
    /// Reads the axes from the records. Labels that are numbers are sorted; others keep the order
    /// of their first occurrence.
    pub(crate) fn of(records: &[Record]) -> Self {
        let mut labels: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (key, label) in records.iter().flat_map(|record| &record.cell) {
            let known = labels.entry(key).or_default();
            if !known.contains(label) {
                known.push(label.clone());
            }
        }
        let keys: Vec<&str> = labels.keys().copied().collect();
        let mut axes: Vec<Axis> = labels
            .iter()
            .map(|(&key, found)| {
                let mut found = found.clone();
                let numeric = found.iter().all(|label| magnitude(label).is_some());
                if numeric {
                    found.sort_by(|a, b| {
                        magnitude(a).partial_cmp(&magnitude(b)).unwrap_or(std::cmp::Ordering::Equal)
                    });
                }
                let role = match (found.len(), numeric) {
                    (1, _) => Role::Constant,
                    (_, true) => Role::Condition,
                    (_, false) if decides_transfers(records, key, &found) => Role::Workload,
                    (_, false) => Role::Configuration,
                };
                Axis { key: key.to_owned(), name: short_name(key, &keys), labels: found, role }
            })
            .collect();
        let chosen = axes.iter().any(|axis| axis.role == Role::Configuration);
        let conditions: Vec<usize> =
            (0..axes.len()).filter(|&i| axes[i].role == Role::Condition).collect();
        if !chosen && conditions.len() > 1 {
            // Only numbers vary: the axis with the fewest values is the easiest to distinguish.
            if let Some(&fewest) = conditions.iter().min_by_key(|&&i| axes[i].labels.len()) {
                axes[fewest].role = Role::Configuration;
            }
        }
        let mut places = records.iter().map(Runner::of);
        let first = places.next().unwrap_or_default();
        let unnamed = if places.all(|it| it == first) { first.verb() } else { "result" };
        Self { all: axes, unnamed }
    }

    /// The axes of one role.
    pub(crate) fn of_role(&self, role: Role) -> impl Iterator<Item = &Axis> {
        self.all.iter().filter(move |axis| axis.role == role)
    }

    /// `cell` along the axes of `role`, in words; empty when there are none.
    pub(crate) fn words(&self, cell: &BTreeMap<String, String>, role: Role) -> String {
        let several = self.of_role(role).count() > 1;
        let parts: Vec<String> = self
            .of_role(role)
            .map(|axis| {
                let label = cell.get(&axis.key).map_or("–", String::as_str);
                // A number, a switch or "none" has no meaning without the name of its axis.
                let bare =
                    magnitude(label).is_some() || matches!(label, "none" | "true" | "false" | "–");
                if bare && (several || role == Role::Condition || magnitude(label).is_some()) {
                    format!("{} {label}", axis.name)
                } else {
                    label.to_owned()
                }
            })
            .collect();
        parts.join(" · ")
    }

    /// The cells that the axes span and that have no record, in words.
    pub(crate) fn missing(&self, records: &[Record]) -> Vec<String> {
        let axes: Vec<&Axis> = self.all.iter().filter(|axis| axis.role != Role::Constant).collect();
        let known: BTreeSet<Vec<Option<&String>>> = records
            .iter()
            .map(|record| axes.iter().map(|axis| record.cell.get(&axis.key)).collect())
            .collect();
        let mut cells: Vec<Vec<Option<&String>>> = vec![Vec::new()];
        for axis in &axes {
            cells = cells
                .iter()
                .flat_map(|cell| {
                    axis.labels.iter().map(|label| {
                        let mut longer = cell.clone();
                        longer.push(Some(label));
                        longer
                    })
                })
                .collect();
            if cells.len() > CELLS_MAX {
                // Records without common axes: they do not span an experiment together.
                return Vec::new();
            }
        }
        cells
            .into_iter()
            .filter(|cell| !known.contains(cell))
            .map(|cell| {
                let parts = cell.iter().zip(&axes).map(|(label, axis)| {
                    format!("{} {}", axis.name, label.map_or("", String::as_str))
                });
                parts.collect::<Vec<_>>().join(", ")
            })
            .collect()
    }

    /// A sort key for cells: by the axes of `role`, each in its order.
    pub(crate) fn order(&self, cell: &BTreeMap<String, String>, role: Role) -> Vec<usize> {
        self.of_role(role).map(|axis| axis.place(cell.get(&axis.key))).collect()
    }
}

/// The number at the beginning of a label, in base units; none if it is not a quantity.
pub(crate) fn magnitude(label: &str) -> Option<f64> {
    let plain = label.parse::<f64>().ok().filter(|number| number.is_finite());
    plain
        .or_else(|| label.parse::<Loss>().ok().map(Loss::probability))
        .or_else(|| label.parse::<Rate>().ok().map(|rate| rate.bits_per_s() as f64))
        .or_else(|| label.parse::<Duration>().ok().map(Duration::as_s_f64))
        .or_else(|| label.parse::<Bytes>().ok().map(|bytes| bytes.get() as f64))
}

/// Whether no transfer runs under two labels of the axis.
fn decides_transfers(records: &[Record], key: &str, labels: &[String]) -> bool {
    let runs_under = |label: &String| -> BTreeSet<&str> {
        records
            .iter()
            .filter(|record| record.cell.get(key) == Some(label))
            .flat_map(|record| record.transfers.iter().map(|transfer| transfer.name.as_str()))
            .collect()
    };
    let mut seen = BTreeSet::new();
    labels.iter().all(|label| {
        let here = runs_under(label);
        !here.is_empty() && here.into_iter().all(|name| seen.insert(name))
    })
}

/// The shortest ending of the dotted `key` that no other key shares.
fn short_name(key: &str, all: &[&str]) -> String {
    let parts: Vec<&str> = key.split('.').collect();
    for take in 1..parts.len() {
        let ending = parts[parts.len() - take..].join(".");
        let shared = all
            .iter()
            .filter(|other| **other == ending || other.ends_with(&format!(".{ending}")))
            .count();
        if shared == 1 {
            return ending;
        }
    }
    key.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_but_unique() {
        let keys = ["links.satellite.down.loss", "links.satellite.up.loss", "nodes.gateway.pep"];
        let names: Vec<String> = keys.iter().map(|key| short_name(key, &keys)).collect();
        assert_eq!(names, ["down.loss", "up.loss", "pep"]);
        assert_eq!(short_name("loss", &["loss", "up.loss"]), "loss");
    }

    #[test]
    fn quantities_have_magnitudes_and_words_do_not() {
        assert_eq!(magnitude("1 %"), Some(0.01));
        assert_eq!(magnitude("20 Mbit/s"), Some(2e7));
        assert!(magnitude("600 ms") < magnitude("2 s"));
        assert_eq!(magnitude("cubic"), None);
        assert_eq!(magnitude("NaN"), None);
    }
}
