//! Plans that only a simulation can run.

use crate::failure::Failure;
use midhop_bpf::{Resolution, missing_to_load, resolve};
use midhop_experiment::agents::{PlannedAgent, Role};
use midhop_experiment::handovers::{HandoverPlan, LiveFlows, StateWay};
use midhop_experiment::limit::Opener;
use midhop_experiment::naive::{Forwards, Holds, NaiveAccept};
use midhop_experiment::plan::{Plan, PlannedLink, PlannedNode, TransferPlan, Work};
use midhop_experiment::spec::RestartFrom;
use midhop_experiment::tcp::TcpPlan;
use midhop_experiment::traffic::TrafficPlan;
use midhop_path::aqm::AqmPlan;
use midhop_testbed::lab::lacking;
use std::collections::{BTreeMap, BTreeSet};

/// Refuses at once plans that only a simulation can run.
pub fn check_kernels_can(plans: &[Plan]) -> anyhow::Result<()> {
    match plans.iter().find_map(refusal) {
        None => Ok(()),
        Some(why) => Err(Failure::usage(why).hint("run the file with `midhop sim run`").into()),
    }
}

/// Why the lab cannot have these agents at `node`: there, agents are at the ends of links.
fn agent_refusal(plan: &Plan, node: &PlannedNode) -> Option<String> {
    let at = |agent: &PlannedAgent| format!("nodes.{}: {}", node.name, agent.name);
    node.agents.iter().find_map(|agent| match &agent.role {
        Role::Snoop(snoop) if snoop.links.len() > 1 => {
            Some(format!("a snoop agent of the lab stands before one link ({})", at(agent)))
        }
        Role::DProxy(half) => {
            let ends = |link: &&PlannedLink| {
                link.between.contains(&node.name) && link.between.contains(&half.peer)
            };
            let apart = !plan.links.iter().any(|link| ends(&link));
            let why = "two d-proxies of the lab stand at the ends of one link";
            apart.then(|| format!("{why} ({})", at(agent)))
        }
        _ => None,
    })
}

/// Why the lab cannot have such a handover.
fn handover_refusal(plan: &Plan, handover: &HandoverPlan) -> Option<String> {
    let HandoverPlan { from, to, flows, over, .. } = handover;
    let node = |name: &str| plan.node(name);
    let with_daemon =
        |name: &str| node(name)?.pep.as_ref().and_then(|pep| plan.peps.get(pep)).map(drop);
    let why = if node(from)?.pep.is_some() && with_daemon(from).is_none() {
        "a naive proxy hands no flows over".to_owned()
    } else if *flows == LiveFlows::Moved
        && with_daemon(from).and(with_daemon(to)).is_some()
        && matches!(over, Some(StateWay::Own(_)))
    {
        "the state of flows takes a link in the lab".to_owned()
    } else if plan.nodes.iter().any(|node| node.tcp.packet != TcpPlan::default().packet) {
        "routes that change have the links' packet size".to_owned()
    } else {
        return None;
    };
    Some(format!("{why} (handovers: {from} to {to})"))
}

/// Why the lab does not run `plan`; none where it does.
pub fn refusal(plan: &Plan) -> Option<String> {
    if let Some(why) = plan.nodes.iter().find_map(|node| agent_refusal(plan, node)) {
        return Some(why);
    }
    if let Some(why) = plan.nodes.iter().find_map(|node| naive_refusal(plan, node)) {
        return Some(why);
    }
    if let Some(why) = plan.handovers.iter().find_map(|it| handover_refusal(plan, it)) {
        return Some(why);
    }
    if let Err(why) = plan.with_tunnels_for_moves() {
        return Some(why);
    }
    let rest = |it: &&TransferPlan| {
        let is_file = it.opens == Opener::To && !matches!(it.work, Work::Objects { .. });
        it.restarts.is_some_and(|it| it.from == RestartFrom::Rest) && !is_file
    };
    if let Some(transfer) = plan.transfers.iter().find(rest) {
        return Some(format!(
            "the meter requests all of an interrupted upload or page again: `restart_from = \"rest\"` is for downloads of files (transfers.{})",
            transfer.name
        ));
    }
    let asks = |name: &str, congestion: &str| {
        Some(format!(
            "no kernel has the congestion control of {name}, or its parameters: {congestion}"
        ))
    };
    let tuned = |it: &&TransferPlan| it.tuning.as_ref().is_some_and(|it| it.of_kernel().is_none());
    if let Some(transfer) = plan.transfers.iter().find(tuned) {
        return asks(&format!("transfers.{}", transfer.name), &transfer.congestion);
    }
    let tuned = |it: &&TrafficPlan| {
        let tuning = it.tuning.as_ref().map(midhop_experiment::congestion::Tuning::of_kernel);
        tuning.is_some_and(|tuning| tuning.as_deref() != it.load.congestion())
    };
    if let Some(traffic) = plan.traffic.iter().find(tuned) {
        let congestion = traffic.load.congestion().unwrap_or_default();
        return asks(&format!("traffic.{}", traffic.name), congestion);
    }
    let lacking = |it: &PlannedNode| Some((it.name.clone(), lacking(&it.tcp)?));
    if let Some((node, key)) = plan.nodes.iter().find_map(lacking) {
        return Some(format!("no kernel has a host whose TCP has another `{key}` ({node})"));
    }
    let packets: BTreeSet<u32> = plan.nodes.iter().map(|node| node.tcp.packet).collect();
    if packets.len() > 1 {
        return Some("a kernel advertises an MSS and sends what its peer advertised: in the lab all hosts have the same `packet`".to_owned());
    }
    let routes = |it: &&PlannedLink| [&it.down, &it.up].iter().any(|way| way.aqm == AqmPlan::Xcp);
    let link = plan.links.iter().find(routes)?;
    Some(format!("the lab has no router for XCP (links.{})", link.name))
}

/// Why the lab cannot have the naive proxy of `node`.
fn naive_refusal(plan: &Plan, node: &PlannedNode) -> Option<String> {
    let pep = node.pep.as_ref()?;
    let naive = plan.naive.get(pep)?;
    let options = [
        ("holds", naive.holds == Holds::All),
        ("accept", naive.accept == NaiveAccept::Early),
        ("dialled", naive.accepted.is_none()),
        ("cork", !naive.cork),
        ("forwards", naive.forwards == Forwards::Stream),
    ];
    if let Some((key, _)) = options.into_iter().find(|(_, plain)| !plain) {
        return Some(format!("the lab's naive proxies have no `{key}` (naive.{pep})"));
    }
    let mut legs = naive.legs.iter().map(|(link, leg)| (link.as_str(), leg));
    let place = |link: &str| format!("naive.{pep}.legs.{link}");
    if let Some((link, _)) = legs.clone().find(|(_, leg)| leg.timer.is_some()) {
        return Some(format!("no kernel repairs by a timer alone ({})", place(link)));
    }
    let (link, leg) = legs.find(|(_, leg)| leg.tuning.of_kernel_leg().is_none())?;
    let name = &leg.tuning.algorithm;
    Some(format!(
        "no kernel has the congestion control of {}, or its parameters: {name}",
        place(link)
    ))
}

/// Why this machine, with the user's rights, cannot run `plan`, although others may; none where it
/// can.
pub fn unable(plan: &Plan) -> Option<String> {
    let missing = missing_to_load()?;
    let used = |pep: &String| plan.nodes.iter().any(|node| node.pep.as_ref() == Some(pep));
    let mut needed = plan.clone();
    needed.peps.retain(|pep, _| used(pep));
    let program = |name: &String| matches!(resolve(name), Ok(Resolution::Program(_)));
    let naive = plan.naive.values().flat_map(|naive| naive.legs.values());
    let naive = naive.map(|leg| leg.tuning.algorithm.clone());
    let name = needed.congestion_controls().into_iter().chain(naive).find(program)?;
    Some(format!("{name} is a BPF program here, and {missing}"))
}

/// The plans that can run, and one line for each reason why others cannot: `label` names a plan.
pub fn parted<'p>(
    plans: Vec<Plan>,
    scenario: impl Fn(&Plan) -> &'p str,
) -> (Vec<Plan>, Vec<String>) {
    let mut runs = Vec::new();
    let mut refused: BTreeMap<(String, String), Vec<Plan>> = BTreeMap::new();
    for plan in plans {
        match refusal(&plan).or_else(|| unable(&plan)) {
            None => runs.push(plan),
            Some(why) => {
                refused.entry((scenario(&plan).to_owned(), why)).or_default().push(plan);
            }
        }
    }
    let lines = refused.into_iter().map(|((scenario, why), plans)| {
        // The labels that all of them share identify them.
        let mut common = plans[0].cell();
        let cells: Vec<_> = plans.iter().map(Plan::cell).collect();
        common.retain(|axis, label| cells.iter().all(|cell| cell.get(axis) == Some(label)));
        let labels: Vec<String> = common.iter().map(|(axis, it)| format!(" {axis}={it}")).collect();
        format!("{scenario}{}: {} runs left out: {why}", labels.concat(), plans.len())
    });
    (runs, lines.collect())
}
