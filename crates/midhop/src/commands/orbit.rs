//! `midhop orbit`: the effects of constellations on a path, without a run.
//!
//! Standard output carries the result; progress goes to standard error.

mod arguments;
mod list;
mod pass;
mod progress;
mod route;
mod satellites;
mod trace;

use super::output;
use std::process::ExitCode;

/// Arguments of `midhop orbit`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Orbit {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the constellations that have a name
    List(list::OrbitList),
    /// List when satellites pass over a place, and how long it sees none
    Pass(pass::Pass),
    /// Show the path between two places over time: delays, handovers, gaps
    Route(route::Route),
    /// Write the same as a scenario that `midhop lab run` replays, or as CSV
    Trace(trace::Trace),
}

impl Orbit {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let text = match self.action {
            Action::List(command) => command.run(),
            Action::Pass(command) => command.run()?,
            Action::Route(command) => command.run()?,
            Action::Trace(command) => command.run()?,
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
