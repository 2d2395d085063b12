//! Cells of a study that a user requests by name.

use crate::shipped::Bundle;
use midhop_experiment::Plan;
use midhop_failure::Failure;
use midhop_study::Cell;
use std::fmt;
use std::str::FromStr;

/// Some cells: `SCENARIO`, or `SCENARIO:AXIS=LABEL,…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    scenario: String,
    at: Cell,
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        let (scenario, positions) = written.split_once(':').unwrap_or((written, ""));
        let mut at = Cell::new();
        for position in positions.split(',').filter(|it| !it.is_empty()) {
            let Some((axis, label)) = position.split_once('=') else {
                return Err(format!("`{position}` is no position: write AXIS=LABEL"));
            };
            at.insert(axis.trim().to_owned(), label.trim().to_owned());
        }
        if scenario.is_empty() {
            return Err("no scenario is named: write SCENARIO:AXIS=LABEL,…".to_owned());
        }
        Ok(Self { scenario: scenario.to_owned(), at })
    }
}

/// In the form of the request.
impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scenario)?;
        for (place, (axis, label)) in self.at.iter().enumerate() {
            write!(f, "{}{axis}={label}", if place == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl Asked {
    fn has(&self, scenario: &str, cell: &Cell) -> bool {
        self.scenario == scenario && self.at.iter().all(|(axis, at)| cell.get(axis) == Some(at))
    }
}

/// Keeps those of `plans`, which are of the scenario called `scenario`, that one of `asked`
/// requests; all where nothing is requested.
pub fn keep(asked: &[Asked], scenario: &str, plans: &mut Vec<Plan>) {
    if !asked.is_empty() {
        plans.retain(|plan| asked.iter().any(|it| it.has(scenario, &plan.cell())));
    }
}

/// # Errors
/// When one of `asked` names no cell of `bundle`.
pub fn check(asked: &[Asked], bundle: &Bundle) -> Result<(), Failure> {
    for it in asked {
        let Some(scenario) = bundle.scenario(&it.scenario) else {
            let (name, wanted) = (&bundle.name, &it.scenario);
            return Err(Failure::usage(format!("{name} has no scenario {wanted}"))
                .hint(format!("there are {}", bundle.study.scenarios.join(", "))));
        };
        let cells = scenario.positions();
        if !cells.iter().any(|cell| it.has(&it.scenario, cell)) {
            let axes = scenario.axes().iter().map(|axis| {
                let labels: Vec<&str> = axis.cases.iter().map(|it| it.label.as_str()).collect();
                format!("{} = {}", axis.name, labels.join(" | "))
            });
            let axes = axes.collect::<Vec<_>>().join("; ");
            let message = format!("{} has no cell at {:?}", it.scenario, it.at);
            return Err(Failure::usage(message).hint(format!("there are {axes}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_named_by_scenario_and_positions() {
        let cell = |written: &str| -> Cell {
            let pairs = written.split(' ').filter_map(|it| it.split_once('='));
            pairs.map(|(axis, label)| (axis.to_owned(), label.to_owned())).collect()
        };
        let asked: Asked = "sweep:proxy=ours,rtt=30ms".parse().expect("a cell");
        assert!(asked.has("sweep", &cell("proxy=ours rtt=30ms other=x")));
        assert!(!asked.has("sweep", &cell("proxy=ours rtt=1ms")));
        assert!(!asked.has("crowd", &cell("proxy=ours rtt=30ms")));
        assert_eq!(asked.to_string().parse(), Ok(asked));
        let whole: Asked = "sweep".parse().expect("all cells");
        assert_eq!(whole.to_string(), "sweep");
        assert!(whole.has("sweep", &cell("proxy=ours")));
        for bad in ["", ":a=b", "sweep:proxy"] {
            assert!(bad.parse::<Asked>().is_err(), "{bad}");
        }
    }
}
