//! One file per command.

pub mod presets;

use std::process::ExitCode;

/// What `midhop` can do. Each command is one module, which holds its arguments and its `run`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the link presets, each with its source.
    Presets(presets::Presets),
}

impl Command {
    /// Runs the command; the exit code says how it went.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Presets(command) => command.run(),
        }
    }
}
