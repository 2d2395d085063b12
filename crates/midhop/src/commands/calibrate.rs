//! `midhop calibrate`: compares a recording of a link with a preset.

use super::output;
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::calibration::Calibration;
use midhop_path::recorded::{self, Recording};
use midhop_path::{Direction, presets};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `midhop calibrate`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Calibrate {
    /// Recordings of one link that begin together: a Mahimahi trace, delays with one line per 10 ms
    /// (LeoReplayer), irtt's JSON (LENS), the output of ping, `iperf3 --json`, WetLinks' CSV, or
    /// CSV with time_s,rate_mbit_per_s or time_s,delay_ms. Best are one of the rate and one of the
    /// delay
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// The preset that is compared with them (`midhop lab list`)
    #[arg(value_name = "PRESET")]
    preset: String,
    /// The direction of the preset, and of recordings that have both
    #[arg(long, value_name = "down|up", default_value = "down", value_parser = direction)]
    direction: Direction,
    /// How many seeds of each model are examined
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// Write a picture, SVG
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON instead of the table (`midhop schema calibration`)
    #[arg(long)]
    json: bool,
}

impl Calibrate {
    /// Reads the recordings and prints the distance of the preset from them.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let preset = presets::find(&self.preset).map_err(|error| {
            Failure::usage(error.to_string())
                .hint("the last argument is the preset; `midhop lab list` has all")
        })?;
        let recordings =
            self.traces.iter().map(|path| read(path)).collect::<Result<Vec<Recording>, _>>()?;
        let found = Calibration::of(&recordings, &preset, self.direction, self.seeds)
            .map_err(|error| Failure::usage(error.to_string()).hint(error.hint()))?;
        if let Some(path) = &self.out {
            std::fs::write(path, midhop_report::calibration_picture(&found))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            let text = serde_json::to_string(&found).context("cannot print the calibration")?;
            output::print(&(text + "\n"))?;
        } else {
            output::print(&midhop_report::calibration_table(&found))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn direction(text: &str) -> Result<Direction, String> {
    let known = Direction::ALL.into_iter().find(|it| it.name() == text);
    known.ok_or_else(|| "write down or up".to_owned())
}

fn read(path: &Path) -> anyhow::Result<Recording> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("cannot read {shown}: {error}"))
            .hint("recordings are text: unpack what is compressed")
    })?;
    let recording = recorded::read(&text, None).map_err(|error| {
        let line = error.line.map_or(String::new(), |line| format!(", line {line}"));
        Failure::usage(format!("{shown}{line}: {}", error.what)).hint(error.hint.clone())
    })?;
    Ok(recording)
}
