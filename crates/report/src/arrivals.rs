//! Goodput over time as it is displayed: a mean over one second, at most what the path carries.
//!
//! Records contain the data that was handed to the receiver in each tenth of a second. Data behind
//! a lost segment waits and is then handed over at once. Drawn unchanged, that would be up to six
//! times what the link carries. So a byte counts at the time at which it was handed over. If the path
//! cannot have carried the data within that interval, the byte counts earlier: at the latest time at
//! which it can have arrived.

use midhop_experiment::plan::TransferLimit;
use midhop_experiment::record::{Record, TransferResult};
use serde::Deserialize;

/// The period of the mean. Unit: seconds.
const SPAN_S: f64 = 1.0;

/// The upper limit of `transfer` at any moment. Unit: Mbit/s.
pub(crate) fn peak(record: &Record, transfer: &TransferResult) -> Option<f64> {
    let planned = record.plan.get("transfers").and_then(serde_json::Value::as_array);
    let named = |it: &&serde_json::Value| {
        it.get("name").and_then(serde_json::Value::as_str) == Some(&transfer.name)
    };
    let limit = planned.into_iter().flatten().find(named).and_then(|it| it.get("limit"));
    let peak = limit.and_then(|it| TransferLimit::deserialize(it).ok());
    let peak = peak.map(|it| it.goodput_peak).or(transfer.limit.as_ref().map(|it| it.goodput));
    peak.map(|rate| rate.mbit_per_s())
}

/// The mean over the second before each of the times `time_s`, which are the ends of intervals with
/// the rates `value`. Unit: those of `value` and `limit`.
pub(crate) fn over_a_second(time_s: &[f64], value: &[f64], limit: Option<f64>) -> Vec<f64> {
    let count = time_s.len().min(value.len());
    let (time_s, value) = (&time_s[..count], &value[..count]);
    let Some(&first) = time_s.first() else { return Vec::new() };
    let step = time_s.get(1).map_or(first, |second| second - first);
    let begin = first - step.max(0.0);
    let span = |at: usize| if at == 0 { step.max(0.0) } else { time_s[at] - time_s[at - 1] };
    let mut arrived: Vec<f64> = (0..count)
        .scan(0.0, |total, at| {
            *total += if value[at].is_finite() { value[at] * span(at).max(0.0) } else { 0.0 };
            Some(*total)
        })
        .collect();
    if let Some(limit) = limit.filter(|it| *it > 0.0) {
        for at in (1..count).rev() {
            arrived[at - 1] = arrived[at - 1].max(arrived[at] - limit * span(at));
        }
    }
    // The data that had arrived by a time, interpolated between two samples.
    let by = |time: f64| {
        let after = time_s.partition_point(|it| *it < time);
        let (to, to_s) = match after {
            after if after < count => (arrived[after], time_s[after]),
            _ => return arrived[count - 1],
        };
        let (from, from_s) =
            if after == 0 { (0.0, begin) } else { (arrived[after - 1], time_s[after - 1]) };
        let share = (time - from_s) / (to_s - from_s).max(f64::MIN_POSITIVE);
        from + (to - from) * share.clamp(0.0, 1.0)
    };
    let mean = |(at, &time): (usize, &f64)| {
        let from = (time - SPAN_S).max(begin);
        (arrived[at] - by(from)) / (time - from).max(f64::MIN_POSITIVE)
    };
    time_s.iter().enumerate().map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_steady_flow_stays_as_it_is() {
        let time: Vec<f64> = (1..=30).map(|it| f64::from(it) * 0.1).collect();
        let found = over_a_second(&time, &[4.0; 30], Some(20.0));
        assert!(found.iter().all(|it| (it - 4.0).abs() < 1e-9), "{found:?}");
    }

    #[test]
    fn what_waited_for_a_lost_segment_counts_when_the_path_can_have_carried_it() {
        let time: Vec<f64> = (1..=30).map(|it| f64::from(it) * 0.1).collect();
        let mut value = vec![20.0; 30];
        // Nothing for 0.6 s, then all of it at once.
        value[10..16].fill(0.0);
        value[16] = 140.0;
        let found = over_a_second(&time, &value, Some(20.0));
        assert!(found.iter().all(|it| (it - 20.0).abs() < 1e-9), "{found:?}");
        let unbounded = over_a_second(&time, &value, None);
        assert!(unbounded[16] > 20.0 + 1e-9 || unbounded[15] < 20.0, "{unbounded:?}");
    }

    #[test]
    fn few_samples_and_broken_ones_are_no_trouble() {
        assert_eq!(over_a_second(&[], &[], None), Vec::<f64>::new());
        assert_eq!(over_a_second(&[0.1], &[5.0], Some(10.0)), [5.0]);
        assert_eq!(over_a_second(&[0.1, 0.2], &[5.0], None).len(), 1);
    }

    proptest! {
        #[test]
        fn nothing_is_above_the_limit_and_no_byte_is_lost(
            value in proptest::collection::vec(0.0..200.0f64, 1..80),
        ) {
            let time: Vec<f64> = (0..value.len()).map(|it| 100.0 + it as f64 * 0.1).collect();
            let sum: f64 = value.iter().sum::<f64>() * 0.1;
            // The path could have carried all of it by the end: a hundred seconds precede it.
            let limit = 20.0;
            let quiet: Vec<f64> = (0..1000).map(|it| f64::from(it) * 0.1).collect();
            let time: Vec<f64> = quiet.iter().copied().chain(time).collect();
            let value: Vec<f64> = vec![0.0; 1000].into_iter().chain(value).collect();
            prop_assume!(sum < limit * 100.0);
            let found = over_a_second(&time, &value, Some(limit));
            prop_assert!(found.iter().all(|it| *it <= limit * 1.000_001), "{found:?}");
            let seen = found.iter().zip(&time).filter(|(_, time)| **time > 0.0);
            // Each byte is in the means of ten samples, except those of the last second.
            let whole: f64 = seen.map(|(mean, _)| mean * 0.1).sum();
            prop_assert!(whole <= sum + 1e-6, "{whole} {sum}");
        }
    }
}
