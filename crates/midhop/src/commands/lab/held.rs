//! `midhop lab up`, `exec` and `down`: a lab that stays up.

use super::{check_daemon, check_kernels_can, name_of};
use crate::commands::scenario::ScenarioArguments;
use crate::commands::{output, own_program};
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::plan::Plan;
use midhop_testbed::detach::{Answer, Side, detach};
use midhop_testbed::lab::{Links, Network, publish, visit};
use midhop_testbed::runner::{
    Modems, NaiveProxies, Programs, start_modems, start_naive_proxies, start_programs,
    start_proxies,
};
use midhop_testbed::state::{self, Description, Living};
use midhop_testbed::{isolation, lab::Proxy, signals};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a lab may take to end by itself.
const DOWN_WITHIN: Duration = Duration::from_secs(10);

/// Arguments of `midhop lab up`.
#[derive(Debug, clap::Args)]
pub struct Up {
    #[command(flatten)]
    scenario: ScenarioArguments,
    /// The name of the lab; if not given, the file's name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Arguments of `midhop lab exec`.
#[derive(Debug, clap::Args)]
pub struct Exec {
    /// Which lab, if several are up
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
    /// The node
    node: String,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    program: Vec<OsString>,
}

/// Arguments of `midhop lab down`.
#[derive(Debug, clap::Args)]
pub struct Down {
    /// Which lab, if several are up
    name: Option<String>,
}

impl Up {
    /// Builds the first cell of the scenario and leaves it to a background process.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let plans = self.scenario.plans(&[])?;
        let plan = &plans[0];
        check_kernels_can(&plans[..1])?;
        if !plan.handovers.is_empty() {
            let why = "a lab that is held has no start from which handovers count";
            return Err(Failure::usage(why).hint("run the file with `midhop lab run`").into());
        }
        check_daemon(&plans[..1])?;
        let file = &self.scenario.file;
        let name = self.name.clone().unwrap_or_else(|| name_of(file));
        if state::living()?.iter().any(|lab| lab.description.name == name) {
            return Err(Failure::usage(format!("a lab called {name} is up already"))
                .hint(format!("take it down (midhop lab down {name}) or give --name"))
                .into());
        }
        let log = state::log_file(&name)?;
        match detach(&log).context("cannot start the lab's process")? {
            Side::Starter(Ok(word)) => {
                if plans.len() > 1 {
                    let (all, first) = (plans.len(), plan.label());
                    eprintln!("this is the first of {all} runs ({first}); --set picks another");
                }
                output::print(&word)?;
                Ok(ExitCode::SUCCESS)
            }
            Side::Starter(Err(why)) => Err(Failure::run(format!("the lab is not up: {why}"))
                .hint(format!("its log is {}", log.display()))
                .into()),
            Side::Background(answer) => {
                // The starter informs the user; this process can only write to its log.
                match isolation::enter_new() {
                    Ok(isolation) => hold(plan, &name, file, &isolation.state, answer),
                    Err(error) => answer.failed(&error.to_string()),
                }
                std::process::exit(0)
            }
        }
    }
}

/// Builds the lab, reports it, and waits until it is asked to stop.
fn hold(plan: &Plan, name: &str, scenario: &Path, state: &Path, answer: Answer) {
    let request = signals::StopRequest::expect();
    let built = request
        .map_err(anyhow::Error::from)
        .and_then(|request| Ok((request, build(plan, name, scenario, state)?)));
    match built {
        Ok((request, (parts, word))) => {
            answer.ready(&word);
            let _ = request.wait();
            drop(parts);
        }
        Err(error) => answer.failed(&format!("{error:#}")),
    }
}

/// What a lab consists of. They end in this order.
type Parts = (Programs, NaiveProxies, Vec<Proxy>, Modems, Network);

fn build(
    plan: &Plan,
    name: &str,
    scenario: &Path,
    state: &Path,
) -> anyhow::Result<(Parts, String)> {
    let mut network = Network::build(plan, Links::Emulated)?;
    network.start(plan.seed)?;
    let modems = start_modems(plan, &network)?;
    modems.begin(network.epoch());
    let proxies = start_proxies(plan, &network, state)?;
    let naive = start_naive_proxies(plan, &network, &own_program()?, state)?;
    let programs = start_programs(plan, &network, state)?;
    let homes: Vec<_> = plan
        .nodes
        .iter()
        .filter_map(|node| Some((node.name.clone(), network.home(&node.name)?)))
        .collect();
    let mut hosts = String::new();
    let mut word = format!("lab {name} is up: {}\n", plan.title);
    for (node, [v4, v6]) in &homes {
        writeln!(hosts, "{v4} {node}\n{v6} {node}")?;
        writeln!(word, "  {node:<15} {v4:<15} {v6}")?;
    }
    word += "nodes resolve each other's names; run any program on one:\n";
    writeln!(word, "  midhop lab exec --lab {name} NODE -- CMD…")?;
    writeln!(word, "  midhop lab down {name}")?;
    publish(state, network.nodes(), &hosts)?;
    let nodes = homes.iter().map(|(node, [v4, _])| (node.clone(), v4.to_string())).collect();
    let scenario = scenario.to_owned();
    state::describe(state, &Description { name: name.to_owned(), scenario, nodes })?;
    Ok(((programs, naive, proxies, modems, network), word))
}

impl Exec {
    /// Runs the program; its exit code is this one's.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let lab = find(self.lab.as_deref())?;
        let code = visit(lab.init, &lab.directory, &self.node, &self.program)?;
        Ok(ExitCode::from(code))
    }
}

impl Down {
    /// Ends the lab and waits until it is removed.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let lab = find(self.name.as_deref())?;
        let pid = Pid::from_raw(lab.outer.pid);
        let begun = Instant::now();
        let _ = kill(pid, Signal::SIGTERM);
        while lab.outer.lives() {
            if begun.elapsed() > DOWN_WITHIN {
                // The kernel removes the rest.
                let _ = kill(pid, Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // A lab that had to be killed leaves its directory: this call sweeps it.
        let _ = state::living();
        let _ = std::fs::remove_file(state::log_file(&lab.description.name)?);
        eprintln!("lab {} is down", lab.description.name);
        Ok(ExitCode::SUCCESS)
    }
}

/// The lab called `name`, or the only one.
fn find(name: Option<&str>) -> anyhow::Result<Living> {
    let mut labs = state::living()?;
    let names: Vec<_> = labs.iter().map(|lab| lab.description.name.clone()).collect();
    let names = names.join(", ");
    let index = match name {
        Some(name) => labs.iter().position(|lab| lab.description.name == name),
        None => (labs.len() == 1).then_some(0),
    };
    let failure = match (index, name) {
        (Some(index), _) => return Ok(labs.swap_remove(index)),
        (None, _) if labs.is_empty() => {
            Failure::usage("no lab is up").hint("build one: midhop lab up FILE")
        }
        (None, Some(name)) => {
            Failure::usage(format!("no lab is called {name}")).hint(format!("up are: {names}"))
        }
        (None, None) => Failure::usage("several labs are up").hint(format!("name one of: {names}")),
    };
    Err(failure.into())
}
