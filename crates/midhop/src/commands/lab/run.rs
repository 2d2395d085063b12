//! `midhop lab run`.

use super::session::{Isolated, Pace, Session};
use super::{check_daemon, check_kernels_can};
use crate::commands::records::print;
use crate::commands::scenario::ScenarioArguments;
use crate::commands::{arguments, go_on};
use anyhow::Context;
use midhop_testbed::runner::LATENESS;
use midhop_testbed::signals::Interrupts;
use midhop_units::Duration;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `midhop lab run`.
#[derive(Debug, clap::Args)]
pub struct LabRun {
    #[command(flatten)]
    scenario: ScenarioArguments,
    /// Write each record to a file of its own in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run only plans of which --out has no valid record yet, made on this kernel by these builds
    /// of midhop and midhopd
    #[arg(long, requires = "out")]
    resume: bool,
    /// Print the records instead of the table, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Parallel runs; if not given, as many as the machine can carry
    #[arg(long, value_name = "N", value_parser = arguments::jobs)]
    jobs: Option<usize>,
    /// Run each cell with this many seeds, instead of the scenario's number
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Lateness that makes a run invalid, if 1 % of the round trip is less
    #[arg(long, value_name = "TIME", default_value_t = LATENESS)]
    lateness: Duration,
}

impl LabRun {
    /// Runs all cells. Exit code 1 when a run failed or was not valid.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        let plans = self.scenario.plans(&seeds)?;
        check_kernels_can(&plans)?;
        check_daemon(&plans)?;
        let session = Session {
            out: self.out.clone(),
            pace: Pace {
                jobs: self.jobs,
                lateness: self.lateness,
                repeats: None,
                must_be_in_time: true,
                lines: true,
            },
            resume: self.resume,
        };
        let inside = Isolated::enter()?;
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let (records, code) = session.run(&plans, &inside, &interrupts)?;
        if interrupts.is_set() {
            go_on::report(self.out.as_deref(), Some("--resume"));
        }
        print(&records, self.json)?;
        Ok(code)
    }
}
