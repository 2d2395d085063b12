//! Scenarios from files and from the command line, as plans.

use crate::failure::Failure;
use midhop_experiment::pep::LegCongestion;
use midhop_experiment::{Plan, Scenario};
use midhop_path::loss::LossPlan;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A scenario and what is changed in it.
#[derive(Debug, clap::Args)]
pub struct ScenarioArguments {
    /// The scenario (TOML)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Change a key (links.satellite.down.loss=0.01) or keep one case of an axis; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ScenarioArguments {
    /// Reads the scenario and resolves it into the plans of all its runs.
    pub fn plans(&self, more: &[String]) -> anyhow::Result<Vec<Plan>> {
        self.not_none(runnable_plans(&self.scenario(&[], more)?)?)
    }

    /// The same with axes from the command line, when the simulator can run them.
    pub fn simulable_plans(&self, vary: &[String], more: &[String]) -> anyhow::Result<Vec<Plan>> {
        self.not_none(simulable_plans(&self.scenario(vary, more)?)?)
    }

    fn scenario(&self, vary: &[String], more: &[String]) -> anyhow::Result<Scenario> {
        let name = self.file.display().to_string();
        let text = std::fs::read_to_string(&self.file).map_err(|error| {
            Failure::usage(format!("cannot read {name}: {error}"))
                .hint("name a scenario file; `midhop lab list` shows those nearby")
        })?;
        let mut scenario = Scenario::parse(&name, &text).map_err(Failure::from)?;
        for assignment in self.set.iter().chain(more) {
            scenario.set(assignment).map_err(Failure::from)?;
        }
        for assignment in vary {
            scenario.vary(assignment).map_err(Failure::from)?;
        }
        supply_files(&mut scenario, &self.file)?;
        Ok(scenario)
    }

    fn not_none(&self, plans: Vec<Plan>) -> anyhow::Result<Vec<Plan>> {
        if plans.is_empty() {
            let name = self.file.display();
            return Err(Failure::usage(format!("{name} gives nothing to run")).into());
        }
        Ok(plans)
    }
}

/// Reads the files that a scenario names, which lie beside its own.
pub fn supply_files(scenario: &mut Scenario, own: &Path) -> Result<(), Failure> {
    let directory = own.parent().unwrap_or(Path::new("."));
    for name in scenario.files()? {
        let file = directory.join(&name);
        let text = std::fs::read_to_string(&file).map_err(|error| {
            Failure::usage(format!("cannot read {}: {error}", file.display()))
                .hint(format!("{} names it; paths count from where the scenario is", own.display()))
        })?;
        scenario.supply(&name, text);
    }
    Ok(())
}

/// The plans of all runs, when each proxy's table in them is one that `midhopd` takes.
pub fn runnable_plans(scenario: &Scenario) -> anyhow::Result<Vec<Plan>> {
    plans_with(scenario, LegCongestion::Names)
}

fn plans_with(scenario: &Scenario, legs: LegCongestion) -> anyhow::Result<Vec<Plan>> {
    let plans = scenario.plans().map_err(Failure::from)?;
    scenario.check_peps(legs).map_err(Failure::from)?;
    for direction in cut(&plans) {
        eprintln!("warning: {direction}.loss is 1: every packet is lost");
        eprintln!("hint: a number is a share; one packet in a hundred is 0.01 or \"1 %\"");
    }
    Ok(plans)
}

/// The directions of links that lose every packet in some plan: whoever wrote `loss = 1` rather meant one per cent.
fn cut(plans: &[Plan]) -> BTreeSet<String> {
    let links = plans.iter().flat_map(|plan| &plan.links);
    let directions = links.flat_map(|link| [(link, "down", &link.down), (link, "up", &link.up)]);
    let all = |losses: &[LossPlan]| losses.iter().any(|it| it.mean().probability() >= 1.0);
    directions
        .filter(|(.., direction)| all(&direction.loss))
        .map(|(link, name, _)| format!("links.{}.{name}", link.name))
        .collect()
}

/// The same, when the simulator can run them: what it cannot is told with its place in the scenario.
pub fn simulable_plans(scenario: &Scenario) -> anyhow::Result<Vec<Plan>> {
    let plans = plans_with(scenario, LegCongestion::NamesAndTables)?;
    for plan in &plans {
        let Err(error) = midhop_sim::check(plan) else { continue };
        let hint = error.hint().map(str::to_owned);
        let failure = match error.key() {
            Some(key) => scenario.fault(plan, &key, error.to_string(), hint).into(),
            None => Failure::usage(format!("{}: {error}", plan.label())),
        };
        return Err(failure.into());
    }
    Ok(plans)
}
