//! `midhop compare`: two sets of records side by side, and which differences are real.

use super::report::read_all;
use super::{arguments, output};
use crate::failure::Failure;
use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `midhop compare`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Compare {
    /// Records (JSON, one or one a line), a directory that holds them, or - for standard input
    #[arg(value_name = "A")]
    first: PathBuf,
    /// What they are set against
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Confidence of the intervals around ratios
    #[arg(long, value_name = "LEVEL", default_value_t = midhop_report::LEVEL, value_parser = arguments::confidence)]
    confidence: f64,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

impl Compare {
    /// Reads both sides and prints the comparison.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.first.as_os_str() == "-" && self.second.as_os_str() == "-" {
            return Err(Failure::usage("standard input cannot be both sides")
                .hint("name a file or a directory for one of them")
                .into());
        }
        let first = read_all(std::slice::from_ref(&self.first))?;
        let second = read_all(std::slice::from_ref(&self.second))?;
        let comparison = midhop_report::compare_at(&first, &second, self.confidence);
        if self.json {
            let text = serde_json::to_string(&comparison).context("cannot print the comparison")?;
            output::print(&(text + "\n"))?;
        } else {
            let names = [&self.first, &self.second].map(|place| place.display().to_string());
            output::print(&midhop_report::comparison_table(&comparison, [&names[0], &names[1]]))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
