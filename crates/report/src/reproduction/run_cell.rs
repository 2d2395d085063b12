//! A cell as a reader can run it again: its settings, its seeds, its command.

use super::Reproduction;
use midhop_experiment::study::{Cell, Place};
use midhop_experiment::vary::Axis;
use serde::Serialize;

/// A cell for the page's script.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RunCell {
    pub(super) scenario: String,
    /// Axis and label, as the scenario calls them.
    pub(super) place: Vec<[String; 2]>,
    /// What the scenario sets there.
    pub(super) settings: Vec<String>,
    pub(super) seeds: Vec<String>,
    pub(super) command: String,
}

impl RunCell {
    /// The cell of `scenario` at `cell`.
    pub(super) fn of(run: &Reproduction<'_>, scenario: &str, cell: &Cell) -> Self {
        let axes = run.scenarios.get(scenario).map(|it| it.axes()).unwrap_or_default();
        // In the order of the scenario, and what it does not have, after that.
        let known = axes.iter().filter_map(|axis| cell.get_key_value(&axis.name));
        let other = cell.iter().filter(|(name, _)| axes.iter().all(|axis| axis.name != **name));
        let place: Vec<[String; 2]> =
            known.chain(other).map(|(axis, label)| [axis.clone(), label.clone()]).collect();
        let seeds = run.seeds.get(&(scenario.to_owned(), cell.clone()));
        Self {
            scenario: scenario.to_owned(),
            settings: axes.iter().flat_map(|axis| settings(axis, cell)).collect(),
            seeds: seeds.into_iter().flatten().map(ToString::to_string).collect(),
            command: command(run, scenario, &place),
            place,
        }
    }
}

/// What `axis` sets in `cell`.
fn settings(axis: &Axis, cell: &Cell) -> Vec<String> {
    let label = cell.get(&axis.name);
    let cases = axis.cases.iter().filter(|case| Some(&case.label) == label);
    cases
        .flat_map(|case| &case.changes)
        .map(|(path, node)| format!("{path} = {}", node.value))
        .collect()
}

fn command(run: &Reproduction<'_>, scenario: &str, place: &[[String; 2]]) -> String {
    let positions: Vec<String> =
        place.iter().map(|[axis, label]| format!("{axis}={label}")).collect();
    let at = match positions.is_empty() {
        true => scenario.to_owned(),
        false => format!("{scenario}:{}", positions.join(",")),
    };
    let place = match run.place {
        Place::Sim => "sim",
        Place::Lab => "lab",
    };
    let study = crate::runs::quoted(run.name);
    format!("midhop reproduce {study} --in {place} --cell {}", crate::runs::quoted(&at))
}
