//! Scenarios from files and from the command line, as plans.

use midhop_experiment::Plan;
use midhop_path::loss::LossPlan;
use midhop_workbench::{Changes, Source};
use std::collections::BTreeSet;
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
        let plans = Source::file(&self.file)?.runnable_plans(Changes { set: &set, vary: &[] })?;
        warn_of_cut(&plans);
        Ok(plans)
    }

    /// The same with axes from the command line; refuses plans that the simulator cannot run.
    pub fn simulable_plans(&self, vary: &[String], more: &[String]) -> anyhow::Result<Vec<Plan>> {
        let set = self.set_with(more);
        let plans = Source::file(&self.file)?.simulable_plans(Changes { set: &set, vary })?;
        warn_of_cut(&plans);
        Ok(plans)
    }

    /// The changes as they were given.
    pub fn set(&self) -> &[String] {
        &self.set
    }

    fn set_with(&self, more: &[String]) -> Vec<String> {
        self.set.iter().chain(more).cloned().collect()
    }
}

/// Warns of directions of links that lose every packet.
fn warn_of_cut(plans: &[Plan]) {
    for direction in cut(plans) {
        eprintln!("warning: {direction}.loss is 1: every packet is lost");
        eprintln!("hint: a number is a share; one packet in a hundred is 0.01 or \"1 %\"");
    }
}

/// The directions of links that lose every packet in some plan: `loss = 1` was probably meant as
/// one per cent.
fn cut(plans: &[Plan]) -> BTreeSet<String> {
    let links = plans.iter().flat_map(|plan| &plan.links);
    let directions = links.flat_map(|link| [(link, "down", &link.down), (link, "up", &link.up)]);
    let all = |losses: &[LossPlan]| losses.iter().any(|it| it.mean().probability() >= 1.0);
    directions
        .filter(|(.., direction)| all(&direction.loss))
        .map(|(link, name, _)| format!("links.{}.{name}", link.name))
        .collect()
}
