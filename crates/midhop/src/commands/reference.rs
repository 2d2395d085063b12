//! `midhop reference`: scenarios on a kernel that nobody here built, whose own netem carries the links, and in a
//! simulator that nobody here wrote.

mod ns3;

use super::lab::check_kernels_can;
use super::records::{
    Unwritten, check_place, finished, judge, print, warn_of_others, write_record,
};
use super::scenario::ScenarioArguments;
use super::sim::batch::{each, processors};
use super::{arguments, own_program};
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::Plan;
use midhop_experiment::record::{Record, Runner};
use midhop_testbed::lab::Links;
use midhop_testbed::machine::{Machine, MachineError};
use midhop_testbed::netem;
use midhop_testbed::runner::{LATENESS, RunOptions, run_all};
use midhop_testbed::signals::Interrupts;
use midhop_testbed::state::StateDir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// Arguments of `midhop reference`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Reference {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run every cell of a scenario, each on a machine of its own, and print what came out
    Run(Run),
    /// Run every cell of a scenario in ns-3, and print what came out
    Ns3(ns3::Ns3),
    /// Run one plan on the machine that this is
    #[command(hide = true)]
    Inside(Inside),
}

impl Reference {
    /// Runs the command; the exit code says how it went.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Run(command) => command.run(),
            Action::Ns3(command) => command.run(),
            Action::Inside(command) => command.run(),
        }
    }
}

/// Arguments of `midhop reference run`.
#[derive(Debug, clap::Args)]
struct Run {
    #[command(flatten)]
    scenario: ScenarioArguments,
    /// What a machine starts from, as scripts/reference-machine makes it
    #[arg(long, value_name = "DIR", default_value = "target/reference")]
    machine: PathBuf,
    /// Write each record to a file of its own in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run only what --out has no valid record of yet, made on this kernel
    #[arg(long, requires = "out")]
    resume: bool,
    /// Print the records, one JSON object a line, instead of the table
    #[arg(long)]
    json: bool,
    /// Machines at a time; all processors when not given
    #[arg(long, value_name = "N", default_value_t = processors(), value_parser = arguments::jobs)]
    jobs: usize,
    /// Run each cell with this many seeds, whatever the scenario says
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
}

impl Run {
    /// Runs all cells. Exit code 1 when a run failed or was not valid.
    fn run(self) -> anyhow::Result<ExitCode> {
        let seeds: Vec<_> = self.seeds.map(|seeds| format!("seeds={seeds}")).into_iter().collect();
        let plans = self.scenario.plans(&seeds)?;
        check_kernels_can(&plans)?;
        if let Some(why) = plans.iter().find_map(refusal) {
            let hint = "run the file with `midhop sim run` or `midhop lab run`";
            return Err(Failure::usage(why).hint(hint).into());
        }
        let machine = Machine::open(&self.machine).map_err(|error| {
            Failure::usage(error)
                .hint("make one with scripts/reference-machine, or name another with --machine")
        })?;
        if let Some(directory) = &self.out {
            check_place(directory)?;
            warn_of_others(directory, &plans);
        }
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let state = StateDir::create()?;
        let kept: Vec<Option<Record>> =
            plans.iter().map(|plan| self.kept(plan, &machine)).collect();
        let left: Vec<&Plan> =
            plans.iter().zip(&kept).filter(|(_, it)| it.is_none()).map(|(plan, _)| plan).collect();
        if left.len() < plans.len() {
            eprintln!("{} of {} runs are there already", plans.len() - left.len(), plans.len());
        }
        let unwritten = Unwritten::default();
        let ran = each(&left, self.jobs, &interrupts, |plan, progress| {
            let result = run_on(&machine, plan, state.path(), interrupts.flag());
            let failed = result.as_ref().err();
            let failed = failed.filter(|error| !matches!(error, MachineError::Interrupted));
            progress.finished(plan, failed.map(|error| error as _));
            if let (Some(directory), Ok(record)) = (&self.out, &result) {
                unwritten.note(write_record(directory, plan, record));
            }
            result
        });
        let mut ran = ran.into_iter().map(|it| it.unwrap_or(Err(MachineError::Interrupted)));
        let results: Vec<_> = kept
            .into_iter()
            .map(|kept| {
                kept.map_or_else(|| ran.next().unwrap_or(Err(MachineError::Interrupted)), Ok)
            })
            .collect();
        let code = judge(&plans, &results, |error| matches!(error, MachineError::Interrupted));
        let code = unwritten.judge(code);
        print(&results.into_iter().flatten().collect::<Vec<_>>(), self.json)?;
        Ok(code)
    }

    /// What need not be run again.
    fn kept(&self, plan: &Plan, machine: &Machine) -> Option<Record> {
        let record = finished(self.out.as_deref().filter(|_| self.resume)?, plan)?;
        let kernel = record.environment.versions.get("linux")?;
        let same = Runner::of(&record) == Runner::Reference && kernel == machine.release();
        (same && record.validity.is_valid()).then_some(record)
    }
}

/// Why no machine runs `plan`; none where one does.
fn refusal(plan: &Plan) -> Option<String> {
    let proxied = plan.nodes.iter().find(|node| node.pep.is_some());
    let proxied =
        proxied.map(|node| format!("an emulated machine has no proxy (nodes.{})", node.name));
    proxied.or_else(|| netem::refusal(plan))
}

/// Has a machine run `plan`. Its files are in a directory of `place`, which goes when it has ended.
fn run_on(
    machine: &Machine,
    plan: &Plan,
    place: &Path,
    interrupted: &AtomicBool,
) -> Result<Record, MachineError> {
    let failed = |action: &str| {
        let action = action.to_owned();
        move |source| MachineError::Io { action, source }
    };
    let scratch = place.join(format!("machine-{}", plan.number));
    fs::create_dir_all(&scratch).map_err(failed("make a directory for a machine"))?;
    let output = plan
        .to_json()
        .map_err(|error| failed("print a plan")(error.into()))
        .and_then(|json| machine.run(&json.to_string(), plan.seed, &scratch, interrupted));
    let _ = fs::remove_dir_all(&scratch);
    let text = output?;
    Record::from_json(&text).map_err(|_| MachineError::Silent { console: text })
}

/// Arguments of `midhop reference inside`.
#[derive(Debug, clap::Args)]
struct Inside {
    /// The plan (JSON)
    plan: PathBuf,
}

impl Inside {
    /// Runs the plan. The machine is for it alone, and ends with it: nothing here is cleared up.
    fn run(self) -> anyhow::Result<ExitCode> {
        let name = self.plan.display();
        let text = fs::read_to_string(&self.plan).with_context(|| format!("cannot read {name}"))?;
        let json = serde_json::from_str(&text).with_context(|| format!("{name} is no plan"))?;
        let plan = Plan::from_json(&json).with_context(|| format!("{name} is no plan"))?;
        let state = StateDir::create()?;
        let options = RunOptions {
            scratch: state.path().to_owned(),
            program: own_program()?,
            jobs: 1,
            privileged: true,
            links: Links::Netem,
            lateness: LATENESS,
        };
        let ran = run_all(&[plan], &options, &AtomicBool::new(false), |_| {});
        let mut records = Vec::new();
        for result in ran {
            let mut record = result?;
            Runner::Reference.name().clone_into(&mut record.environment.runner);
            records.push(record);
        }
        print(&records, true)?;
        Ok(ExitCode::SUCCESS)
    }
}
