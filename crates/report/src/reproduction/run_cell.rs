//! A cell as a reader can run it again: its settings, its seeds, its command.

use super::{Reproduction, Seeds, beside};
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
    /// How it is run again in the other place, where it has run there too.
    pub(super) beside: Option<Again>,
}

/// A cell in the other place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Again {
    /// What that place is called.
    pub(super) place: &'static str,
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
        let key = (scenario.to_owned(), cell.clone());
        let seeds =
            |of: &Seeds| of.get(&key).into_iter().flatten().map(ToString::to_string).collect();
        let beside = run.beside.filter(|it| it.seeds.contains_key(&key)).map(|it| Again {
            place: beside::name(it.place),
            seeds: seeds(it.seeds),
            command: command(run.name, it.place, scenario, &place),
        });
        Self {
            scenario: scenario.to_owned(),
            settings: axes.iter().flat_map(|axis| settings(axis, cell)).collect(),
            seeds: seeds(run.seeds),
            command: command(run.name, run.place, scenario, &place),
            beside,
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

fn command(study: &str, place: Place, scenario: &str, at: &[[String; 2]]) -> String {
    let positions: Vec<String> = at.iter().map(|[axis, label]| format!("{axis}={label}")).collect();
    let at = match positions.is_empty() {
        true => scenario.to_owned(),
        false => format!("{scenario}:{}", positions.join(",")),
    };
    let (study, place) = (crate::runs::quoted(study), place.name());
    format!("midhop reproduce {study} --in {place} --cell {}", crate::runs::quoted(&at))
}
