//! `midhop lab`: scenarios on real kernels.
//!
//! Standard output carries data only: records with `--json`, else the final table. Progress goes to
//! standard error.

mod held;
mod list;
pub mod progress;
mod run;
pub mod session;

use crate::failure::Failure;
use midhop_experiment::plan::{Plan, PlannedLink, PlannedNode, TransferPlan};
use midhop_experiment::traffic::TrafficPlan;
use midhop_path::aqm::AqmPlan;
use midhop_testbed::lab::lacking;
use std::path::Path;
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

/// The name that a lab gets from its scenario's file.
fn name_of(file: &Path) -> String {
    file.file_stem().map_or_else(|| "lab".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Refuses at once what only a simulation can run.
pub fn check_kernels_can(plans: &[Plan]) -> anyhow::Result<()> {
    const SIMULATE: &str = "run the file with `midhop sim run`";
    for plan in plans {
        let node = plan.nodes.iter().find(|node| !node.agents.is_empty());
        if let Some((node, agent)) = node.and_then(|node| Some((node, node.agents.first()?))) {
            let message = format!("the lab has no agents (nodes.{}: {})", node.name, agent.name);
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
        let naive =
            |it: &&PlannedNode| it.pep.as_ref().is_some_and(|pep| plan.naive.contains_key(pep));
        if let Some(node) = plan.nodes.iter().find(naive) {
            let pep = node.pep.as_deref().unwrap_or_default();
            let message = format!("the lab has no naive proxies (nodes.{}: {pep})", node.name);
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
        if let Some(transfer) = plan.transfers.iter().find(|it| it.restarts.is_some()) {
            let message =
                format!("the lab begins nothing again (transfers.{}: restarts)", transfer.name);
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
        let tuned = |it: &&TransferPlan| it.tuning.as_ref().is_some_and(|it| !it.is_a_kernels());
        if let Some(transfer) = plan.transfers.iter().find(tuned) {
            let message = format!(
                "no kernel has the congestion control that transfers.{} asks for: {}, or what it is told",
                transfer.name, transfer.congestion
            );
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
        let tuned = |it: &&TrafficPlan| it.tuning.as_ref().is_some_and(|it| !it.is_a_kernels());
        if let Some(traffic) = plan.traffic.iter().find(tuned) {
            let message = format!(
                "no kernel has the congestion control that traffic.{} asks for: {}, or what it is told",
                traffic.name,
                traffic.load.congestion().unwrap_or_default()
            );
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
        let lacking = |it: &PlannedNode| Some((it.name.clone(), lacking(&it.tcp)?));
        if let Some((node, key)) = plan.nodes.iter().find_map(lacking) {
            let message = format!("no kernel has a host whose TCP has another `{key}` ({node})");
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
        let routes =
            |it: &&PlannedLink| [&it.down, &it.up].iter().any(|way| way.aqm == AqmPlan::Xcp);
        if let Some(link) = plan.links.iter().find(routes) {
            let message = format!("the lab has no router for XCP (links.{})", link.name);
            return Err(Failure::usage(message).hint(SIMULATE).into());
        }
    }
    Ok(())
}

/// Refuses at once, before anything is built, when a plan needs a daemon that is not there.
pub fn check_daemon(plans: &[Plan]) -> anyhow::Result<()> {
    let wanted = plans.iter().any(|plan| plan.nodes.iter().any(|node| node.pep.is_some()));
    if wanted {
        midhop_testbed::lab::find_daemon()?;
    }
    Ok(())
}
