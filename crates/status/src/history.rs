//! The last hour, as the status page draws it: a sample a second for five minutes, and one each ten seconds for an hour.
//!
//! Invariant: the stored data is bounded: [`RECENT`] and [`HOUR`] samples, of [`LEGS_MAX`] legs each, about 2 MB at
//! most, however long the daemon lives. The cost of a sample grows with the live flows, a few loads and one addition
//! each, on the daemon's own thread and not on a worker's. So samples become rarer if there are many flows: at most
//! [`FLOWS_PER_S`] are examined in a second.

use crate::snapshot::LegSnapshot;
use midhop_units::Bytes;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Samples of a second that are kept: five minutes.
pub const RECENT: usize = 300;
/// Samples of ten seconds that are kept: an hour.
pub const HOUR: usize = 360;
/// Legs that are kept, the first by name.
pub const LEGS_MAX: usize = 32;
/// Live flows that are examined in a second.
pub const FLOWS_PER_S: u64 = 20_000;

const SECOND: Duration = Duration::from_secs(1);
/// A sample of ten seconds is due a little earlier, so that it never waits for the next second.
const TEN_SECONDS: Duration = Duration::from_millis(9_500);

/// Counters at one moment.
#[derive(Debug, Clone)]
pub struct Totals {
    /// The moment.
    pub at: Instant,
    /// From clients to servers.
    pub up: Bytes,
    /// From servers to clients.
    pub down: Bytes,
    /// Live flows.
    pub flows: u64,
    /// Clients that wait for the far side to answer.
    pub held_syns: u64,
    /// Data that flows hold.
    pub buffered: Bytes,
    /// Each leg by name, [`LEGS_MAX`] at most.
    pub legs: BTreeMap<String, LegSnapshot>,
}

/// What happened between two moments.
#[derive(Debug, Clone)]
struct Sample {
    at: Instant,
    up_bit_per_s: u64,
    down_bit_per_s: u64,
    flows: u64,
    held_syns: u64,
    buffered_bytes: u64,
    legs: BTreeMap<Arc<str>, LegSample>,
}

#[derive(Debug, Clone, Copy, Default)]
struct LegSample {
    sent_bit_per_s: u64,
    received_bit_per_s: u64,
    rtt_s: Option<f64>,
    loss_ratio: Option<f64>,
    out_of_order_ratio: Option<f64>,
    queued_bytes: u64,
}

/// The samples.
#[derive(Debug)]
pub struct History {
    begun: Instant,
    rings: Mutex<[Ring; 2]>,
}

#[derive(Debug)]
struct Ring {
    period: Duration,
    most: usize,
    last: Option<Totals>,
    samples: VecDeque<Sample>,
}

/// Samples in columns, oldest first: every list is as long as `at_s`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Columns {
    /// How long ago each sample was taken.
    pub age_s: Vec<f64>,
    /// When it was taken, since the daemon's start.
    pub at_s: Vec<f64>,
    /// From clients to servers.
    pub up_bit_per_s: Vec<u64>,
    /// From servers to clients.
    pub down_bit_per_s: Vec<u64>,
    /// Live flows.
    pub flows: Vec<u64>,
    /// Clients that wait for the far side to answer.
    pub held_syns: Vec<u64>,
    /// Data that flows hold.
    pub buffered_bytes: Vec<u64>,
    /// Each leg by name; null where it did not exist, or nothing was measured.
    pub legs: BTreeMap<String, LegColumns>,
}

/// A leg's samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegColumns {
    /// Sent into it.
    pub sent_bit_per_s: Vec<Option<u64>>,
    /// Received from it.
    pub received_bit_per_s: Vec<Option<u64>>,
    /// Smoothed round-trip time.
    pub rtt_s: Vec<Option<f64>>,
    /// Retransmitted segments, as a part of all that were sent: the loss on the way from this host.
    pub loss_ratio: Vec<Option<f64>>,
    /// Segments that arrived out of order, as a part of all that arrived: a sign of loss on the way
    /// to this host.
    pub out_of_order_ratio: Vec<Option<f64>>,
    /// Bytes that wait in this host to be sent.
    pub queued_bytes: Vec<Option<u64>>,
}

/// What the status page requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryView {
    /// The last five minutes.
    pub recent: Columns,
    /// The last hour.
    pub hour: Columns,
}

impl Default for History {
    fn default() -> Self {
        let ring = |period, most| Ring {
            period,
            most,
            last: None,
            samples: VecDeque::with_capacity(most),
        };
        Self {
            begun: Instant::now(),
            rings: Mutex::new([ring(SECOND / 2, RECENT), ring(TEN_SECONDS, HOUR)]),
        }
    }
}

impl History {
    /// Takes samples of what `measure` returns, for ever.
    pub async fn follow(self: Arc<Self>, measure: impl Fn() -> Totals) -> Infallible {
        loop {
            let totals = measure();
            let pause = pause(totals.flows);
            self.take(totals);
            sleep(pause).await;
        }
    }

    fn take(&self, totals: Totals) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.iter_mut().for_each(|ring| ring.take(&totals));
    }

    /// The samples that were taken later than `after_s` since the start.
    pub fn view(&self, after_s: f64) -> HistoryView {
        let now = Instant::now();
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let [recent, hour] = [0, 1].map(|at: usize| {
            let samples = rings[at].samples.iter();
            let since =
                |sample: &Sample| sample.at.saturating_duration_since(self.begun).as_secs_f64();
            let samples: Vec<_> = samples.filter(|sample| since(sample) > after_s).collect();
            Columns::of(&samples, self.begun, now)
        });
        HistoryView { recent, hour }
    }
}

/// How long to wait before the next sample.
fn pause(flows: u64) -> Duration {
    SECOND.max(Duration::from_secs_f64(flows as f64 / FLOWS_PER_S as f64))
}

impl Ring {
    fn take(&mut self, totals: &Totals) {
        let Some(last) = &self.last else {
            self.last = Some(totals.clone());
            return;
        };
        let passed = totals.at.saturating_duration_since(last.at);
        if passed < self.period {
            return;
        }
        let sample = Sample::between(last, totals, passed.as_secs_f64());
        self.last = Some(totals.clone());
        if self.samples.len() >= self.most {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }
}

impl Sample {
    fn between(last: &Totals, now: &Totals, passed_s: f64) -> Self {
        let rate = |before: Bytes, after: Bytes| {
            let bits = after.saturating_sub(before).get() as f64 * 8.0;
            (bits / passed_s).round() as u64
        };
        let zero = LegSnapshot::default();
        let legs = now.legs.iter().map(|(name, after)| {
            let before = last.legs.get(name).unwrap_or(&zero);
            let ratio = |part: fn(&LegSnapshot) -> u64, whole: fn(&LegSnapshot) -> u64| {
                let [part, whole] = [part, whole].map(|of| of(after).saturating_sub(of(before)));
                // A segment that was sent long ago may be retransmitted while no new one is sent.
                (whole > 0).then(|| (part as f64 / whole as f64).min(1.0))
            };
            let sample = LegSample {
                sent_bit_per_s: rate(before.sent_total, after.sent_total),
                received_bit_per_s: rate(before.received_total, after.received_total),
                rtt_s: after.rtt.map(|rtt| rtt.as_s_f64()),
                loss_ratio: ratio(|leg| leg.retransmissions_total, |leg| leg.sent_segments_total),
                out_of_order_ratio: ratio(
                    |leg| leg.out_of_order_segments_total,
                    |leg| leg.received_segments_total,
                ),
                queued_bytes: after.queued_bytes,
            };
            (Arc::from(name.as_str()), sample)
        });
        Self {
            at: now.at,
            up_bit_per_s: rate(last.up, now.up),
            down_bit_per_s: rate(last.down, now.down),
            flows: now.flows,
            held_syns: now.held_syns,
            buffered_bytes: now.buffered.get(),
            legs: legs.collect(),
        }
    }
}

impl Columns {
    fn of(samples: &[&Sample], begun: Instant, now: Instant) -> Self {
        /// Hundredths of a second are enough.
        fn seconds(time: Duration) -> f64 {
            (time.as_secs_f64() * 100.0).round() / 100.0
        }
        let names: BTreeSet<&Arc<str>> =
            samples.iter().flat_map(|sample| sample.legs.keys()).collect();
        let legs = names.into_iter().take(LEGS_MAX).map(|name| {
            let mut columns = LegColumns::default();
            for sample in samples {
                let leg = sample.legs.get(name);
                columns.sent_bit_per_s.push(leg.map(|leg| leg.sent_bit_per_s));
                columns.received_bit_per_s.push(leg.map(|leg| leg.received_bit_per_s));
                columns.rtt_s.push(leg.and_then(|leg| leg.rtt_s));
                columns.loss_ratio.push(leg.and_then(|leg| leg.loss_ratio));
                columns.out_of_order_ratio.push(leg.and_then(|leg| leg.out_of_order_ratio));
                columns.queued_bytes.push(leg.map(|leg| leg.queued_bytes));
            }
            (name.to_string(), columns)
        });
        let of = |value: fn(&Sample) -> u64| samples.iter().map(|sample| value(sample)).collect();
        let times = |time: &dyn Fn(&Sample) -> Duration| {
            samples.iter().map(|sample| seconds(time(sample))).collect()
        };
        Self {
            age_s: times(&|sample| now.saturating_duration_since(sample.at)),
            at_s: times(&|sample| sample.at.saturating_duration_since(begun)),
            up_bit_per_s: of(|sample| sample.up_bit_per_s),
            down_bit_per_s: of(|sample| sample.down_bit_per_s),
            flows: of(|sample| sample.flows),
            held_syns: of(|sample| sample.held_syns),
            buffered_bytes: of(|sample| sample.buffered_bytes),
            legs: legs.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(begun: Instant, second: u64, legs: usize) -> Totals {
        let leg = LegSnapshot {
            sent_total: Bytes::new(second * 125_000),
            sent_segments_total: second * 100,
            retransmissions_total: second * 2,
            ..LegSnapshot::default()
        };
        Totals {
            at: begun + Duration::from_secs(second),
            up: Bytes::new(second * 1_000),
            down: Bytes::new(second * 125_000),
            flows: second,
            held_syns: 0,
            buffered: Bytes::ZERO,
            legs: (0..legs).map(|number| (format!("leg{number:03}"), leg.clone())).collect(),
        }
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let history = History::default();
        for second in 0..5_000 {
            history.take(totals(history.begun, second, 1));
        }
        let view = history.view(-1.0);
        assert_eq!((view.recent.at_s.len(), view.hour.at_s.len()), (RECENT, HOUR));
        let step = |columns: &Columns| columns.at_s[1] - columns.at_s[0];
        assert_eq!((step(&view.recent), step(&view.hour)), (1.0, 10.0));
        assert_eq!(view.recent.at_s.last(), Some(&4_999.0));
        for columns in [&view.recent, &view.hour] {
            assert!(columns.down_bit_per_s.iter().all(|rate| *rate == 1_000_000));
            let leg = &columns.legs["leg000"];
            assert!(leg.loss_ratio.iter().all(|loss| *loss == Some(0.02)), "{leg:?}");
            assert!(leg.sent_bit_per_s.iter().all(|rate| *rate == Some(1_000_000)));
            assert_eq!(leg.rtt_s.len(), columns.at_s.len());
        }
        let fresh = history.view(4_997.0);
        assert_eq!(fresh.recent.at_s, [4_998.0, 4_999.0]);
    }

    #[test]
    fn no_more_legs_are_shown_than_are_bounded() {
        let history = History::default();
        for second in 0..3 {
            history.take(totals(history.begun, second, 100));
        }
        assert_eq!(history.view(-1.0).recent.legs.len(), LEGS_MAX);
    }

    #[test]
    fn many_flows_are_looked_at_less_often() {
        assert_eq!(pause(0), SECOND);
        assert_eq!(pause(20_000), SECOND);
        assert_eq!(pause(100_000), SECOND * 5);
    }
}
