//! A cell in the form in which a reader can repeat it: its settings, its seeds, its command.

use super::plans::Change;
use super::{CellSeeds, Reproduction, beside};
use midhop_experiment::Scenario;
use midhop_study::{Cell, Place};
use serde::Serialize;

/// A cell for the page's script.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RunCell {
    pub(super) scenario: String,
    /// Axis and label, as in the scenario.
    pub(super) place: Vec<[String; 2]>,
    /// The settings there, by the scenario and by the study.
    pub(super) settings: Vec<String>,
    pub(super) seeds: Vec<String>,
    pub(super) command: String,
    /// The differences of its plan from that of its scenario's first cell, where the page has that.
    pub(super) plan: Option<Vec<Change>>,
    /// How to repeat it in the other place, if it ran there too.
    pub(super) beside: Option<Again>,
}

/// A cell in the other place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Again {
    /// The name of that place.
    pub(super) place: &'static str,
    /// The settings only there.
    pub(super) settings: Vec<String>,
    pub(super) seeds: Vec<String>,
    pub(super) command: String,
}

impl RunCell {
    /// The cell of `scenario` at `cell`.
    pub(super) fn of(run: &Reproduction<'_>, scenario: &str, cell: &Cell) -> Self {
        let read = run.scenarios.get(scenario);
        let axes = read.map(Scenario::axes).unwrap_or_default();
        // In the order of the scenario; then the keys that the scenario does not have.
        let known = axes.iter().filter_map(|axis| cell.get_key_value(&axis.name));
        let other = cell.iter().filter(|(name, _)| axes.iter().all(|axis| axis.name != **name));
        let at: Vec<[String; 2]> =
            known.chain(other).map(|(axis, label)| [axis.clone(), label.clone()]).collect();
        let settings = read.map(|it| settings(it, cell)).unwrap_or_default();
        let key = (scenario.to_owned(), cell.clone());
        let seeds = run.seeds.get(&key);
        let named = named(scenario, &at);
        let beside = run.beside.and_then(|it| {
            let seeds = it.seeds.get(&key)?;
            let there = it.scenarios.get(scenario).map(|it| self::settings(it, cell));
            Some(Again {
                place: beside::name(it.place),
                settings: there
                    .into_iter()
                    .flatten()
                    .filter(|setting| !settings.contains(setting))
                    .collect(),
                seeds: shown(Some(seeds)),
                command: command(run, it.place, Some(seeds), &named),
            })
        });
        Self {
            scenario: scenario.to_owned(),
            place: at,
            settings,
            seeds: shown(seeds),
            command: command(run, run.place, seeds, &named),
            plan: None,
            beside,
        }
    }

    /// Its name for readers.
    pub(super) fn title(&self, run: &Reproduction<'_>) -> String {
        let names: Vec<String> =
            self.place.iter().map(|[axis, label]| spoken(run, axis, label)).collect();
        match names.is_empty() {
            true => self.scenario.clone(),
            false => format!("{}: {}", self.scenario, names.join(" · ")),
        }
    }
}

/// A position in words: a label without a name has no meaning without its axis.
pub(super) fn spoken(run: &Reproduction<'_>, axis: &str, label: &str) -> String {
    let name = run.study.label_name(axis, label);
    match name == label {
        true => format!("{} {label}", run.study.axis_name(axis)),
        false => name.to_owned(),
    }
}

fn shown(seeds: Option<&CellSeeds>) -> Vec<String> {
    seeds.into_iter().flat_map(|it| &it.ran).map(ToString::to_string).collect()
}

/// The settings in `cell` of `scenario`: by its cases, and from outside, which take precedence.
fn settings(scenario: &Scenario, cell: &Cell) -> Vec<String> {
    // Seeds are listed separately.
    let fixed = || scenario.fixed().iter().filter(|(path, _)| path.keys() != ["seeds"]);
    let cases = scenario.axes().iter().flat_map(|axis| {
        let label = cell.get(&axis.name);
        axis.cases.iter().filter(move |case| Some(&case.label) == label)
    });
    let own = cases
        .flat_map(|case| &case.changes)
        .filter(|(path, _)| !fixed().any(|(fixed, _)| path.keys().starts_with(fixed.keys())));
    // The last of several values for the same key counts.
    let last = fixed().enumerate().filter(|(at, (path, _))| {
        !fixed().skip(at + 1).any(|(later, _)| path.keys().starts_with(later.keys()))
    });
    own.chain(last.map(|(_, it)| it))
        .map(|(path, node)| format!("{path} = {}", node.value))
        .collect()
}

/// A cell in the form for `--cell`.
fn named(scenario: &str, at: &[[String; 2]]) -> String {
    let positions: Vec<String> = at.iter().map(|[axis, label]| format!("{axis}={label}")).collect();
    match positions.is_empty() {
        true => scenario.to_owned(),
        false => format!("{scenario}:{}", positions.join(",")),
    }
}

/// The command that repeats a cell in the same way: with its seeds, and with the settings of
/// `--quick` where they were used.
fn command(run: &Reproduction<'_>, place: Place, seeds: Option<&CellSeeds>, cell: &str) -> String {
    let (study, place) = (crate::runs::quoted(run.name), place.name());
    let quick = if run.quick { " --quick" } else { "" };
    let seeds = seeds.map_or_else(String::new, |it| format!(" --seeds {}", it.asked));
    format!(
        "midhop reproduce {study} --in {place}{quick}{seeds} --cell {}",
        crate::runs::quoted(cell)
    )
}
