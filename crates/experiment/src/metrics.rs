//! Arithmetic on measured values: rates, fairness, page loads, start-up, quantiles.

use crate::record::{FlowResult, Series, TransferResult};
use midhop_units::{Bytes, Duration, Rate};

/// Goodput of several flows together: the sum of their bytes, from the first start to the last end.
/// None without flows.
pub fn aggregate_goodput(flows: &[FlowResult]) -> Option<Rate> {
    let start = flows.iter().map(|flow| flow.start).min()?;
    let end = flows.iter().map(|flow| flow.end).max()?;
    let bytes = flows.iter().fold(Bytes::ZERO, |sum, flow| sum.saturating_add(flow.bytes));
    Some(Rate::of(bytes, end.saturating_sub(start)))
}

/// Ratio of effective to provisioned bandwidth of one TCP connection. Range: 0 to 1 in a correct
/// run. None where the provisioned bandwidth is zero.
pub fn epb_ratio(goodput: Rate, provisioned: Rate) -> Option<f64> {
    (provisioned > Rate::ZERO)
        .then(|| goodput.bits_per_s() as f64 / provisioned.bits_per_s() as f64)
}

/// How evenly `shares` are distributed: 1 when all are equal, 1/n when one has everything.
///
/// Source: R. Jain, D. Chiu, W. Hawe, DEC-TR-301 (1984). None without a share above zero.
pub fn jain_index(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The time from the first request (with its connection's handshake) to the last object's last
/// byte. None for a transfer that is no page or did not finish.
pub fn page_load_time(transfer: &TransferResult) -> Option<Duration> {
    let opened = transfer.flows.iter().map(|flow| flow.start).min();
    let asked = transfer.objects.iter().map(|object| object.start).min()?;
    let start = opened.map_or(asked, |opened| opened.min(asked));
    let end = transfer.objects.iter().map(|object| object.end).max()?;
    transfer.complete.then(|| end.saturating_sub(start))
}

/// How long after `start` a goodput series first reaches `share` of `capacity` (in the series'
/// unit) in two successive samples, so that a single burst does not count. The last sample needs no
/// successor. None when it never does.
pub fn start_up_time(
    goodput: &Series,
    start: Duration,
    capacity: f64,
    share: f64,
) -> Option<Duration> {
    let wanted = capacity * share;
    let reached = |at: usize| goodput.value.get(at).is_none_or(|&value| value >= wanted);
    let first = (0..goodput.value.len()).find(|&at| reached(at) && reached(at + 1))?;
    goodput.time_s.get(first).map(|&s| Duration::from_s_f64(s).saturating_sub(start))
}

/// The `share` quantile (0 to 1), interpolated between the two nearest samples. None without
/// samples, or with one that is not a number.
pub fn percentile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    if sorted.is_empty() || sorted.iter().any(|sample| sample.is_nan()) {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let position = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(low + (high - low) * position.fract())
}

/// The middle sample, or the mean of the two middle ones.
pub fn median(samples: &[f64]) -> Option<f64> {
    percentile(samples, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn near(got: Option<f64>, wanted: f64, tolerance: f64) {
        assert!(got.is_some_and(|got| (got - wanted).abs() <= tolerance), "{got:?}, not {wanted}");
    }

    #[test]
    fn jain_vectors() {
        near(jain_index(&[1.0, 1.0, 1.0, 1.0]), 1.0, 1e-12);
        near(jain_index(&[1.0, 0.0, 0.0, 0.0]), 0.25, 1e-12);
        near(jain_index(&[4.0, 3.0, 2.0, 1.0]), 0.8333, 5e-5);
        near(jain_index(&[10.0, 10.0, 1.0]), 0.7313, 5e-5);
        assert_eq!((jain_index(&[]), jain_index(&[0.0])), (None, None));
    }

    #[test]
    fn quantiles_interpolate() {
        let samples = [15.0, 20.0, 35.0, 40.0, 50.0];
        near(median(&samples), 35.0, 0.0);
        near(percentile(&samples, 0.4), 29.0, 1e-12);
        near(percentile(&samples, 0.0), 15.0, 0.0);
        near(percentile(&samples, 1.0), 50.0, 0.0);
        near(median(&[2.0, 1.0]), 1.5, 0.0);
        assert_eq!((median(&[]), median(&[1.0, f64::NAN])), (None, None));
    }

    #[test]
    fn start_up_ignores_a_lone_burst() {
        let series = |value: &[f64]| Series {
            quantity: "goodput".into(),
            place: "file".into(),
            flow: None,
            unit: "Mbit/s".into(),
            time_s: (1..=value.len()).map(|n| n as f64 * 0.5).collect(),
            value: value.to_vec(),
        };
        let start_up_time = |series: &Series, capacity, share| {
            start_up_time(series, Duration::ZERO, capacity, share)
        };
        let risen = series(&[1.0, 19.0, 2.0, 10.0, 18.5, 19.0]);
        assert_eq!(start_up_time(&risen, 20.0, 0.9), Some(Duration::from_ms(2500)));
        assert_eq!(start_up_time(&series(&[1.0, 19.0]), 20.0, 0.9), Some(Duration::from_s(1)));
        assert_eq!(start_up_time(&series(&[1.0, 2.0]), 20.0, 0.9), None);
        assert_eq!(start_up_time(&series(&[]), 20.0, 0.9), None);
    }

    #[test]
    fn epb_is_a_share_of_what_is_sold() {
        near(epb_ratio(Rate::from_mbit_per_s(5), Rate::from_mbit_per_s(10)), 0.5, 0.0);
        assert_eq!(epb_ratio(Rate::from_mbit_per_s(5), Rate::ZERO), None);
    }

    proptest! {
        #[test]
        fn jain_lies_between_its_ends(shares in proptest::collection::vec(0.0..1e9f64, 1..50)) {
            if let Some(index) = jain_index(&shares) {
                let least = 1.0 / shares.len() as f64;
                prop_assert!((least - 1e-9..=1.0 + 1e-9).contains(&index));
            }
        }

        #[test]
        fn a_quantile_is_within_the_samples(
            samples in proptest::collection::vec(-1e9..1e9f64, 1..50),
            share in 0.0..=1.0f64,
        ) {
            let quantile = percentile(&samples, share).unwrap();
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!((least..=most).contains(&quantile));
        }
    }
}
