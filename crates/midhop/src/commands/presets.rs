//! `midhop presets`.

use std::process::ExitCode;

/// Arguments of `midhop presets`.
#[derive(Debug, clap::Args)]
pub struct Presets {}

impl Presets {
    /// Prints one line per preset.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        Ok(ExitCode::SUCCESS)
    }
}
