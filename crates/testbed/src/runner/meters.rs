//! The meter's two ends as processes on their nodes.

use super::fault::io_error;
use super::worker::Worker;
use super::{RunError, RunOptions};
use crate::lab::Network;
use crate::meter::MeterReport;
use midhop_experiment::congestion::Tuning;
use midhop_experiment::limit::Opener;
use midhop_experiment::plan::{Plan, TransferPlan, Work};
use midhop_experiment::spec::{Connections, RestartFrom};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// A process of the meter. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Meter {
    node: String,
    child: Child,
    errors: PathBuf,
}

impl Meter {
    fn start(
        mut command: Command,
        node: &str,
        name: &str,
        directory: &Path,
    ) -> Result<Self, RunError> {
        command.stdin(Stdio::null());
        Self::spawn(command, node, name, directory)
    }

    /// Starts one that ends when its standard input is closed.
    pub(super) fn start_stoppable(
        mut command: Command,
        node: &str,
        name: &str,
        directory: &Path,
    ) -> Result<(Self, Option<ChildStdin>), RunError> {
        command.stdin(Stdio::piped());
        let mut meter = Self::spawn(command, node, name, directory)?;
        let stop = meter.child.stdin.take();
        Ok((meter, stop))
    }

    fn spawn(
        mut command: Command,
        node: &str,
        name: &str,
        directory: &Path,
    ) -> Result<Self, RunError> {
        let action = || format!("start the meter on {node}");
        let errors = directory.join(format!("{name}.log"));
        let log = File::create(&errors).map_err(io_error(action()))?;
        let child = command
            // The runner handles Ctrl-C and then ends its meters.
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(io_error(action()))?;
        Ok(Self { node: node.to_owned(), child, errors })
    }

    /// Its standard output, once.
    pub(super) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    pub(super) fn failed(&self, what: &str) -> RunError {
        let errors = fs::read_to_string(&self.errors).unwrap_or_default();
        RunError::Meter { node: self.node.clone(), what: format!("{what}: {}", errors.trim()) }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn command(network: &Network, node: &str, program: &Path) -> Result<Command, RunError> {
    let namespace = network.node(node).ok_or_else(|| RunError::Meter {
        node: node.to_owned(),
        what: "has no node to run on".to_owned(),
    })?;
    let mut command = namespace.command(program);
    command.arg("meter");
    Ok(command)
}

/// The listening end.
pub(super) struct MeterServer {
    _meter: Meter,
}

impl MeterServer {
    /// Starts a server and waits until it listens.
    pub(super) fn start(
        network: &Network,
        node: &str,
        address: SocketAddr,
        options: &RunOptions,
        directory: &Path,
    ) -> Result<Self, RunError> {
        let mut command = command(network, node, &options.program)?;
        command.args(["serve", "--json", "--listen", &address.to_string()]);
        let name = format!("serve-{node}-{}", address.port());
        let mut meter = Meter::start(command, node, &name, directory)?;
        // Its first line shows that it is ready. The clients report its flows too, so the rest is
        // not needed.
        let Some(stdout) = meter.child.stdout.take() else {
            return Err(meter.failed("has no output"));
        };
        let mut lines = BufReader::new(stdout);
        let mut line = String::new();
        if !matches!(lines.read_line(&mut line), Ok(length) if length > 0) {
            return Err(meter.failed("ended before it listened"));
        }
        // The rest is discarded, so that the pipe does not fill up and block the server.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Ok(Self { _meter: meter })
    }
}

/// The opening end of one transfer.
pub(super) struct Client(Worker);

impl Client {
    /// Starts a transfer's process and waits until it is ready.
    pub(super) fn start(
        plan: &Plan,
        transfer: &TransferPlan,
        network: &Network,
        options: &RunOptions,
        directory: &Path,
    ) -> Result<Self, RunError> {
        let node = transfer.opener();
        let mut command = command(network, node, &options.program)?;
        command.args(["run", "--json", "--name", &transfer.name]);
        // A tuning that no kernel supports was refused before.
        let tuned = transfer.tuning.as_ref().and_then(Tuning::of_kernel);
        let congestion = tuned.as_ref().unwrap_or(&transfer.congestion);
        command.args(["--congestion", congestion]);
        command.args(["--epoch", "-"]);
        command.args(["--start-delay", &transfer.start.to_string()]);
        let limit = plan.duration.saturating_sub(transfer.start);
        command.args(["--time-limit", &limit.to_string()]);
        command.args(["--seed", &plan.seed.derive(&transfer.name).to_string()]);
        command.arg(match transfer.opens {
            Opener::To => "--down",
            Opener::From => "--up",
        });
        if let Some(restarts) = &transfer.restarts {
            command.args(["--restarts", &restarts.most.to_string()]);
            command.args(["--restart-after", &restarts.after.to_string()]);
            if restarts.from == RestartFrom::Rest {
                command.args(["--restart-from", "rest"]);
            }
        }
        if !plan.handovers.is_empty() {
            command.arg("--gaps");
        }
        command.args(workload(&transfer.work));
        command.arg(transfer.listener.to_string());
        let name = format!("run-{}", transfer.name);
        let mut worker = Worker::start(command, node, &name, directory)?;
        worker.wait_ready()?;
        Ok(Self(worker))
    }

    /// Sends it the run's start: the transfer begins at its own time after that.
    pub(super) fn begin(&mut self, epoch: midhop_units::Instant) -> Result<(), RunError> {
        self.0.begin(epoch)
    }

    /// Waits for the report.
    pub(super) fn wait(
        self,
        deadline: Instant,
        interrupted: impl Fn() -> bool,
    ) -> Result<MeterReport, RunError> {
        self.0.wait(deadline, interrupted)
    }
}

/// The arguments for the amount to send.
fn workload(work: &Work) -> Vec<String> {
    let texts = match work {
        Work::Objects { sizes, connections, parallel } => {
            let sizes: Vec<_> = sizes.iter().map(|size| format!("{}B", size.get())).collect();
            let connections = match connections {
                Connections::Persistent => "persistent",
                Connections::New => "new",
            };
            return [
                "--page",
                &sizes.join(","),
                "--parallel",
                &parallel.to_string(),
                "--connections",
                connections,
            ]
            .map(str::to_owned)
            .to_vec();
        }
        Work::Bytes { each, flows } => {
            ["--bytes", &format!("{}B", each.get()), "--flows", &flows.to_string()]
                .map(str::to_owned)
        }
        Work::Time { span, flows } => {
            ["--seconds", &span.to_string(), "--flows", &flows.to_string()].map(str::to_owned)
        }
    };
    texts.to_vec()
}
