//! `midhop compare`: two sets of records side by side, and which differences are real.

use super::report::{read_all, read_all_but};
use super::{arguments, output};
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::record::Record;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `midhop compare`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Compare {
    /// Records, what `midhop meter run --json`, `midhop meter link --json` or `iperf3 --json` printed (JSON, one or one
    /// a line), a directory that holds them, or - for standard input
    #[arg(value_name = "A")]
    first: PathBuf,
    /// What they are set against
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Confidence of the intervals around ratios
    #[arg(long, value_name = "LEVEL", default_value_t = midhop_study::LEVEL, value_parser = arguments::confidence)]
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
        let (first, a) = side(&self.first, &self.second)?;
        let (second, b) = side(&self.second, &self.first)?;
        let comparison = midhop_report::compare_at(&first, &second, self.confidence);
        if self.json {
            let text = serde_json::to_string(&comparison).context("cannot print the comparison")?;
            output::print(&(text + "\n"))?;
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

/// The records of one side and what it is called. Where the `other` side lies in it, as a study's records of
/// the laboratory lie in the directory of those of the simulator, it is what else is there.
fn side(own: &Path, other: &Path) -> anyhow::Result<(Vec<Record>, String)> {
    let resolved = |path: &Path| path.canonicalize().ok();
    let inside = resolved(own).zip(resolved(other));
    match inside.filter(|(own, other)| own != other && own.is_dir() && other.starts_with(own)) {
        Some((whole, part)) => {
            let name = format!("{} without {}", own.display(), other.display());
            Ok((read_all_but(&[whole], Some(&part))?, name))
        }
        None => Ok((read_all(&[own.to_owned()])?, own.display().to_string())),
    }
}
