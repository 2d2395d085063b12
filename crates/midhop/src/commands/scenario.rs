//! Scenarios from files and from the command line, as plans.

use midhop_experiment::Plan;
use midhop_workbench::{Changes, Source};
use std::path::PathBuf;

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
        let set = self.set_with(more);
        Ok(Source::file(&self.file)?.runnable_plans(Changes { set: &set, vary: &[] })?)
    }

    /// The same with axes from the command line, when the simulator can run them.
    pub fn simulable_plans(&self, vary: &[String], more: &[String]) -> anyhow::Result<Vec<Plan>> {
        let set = self.set_with(more);
        Ok(Source::file(&self.file)?.simulable_plans(Changes { set: &set, vary })?)
    }

    /// What is changed, as it was given.
    pub fn set(&self) -> &[String] {
        &self.set
    }

    fn set_with(&self, more: &[String]) -> Vec<String> {
        self.set.iter().chain(more).cloned().collect()
    }
}
