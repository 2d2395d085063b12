//! `midhop reference`: runs scenarios on independent implementations: a distribution's kernel with
//! its own netem for the links, and ns-3.

mod batch;
mod ns3;

use super::lab::check_kernels_can;
use super::origin::own_build;
use super::own_program;
use super::records::print;
use crate::failure::Failure;
use anyhow::Context;
use batch::ReferenceBatch;
use midhop_campaign::{Executor, Origin};
use midhop_experiment::Plan;
use midhop_experiment::record::{Record, Runner};
use midhop_testbed::lab::Links;
use midhop_testbed::machine::{Machine, MachineError};
use midhop_testbed::netem;
use midhop_testbed::runner::{LATENESS, RunOptions, execute};
use midhop_testbed::state::StateDir;
use midhop_workbench::weight;
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
    /// Run every cell of a scenario, each on a machine of its own, and print the results
    Run(Run),
    /// Run every cell of a scenario in ns-3, and print the results
    Ns3(ns3::Ns3),
    /// Run one plan on this machine
    #[command(hide = true)]
    Inside(Inside),
}

impl Reference {
    /// Runs the command; the exit code reports how it went.
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
    batch: ReferenceBatch,
    /// The directory from which machines start, as made by scripts/reference-machine
    #[arg(long, value_name = "DIR", default_value = "target/reference")]
    machine: PathBuf,
}

impl Run {
    /// Runs all cells. Exit code 1 when a run failed or was not valid.
    fn run(self) -> anyhow::Result<ExitCode> {
        let plans = self.batch.plans()?;
        check_kernels_can(&plans)?;
        if let Some(why) = plans.iter().find_map(refusal) {
            let hint = "run the file with `midhop sim run` or `midhop lab run`";
            return Err(Failure::usage(why).hint(hint).into());
        }
        let machine = Machine::open(&self.machine).map_err(|error| {
            Failure::usage(error)
                .hint("make one with scripts/reference-machine, or name another with --machine")
        })?;
        let state = StateDir::create()?;
        let origin = Origin::new(Runner::Reference, own_build()?);
        let origin = origin.with("linux", Some(machine.release()));
        self.batch.run(&plans, origin, &Emulation { machine, state })
    }
}

/// Runs plans on emulated machines.
struct Emulation {
    machine: Machine,
    state: StateDir,
}

impl Executor for Emulation {
    type Error = MachineError;

    fn run(&self, plan: &Plan, stop: &AtomicBool) -> Result<Record, MachineError> {
        run_on(&self.machine, plan, self.state.path(), stop)
    }

    fn cost(&self, plan: &Plan) -> u64 {
        weight(plan)
    }

    fn interrupted() -> MachineError {
        MachineError::Interrupted
    }

    fn is_interruption(error: &MachineError) -> bool {
        matches!(error, MachineError::Interrupted)
    }
}

/// Why no machine runs `plan`; none where one does.
fn refusal(plan: &Plan) -> Option<String> {
    let proxied = plan.nodes.iter().find(|node| node.pep.is_some());
    let proxied =
        proxied.map(|node| format!("an emulated machine has no proxy (nodes.{})", node.name));
    proxied.or_else(|| netem::refusal(plan))
}

/// Lets a machine run `plan`. Its files are in a directory of `place`, which is removed when it has
/// ended.
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
    /// Runs the plan. The machine is used for it alone and ends with it, so nothing is cleaned up
    /// here.
    fn run(self) -> anyhow::Result<ExitCode> {
        let name = self.plan.display();
        let text = fs::read_to_string(&self.plan).with_context(|| format!("cannot read {name}"))?;
        let json = serde_json::from_str(&text).with_context(|| format!("{name} is no plan"))?;
        let plan = Plan::from_json(&json).with_context(|| format!("{name} is no plan"))?;
        let state = StateDir::create()?;
        let options = RunOptions {
            scratch: state.path().to_owned(),
            program: own_program()?,
            privileged: true,
            links: Links::Netem,
            lateness: LATENESS,
        };
        let mut record = execute(&plan, &options, &AtomicBool::new(false))?;
        Runner::Reference.name().clone_into(&mut record.environment.runner);
        print(&[record], true)?;
        Ok(ExitCode::SUCCESS)
    }
}
