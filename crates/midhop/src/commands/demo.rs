//! `midhop demo`: the main job, with a table and a page at its end.

use super::lab::check_daemon;
use super::lab::session::{Isolated, Session};
use super::records::{numbered, print};
use super::{arguments, origin};
use crate::failure::Failure;
use anyhow::Context;
use midhop_bpf::{Parameters, resolve};
use midhop_experiment::Scenario;
use midhop_experiment::plan::Plan;
use midhop_report::Options;
use midhop_testbed::runner::LATENESS;
use midhop_workbench::runnable_plans;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

const FILE: &str = "scenarios/geo-demo.toml";
const SCENARIO: &str = include_str!("../../../../scenarios/geo-demo.toml");

/// Arguments of `midhop demo`.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Where the records and the page go
    #[arg(long, value_name = "DIR", default_value = "results/demo")]
    out: PathBuf,
    /// Runs at a time; as many as the machine carries when not given
    #[arg(long, value_name = "N", value_parser = arguments::jobs)]
    jobs: Option<usize>,
    /// Change a key of the scenario or keep one case of an axis; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Demo {
    /// Runs the demo. Exit code 1 when a run failed or was not valid.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut scenario = Scenario::parse(FILE, SCENARIO).map_err(Failure::from)?;
        for assignment in &self.set {
            scenario.set(assignment).map_err(Failure::from)?;
        }
        let plans = runnable_plans(&scenario)?;
        check_daemon(&plans)?;
        let inside = Isolated::enter()?;
        // What may be chosen depends on rights, so it is asked where the runs will be.
        let plans = runnable(plans);
        if plans.is_empty() {
            return Err(Failure::run("no cell of the demo can run on this machine")
                .hint("`midhopd doctor` tells what this host supports")
                .into());
        }
        let directory = self.out.join("records");
        // The records of an earlier demo go, and nothing else.
        numbered(&directory, origin::real()?)?.clear()?;
        let session =
            Session { out: Some(directory), jobs: self.jobs, lateness: LATENESS, resume: false };
        let (records, code) = session.run(&plans, &inside)?;
        // First, so that it is not lost with a page that cannot be written.
        print(&records, false)?;
        let page = self.out.join("report.html");
        fs::write(&page, midhop_report::html(&records, &Options::default().from_scenario(FILE))?)
            .with_context(|| format!("cannot write {}", page.display()))?;
        eprintln!("wrote {}; open it in any browser, no network needed", page.display());
        Ok(code)
    }
}

/// The plans whose congestion controls this machine can give; says which are left out, and why.
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

/// Why a congestion control cannot be had here; none when it can.
fn unavailable(name: &str) -> Option<String> {
    let resolution = match resolve(name) {
        Ok(resolution) => resolution,
        Err(error) => return Some(error.to_string()),
    };
    resolution.activate(&Parameters::default()).err().map(|error| error.to_string())
}
