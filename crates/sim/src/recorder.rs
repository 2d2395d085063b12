//! Quantities over time, as the testbed's meter samples them: every tenth of a second, bounded.
//!
//! When a run is longer than the reserved room, every second sample is dropped and later samples are half as
//! frequent, so that the whole run stays visible.

use crate::hop::Hop;
use crate::watch::Glance;
use midhop_experiment::record::Series;
use midhop_units::{Duration, Instant};

/// Time between two samples, until a run is so long that they are thinned.
pub const INTERVAL: Duration = Duration::from_ms(100);
/// How many flows of a transfer, from the first, have curves of their own.
pub const FLOWS_SHOWN: u32 = 32;
/// Most samples of one quantity.
const SAMPLES_MAX: usize = 4096;

/// One quantity over time, or several sampled together.
#[derive(Debug, Clone)]
pub(crate) struct Samples<const N: usize> {
    rows: Vec<(Instant, [f64; N])>,
    /// One sample in so many is kept.
    stride: u32,
    skipped: u32,
    /// The time of the last sample, kept or not.
    seen: Instant,
}

impl<const N: usize> Default for Samples<N> {
    fn default() -> Self {
        Self { rows: Vec::new(), stride: 1, skipped: 0, seen: Instant::NEVER }
    }
}

impl<const N: usize> Samples<N> {
    /// Adds a sample; samples come at equal intervals. Of two with the same time the later one counts.
    pub fn push(&mut self, now: Instant, row: [f64; N]) {
        if self.seen == now {
            if let Some((_, last)) = self.rows.last_mut().filter(|(at, _)| *at == now) {
                *last = row;
            }
            return;
        }
        self.seen = now;
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        self.rows.push((now, row));
        if self.rows.len() >= SAMPLES_MAX {
            let mut index = 0;
            self.rows.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.stride *= 2;
        }
    }

    /// One series per column, named and with its unit; columns that are never a number are left out.
    pub fn series(
        &self,
        columns: [(&str, &str); N],
        place: &str,
        flow: Option<u32>,
    ) -> impl Iterator<Item = Series> {
        columns.into_iter().enumerate().filter_map(move |(column, (quantity, unit))| {
            let points = self.rows.iter().filter(|(_, row)| !row[column].is_nan());
            let (time_s, value): (Vec<f64>, Vec<f64>) =
                points.map(|(at, row)| (at.as_ns() as f64 / 1e9, row[column])).unzip();
            (!value.is_empty()).then(|| Series {
                quantity: quantity.to_owned(),
                place: place.to_owned(),
                flow,
                unit: unit.to_owned(),
                time_s,
                value,
            })
        })
    }
}

/// Received payload, as a rate at the end of each interval.
#[derive(Debug, Clone, Default)]
pub(crate) struct ArrivalCurve {
    /// Payload at the end of each interval since the beginning.
    totals: Samples<1>,
    before: f64,
    noted: u64,
}

impl ArrivalCurve {
    /// Notes the payload received since the beginning. Unit: bytes.
    pub fn push(&mut self, now: Instant, total: u64) {
        if self.totals.rows.is_empty() && self.totals.stride == 1 {
            self.before = now.saturating_since(Instant::START + INTERVAL).as_ns() as f64;
        }
        self.totals.push(now, [total as f64]);
        self.noted = total;
    }

    /// Whether all received payload is noted.
    pub fn is_up_to(&self, total: u64) -> bool {
        self.noted == total
    }

    /// The curve of the goodput.
    pub fn series(&self, place: &str, flow: Option<u32>) -> Option<Series> {
        let mut last = (self.before, 0.0);
        let mut series = self.totals.series([("goodput", "Mbit/s")], place, flow).next()?;
        for (time_s, value) in series.time_s.iter().zip(&mut series.value) {
            let total = *value;
            let ns = time_s * 1e9;
            *value = (total - last.1) * 8e3 / (ns - last.0).max(1.0);
            last = (ns, total);
        }
        Some(series)
    }
}

/// The state of a sender over time.
#[derive(Debug, Clone, Default)]
pub(crate) struct SenderCurves(Samples<8>);

impl SenderCurves {
    /// Samples a sender's state.
    pub fn push(&mut self, now: Instant, glance: &Glance) {
        self.0.push(
            now,
            [
                glance.cwnd.get() as f64,
                glance.rtt.map_or(f64::NAN, |rtt| rtt.as_ms_f64()),
                glance.retransmissions as f64,
                glance.delivery_rate.map_or(f64::NAN, |rate| rate.mbit_per_s()),
                glance.in_flight.get() as f64,
                glance.outstanding.get() as f64,
                glance.pacing_rate.map_or(f64::NAN, |rate| rate.mbit_per_s()),
                glance.phase.map_or(f64::NAN, |phase| f64::from(phase as u8)),
            ],
        );
    }

    /// Its curves.
    pub fn series(&self, place: &str, flow: Option<u32>) -> impl Iterator<Item = Series> {
        const COLUMNS: [(&str, &str); 8] = [
            ("cwnd", "B"),
            ("rtt", "ms"),
            ("retransmissions", "segments"),
            ("delivery_rate", "Mbit/s"),
            ("in_flight", "B"),
            ("outstanding", "B"),
            ("pacing_rate", "Mbit/s"),
            // 0 slow start, 1 avoidance, 2 recovery, 3 after a timeout; `None` while nothing is in flight.
            ("phase", ""),
        ];
        self.0.series(COLUMNS, place, flow)
    }
}

/// Queue and rate of each hop over time.
#[derive(Debug, Clone)]
pub(crate) struct LinkCurves {
    queues: Vec<Samples<1>>,
    arrivals: Vec<ArrivalCurve>,
}

impl LinkCurves {
    /// Curves of so many hops.
    pub fn new(hops: usize) -> Self {
        Self {
            queues: vec![Samples::default(); hops],
            arrivals: vec![ArrivalCurve::default(); hops],
        }
    }

    /// Samples the hops.
    pub fn sample(&mut self, at: Instant, hops: &[Hop]) {
        for ((hop, queue), arrivals) in hops.iter().zip(&mut self.queues).zip(&mut self.arrivals) {
            queue.push(at, [hop.queue_bytes().get() as f64]);
            arrivals.push(at, hop.counters().bytes_out.get());
        }
    }

    /// All curves, two for each hop.
    pub fn series(&self, hops: &[Hop]) -> Vec<Series> {
        let mut all = Vec::new();
        for (hop, (queue, arrivals)) in hops.iter().zip(self.queues.iter().zip(&self.arrivals)) {
            let place = format!("{}.{}", hop.name, hop.way.name());
            all.extend(queue.series([("queue", "bytes")], &place, None));
            let rate = arrivals.series(&place, None);
            all.extend(rate.map(|rate| Series { quantity: "rate".to_owned(), ..rate }));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(tick: u64) -> Instant {
        Instant::START + Duration::from_ms(100) * tick
    }

    #[test]
    fn a_long_run_is_thinned_evenly_and_loses_no_byte() {
        let mut arrivals = ArrivalCurve::default();
        for tick in 1..=20_000 {
            arrivals.push(at(tick), tick * 1_250);
        }
        let series = arrivals.series("file", None).expect("sampled");
        assert!((1_000..SAMPLES_MAX).contains(&series.value.len()));
        assert!(series.value.iter().all(|value| (value - 0.1).abs() < 1e-9), "{:?}", series.value);
    }

    #[test]
    fn of_two_samples_of_one_time_the_later_counts() {
        let mut arrivals = ArrivalCurve::default();
        for (tick, total) in [(1, 12_500), (2, 12_500), (2, 25_000)] {
            arrivals.push(at(tick), total);
        }
        let series = arrivals.series("file", None).expect("sampled");
        assert_eq!((series.time_s, series.value), (vec![0.1, 0.2], vec![1.0, 1.0]));
    }

    #[test]
    fn a_flow_that_begins_late_starts_its_curve_there() {
        let mut arrivals = ArrivalCurve::default();
        arrivals.push(at(31), 12_500);
        arrivals.push(at(32), 12_500);
        let series = arrivals.series("file", Some(2)).expect("sampled");
        assert_eq!((series.time_s, series.value), (vec![3.1, 3.2], vec![1.0, 0.0]));
    }
}
