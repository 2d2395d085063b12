//! `midhop sim`: scenarios in virtual time.
//!
//! It reads the same files and gives the same records as `midhop lab`, without a kernel and without
//! waiting. Standard output carries data only: records with `--json`, otherwise the final table.
//! Progress goes to standard error.

pub mod batch;
pub mod engine;
pub mod outlook;
pub mod progress;
mod run;
mod sweep;

use std::process::ExitCode;

/// Arguments of `midhop sim`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Sim {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run every cell of a scenario and print the results
    Run(run::SimRun),
    /// Run a scenario over many values, continue after an interruption, and write tables
    Sweep(sweep::Sweep),
}

impl Sim {
    /// Runs the command and returns its exit code.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Run(command) => command.run(),
            Action::Sweep(command) => command.run(),
        }
    }
}
