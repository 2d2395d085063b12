//! `midhop lab`: scenarios on real kernels.
//!
//! Standard output carries data only: records with `--json`, else the final table. Progress goes to
//! standard error.

mod held;
mod list;
pub mod progress;
pub mod refusal;
mod run;
pub mod session;

use midhop_experiment::plan::Plan;
use std::path::Path;
use std::process::ExitCode;

/// Arguments of `midhop lab`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Lab {
    #[command(subcommand)]
    action: Action,
}

pub use refusal::check_kernels_can;

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run every cell of a scenario and print the results
    Run(run::LabRun),
    /// Build a scenario's network and hold it in the background
    Up(held::Up),
    /// Run any program on a node of a held lab, with this terminal
    Exec(held::Exec),
    /// Remove a held lab
    Down(held::Down),
    /// List link presets, scenarios and held labs
    List(list::LabList),
}

impl Lab {
    /// Runs the command and returns its exit code.
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

/// The name of a lab, derived from its scenario's file.
fn name_of(file: &Path) -> String {
    file.file_stem().map_or_else(|| "lab".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Refuses at once, before anything is built, when a plan needs a daemon that is missing or could
/// not intercept flows.
pub fn check_daemon(plans: &[Plan]) -> anyhow::Result<()> {
    if plans.iter().any(Plan::has_daemons) {
        midhop_testbed::lab::check_daemon()?;
    }
    Ok(())
}
