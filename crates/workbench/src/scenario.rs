//! Scenarios from files and from text, with changes, as plans.

use midhop_experiment::pep::LegCongestion;
use midhop_experiment::{Plan, Scenario};
use midhop_failure::Failure;
use std::path::{Path, PathBuf};

/// A scenario as given.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its name in errors.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Its directory, in which the files that it names are.
    pub directory: PathBuf,
}

/// Changes of a scenario from outside.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes<'a> {
    /// In the form of the option `--set`.
    pub set: &'a [String],
    /// In the form of the option `--vary`.
    pub vary: &'a [String],
}

impl Source {
    /// The scenario in the file `path`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn file(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read {name}: {error}"))
                .hint("name a scenario file; `midhop lab list` shows those nearby")
        })?;
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        Ok(Self { name, text, directory })
    }

    /// The scenario with `changes` and with the files that it names.
    ///
    /// # Errors
    /// When it is not valid, a change has no place, or a file cannot be read.
    pub fn scenario(&self, changes: Changes<'_>) -> Result<Scenario, Failure> {
        let mut scenario = Scenario::parse(&self.name, &self.text)?;
        for assignment in changes.set {
            scenario.set(assignment)?;
        }
        for assignment in changes.vary {
            scenario.vary(assignment)?;
        }
        self.supply(&mut scenario)?;
        Ok(scenario)
    }

    /// The plans of all runs, where the simulator can run them and there are any.
    ///
    /// # Errors
    /// As [`Source::scenario`] and [`simulable_plans`]; when there are none.
    pub fn simulable_plans(&self, changes: Changes<'_>) -> Result<Vec<Plan>, Failure> {
        self.not_none(simulable_plans(&self.scenario(changes)?)?)
    }

    /// The same for the laboratory.
    ///
    /// # Errors
    /// As [`Source::scenario`] and [`runnable_plans`]; when there are none.
    pub fn runnable_plans(&self, changes: Changes<'_>) -> Result<Vec<Plan>, Failure> {
        self.not_none(runnable_plans(&self.scenario(changes)?)?)
    }

    fn supply(&self, scenario: &mut Scenario) -> Result<(), Failure> {
        supply(scenario, &self.directory, &self.name)
    }

    fn not_none(&self, plans: Vec<Plan>) -> Result<Vec<Plan>, Failure> {
        if plans.is_empty() {
            return Err(Failure::usage(format!("{} gives nothing to run", self.name)));
        }
        Ok(plans)
    }
}

/// Reads the files that a scenario names, which are beside the file `own`.
///
/// # Errors
/// When one cannot be read.
pub fn supply_files(scenario: &mut Scenario, own: &Path) -> Result<(), Failure> {
    let directory = own.parent().unwrap_or(Path::new("."));
    supply(scenario, directory, &own.display().to_string())
}

fn supply(scenario: &mut Scenario, directory: &Path, own: &str) -> Result<(), Failure> {
    for name in scenario.files()? {
        let file = directory.join(&name);
        let text = std::fs::read_to_string(&file).map_err(|error| {
            Failure::usage(format!("cannot read {}: {error}", file.display()))
                .hint(format!("{own} names it; paths count from where the scenario is"))
        })?;
        scenario.supply(&name, text);
    }
    Ok(())
}

/// The plans of all runs, where `midhopd` accepts the table of each proxy in them.
///
/// # Errors
/// When it is not, or a cell cannot be run.
pub fn runnable_plans(scenario: &Scenario) -> Result<Vec<Plan>, Failure> {
    plans_with(scenario, LegCongestion::Names)
}

fn plans_with(scenario: &Scenario, legs: LegCongestion) -> Result<Vec<Plan>, Failure> {
    let plans = scenario.plans()?;
    scenario.check_peps(legs)?;
    Ok(plans)
}

/// The same, where the simulator can run them: what it does not support is reported with its
/// position in the scenario.
///
/// # Errors
/// When it cannot.
pub fn simulable_plans(scenario: &Scenario) -> Result<Vec<Plan>, Failure> {
    let plans = plans_with(scenario, LegCongestion::NamesAndTables)?;
    for plan in &plans {
        let Err(error) = midhop_sim::check(plan) else { continue };
        let hint = error.hint().map(str::to_owned);
        return Err(match error.key() {
            Some(key) => scenario.fault(plan, &key, error.to_string(), hint).into(),
            None => Failure::usage(format!("{}: {error}", plan.label())),
        });
    }
    Ok(plans)
}
