//! `midhop schema`: what the files of the laboratory take, for editors, and what records have, for programs.

use super::output;
use anyhow::Context;
use midhop_experiment::Scenario;
use midhop_experiment::measured::{LinkReport, MeterReport};
use midhop_experiment::record::Record;
use midhop_study::Study;
use std::process::ExitCode;

/// Arguments of `midhop schema`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Schema {
    /// Of which file
    #[arg(value_enum)]
    file: File,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum File {
    /// A scenario, as `midhop sim run` and `midhop lab run` take it
    Scenario,
    /// The `study.toml` of a study, as `midhop reproduce` takes it
    Study,
    /// A record, as `midhop sim run` and `midhop lab run` write it
    Record,
    /// What `midhop meter run --json` prints
    MeterRun,
    /// What `midhop meter link --json` prints
    MeterLink,
}

impl Schema {
    /// Prints it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let schema = match self.file {
            File::Scenario => Scenario::schema(),
            File::Study => Study::schema(),
            File::Record => Record::schema(),
            File::MeterRun => MeterReport::schema(),
            File::MeterLink => LinkReport::schema(),
        };
        let text = serde_json::to_string_pretty(&schema).context("cannot print the schema")?;
        output::print(&(text + "\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}
