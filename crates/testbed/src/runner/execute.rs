//! One run, from its plan to its record.

use super::assemble::{Measured, assemble};
use super::fault::io_error;
use super::handovers::Handovers;
use super::meters::{Client, MeterServer};
use super::modems::start_modems;
use super::naive::start_naive_proxies;
use super::traffic::Traffic;
use super::{RunError, RunOptions, tunnels};
use crate::emulator::scheduling;
use crate::lab::{LabError, Network, Proxy};
use crate::probe::Probe;
use midhop_experiment::pep::PepPlan;
use midhop_experiment::plan::Plan;
use midhop_experiment::record::Record;
use midhop_units::Duration;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// How long after the plan's end clients may take to fetch the far ends' logs over slow links.
const GRACE: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs one plan, until `interrupted` is set.
///
/// Children die with the thread that started them, so the same thread ends the run. The caller must
/// be isolated ([`crate::isolation::enter`]), or clean up its orphans itself.
///
/// # Errors
/// When there is no record.
pub fn execute(
    plan: &Plan,
    options: &RunOptions,
    interrupted: &AtomicBool,
) -> Result<Record, RunError> {
    let planned = plan;
    let with_tunnels =
        plan.with_tunnels_for_moves().map_err(|what| RunError::Lab(LabError::Plan { what }))?;
    let plan = &with_tunnels;
    let began = Instant::now();
    let started = SystemTime::now();
    let load = load_average();
    let scratch = Scratch::create(&options.scratch, plan.number)?;
    let mut network = Network::build(plan, options.links)?;
    let modems = start_modems(plan, &network)?;
    let mut proxies = start_proxies(plan, &network, &scratch.0)?;
    let naive = start_naive_proxies(plan, &network, &options.program, &scratch.0)?;
    let servers = start_servers(plan, &network, options, &scratch.0)?;
    let programs = start_programs(plan, &network, &scratch.0)?;
    let before = tunnels::open(plan, &network, interrupted)?;
    // Cross traffic is ready before the run starts, so that flows due at its start are not late.
    let mut traffic = Traffic::start(plan, &network, options, &scratch.0)?;
    let mut clients: Vec<Client> = plan
        .transfers
        .iter()
        .map(|transfer| Client::start(plan, transfer, &network, options, &scratch.0))
        .collect::<Result<_, _>>()?;
    network.start(plan.seed)?;
    modems.begin(network.epoch());
    traffic.begin(network.epoch())?;
    clients.iter_mut().try_for_each(|client| client.begin(network.epoch()))?;
    let handovers =
        Handovers::start(plan, &network, &scratch.0, network.epoch(), options.lateness)?;
    // Without the probe's results, the run is still valid.
    let probe = Probe::start(plan, |node| network.node(node), network.epoch());
    let deadline = Instant::now() + std::time::Duration::from(plan.duration) + GRACE;
    let mut reports = Vec::new();
    for client in clients {
        reports.push(client.wait(deadline, || interrupted.load(Ordering::Relaxed))?);
    }
    if plan.transfers.is_empty() {
        wait_out(plan.duration, interrupted)?;
    }
    let ended = scheduling::now().saturating_since(network.epoch());
    let traffic = traffic.finish(plan, options, ended)?;
    let probe = probe.map(|probe| probe.map(Probe::finish).unwrap_or_default());
    let handed = handovers.map(Handovers::finish).transpose()?;
    let dug = tunnels::legs(plan, &network, &before)?;
    // The far ends have reported everything by now. Whether a proxy has ended is part of the run's
    // result.
    for proxy in &mut proxies {
        proxy.check()?;
    }
    let nodes = naive.finish()?;
    drop(programs);
    drop(servers);
    drop(proxies);
    drop(modems);
    let network = network.finish()?;
    let measured = Measured {
        reports,
        network,
        probe,
        tunnels: dug,
        traffic,
        nodes,
        handovers: handed,
        load,
        started_unix_s: started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        took: Duration::from(began.elapsed()),
    };
    assemble(planned, options, measured)
}

/// A run's directory, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn create(place: &Path, number: u32) -> Result<Self, RunError> {
        let path = place.join(format!("run-{number}"));
        fs::create_dir_all(&path).map_err(io_error(format!("make {}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts the proxies of a plan, each with the scenario's table as its configuration. A table
/// without interfaces to intercept on gets all interfaces of its node. Proxies with tunnels get
/// certificates of one authority, which is in `directory`.
///
/// # Errors
/// When one does not start.
pub fn start_proxies(
    plan: &Plan,
    network: &Network,
    directory: &Path,
) -> Result<Vec<Proxy>, RunError> {
    let mut proxies = Vec::new();
    let authority = tunnels::authority(plan, directory)?;
    for node in &plan.nodes {
        let Some(pep) = node.pep.as_ref().and_then(|pep| plan.peps.get(pep)) else { continue };
        let Some(namespace) = network.node(&node.name) else { continue };
        let mut config =
            pep.configuration(node.interfaces.iter().map(|interface| interface.link.clone()));
        if let Some(tunnels) = &node.tunnels {
            tunnels.complete(&mut config, pep, &authority);
        }
        // A directory per node, since all nodes share this host's file system.
        config.control.use_directory(directory, &node.name);
        let text = PepPlan::written(&config)
            .map_err(|error| io_error("write a proxy's configuration")(io::Error::other(error)))?;
        proxies.push(Proxy::start(namespace, &node.name, &text, directory)?);
    }
    Ok(proxies)
}

/// One server for each address to which a transfer connects.
fn start_servers(
    plan: &Plan,
    network: &Network,
    options: &RunOptions,
    directory: &Path,
) -> Result<Vec<MeterServer>, RunError> {
    let places: BTreeMap<_, _> =
        plan.transfers.iter().map(|transfer| (transfer.listener, transfer.listening())).collect();
    places
        .into_iter()
        .map(|(address, node)| MeterServer::start(network, node, address, options, directory))
        .collect()
}

/// The programs of a plan's nodes; they end with this value.
#[derive(Debug)]
pub struct Programs(Vec<Child>);

impl Drop for Programs {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The shell leads a process group with all that it has started.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

/// Starts the programs of a plan on its nodes, each in a shell.
///
/// # Errors
/// When one does not start.
pub fn start_programs(
    plan: &Plan,
    network: &Network,
    directory: &Path,
) -> Result<Programs, RunError> {
    let mut programs = Programs(Vec::new());
    for node in &plan.nodes {
        let Some(namespace) = network.node(&node.name) else { continue };
        for (number, program) in node.programs.iter().enumerate() {
            let action = || format!("run {program:?} on {}", node.name);
            let log = fs::File::create(directory.join(format!("{}-{number}.log", node.name)))
                .map_err(io_error(action()))?;
            let error_log = log.try_clone().map_err(io_error(action()))?;
            let child = namespace
                .command("sh")
                .args(["-c", program])
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(log)
                .stderr(error_log)
                .spawn()
                .map_err(io_error(action()))?;
            programs.0.push(child);
        }
    }
    Ok(programs)
}

/// A plan without transfers runs its programs for its whole duration.
fn wait_out(duration: Duration, interrupted: &AtomicBool) -> Result<(), RunError> {
    let end = Instant::now() + std::time::Duration::from(duration);
    while Instant::now() < end {
        if interrupted.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(std::time::Duration::from_millis(100)));
    }
    Ok(())
}

/// The machine's one-minute load average.
pub fn load_average() -> f64 {
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}
