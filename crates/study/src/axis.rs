//! Names for readers of an axis and its labels, which are short for the command line.

use crate::cell::Cell;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The words by which readers see an axis of a study's scenarios.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AxisWords {
    /// What varies along it. Default: its name.
    pub shows: Option<String>,
    /// Label → what it means. Default: the label.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// The labels that are configurations of this project's proxy.
    #[serde(default)]
    pub ours: Vec<String>,
}

/// Checks the names of every axis against the `cells` of all scenarios.
///
/// # Errors
/// One sentence, when an axis or a label is in none of them.
pub(crate) fn check(
    axes: &BTreeMap<String, AxisWords>,
    cells: &BTreeMap<String, Vec<Cell>>,
) -> Result<(), String> {
    for (axis, words) in axes {
        let known: Vec<&String> =
            cells.values().flatten().filter_map(|cell| cell.get(axis)).collect();
        if known.is_empty() {
            return Err(format!("axes: no scenario has an axis `{axis}`"));
        }
        for label in words.names.keys().chain(&words.ours) {
            if !known.contains(&label) {
                return Err(format!("axes: `{label}` is no case of `{axis}`"));
            }
        }
    }
    Ok(())
}
