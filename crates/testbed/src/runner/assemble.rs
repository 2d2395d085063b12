//! Makes the record of a run from all measurements, and judges whether it is valid.

use super::fault::io_error;
use super::handovers::Outcome;
use super::traffic::TrafficOutcome;
use super::{RunError, RunOptions, lateness_faults};
use crate::lab::{NetworkReport, find_daemon};
use crate::meter::MeterReport;
use crate::probe::{ProbeError, ProbeReport};
use midhop_experiment::handovers::{Freezes, HandoversResult, Waits};
use midhop_experiment::measured::Gap;
use midhop_experiment::plan::Plan;
use midhop_experiment::record::{
    Environment, LegResult, NodeResult, Record, SCHEMA, Series, TransferResult, Validity,
};
use midhop_units::{Duration, Instant};
use std::collections::BTreeMap;
use std::io;
use std::process::Command;
use std::sync::OnceLock;

/// All measurements of one run.
pub(super) struct Measured {
    /// One report per transfer, in the plan's order.
    pub(super) reports: Vec<MeterReport>,
    pub(super) network: NetworkReport,
    /// The probe's results, or why there are none.
    pub(super) probe: Result<ProbeReport, ProbeError>,
    /// The legs through tunnels, as the proxies report them.
    pub(super) tunnels: Vec<LegResult>,
    /// The results of cross traffic.
    pub(super) traffic: TrafficOutcome,
    /// The results of naive proxies.
    pub(super) nodes: Vec<NodeResult>,
    /// What handovers did; none without any.
    pub(super) handovers: Option<Outcome>,
    pub(super) load: f64,
    pub(super) started_unix_s: u64,
    pub(super) took: Duration,
}

/// Assembles the record.
pub(super) fn assemble(
    plan: &Plan,
    options: &RunOptions,
    measured: Measured,
) -> Result<Record, RunError> {
    let Measured {
        reports,
        network,
        probe,
        tunnels,
        traffic,
        nodes,
        handovers,
        load,
        started_unix_s,
        took,
    } = measured;
    let mut faults = network_faults(plan, options, &network);
    let mut transfers = Vec::new();
    let nodes = nodes.into_iter().chain(network.nodes).collect();
    let mut series = network.series;
    let holdups: Vec<Instant> =
        plan.timeline().holdups().into_iter().map(|at| Instant::START + at).collect();
    let (mut stalls, mut stall_max) = (Vec::new(), None);
    for report in reports {
        let mut waits = Waits::default();
        for Gap { flow, from, to } in &report.gaps {
            let [from, to] = [from, to].map(|at| Instant::START + *at);
            waits.count(*flow, from, to, &holdups);
        }
        stalls.extend(waits.at_holdups());
        stall_max = waits.longest.max(stall_max);
        let transfer = report.transfer;
        faults.extend(transfer_faults(&transfer));
        faults.extend(
            report.warnings.into_iter().map(|warning| format!("{}: {warning}", transfer.name)),
        );
        transfers.push(transfer);
        series.extend(report.series);
    }
    faults.extend(tunnels.iter().filter_map(LegResult::unused));
    faults.extend(traffic.faults);
    let handovers = handovers.map(|outcome| {
        faults.extend(outcome.faults);
        HandoversResult { stalls: Freezes::of(stalls), stall_max, ..outcome.result }
    });
    series.extend(traffic.series);
    let mut versions = versions(plan);
    if let Some(policy) = network.policy {
        versions.insert("emulator scheduling".to_owned(), policy.name().to_owned());
    }
    let probe = probe.unwrap_or_else(|error| {
        versions.insert("proxies' connections".to_owned(), format!("not watched: {error}"));
        ProbeReport::default()
    });
    series.extend(until_last_byte(probe.series, &transfers));
    let plan_json = plan
        .to_json()
        .map_err(|error| io_error("write the plan into the record")(io::Error::other(error)))?;
    let mut record = Record {
        schema: SCHEMA,
        title: plan.title.clone(),
        cell: plan.cell(),
        seed: plan.seed,
        plan: plan_json,
        environment: Environment {
            runner: "lab".to_owned(),
            versions,
            processors: std::thread::available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
            load,
            privileged: options.privileged,
            started_unix_s,
            took,
        },
        validity: Validity { faults },
        transfers,
        links: network.links,
        legs: probe.legs.into_iter().chain(tunnels).collect(),
        traffic: traffic.results,
        nodes,
        handovers,
        series,
    };
    record.set_limits(plan);
    let impossible = record.check_limit();
    record.validity.faults.extend(impossible);
    Ok(record)
}

/// The proxies' curves up to the end of the last flow: afterwards, the meter only fetches the far
/// ends' logs.
fn until_last_byte(curves: Vec<Series>, transfers: &[TransferResult]) -> Vec<Series> {
    let flows = transfers.iter().flat_map(|transfer| &transfer.flows);
    let Some(end) = flows.map(|flow| flow.end).max() else { return curves };
    let cut = |mut curve: Series| {
        let kept = curve.time_s.partition_point(|&time| time <= end.as_s_f64());
        curve.time_s.truncate(kept);
        curve.value.truncate(kept);
        curve
    };
    curves.into_iter().map(cut).filter(|curve| !curve.value.is_empty()).collect()
}

/// Faults of the emulation itself.
fn network_faults(plan: &Plan, options: &RunOptions, network: &NetworkReport) -> Vec<String> {
    let mut faults: Vec<String> = network
        .missed
        .iter()
        .map(|(link, frames)| {
            format!("the kernel dropped {frames} frames before the emulator of {link} saw them")
        })
        .collect();
    faults.extend(network.dropped.iter().map(|(link, frames)| {
        format!("the devices of {link} dropped {frames} frames that nobody had seen")
    }));
    faults.extend(lateness_faults(plan, &network.links, options.lateness));
    faults
}

/// Faults of a transfer's data.
fn transfer_faults(transfer: &TransferResult) -> Vec<String> {
    let name = &transfer.name;
    let mut faults = Vec::new();
    for flow in &transfer.flows {
        // An unfinished flow lacks a hash; only two hashes can contradict each other.
        if flow.hash_sent.as_ref().zip(flow.hash_received.as_ref()).is_some_and(|(a, b)| a != b) {
            faults.push(format!("{name}, flow {}: other bytes arrived than were sent", flow.id));
        }
    }
    faults
}

/// The versions of the programs that were used.
fn versions(plan: &Plan) -> BTreeMap<String, String> {
    static DAEMON: OnceLock<Option<String>> = OnceLock::new();
    let mut versions =
        BTreeMap::from([("midhop".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    if let Ok(system) = nix::sys::utsname::uname() {
        versions.insert("linux".to_owned(), system.release().to_string_lossy().into_owned());
    }
    if plan.has_daemons() {
        let daemon = DAEMON.get_or_init(|| {
            let output = Command::new(find_daemon().ok()?).arg("--version").output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            text.split_whitespace().nth(1).map(str::to_owned)
        });
        versions.extend(daemon.clone().map(|version| ("midhopd".to_owned(), version)));
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::record::FlowResult;
    use midhop_units::{Bytes, Rate};

    fn transfer(ends_ms: &[u64]) -> TransferResult {
        let flow = |&end_ms: &u64| FlowResult {
            id: 0,
            client_port: 40_000,
            server_port: 5_201,
            start: Duration::ZERO,
            end: Duration::from_ms(end_ms),
            bytes: Bytes::ZERO,
            goodput: Rate::ZERO,
            hash_sent: None,
            hash_received: None,
            retransmissions: 0,
            rtt_min: None,
            congestion: "cubic".to_owned(),
            error: None,
            phases: None,
        };
        TransferResult {
            name: "file".to_owned(),
            complete: true,
            took: Duration::ZERO,
            bytes: Bytes::ZERO,
            goodput: Rate::ZERO,
            limit: None,
            restarts: Default::default(),
            flows: ends_ms.iter().map(flow).collect(),
            objects: Vec::new(),
        }
    }

    #[test]
    fn curves_of_proxies_end_with_the_last_flow() {
        let curve = |time_s: &[f64]| Series {
            quantity: "cwnd".to_owned(),
            place: "gateway.satellite".to_owned(),
            flow: None,
            unit: "B".to_owned(),
            time_s: time_s.to_vec(),
            value: time_s.iter().map(|time| time * 10.0).collect(),
        };
        let curves = vec![curve(&[0.1, 0.2, 0.3, 0.4]), curve(&[0.35])];
        let cut = until_last_byte(curves.clone(), &[transfer(&[100, 310]), transfer(&[200])]);
        assert_eq!(cut, [curve(&[0.1, 0.2, 0.3])]);
        // Programs alone have no end of their own.
        assert_eq!(until_last_byte(curves.clone(), &[]), curves);
    }
}
