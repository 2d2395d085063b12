//! The naive proxies of a run: a process on each node that has one.

use super::RunError;
use super::fault::io_error;
use super::meters::command;
use super::worker::Worker;
use crate::lab::Network;
use crate::naive::NaiveReport;
use midhop_experiment::plan::Plan;
use midhop_experiment::record::NodeResult;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The naive proxies of a plan. Dropping the value ends them.
#[derive(Debug)]
pub struct NaiveProxies(Vec<(String, Worker)>);

/// Starts the naive proxies of a plan and waits until they intercept connections. `program` has the
/// command `meter naive`.
///
/// # Errors
/// When one does not start.
pub fn start_naive_proxies(
    plan: &Plan,
    network: &Network,
    program: &Path,
    directory: &Path,
) -> Result<NaiveProxies, RunError> {
    let mut proxies = Vec::new();
    for node in &plan.nodes {
        let Some(naive) = node.pep.as_ref().and_then(|pep| plan.naive.get(pep)) else { continue };
        let file = directory.join(format!("{}-naive.json", node.name));
        let text = serde_json::to_string(&(node, naive)).map_err(std::io::Error::other);
        text.and_then(|text| fs::write(&file, text))
            .map_err(io_error(format!("write down the naive proxy of {}", node.name)))?;
        let mut command = command(network, &node.name, program)?;
        command.args(["naive", "--plan"]).arg(&file);
        let mut worker =
            Worker::start(command, &node.name, &format!("{}-naive", node.name), directory)?;
        worker.wait_ready()?;
        proxies.push((node.name.clone(), worker));
    }
    Ok(NaiveProxies(proxies))
}

impl NaiveProxies {
    /// Ends them and reports their results.
    pub(super) fn finish(self) -> Result<Vec<NodeResult>, RunError> {
        let result = |(node, worker): (String, Worker)| {
            let counts: NaiveReport = worker.finish()?;
            Ok(NodeResult { node, drops: BTreeMap::new(), counts })
        };
        self.0.into_iter().map(result).collect()
    }
}
