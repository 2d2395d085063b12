//! `midhop demo`: the main use case. It runs every cell in virtual time, then on this machine's
//! kernel, and makes a page with both.

use super::lab::check_daemon;
use super::lab::progress::spoken;
use super::lab::session::{Isolated, Pace, Session, outlook};
use super::records::{numbered, print};
use super::sim::batch::run_all;
use super::{arguments, go_on, origin, output};
use crate::failure::{self, Failure};
use anyhow::Context;
use midhop_bpf::{Parameters, resolve};
use midhop_campaign::{Resumed, Store};
use midhop_experiment::Scenario;
use midhop_experiment::plan::Plan;
use midhop_experiment::record::Record;
use midhop_report::{Options, beside_table};
use midhop_testbed::runner::{LATENESS, load_average};
use midhop_testbed::signals::Interrupts;
use midhop_workbench::{Simulator, processors, simulable_plans};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

const FILE: &str = "scenarios/geo-demo.toml";
const SCENARIO: &str = include_str!("../../../../scenarios/geo-demo.toml");

/// The axis of the demo's losses.
const LOSS: &str = "links.satellite.down.loss";
/// The cells that `--quick` runs on kernels: a file at the loss at which setups differ most. All
/// cells are simulated.
const QUICK: [(&str, &[&str]); 2] = [("load", &["file"]), (LOSS, &["1 %"])];
/// The number of parallel runs that two processors can carry, with the pair's runs beside the
/// longest: all of them are small.
const QUICK_JOBS: usize = 3;
/// The default cells on kernels: the ends of the axis, which take minutes.
const ENDS: [(&str, &[&str]); 1] = [(LOSS, &["0 %", "1 %"])];
/// How often a late run is repeated: more repetitions take minutes and show nothing new.
const REPEATS: u32 = 2;

/// Arguments of `midhop demo`.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// The directory for the records and the page
    #[arg(long, value_name = "DIR", default_value = "results/demo")]
    out: PathBuf,
    /// Simulate every cell, and run on kernels only a file at 1 % loss, once: a minute
    #[arg(long)]
    quick: bool,
    /// Run every cell on kernels too, and not only those at 0 % and 1 % loss
    #[arg(long, conflicts_with = "quick")]
    all: bool,
    /// Run on kernels only what an interrupted call has left undone, with these builds of midhop
    /// and midhopd
    #[arg(long)]
    resume: bool,
    /// Parallel runs on kernels; if not given, as many as the machine can carry
    #[arg(long, value_name = "N", value_parser = arguments::jobs)]
    jobs: Option<usize>,
    /// Change a key of the scenario or keep one case of an axis; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Demo {
    /// Runs the demo. Exit code 1 when a run failed, or was invalid for another reason than a busy
    /// machine. A run that was late is only marked; all results are shown in any case.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        // Before anything here adds to the load.
        let load = load_average();
        let scenario = self.scenario()?;
        let plans = simulable_plans(&scenario)?;
        // Namespaces are entered while there is one thread. Missing rights are reported once there
        // is a result to show.
        let inside = check_daemon(&plans).and_then(|()| Isolated::enter());
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let simulated = self.simulate(&plans, &interrupts)?;
        print(&simulated, false)?;
        if interrupts.is_set() {
            return Ok(ExitCode::from(failure::RUN));
        }
        let inside = inside?;
        // The available congestion controls depend on rights, so they are checked inside, where the
        // runs will be.
        let plans = runnable(plans.into_iter().filter(|plan| self.is_for_kernels(plan)).collect());
        if plans.is_empty() {
            return Err(Failure::run("no cell of the demo can run on this machine's kernel")
                .hint("`midhopd doctor` shows what this host supports")
                .into());
        }
        let jobs = self.jobs.or((self.quick && processors() > 1).then_some(QUICK_JOBS));
        let (time, most) = outlook(&plans.iter().collect::<Vec<_>>(), jobs);
        eprintln!(
            "\nnow {} cells on this machine's kernel, up to {most} at a time: about {}",
            plans.len(),
            spoken(time)
        );
        if let Some(note) = busy(load, processors()).filter(|_| !self.quick) {
            eprintln!("{note}");
        }
        let directory = self.out.join("records");
        if !self.resume {
            // The records of an earlier demo are removed, and nothing else.
            numbered(&directory, origin::real()?)?.clear()?;
        }
        // The quick form reports that runs were late, and does not repeat them.
        let repeats = if self.quick { 0 } else { REPEATS };
        let (repeats, must_be_in_time) = (Some(repeats), false);
        let pace = Pace { jobs, lateness: LATENESS, repeats, must_be_in_time, lines: true };
        let session = Session { out: Some(directory), pace, resume: self.resume };
        let (measured, code) = session.run(&plans, &inside, &interrupts)?;
        if interrupts.is_set() {
            go_on::report(Some(&self.out), Some("--resume"));
        }
        let records = [simulated, measured].concat();
        // Printed first, so that the results are not lost if the page cannot be written.
        output::print(&format!("\n{}", beside_table(&records, output::columns())))?;
        let page = self.out.join("report.html");
        fs::write(&page, midhop_report::html(&records, &Options::default().from_scenario(FILE))?)
            .with_context(|| format!("cannot write {}", page.display()))?;
        eprintln!("wrote {}; open it in any browser, no network needed", page.display());
        Ok(code)
    }

    fn scenario(&self) -> Result<Scenario, Failure> {
        let mut scenario = Scenario::parse(FILE, SCENARIO).map_err(Failure::from)?;
        for assignment in &self.set {
            scenario.set(assignment).map_err(Failure::from)?;
        }
        Ok(scenario)
    }

    /// Runs all cells in virtual time, within seconds: the results to expect from the kernels.
    fn simulate(&self, plans: &[Plan], interrupts: &Interrupts) -> anyhow::Result<Vec<Record>> {
        let store = numbered(&self.out.join("simulated"), origin::simulated()?)?;
        store.clear()?;
        let all = Resumed::of(plans, None, |_, record| Some(record));
        let simulator = Simulator::unwatched();
        let store: Option<&dyn Store> = Some(&store);
        let ran =
            run_all(&simulator, all, processors(), interrupts, store, |_, outcome| outcome.ok());
        Ok(ran.results.into_iter().flatten().collect())
    }

    /// Whether a cell is among those that run on kernels. One with a loss that the user chose is.
    fn is_for_kernels(&self, plan: &Plan) -> bool {
        let chosen: &[(&str, &[&str])] = match (self.quick, self.all) {
            (true, _) => &QUICK,
            (false, true) => &[],
            (false, false) => &ENDS,
        };
        let cell = plan.cell();
        let is_set = |axis: &str| self.set.iter().any(|it| it.split('=').next() == Some(axis));
        chosen.iter().all(|(axis, labels)| {
            is_set(axis) || cell.get(*axis).is_none_or(|label| labels.contains(&label.as_str()))
        })
    }
}

/// A warning about runs on kernels where other programs keep the machine busy. A build that has
/// just ended does not count.
fn busy(load: f64, processors: usize) -> Option<String> {
    (load > 2.0 * processors as f64).then(|| {
        format!(
            "note: this machine is busy (load {load:.1} on {processors} processors): late runs are run again, so this \
             takes longer\nhint: end what else runs here, or believe the simulated half"
        )
    })
}

/// The plans whose congestion controls this machine has; prints which are left out, and why.
fn runnable(plans: Vec<Plan>) -> Vec<Plan> {
    let mut known: BTreeMap<String, Option<String>> = BTreeMap::new();
    let (kept, left): (Vec<_>, Vec<_>) = plans.into_iter().partition(|plan| {
        plan.congestion_controls()
            .into_iter()
            .all(|name| known.entry(name.clone()).or_insert_with(|| unavailable(&name)).is_none())
    });
    if !left.is_empty() {
        eprintln!("left out: {} of {} runs, because:", left.len(), left.len() + kept.len());
        for reason in known.values().flatten() {
            eprintln!("  {reason}");
        }
    }
    kept
}

/// Why a congestion control is not available here; none when it is.
fn unavailable(name: &str) -> Option<String> {
    let resolution = match resolve(name) {
        Ok(resolution) => resolution,
        Err(error) => return Some(error.to_string()),
    };
    resolution.activate(&Parameters::default()).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_noted_and_a_build_that_ended_is_not() {
        assert!(busy(14.4, 2).is_some_and(|note| note.contains("load 14.4 on 2 processors")));
        assert_eq!([busy(0.3, 2), busy(3.1, 2), busy(14.4, 8)], [None, None, None]);
    }
}
