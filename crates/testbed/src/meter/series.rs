//! Quantities over time: the samples of a sender and the counts of a receiver.
//!
//! Both are bounded: when a run is longer than the memory set aside, samples are thinned and bins
//! are merged by two, so that the whole run stays visible at half the resolution.

use super::tcp_sample::TcpSample;
use midhop_experiment::record::Series;
use serde::{Deserialize, Serialize};

/// How much is kept per connection, so that the sum over all connections is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Most samples.
    samples: usize,
    /// Most bins.
    bins: usize,
}

impl Capacity {
    /// What one connection may keep when there are `connections` of them: seven minutes in steps of
    /// 100 ms for up to 128 connections, less for more.
    pub(crate) fn among(connections: usize) -> Self {
        let samples = ((1 << 19) / connections.max(1)).clamp(64, 4096);
        Self { samples, bins: samples * 2 }
    }
}

impl Default for Capacity {
    fn default() -> Self {
        Self::among(1)
    }
}

/// `TCP_INFO` of one connection over time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Samples {
    rows: Vec<Sample>,
    /// Least time between two samples that are kept. Unit: nanoseconds.
    #[serde(skip)]
    spacing_ns: u64,
    #[serde(skip)]
    capacity: Capacity,
}

/// One sample of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
struct Sample {
    /// Time since the connection's origin. Unit: nanoseconds.
    at_ns: u64,
    info: TcpSample,
}

/// The fields of a [`Sample`] that a series needs, sent without names: there are thousands of them.
type Row = (u64, u64, u64, Option<u64>, u64, u64, u64, u64, Option<u64>);

impl From<Row> for Sample {
    fn from(row: Row) -> Self {
        let (at_ns, cwnd_bytes, rtt_us, rtt_min_us, resent, rate, in_flight, outstanding, pacing) =
            row;
        let info = TcpSample {
            cwnd_bytes,
            rtt_us,
            rtt_min_us,
            retransmissions: resent,
            delivery_rate: rate,
            in_flight_bytes: in_flight,
            outstanding_bytes: outstanding,
            pacing_rate: pacing,
            ..TcpSample::default()
        };
        Self { at_ns, info }
    }
}

impl From<Sample> for Row {
    fn from(Sample { at_ns, info }: Sample) -> Self {
        (
            at_ns,
            info.cwnd_bytes,
            info.rtt_us,
            info.rtt_min_us,
            info.retransmissions,
            info.delivery_rate,
            info.in_flight_bytes,
            info.outstanding_bytes,
            info.pacing_rate,
        )
    }
}

impl Samples {
    /// Without samples.
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Adds a sample taken `at_ns` after the connection's origin; samples come every `interval_ns`.
    pub(crate) fn push(&mut self, at_ns: u64, interval_ns: u64, info: TcpSample) {
        // Half an interval of tolerance: a timer may be late once and on time the next time.
        let due = self.rows.last().map_or(0, |last| last.at_ns.saturating_add(self.spacing_ns));
        if at_ns.saturating_add(interval_ns / 2) < due {
            return;
        }
        self.rows.push(Sample { at_ns, info });
        if self.rows.len() >= self.capacity.samples {
            let mut index = 0;
            self.rows.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.spacing_ns = self.spacing_ns.max(interval_ns).saturating_mul(2);
        }
    }

    /// One series per quantity. `offset_s` is added to times since the connection's origin.
    pub(crate) fn series(&self, place: &str, flow: Option<u32>, offset_s: f64) -> Vec<Series> {
        type Column = (&'static str, &'static str, fn(&TcpSample) -> Option<f64>);
        const COLUMNS: [Column; 7] = [
            ("cwnd", "B", |info| Some(info.cwnd_bytes as f64)),
            ("rtt", "ms", |info| Some(info.rtt_us as f64 / 1e3)),
            ("retransmissions", "segments", |info| Some(info.retransmissions as f64)),
            ("delivery_rate", "Mbit/s", |info| Some(info.delivery_rate as f64 * 8.0 / 1e6)),
            ("in_flight", "B", |info| Some(info.in_flight_bytes as f64)),
            ("outstanding", "B", |info| Some(info.outstanding_bytes as f64)),
            ("pacing_rate", "Mbit/s", |info| info.pacing_rate.map(|rate| rate as f64 * 8.0 / 1e6)),
        ];
        COLUMNS
            .iter()
            .map(|(quantity, unit, value)| {
                let points = self.rows.iter().filter_map(|sample| {
                    Some((offset_s + sample.at_ns as f64 / 1e9, value(&sample.info)?))
                });
                let (time_s, value) = points.unzip();
                Series {
                    quantity: (*quantity).to_owned(),
                    place: place.to_owned(),
                    flow,
                    unit: (*unit).to_owned(),
                    time_s,
                    value,
                }
            })
            .filter(|series| !series.value.is_empty())
            .collect()
    }
}

/// Payload received, in equal intervals from an origin on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Arrivals {
    /// Zero when nothing is to be counted.
    interval_ns: u64,
    /// Unit: bytes. Shape: one per interval, up to the last in which something arrived.
    bins: Vec<f64>,
    #[serde(skip)]
    capacity: Capacity,
}

impl Arrivals {
    /// Empty; counts in intervals of `interval_ns`, or not at all when that is zero.
    pub(super) fn new(interval_ns: u64, capacity: Capacity) -> Self {
        Self { interval_ns, bins: Vec::new(), capacity }
    }

    /// Counts `bytes` that arrived `at_ns` after the origin.
    pub(super) fn add(&mut self, at_ns: u64, bytes: f64) {
        if self.interval_ns == 0 {
            return;
        }
        let mut index = at_ns / self.interval_ns;
        while index >= self.capacity.bins as u64 {
            self.bins = self.bins.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.interval_ns = self.interval_ns.saturating_mul(2);
            index = at_ns / self.interval_ns;
        }
        let index = index as usize;
        if self.bins.len() <= index {
            self.bins.resize(index + 1, 0.0);
        }
        self.bins[index] += bytes;
    }

    /// The sum of several counts. The number is how much later each count's origin is than the
    /// sum's.
    ///
    /// A bin that overlaps two bins of the sum is divided in proportion: no byte is lost.
    pub(super) fn sum<'a>(parts: impl Iterator<Item = (u64, &'a Self)> + Clone) -> Self {
        let interval = parts.clone().map(|(_, part)| part.interval_ns).max().unwrap_or(0);
        let mut sum = Self::new(interval, Capacity::default());
        for (offset, part) in parts.filter(|(_, part)| part.interval_ns > 0) {
            for (index, &bytes) in part.bins.iter().enumerate() {
                let from = offset.saturating_add(part.interval_ns.saturating_mul(index as u64));
                let to = from.saturating_add(part.interval_ns);
                // The sum's interval is at least as long, so a bin overlaps at most two of its
                // bins.
                let border = (from / sum.interval_ns + 1).saturating_mul(sum.interval_ns);
                let inside = border.min(to).saturating_sub(from) as f64 / part.interval_ns as f64;
                sum.add(from, bytes * inside);
                if border < to {
                    sum.add(border, bytes * (1.0 - inside));
                }
            }
        }
        sum
    }

    /// The goodput of each interval, at the interval's end plus `offset_s`, counted from the
    /// origin. None when nothing was counted.
    pub(super) fn series(&self, place: &str, flow: Option<u32>, offset_s: f64) -> Option<Series> {
        if self.bins.is_empty() || self.interval_ns == 0 {
            return None;
        }
        let interval_s = self.interval_ns as f64 / 1e9;
        Some(Series {
            quantity: "goodput".to_owned(),
            place: place.to_owned(),
            flow,
            unit: "Mbit/s".to_owned(),
            time_s: (1..=self.bins.len()).map(|n| offset_s + n as f64 * interval_s).collect(),
            value: self.bins.iter().map(|bytes| bytes * 8.0 / 1e6 / interval_s).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: u64 = 100_000_000;

    #[test]
    fn samples_of_a_long_run_are_thinned_evenly() {
        let mut samples = Samples::default();
        for tick in 0..20_000u64 {
            // A timer that is up to 20 ms late.
            let late = (tick % 3) * 10_000_000;
            samples.push(
                tick * TICK + late,
                TICK,
                TcpSample { cwnd_bytes: tick, ..TcpSample::default() },
            );
        }
        assert!(samples.rows.len() < 4096);
        let gaps: Vec<u64> = samples
            .rows
            .windows(2)
            .map(|pair| pair[1].info.cwnd_bytes - pair[0].info.cwnd_bytes)
            .collect();
        assert_eq!((gaps.iter().min(), gaps.iter().max()), (Some(&8), Some(&8)));
        assert!(samples.rows.last().is_some_and(|last| last.info.cwnd_bytes > 19_980));
    }

    #[test]
    fn ten_thousand_connections_keep_little_of_each() {
        let bytes = |connections: usize| {
            let capacity = Capacity::among(connections);
            connections
                * (capacity.samples * size_of::<Sample>() + capacity.bins * size_of::<f64>())
        };
        for connections in [1, 100, 1_000, 8_192] {
            assert!(bytes(connections) < 80 << 20, "{connections}: {}", bytes(connections));
        }
        let mut samples = Samples::new(Capacity::among(8_192));
        (0..10_000).for_each(|tick| samples.push(tick * TICK, TICK, TcpSample::default()));
        assert!(samples.rows.len() <= 64);
    }

    #[test]
    fn a_connection_without_pacing_has_no_pacing_series() {
        let mut samples = Samples::default();
        samples.push(TICK, TICK, TcpSample { cwnd_bytes: 14_480, ..TcpSample::default() });
        let series = samples.series("page", Some(3), 2.0);
        assert_eq!(series.len(), 6);
        let cwnd = &series[0];
        assert_eq!((cwnd.quantity.as_str(), cwnd.unit.as_str(), cwnd.flow), ("cwnd", "B", Some(3)));
        assert_eq!((&cwnd.time_s, &cwnd.value), (&vec![2.1], &vec![14_480.0]));
    }

    #[test]
    fn arrivals_become_a_rate() {
        let mut arrivals = Arrivals::new(TICK, Capacity::default());
        arrivals.add(0, 1_000.0);
        arrivals.add(250_000_000, 125_000.0);
        let series = arrivals.series("file", Some(0), 1.0).expect("counted");
        assert_eq!(series.value, [0.08, 0.0, 10.0]);
        assert!((series.time_s[2] - 1.3).abs() < 1e-9);
        assert_eq!(Arrivals::new(0, Capacity::default()).series("file", None, 0.0), None);
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_in_a_sum(
            parts in proptest::collection::vec(
                (0u64..5_000_000_000, 0u64..2_000_000_000_000, 0usize..3), 1..6),
        ) {
            let counts: Vec<(u64, Arrivals)> = parts
                .iter()
                .map(|&(offset, at, doublings)| {
                    let mut count = Arrivals::new(TICK << doublings, Capacity::among(1000));
                    count.add(0, 10.0);
                    count.add(at, 1_000.0);
                    (offset, count)
                })
                .collect();
            let sum = Arrivals::sum(counts.iter().map(|(offset, count)| (*offset, count)));
            let total: f64 = sum.bins.iter().sum();
            prop_assert!((total - 1_010.0 * counts.len() as f64).abs() < 1e-6, "{}", total);
            prop_assert!(sum.bins.len() <= Capacity::default().bins);
        }
    }
}
