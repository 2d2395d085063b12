//! `midhop compare`: two sets of records side by side, and which differences are real.

use super::{arguments, output, report};
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::record::Record;
use midhop_workbench::{Gathered, Side};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `midhop compare`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Compare {
    /// Records, output of `midhop meter run --json`, `midhop meter link --json` or `iperf3 --json`
    /// (JSON, one object or one per line), a directory that holds them, or - for standard input
    #[arg(value_name = "A")]
    first: PathBuf,
    /// What they are compared with
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Confidence of the intervals around ratios
    #[arg(long, value_name = "LEVEL", default_value_t = midhop_study::LEVEL, value_parser = arguments::confidence)]
    confidence: f64,
    /// Print JSON instead of the table
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: one line per cell and transfer
    #[arg(long)]
    csv: bool,
}

impl Compare {
    /// Reads both sides and prints the comparison.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.first.as_os_str() == "-" && self.second.as_os_str() == "-" {
            return Err(Failure::usage("standard input cannot be both sides")
                .hint("name a file or a directory for one of them")
                .into());
        }
        let (first, a) = side(&self.first, &self.second)?;
        let (second, b) = side(&self.second, &self.first)?;
        let comparison = midhop_report::compare_at(&first, &second, self.confidence);
        if self.json {
            let text = serde_json::to_string(&comparison).context("cannot print the comparison")?;
            output::print(&(text + "\n"))?;
        } else if self.csv {
            output::print(&comparison.csv()?)?;
        } else {
            output::print(&midhop_report::comparison_table(
                &comparison,
                [&a, &b],
                output::columns(),
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The records of one side, and its name.
fn side(own: &Path, other: &Path) -> anyhow::Result<(Vec<Record>, String)> {
    let side = Side::of(own, other);
    let mut gathered = Gathered::default();
    if own.as_os_str() == "-" {
        report::add_standard_input(&mut gathered)?;
    } else {
        side.gather(&mut gathered)?;
    }
    report::note(&gathered);
    Ok((side.records(gathered)?, side.name))
}
