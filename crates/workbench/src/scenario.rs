//! Scenarios from files and from text, with what is changed in them, as plans.

use midhop_experiment::pep::LegCongestion;
use midhop_experiment::{Plan, Scenario};
use midhop_failure::Failure;
use std::path::{Path, PathBuf};

/// A scenario as it is given.
#[derive(Debug, Clone)]
pub struct Source {
    /// What errors call it.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Where it stands: the files that it names lie there.
    pub directory: PathBuf,
}

/// What is changed in a scenario from outside.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes<'a> {
    /// As the option `--set` takes them.
    pub set: &'a [String],
    /// As the option `--vary` takes them.
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

    /// The scenario with `changes` in it and with the files that it names.
    ///
    /// # Errors
    /// When it is none, a change leads nowhere, or a file cannot be read.
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

    /// The plans of all runs, where the simulator can run them and there are some.
    ///
    /// # Errors
    /// As [`Source::scenario`] and [`simulable_plans`]; when there are none.
    pub fn simulable_plans(&self, changes: Changes<'_>) -> Result<Vec<Plan>, Failure> {
        self.not_none(simulable_plans(&self.scenario(changes)?)?)
    }

    /// The same where the laboratory may run them.
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

/// Reads the files that a scenario names, which lie beside its `own`.
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

/// The plans of all runs, when each proxy's table in them is one that `midhopd` takes.
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

/// The same, when the simulator can run them: what it cannot is reported with its place in the scenario.
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
