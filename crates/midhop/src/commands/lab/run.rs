//! `midhop lab run`.

use super::progress::Progress;
use super::{ScenarioArguments, check_daemon, own_program};
use crate::failure::{self, Failure};
use anyhow::Context;
use midhop_experiment::plan::Plan;
use midhop_experiment::record::Record;
use midhop_testbed::isolation;
use midhop_testbed::runner::{Event, LATENESS, RunError, RunOptions, run_all};
use midhop_testbed::signals::Interrupts;
use midhop_testbed::state::StateDir;
use midhop_units::Duration;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, sync::Mutex};

/// Arguments of `midhop lab run`.
#[derive(Debug, clap::Args)]
pub struct Run {
    #[command(flatten)]
    scenario: ScenarioArguments,
    /// Write each record to a file of its own in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the records, one JSON object a line, instead of the table
    #[arg(long)]
    json: bool,
    /// Runs at a time; lateness tells whether the machine can
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Run each cell with this many seeds, whatever the scenario says
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Lateness that makes a run invalid where 1 % of the round trip is less
    #[arg(long, value_name = "TIME", default_value_t = LATENESS)]
    lateness: Duration,
}

impl Run {
    /// Runs all cells. Exit code 1 when a run failed or was not valid.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.jobs == 0 {
            return Err(Failure::usage("no run at a time is none at all")
                .hint("give --jobs at least 1")
                .into());
        }
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        let plans = self.scenario.plans(&seeds)?;
        check_daemon(&plans)?;
        let program = own_program()?;
        if let Some(directory) = &self.out {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let isolation = isolation::enter(StateDir::create()?)?;
        // From here on this is the inner process: whatever ends it, the kernel cleans up.
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let options = RunOptions {
            scratch: isolation.state,
            program,
            jobs: self.jobs,
            privileged: isolation.privileged,
            lateness: self.lateness,
        };
        let progress = Progress::new(&plans, self.jobs);
        let unwritten = Mutex::new(Vec::new());
        let results = run_all(&plans, &options, interrupts.flag(), |event| match event {
            Event::Started(plan) => progress.started(plan),
            Event::Finished(plan, result) => {
                // At once, so that what is finished survives whatever comes.
                let kept = self.out.as_ref().zip(result.as_ref().ok());
                let written = kept.map(|(directory, record)| write_record(directory, plan, record));
                if let Some(Err(error)) = written {
                    unwritten.lock().unwrap_or_else(|e| e.into_inner()).push(error);
                }
                progress.finished(plan, result);
            }
            _ => {}
        });
        progress.end();
        if let Some(error) = unwritten.into_inner().unwrap_or_else(|e| e.into_inner()).pop() {
            return Err(error);
        }
        let code = judge(&plans, &results);
        self.print(&results.into_iter().flatten().collect::<Vec<_>>())?;
        Ok(code)
    }

    fn print(&self, records: &[Record]) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            for record in records {
                serde_json::to_writer(&mut out, record).context("cannot print a record")?;
                writeln!(out)?;
            }
        } else if !records.is_empty() {
            writeln!(out, "{}", midhop_report::table(records).trim_end())?;
        }
        Ok(out.flush()?)
    }
}

/// Writes a record whole or not at all.
fn write_record(directory: &Path, plan: &Plan, record: &Record) -> anyhow::Result<()> {
    let path = directory.join(format!("{:04}.json", plan.number));
    let draft = directory.join(format!("{:04}.json.new", plan.number));
    let text = serde_json::to_vec_pretty(record).context("cannot print a record")?;
    fs::write(&draft, text)
        .and_then(|()| fs::rename(&draft, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Says on standard error what went wrong, and gives the exit code.
fn judge(plans: &[Plan], results: &[Result<Record, RunError>]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut interrupted = 0;
    for (plan, result) in plans.iter().zip(results) {
        match result {
            Ok(record) => {
                for fault in &record.validity.faults {
                    eprintln!("invalid: {}: {fault}", plan.label());
                    code = ExitCode::from(failure::RUN);
                }
            }
            Err(RunError::Interrupted) => interrupted += 1,
            Err(error) => {
                eprintln!("error: {}: {error}", plan.label());
                code = ExitCode::from(failure::RUN);
            }
        }
    }
    if interrupted > 0 {
        eprintln!("interrupted: {interrupted} of {} runs have no record", plans.len());
        code = ExitCode::from(failure::RUN);
    }
    code
}
