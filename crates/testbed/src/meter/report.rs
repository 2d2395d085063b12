//! Makes one report from the records of both ends.

use super::clock;
use super::flow::FlowOutcome;
use super::message::{Direction, Log};
use super::options::{MeterOptions, Workload};
use super::series::Arrivals;
use midhop_experiment::measured::{Gap, MeterReport};
use midhop_experiment::record::{FlowResult, ObjectResult, Restarts, Series, TransferResult};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::BTreeMap;

pub(super) fn assemble(
    options: &MeterOptions,
    epoch: Instant,
    mut outcomes: Vec<FlowOutcome>,
    logs: &[Log],
    warnings: Vec<String>,
) -> MeterReport {
    let far: BTreeMap<u32, &Log> = logs.iter().map(|log| (log.flow, log)).collect();
    if options.direction == Direction::Up {
        // Of an upload that broke off, only the server knows how much arrived.
        let clock = clock::name();
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.error.is_some()) {
            if let Some(log) = far.get(&outcome.flow) {
                // Queued payload arrived after the client had given up. So both the bytes and the
                // end are taken from the server's log.
                outcome.clock_shared |= log.clock.is_some() && log.clock == clock;
                outcome.bytes = log.received;
                if outcome.clock_shared && log.received > 0 {
                    outcome.end = Instant::from_ns(log.last_byte_ns);
                }
            }
        }
    }
    let mut restarts = Restarts::default();
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.replaced) {
        // The bytes that had arrived of a restarted item are discarded.
        restarts.count += 1;
        restarts.discarded += Bytes::new(outcome.bytes.saturating_sub(outcome.whole));
        outcome.bytes = outcome.bytes.min(outcome.whole);
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
        Workload::Flows { count, .. } => {
            outcomes.iter().filter(|outcome| !outcome.replaced).count() == *count as usize
        }
        Workload::Page { objects: wanted, .. } => objects.len() == wanted.len(),
    };
    let start = flows.iter().map(|flow| flow.start).min().unwrap_or(Duration::ZERO);
    let end = flows.iter().map(|flow| flow.end).max().unwrap_or(start);
    let took = end.saturating_sub(start);
    let bytes: Bytes = flows.iter().map(|flow| flow.bytes).sum();
    let gaps = gaps(options, epoch, &outcomes, &far);
    let series = series(options, epoch, &outcomes, &far);
    MeterReport {
        host: Some(options.host.clone()),
        port: Some(options.port),
        direction: Some(match options.direction {
            Direction::Down => midhop_path::Direction::Down,
            Direction::Up => midhop_path::Direction::Up,
        }),
        transfer: TransferResult {
            name: options.name.clone(),
            complete: all_there && outcomes.iter().all(|it| it.replaced || it.error.is_none()),
            took,
            bytes,
            goodput: goodput(bytes, took),
            limit: None,
            restarts,
            flows,
            objects,
        },
        series,
        gaps,
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
        phases: None,
    }
}

/// A flow with no bytes in no time has no rate; it is not infinitely fast.
fn goodput(bytes: Bytes, time: Duration) -> Rate {
    if bytes == Bytes::ZERO { Rate::ZERO } else { Rate::of(bytes, time) }
}

/// The times without payload at the receiving end, by flow.
fn gaps(
    options: &MeterOptions,
    epoch: Instant,
    outcomes: &[FlowOutcome],
    far: &BTreeMap<u32, &Log>,
) -> Vec<Gap> {
    let before: BTreeMap<u32, &FlowOutcome> = outcomes.iter().map(|it| (it.flow, it)).collect();
    let mut gaps = Vec::new();
    // When payload last arrived for each flow, over whichever connection.
    let mut last: BTreeMap<u32, Instant> = BTreeMap::new();
    // Restarts have higher numbers than what they continue.
    for outcome in before.values() {
        let mut first = outcome;
        while let Some(earlier) = first.after.and_then(|flow| before.get(&flow)) {
            first = earlier;
        }
        let flow = first.flow;
        let near = outcome.log.lock();
        let log = match options.direction {
            Direction::Down => Some(&*near),
            Direction::Up => far.get(&outcome.flow).copied(),
        };
        let mut add = |from: Instant, to: Instant| {
            let [from, to] = [from, to].map(|at| at.saturating_since(epoch));
            gaps.push(Gap { flow, from, to });
        };
        if let Some((log, kept)) = log.and_then(|log| Some((log, log.gaps.as_ref()?)))
            && let Some(begin) = kept.first_ns
        {
            let origin = origin(options, outcome, log);
            let at = |ns| origin + Duration::from_ns(ns);
            if let Some(earlier) = last.get(&flow) {
                add(*earlier, at(begin));
            }
            kept.kept.iter().for_each(|(from, to)| add(at(*from), at(*to)));
            last.insert(flow, at(kept.last_ns));
        }
        if let Some(last) = last.get(&flow).filter(|_| !outcome.replaced && outcome.error.is_some())
        {
            add(*last, outcome.over);
        }
    }
    gaps
}

/// When the receiving end's log of a flow began, on this end's clock.
fn origin(options: &MeterOptions, outcome: &FlowOutcome, log: &Log) -> Instant {
    match options.direction {
        Direction::Up if outcome.clock_shared => Instant::from_ns(log.origin_ns),
        _ => outcome.start,
    }
}

fn series(
    options: &MeterOptions,
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
            sampled.extend(samples.series(&options.name, Some(outcome.flow), offset.as_s_f64()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::message::Amount;
    use crate::meter::sampler::SharedLog;
    use crate::meter::series::Capacity;
    use crate::meter::tcp_sample::TcpSample;

    const MS: u64 = 1_000_000;
    const EPOCH: Instant = Instant::from_ns(5_000 * MS);

    /// A flow that began 1 s after the epoch, and its server's log. The server sampled 50 ms after
    /// an origin that is 77 s on its clock.
    fn download(clock_shared: bool) -> (FlowOutcome, Log) {
        let start = Instant::from_ns(6_000 * MS);
        let log = SharedLog::begin(0, start.as_ns(), Some(100 * MS), Capacity::default(), true);
        log.lock().arrivals.add(250 * MS, 1_000.0);
        let outcome = FlowOutcome {
            flow: 0,
            client_port: 40_000,
            server_port: 5201,
            start,
            end: Instant::from_ns(6_250 * MS),
            bytes: 1_000,
            hash_sent: Some("1".to_owned()),
            hash_received: Some("1".to_owned()),
            congestion: Some("cubic".to_owned()),
            clock_shared,
            log,
            objects: Vec::new(),
            error: None,
            unfinished: None,
            whole: 0,
            replaced: false,
            over: Instant::from_ns(6_300 * MS),
            after: None,
        };
        let mut far = Log { origin_ns: 77_000 * MS, retransmissions: 3, ..Log::default() };
        far.samples.push(50 * MS, 100 * MS, TcpSample { rtt_us: 600_000, ..TcpSample::default() });
        (outcome, far)
    }

    fn report(outcome: FlowOutcome, far: &[Log]) -> MeterReport {
        let options = MeterOptions::new("host", 5201, Amount::Bytes(1_000));
        assemble(&options, EPOCH, vec![outcome], far, Vec::new())
    }

    fn sampled_at(report: &MeterReport) -> f64 {
        let rtt = report.series.iter().find(|series| series.quantity == "rtt").expect("sampled");
        assert_eq!(rtt.value, [600.0]);
        rtt.time_s[0]
    }

    /// A client that is cut off while it sends has not read the server's first message.
    #[test]
    fn what_arrives_after_an_upload_broke_off_has_its_own_end() {
        let (mut outcome, mut far) = download(false);
        outcome.error = Some(crate::meter::error::FlowError::TimeLimit);
        (far.received, far.last_byte_ns) = (1_600, 6_900 * MS);
        far.clock = clock::name();
        let mut options = MeterOptions::new("host", 5201, Amount::Bytes(1_000_000));
        options.direction = Direction::Up;
        let report = assemble(&options, EPOCH, vec![outcome], &[far], Vec::new());
        let flow = &report.transfer.flows[0];
        assert_eq!((flow.bytes, flow.end), (Bytes::new(1_600), Duration::from_ms(1_900)));
        assert_eq!(report.transfer.took, Duration::from_ms(900));
    }

    #[test]
    fn times_count_from_the_epoch_and_retransmissions_are_the_senders() {
        let (outcome, far) = download(true);
        let report = report(outcome, &[far]);
        let flow = &report.transfer.flows[0];
        assert_eq!((flow.start, flow.end), (Duration::from_ms(1_000), Duration::from_ms(1_250)));
        assert_eq!((flow.retransmissions, flow.goodput), (3, Rate::from_bits_per_s(32_000)));
        assert!(report.is_complete() && report.clock_shared);
        let goodput = report.series.iter().find(|s| s.quantity == "goodput" && s.flow == Some(0));
        assert_eq!(goodput.map(|series| series.time_s.as_slice()), Some(&[1.1, 1.2, 1.3][..]));
    }

    #[test]
    fn a_shared_clock_places_samples_exactly_and_a_foreign_one_by_the_flows_start() {
        let (outcome, far) = download(true);
        assert!((sampled_at(&report(outcome, &[far])) - 72.05).abs() < 1e-9);
        let (outcome, far) = download(false);
        let report = report(outcome, &[far]);
        assert!((sampled_at(&report) - 1.05).abs() < 1e-9);
        assert!(!report.clock_shared);
    }

    #[test]
    fn of_a_broken_upload_the_server_knows_how_far_it_came() {
        let (mut outcome, mut far) = download(true);
        outcome.bytes = 0;
        outcome.error = Some(crate::meter::FlowError::TimeLimit);
        (far.received, far.last_byte_ns) = (600, 6_100 * MS);
        let options = MeterOptions {
            direction: Direction::Up,
            ..MeterOptions::new("host", 5201, Amount::Bytes(1_000))
        };
        let report = assemble(&options, EPOCH, vec![outcome], &[far], Vec::new());
        let flow = &report.transfer.flows[0];
        assert!(!report.is_complete());
        assert_eq!((flow.bytes, flow.end), (Bytes::new(600), Duration::from_ms(1_100)));
    }

    #[test]
    fn what_began_again_counts_from_where_it_was_whole() {
        let (mut broken, far) = download(true);
        let (again, _) = download(true);
        let all = broken.bytes;
        broken.error = Some(crate::meter::FlowError::Cut);
        (broken.whole, broken.replaced) = (all - 10, true);
        let again = FlowOutcome { flow: 1, ..again };
        let options = MeterOptions::new("host", 5201, Amount::Bytes(1_000));
        let report = assemble(&options, EPOCH, vec![broken, again], &[far], Vec::new());
        assert!(report.is_complete());
        let transfer = &report.transfer;
        assert_eq!((transfer.restarts.count, transfer.restarts.discarded), (1, Bytes::new(10)));
        assert_eq!(transfer.bytes, Bytes::new(2 * all - 10));
    }

    #[test]
    fn without_the_servers_log_there_is_still_a_report() {
        let (outcome, _) = download(true);
        let report = report(outcome, &[]);
        assert!(report.is_complete());
        assert!(report.series.iter().all(|series| series.quantity == "goodput"));
    }
}
