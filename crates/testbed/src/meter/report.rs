//! From what both ends saw to one report.

use super::flow::FlowOutcome;
use super::message::{Direction, Log};
use super::options::{RunOptions, Workload};
use super::series::Arrivals;
use midhop_experiment::record::{FlowResult, ObjectResult, Series, TransferResult};
use midhop_units::{Bytes, Duration, Instant, Rate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a run of the meter measured.
///
/// All times count from the run's epoch. What the far end timed is exact when both ends read one
/// clock ([`MeterReport::clock_shared`]). Else the far end's series are placed as if its part of a
/// flow had begun with the SYN (it began up to 1.5 round trips later), and the end of an upload is
/// when the server's word of it arrived (half a round trip late).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeterReport {
    /// The transfer, its flows and its objects. Objects that did not arrive are left out.
    pub transfer: TransferResult,
    /// `goodput` of all flows together (`flow` is none), then of each flow: payload that reached the
    /// receiver in the interval that ends at the given time. From the sending end of each flow:
    /// `cwnd` and `in_flight` in bytes, `rtt`, `retransmissions` (segments since the flow's start),
    /// `delivery_rate`, `pacing_rate`.
    pub series: Vec<Series>,
    /// Whether client and server read the same clock.
    pub clock_shared: bool,
    /// What is missing from the report, in sentences.
    pub warnings: Vec<String>,
}

impl MeterReport {
    /// Whether all that was asked for arrived as it was sent.
    pub fn is_complete(&self) -> bool {
        self.transfer.complete
    }
}

pub(super) fn assemble(
    options: &RunOptions,
    epoch: Instant,
    mut outcomes: Vec<FlowOutcome>,
    logs: &[Log],
    warnings: Vec<String>,
) -> MeterReport {
    let far: BTreeMap<u32, &Log> = logs.iter().map(|log| (log.flow, log)).collect();
    if options.direction == Direction::Up {
        // Of an upload that broke off, only the server knows how far it came.
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.error.is_some()) {
            if let Some(log) = far.get(&outcome.flow) {
                outcome.bytes = log.received;
                if outcome.clock_shared && log.received > 0 {
                    outcome.end = Instant::from_ns(log.last_byte_ns);
                }
            }
        }
    }
    let flows: Vec<FlowResult> = outcomes
        .iter()
        .map(|outcome| {
            let near = outcome.log.lock();
            let sender = match options.direction {
                Direction::Down => far.get(&outcome.flow).copied(),
                Direction::Up => Some(&*near),
            };
            flow_result(epoch, outcome, sender)
        })
        .collect();
    let mut objects: Vec<ObjectResult> = outcomes
        .iter()
        .flat_map(|outcome| outcome.objects.iter().map(move |object| (outcome.flow, object)))
        .map(|(flow, object)| ObjectResult {
            id: object.id,
            flow,
            bytes: Bytes::new(object.bytes),
            start: object.start.saturating_since(epoch),
            first_byte: object.first_byte.saturating_since(epoch),
            end: object.end.saturating_since(epoch),
        })
        .collect();
    objects.sort_by_key(|object| object.id);
    let all_there = match &options.workload {
        Workload::Flows { count, .. } => flows.len() == *count as usize,
        Workload::Page { objects: wanted, .. } => objects.len() == wanted.len(),
    };
    let start = flows.iter().map(|flow| flow.start).min().unwrap_or(Duration::ZERO);
    let end = flows.iter().map(|flow| flow.end).max().unwrap_or(start);
    let took = end.saturating_sub(start);
    let bytes: Bytes = flows.iter().map(|flow| flow.bytes).sum();
    let series = series(options, epoch, &outcomes, &far);
    MeterReport {
        transfer: TransferResult {
            name: options.name.clone(),
            complete: all_there && flows.iter().all(|flow| flow.error.is_none()),
            took,
            bytes,
            goodput: goodput(bytes, took),
            limit: None,
            flows,
            objects,
        },
        series,
        clock_shared: outcomes.iter().all(|outcome| outcome.clock_shared),
        warnings,
    }
}

fn flow_result(epoch: Instant, outcome: &FlowOutcome, sender: Option<&Log>) -> FlowResult {
    let bytes = Bytes::new(outcome.bytes);
    FlowResult {
        id: outcome.flow,
        client_port: outcome.client_port,
        server_port: outcome.server_port,
        start: outcome.start.saturating_since(epoch),
        end: outcome.end.saturating_since(epoch),
        bytes,
        goodput: goodput(bytes, outcome.end.saturating_since(outcome.start)),
        hash_sent: outcome.hash_sent.clone(),
        hash_received: outcome.hash_received.clone(),
        retransmissions: sender.map_or(0, |log| log.retransmissions),
        rtt_min: sender.and_then(|log| log.rtt_min_us).map(Duration::from_us),
        congestion: outcome.congestion.clone().unwrap_or_default(),
        error: outcome.error.as_ref().map(ToString::to_string),
    }
}

/// A flow that moved nothing in no time was not infinitely fast.
fn goodput(bytes: Bytes, time: Duration) -> Rate {
    if bytes == Bytes::ZERO { Rate::ZERO } else { Rate::of(bytes, time) }
}

fn series(
    options: &RunOptions,
    epoch: Instant,
    outcomes: &[FlowOutcome],
    far: &BTreeMap<u32, &Log>,
) -> Vec<Series> {
    // When an end's part of the flow began, on this end's clock.
    let origin = |outcome: &FlowOutcome, log: &Log| {
        let moment =
            if outcome.clock_shared { Instant::from_ns(log.origin_ns) } else { outcome.start };
        moment.saturating_since(epoch)
    };
    let mut arrivals: Vec<(u32, Duration, Arrivals)> = Vec::new();
    let mut sampled = Vec::new();
    for outcome in outcomes {
        let near = outcome.log.lock();
        let shown = outcome.flow < options.series_flows;
        let started = outcome.start.saturating_since(epoch);
        let far = far.get(&outcome.flow);
        let samples = match options.direction {
            Direction::Down => {
                arrivals.push((outcome.flow, started, near.arrivals.clone()));
                far.map(|log| (origin(outcome, log), &log.samples))
            }
            Direction::Up => {
                if let Some(log) = far {
                    arrivals.push((outcome.flow, origin(outcome, log), log.arrivals.clone()));
                }
                Some((started, &near.samples))
            }
        };
        if let Some((offset, samples)) = samples.filter(|_| shown) {
            sampled.extend(samples.series(&options.name, outcome.flow, offset.as_s_f64()));
        }
    }
    let sum = Arrivals::sum(arrivals.iter().map(|(_, offset, part)| (offset.as_ns(), part)));
    let mut all: Vec<Series> = sum.series(&options.name, None, 0.0).into_iter().collect();
    all.extend(arrivals.iter().filter(|(flow, ..)| *flow < options.series_flows).filter_map(
        |(flow, offset, part)| part.series(&options.name, Some(*flow), offset.as_s_f64()),
    ));
    all.extend(sampled);
    all
}
