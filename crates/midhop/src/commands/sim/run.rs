//! `midhop sim run`.

use super::batch::run_all;
use crate::commands::records::{judge, judge_unwritten, numbered, print, warn_of_others};
use crate::commands::scenario::ScenarioArguments;
use crate::commands::{arguments, origin};
use anyhow::Context;
use midhop_campaign::{Executor, Resumed, Store};
use midhop_experiment::Plan;
use midhop_sim::watch::{Captures, QueueLines, SenderLines, Watcher};
use midhop_testbed::signals::Interrupts;
use midhop_workbench::{Simulator, Watchers, processors};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `midhop sim run`.
#[derive(Debug, clap::Args)]
pub struct SimRun {
    #[command(flatten)]
    scenario: ScenarioArguments,
    /// Write each record to a file of its own in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write a trace of the run beside its record, event by event; may be repeated
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',', requires = "out")]
    trace: Vec<Trace>,
    /// Print the records instead of the table, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Parallel runs; if not given, one per processor
    #[arg(long, value_name = "N", default_value_t = processors(), value_parser = arguments::jobs)]
    jobs: usize,
    /// Run each cell with this many seeds, instead of the scenario's number
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
}

/// What can be traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Trace {
    /// Each change of a sender's window, as CSV
    Cwnd,
    /// Each packet that enters, leaves or is dropped by a link, as CSV
    Queue,
    /// The packets at each end of each link, and those dropped, for Wireshark
    Pcapng,
}

impl SimRun {
    /// Runs all cells. Exit code 1 when a run failed or was not valid.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        let plans = self.scenario.simulable_plans(&[], &seeds)?;
        let out = self.out.as_deref();
        let store = out.map(|out| numbered(out, origin::simulated()?)).transpose()?;
        if let Some((directory, store)) = out.zip(store.as_ref()) {
            warn_of_others(directory, store, &plans);
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let watch = |plan: &Plan| self.watchers(plan);
        let simulator = Simulator { watch: &watch, curves: true };
        let store = store.as_ref().map(|it| it as &dyn Store);
        let all = Resumed::of(&plans, None, |_, record| Ok(record));
        let ran = run_all(&simulator, all, self.jobs, &interrupts, store, |_, outcome| outcome);
        let results = ran.results;
        if interrupts.is_set() {
            eprintln!("hint: `midhop sim sweep` with --out goes on where it was interrupted");
        }
        let code = judge(&plans, &results, Simulator::is_interruption);
        let code = judge_unwritten(ran.unwritten, &plans, code);
        print(&results.into_iter().flatten().collect::<Vec<_>>(), self.json)?;
        Ok(code)
    }

    /// The watchers of a plan's run, which write files beside its record.
    fn watchers(&self, plan: &Plan) -> Watchers {
        let Some(directory) = &self.out else { return Ok(Vec::new()) };
        let open = |name: &str| {
            let path = directory.join(format!("{:04}.{name}", plan.number));
            let file: Box<dyn Write> = Box::new(BufWriter::new(File::create(path)?));
            io::Result::Ok(file)
        };
        let watcher = |trace: &Trace| -> io::Result<Box<dyn Watcher>> {
            Ok(match trace {
                Trace::Cwnd => Box::new(SenderLines::new(open("cwnd.csv")?)),
                Trace::Queue => Box::new(QueueLines::new(open("queue.csv")?)),
                Trace::Pcapng => {
                    Box::new(Captures::new(plan, |name| open(&format!("{name}.pcapng")))?)
                }
            })
        };
        self.trace.iter().map(watcher).collect()
    }
}
