//! `midhop lab`: scenarios on real kernels.
//!
//! Standard output carries data only: records with `--json`, else the final table. Progress goes to
//! standard error.

mod held;
mod list;
mod progress;
mod run;
pub mod session;

use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::plan::{Plan, PlannedLink, TransferPlan};
use midhop_experiment::{PepFault, Scenario};
use midhop_path::aqm::AqmPlan;
use midhop_pep::config::{Config, ResolveError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `midhop lab`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Lab {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run every cell of a scenario and print what came out
    Run(run::Run),
    /// Build a scenario's network and hold it in the background
    Up(held::Up),
    /// Run any program on a node of a held lab, with this terminal
    Exec(held::Exec),
    /// Take a held lab down
    Down(held::Down),
    /// List link presets, scenarios and held labs
    List(list::List),
}

impl Lab {
    /// Runs the command; the exit code says how it went.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Run(command) => command.run(),
            Action::Up(command) => command.run(),
            Action::Exec(command) => command.run(),
            Action::Down(command) => command.run(),
            Action::List(command) => command.run(),
        }
    }
}

/// A scenario and what is changed in it.
#[derive(Debug, clap::Args)]
pub struct ScenarioArguments {
    /// The scenario (TOML)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Change a key (links.satellite.down.loss=0.01) or keep one case of an axis; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ScenarioArguments {
    /// Reads the scenario and resolves it into the plans of all its runs.
    pub fn plans(&self, more: &[String]) -> anyhow::Result<Vec<Plan>> {
        self.varied_plans(&[], more)
    }

    /// The same, with axes from the command line.
    pub fn varied_plans(&self, vary: &[String], more: &[String]) -> anyhow::Result<Vec<Plan>> {
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
        let plans = runnable_plans(&scenario)?;
        if plans.is_empty() {
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
    let plans = scenario.plans().map_err(Failure::from)?;
    let check = |config: Config| match config.resolve() {
        Ok(_) => Ok(()),
        Err(ResolveError { key, message, hint, .. }) => Err(PepFault { key, message, hint }),
    };
    scenario.check_peps(check).map_err(Failure::from)?;
    Ok(plans)
}

/// The name that a lab gets from its scenario's file.
fn name_of(file: &Path) -> String {
    file.file_stem().map_or_else(|| "lab".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// This program, for starting its own meter.
fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

/// Refuses at once what only a simulation can run.
fn check_traffic(plans: &[Plan]) -> anyhow::Result<()> {
    const SIMULATE: &str = "run the file with `midhop sim run`";
    for plan in plans {
        let tuned = |it: &&TransferPlan| it.tuning.as_ref().is_some_and(|it| !it.is_a_kernels());
        if let Some(transfer) = plan.transfers.iter().find(tuned) {
            let message = format!(
                "no kernel has the congestion control that transfers.{} asks for: {}, or what it is told",
                transfer.name, transfer.congestion
            );
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
        let routes =
            |it: &&PlannedLink| [&it.down, &it.up].iter().any(|way| way.aqm == AqmPlan::Xcp);
        if let Some(link) = plan.links.iter().find(routes) {
            let message = format!("the lab has no router for XCP (links.{})", link.name);
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
    }
    let Some(traffic) = plans.iter().find_map(|plan| plan.traffic.first()) else { return Ok(()) };
    Err(Failure::usage(format!("the lab cannot make cross traffic (traffic.{})", traffic.name))
        .hint("run the file with `midhop sim run`, or make the traffic with `programs` of a node")
        .into())
}

/// Refuses at once, before anything is built, when a plan needs a daemon that is not there.
pub fn check_daemon(plans: &[Plan]) -> anyhow::Result<()> {
    let wanted = plans.iter().any(|plan| plan.nodes.iter().any(|node| node.pep.is_some()));
    if wanted {
        midhop_testbed::lab::find_daemon()?;
    }
    Ok(())
}
