//! `midhop manual`: the man pages and the completions of shells, for packages.

use crate::Arguments;
use anyhow::Context;
use clap::CommandFactory;
use midhop_failure::USAGE;
use midhop_manual::{Section, Words};
use std::path::PathBuf;
use std::process::ExitCode;

const WORDS: Words<'_> = Words {
    section: Section::Command,
    exit_codes: &[
        (0, "All went well."),
        (1, "A run failed."),
        (2, "An expectation was not met."),
        (USAGE, "The command line or a file was wrong."),
    ],
    see_also: &["midhopd(8)"],
};

/// Arguments of `midhop manual`.
#[derive(Debug, clap::Args)]
pub struct Manual {
    /// The directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

impl Manual {
    /// Writes them.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        midhop_manual::write_all(Arguments::command(), &WORDS, &self.directory)
            .with_context(|| format!("{} cannot be written", self.directory.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
