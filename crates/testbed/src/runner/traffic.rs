//! Cross traffic of a run: one process at each end of each of its lines.

use super::fault::io_error;
use super::meters::command;
use super::worker::Worker;
use super::{RunError, RunOptions, lateness_bound};
use crate::lab::Network;
use crate::meter::TrafficReport;
use midhop_experiment::limit::Family;
use midhop_experiment::plan::Plan;
use midhop_experiment::record::{Series, TrafficResult};
use midhop_experiment::traffic::TrafficPlan;
use midhop_units::{Duration, Instant};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// The cross traffic of a run. Dropping the value ends it.
pub(super) struct Traffic(Vec<Line>);

/// One of its lines.
struct Line {
    plan: TrafficPlan,
    listens: Worker,
    opens: Worker,
}

/// The results of all lines.
#[derive(Debug, Default)]
pub(super) struct TrafficOutcome {
    pub(super) results: Vec<TrafficResult>,
    pub(super) series: Vec<Series>,
    pub(super) faults: Vec<String>,
}

impl Traffic {
    /// Starts both ends of each line and waits until they are ready.
    pub(super) fn start(
        plan: &Plan,
        network: &Network,
        options: &RunOptions,
        directory: &Path,
    ) -> Result<Self, RunError> {
        let mut lines = Vec::new();
        for traffic in &plan.traffic {
            let node = traffic.listening();
            let Some([ipv4, ipv6]) = network.home(node) else { continue };
            let address = match traffic.family {
                Family::Ipv4 => ipv4,
                Family::Ipv6 => ipv6,
            };
            let address = SocketAddr::new(address, traffic.port);
            let file = directory.join(format!("traffic-{}.json", traffic.name));
            let text = serde_json::to_string(traffic).map_err(std::io::Error::other);
            text.and_then(|text| fs::write(&file, text))
                .map_err(io_error(format!("write down the traffic {}", traffic.name)))?;
            let start = |node, part| worker(node, part, &file, address, plan, network, options);
            lines.push(Line {
                plan: traffic.clone(),
                listens: start(node, "listens")?,
                opens: start(traffic.opener(), "opens")?,
            });
        }
        Ok(Self(lines))
    }

    /// Sends the run's start to all ends: each begins at its time in the plan.
    pub(super) fn begin(&mut self, epoch: Instant) -> Result<(), RunError> {
        self.0.iter_mut().try_for_each(|line| {
            line.listens.begin(epoch)?;
            line.opens.begin(epoch)
        })
    }

    /// Ends all lines, `ended` after the run's start, and reports their results.
    pub(super) fn finish(
        self,
        plan: &Plan,
        options: &RunOptions,
        ended: Duration,
    ) -> Result<TrafficOutcome, RunError> {
        let mut outcome = TrafficOutcome::default();
        for line in self.0 {
            // The receiving end is finished only after the sender, so that data in flight can still
            // arrive.
            let opened: TrafficReport = line.opens.finish()?;
            let listened: TrafficReport = line.listens.finish()?;
            let name = &line.plan.name;
            let reports = [&opened, &listened];
            let faults = reports.iter().flat_map(|report| &report.faults);
            outcome.faults.extend(faults.map(|fault| format!("traffic {name}: {fault}")));
            outcome.faults.extend(late(&line.plan, plan, options, &opened));
            outcome.results.push(result(&line.plan, &opened, &listened, ended));
            outcome.series.extend(opened.goodput.into_iter().chain(listened.goodput));
        }
        Ok(outcome)
    }
}

/// Combines the reports of both ends of a line.
fn result(
    plan: &TrafficPlan,
    opened: &TrafficReport,
    listened: &TrafficReport,
    ended: Duration,
) -> TrafficResult {
    let bytes = opened.bytes + listened.bytes;
    TrafficResult {
        name: plan.name.clone(),
        flows: opened.flows,
        complete: opened.complete,
        bytes,
        goodput: plan.goodput(bytes, opened.last.max(listened.last), ended),
        packets_sent: opened.packets_sent,
        packets_received: listened.packets_received,
        flow_time_mean: (opened.complete > 0).then(|| opened.took / opened.complete),
        lateness: opened.lateness.clone(),
    }
}

/// Late datagrams make a run invalid as late packets of a link do.
fn late(
    line: &TrafficPlan,
    plan: &Plan,
    options: &RunOptions,
    opened: &TrafficReport,
) -> Option<String> {
    let links = line.route.iter().filter_map(|crossing| plan.link(&crossing.link));
    let path_rtt = links.map(|link| link.path_rtt).max().unwrap_or_default();
    let bound = lateness_bound(options.lateness, path_rtt);
    let late = opened.lateness.as_ref().filter(|lateness| lateness.p99 > bound)?;
    Some(format!(
        "traffic {}: 1 % of datagrams left more than {:.3} ms late; {:.3} ms are allowed",
        line.name,
        late.p99.as_ms_f64(),
        bound.as_ms_f64(),
    ))
}

/// One end, ready to begin.
fn worker(
    node: &str,
    part: &str,
    file: &Path,
    address: SocketAddr,
    plan: &Plan,
    network: &Network,
    options: &RunOptions,
) -> Result<Worker, RunError> {
    let mut command = command(network, node, &options.program)?;
    command.args(["traffic", part, "--plan"]).arg(file);
    command.args(["--address", &address.to_string()]);
    command.args(["--seed", &plan.seed.to_string()]);
    let name = format!("traffic-{part}-{}", address.port());
    let mut worker = Worker::start(command, node, &name, file.parent().unwrap_or(Path::new(".")))?;
    worker.wait_ready()?;
    Ok(worker)
}
