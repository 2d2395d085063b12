//! What the arrivals of a train show about the link: its rate, its losses, its order.
//!
//! The rate is computed from the receiver's times only. Whether the sender was delayed shows in the
//! sending times, which the datagrams carry.

use super::train::PACKET;
use serde::{Deserialize, Serialize};

/// The first part of the arrivals, which is ignored: a token bucket's burst, capacity that is
/// granted on demand.
const IGNORED: f64 = 0.4;
/// The last part of the arrivals, which is ignored: stragglers would stretch the whole train.
const STRAGGLERS: f64 = 0.02;
/// Width of the windows over which a varying rate is reported. Unit: nanoseconds.
const WINDOW_NS: f64 = 200e6;
/// A window with fewer packets gives no rate.
const WINDOW_PACKETS_MIN: f64 = 10.0;
/// The standard deviations of a 95 % interval.
const DEVIATIONS: f64 = 1.96;

/// One packet of a train, as it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrainArrival {
    /// Its number in the train.
    pub(super) number: u32,
    /// When it was sent, on the sender's clock.
    pub(super) sent_ns: u64,
    /// When it arrived, on the receiver's clock.
    pub(super) at_ns: u64,
}

/// What one end received of a train.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::meter) struct Arrived {
    /// Packets, each counted once.
    pub(super) packets: u64,
    /// Packets that did not arrive.
    pub(super) lost: u64,
    /// Runs of lost packets.
    pub(super) loss_bursts: u64,
    /// Packets that arrived after one that was sent later (RFC 4737).
    pub(super) reordered: u64,
    /// Packets that arrived more than once.
    pub(super) duplicates: u64,
    /// Packets that reached this host and were dropped for lack of space.
    pub(super) overflowed: u64,
    /// The later part, which gives the rate; none where too few packets arrived.
    pub(super) tail: Option<Tail>,
}

/// The part of a train from which the rate is computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::meter) struct Tail {
    /// The rate at which it arrived.
    pub(super) rate_bit_per_s: f64,
    /// The rate at which it was sent.
    pub(super) sent_bit_per_s: f64,
    /// The part of it that arrived.
    pub(super) delivered: f64,
    /// How much longer it took to arrive than to be sent.
    pub(super) stretch: f64,
    /// The 10th, 50th and 90th percentile of the rate over windows; none where packets were too few.
    pub(super) windows_bit_per_s: Option<[f64; 3]>,
}

impl Arrived {
    /// Evaluates the `arrivals`, in the order in which they came, of a train of `sent` packets.
    pub(super) fn of(arrivals: &[TrainArrival], sent: u32, overflowed: u64) -> Self {
        let mut seen = vec![false; sent as usize];
        let mut once = Vec::with_capacity(arrivals.len());
        let (mut duplicates, mut reordered, mut highest) = (0, 0, None);
        for arrival in arrivals {
            // A number beyond the train's end belongs to no packet.
            let Some(seen) = seen.get_mut(arrival.number as usize) else { continue };
            if std::mem::replace(seen, true) {
                duplicates += 1;
                continue;
            }
            if highest.is_some_and(|highest| arrival.number < highest) {
                reordered += 1;
            }
            highest = highest.max(Some(arrival.number));
            once.push(*arrival);
        }
        let (lost, loss_bursts) = losses(&seen);
        once.sort_by_key(|arrival| arrival.at_ns);
        Self {
            packets: once.len() as u64,
            lost,
            loss_bursts,
            reordered,
            duplicates,
            overflowed,
            tail: Tail::of(&once),
        }
    }

    /// Mean length of a run of lost packets; none where none was lost.
    pub(super) fn loss_burst_mean(&self) -> Option<f64> {
        (self.loss_bursts > 0).then(|| self.lost as f64 / self.loss_bursts as f64)
    }
}

/// How many packets are missing, and in how many runs.
fn losses(seen: &[bool]) -> (u64, u64) {
    let lost = seen.iter().filter(|seen| !**seen).count() as u64;
    let begins = seen.windows(2).filter(|pair| pair[0] && !pair[1]).count() as u64;
    (lost, begins + u64::from(seen.first() == Some(&false)))
}

impl Tail {
    /// Evaluates arrivals that are sorted by time.
    fn of(arrivals: &[TrainArrival]) -> Option<Self> {
        let stragglers = (arrivals.len() as f64 * STRAGGLERS) as usize;
        let arrivals = &arrivals[..arrivals.len() - stragglers];
        let (first, last) = (arrivals.first()?.at_ns, arrivals.last()?.at_ns);
        let from = first + ((last - first) as f64 * IGNORED) as u64;
        let tail = &arrivals[arrivals.partition_point(|arrival| arrival.at_ns < from)..];
        let (begin, end) = (tail.first()?, tail.last()?);
        let took_ns = (end.at_ns - begin.at_ns) as f64;
        let lowest = tail.iter().min_by_key(|arrival| arrival.number)?;
        let highest = tail.iter().max_by_key(|arrival| arrival.number)?;
        let span = f64::from(highest.number - lowest.number);
        let sending_ns = highest.sent_ns.saturating_sub(lowest.sent_ns) as f64;
        if tail.len() < 3 || took_ns <= 0.0 || sending_ns <= 0.0 || span <= 0.0 {
            return None;
        }
        let intervals = (tail.len() - 1) as f64;
        Some(Self {
            rate_bit_per_s: rate(intervals, took_ns),
            sent_bit_per_s: rate(span, sending_ns),
            delivered: intervals / span,
            stretch: took_ns / sending_ns,
            windows_bit_per_s: windows(tail),
        })
    }
}

/// Unit: bits per second.
fn rate(packets: f64, time_ns: f64) -> f64 {
    packets * PACKET as f64 * 8.0 * 1e9 / time_ns
}

/// Percentiles of the rate over windows. A window's edge falls between two packets: each counts in part.
fn windows(tail: &[TrainArrival]) -> Option<[f64; 3]> {
    let begin = tail.first()?.at_ns;
    let time = |index: usize| (tail[index].at_ns - begin) as f64;
    let count = (time(tail.len() - 1) / WINDOW_NS) as usize;
    if count < 3 || (tail.len() as f64) < count as f64 * WINDOW_PACKETS_MIN {
        return None;
    }
    let passed = |at: f64| {
        let after = tail.partition_point(|arrival| ((arrival.at_ns - begin) as f64) <= at);
        if after == 0 || after == tail.len() {
            return after as f64;
        }
        let gap = (time(after) - time(after - 1)).max(1.0);
        (after - 1) as f64 + (at - time(after - 1)) / gap
    };
    let mut rates: Vec<f64> = (0..count)
        .map(|window| {
            let from = window as f64 * WINDOW_NS;
            rate(passed(from + WINDOW_NS) - passed(from), WINDOW_NS)
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    Some([0.1, 0.5, 0.9].map(|part| percentile(&rates, part)))
}

/// The value below which the fraction `part` of `sorted` lies; 0 where `sorted` is empty.
pub(super) fn percentile(sorted: &[f64], part: f64) -> f64 {
    let index = (part * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(index).copied().unwrap_or(0.0)
}

/// The 95 % interval (Wilson) of a loss ratio, with `lost` packets of `sent`. Losses in bursts give
/// less information: a burst of B packets counts as one of 2 B − 1 trials, as in a Gilbert channel.
pub(super) fn loss_interval(lost: u64, sent: u64, burst_mean: Option<f64>) -> [f64; 2] {
    if sent == 0 {
        return [0.0, 1.0];
    }
    let inflation = burst_mean.map_or(1.0, |burst| 2.0 * burst - 1.0).max(1.0);
    let trials = sent as f64 / inflation;
    let ratio = lost as f64 / sent as f64;
    let square = DEVIATIONS * DEVIATIONS;
    let centre = ratio + square / (2.0 * trials);
    let spread = ratio * (1.0 - ratio) / trials + square / (4.0 * trials * trials);
    let half = DEVIATIONS * spread.sqrt();
    let scale = 1.0 + square / trials;
    [((centre - half) / scale).max(0.0), ((centre + half) / scale).min(1.0)]
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
