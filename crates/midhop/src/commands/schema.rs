//! `midhop schema`: the schemas of the laboratory's files, for editors, and of records, for
//! programs.
//!
//! The schema generator takes longer to build than the texts. So the texts are stored, and a test
//! compares them with the types.

use super::output;
use std::process::ExitCode;

/// Arguments of `midhop schema`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Schema {
    /// The file or output whose schema to print
    #[arg(value_enum)]
    file: File,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum File {
    /// A scenario, as read by `midhop sim run` and `midhop lab run`
    Scenario,
    /// The `study.toml` of a study, as read by `midhop reproduce`
    Study,
    /// A record, as written by `midhop sim run` and `midhop lab run`
    Record,
    /// What `midhop meter run --json` prints
    MeterRun,
    /// What `midhop meter link --json` prints
    MeterLink,
    /// What `midhop report --json` prints
    Report,
    /// What `midhop compare --json` prints
    Compare,
    /// What `midhop calibrate --json` prints
    Calibration,
}

impl Schema {
    /// Prints it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let schema = match self.file {
            File::Scenario => include_str!("../../schemas/scenario.json"),
            File::Study => include_str!("../../schemas/study.json"),
            File::Record => include_str!("../../schemas/record.json"),
            File::MeterRun => include_str!("../../schemas/meter-run.json"),
            File::MeterLink => include_str!("../../schemas/meter-link.json"),
            File::Report => include_str!("../../schemas/report.json"),
            File::Compare => include_str!("../../schemas/compare.json"),
            File::Calibration => include_str!("../../schemas/calibration.json"),
        };
        output::print(schema)?;
        Ok(ExitCode::SUCCESS)
    }
}
