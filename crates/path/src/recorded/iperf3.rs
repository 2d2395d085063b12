//! The output of `iperf3 --json`, interval by interval. Only arrivals are a rate of the link: for
//! TCP, both ends count about the same; for UDP, only the receiver's output (`--reverse`, or the
//! server's) has losses.

use super::sample::{
    LossSample, RateSample, RecordedFormat, Recording, RecordingError, rate, within,
};
use midhop_units::Duration;
use serde::Deserialize;

/// An upper bound for the seconds of a test.
const TIME_S_MAX: f64 = 1e9;
/// An upper bound for the packets of an interval.
const PACKETS_MAX: f64 = 1e15;

#[derive(Deserialize)]
struct Output {
    intervals: Vec<Interval>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Interval {
    sum: Sum,
    sum_bidir_reverse: Option<Sum>,
}

#[derive(Deserialize)]
struct Sum {
    start: f64,
    end: f64,
    bits_per_second: f64,
    #[serde(default)]
    omitted: bool,
    packets: Option<f64>,
    lost_packets: Option<f64>,
}

pub(super) fn read(text: &str) -> Result<Recording, RecordingError> {
    let hint = "a file of `iperf3 --json` has a list `intervals`, each with a `sum`";
    let output: Output = serde_json::from_str(text)
        .map_err(|error| RecordingError::at(error.line(), error.to_string(), hint))?;
    if let Some(error) = output.error.filter(|_| output.intervals.is_empty()) {
        let shown: String = error.chars().take(80).collect();
        return Err(RecordingError::whole(format!("iperf3 failed: {shown}"), "measure again"));
    }
    let mut recording = Recording::new(RecordedFormat::Iperf3);
    for interval in output.intervals {
        let sum = interval.sum;
        add(&mut recording.down, &sum)?;
        if let Some(reverse) = interval.sum_bidir_reverse {
            add(&mut recording.up, &reverse)?;
        }
        if let (Some(packets), Some(lost), false) = (sum.packets, sum.lost_packets, sum.omitted) {
            let count = |what, value| within(None, what, value, PACKETS_MAX).map(|it| it as u64);
            let (sent, lost) =
                (count("a number of packets", packets)?, count("a number of losses", lost)?);
            let at =
                Duration::from_s_f64(within(None, "a time in seconds", sum.start, TIME_S_MAX)?);
            recording.losses.push(LossSample { at, sent, lost: lost.min(sent) });
        }
    }
    for samples in [&mut recording.down, &mut recording.up] {
        // Times count from the first interval that is not omitted.
        let first = samples.first().map_or(Duration::ZERO, |sample| sample.begin);
        for sample in samples {
            sample.begin = sample.begin.saturating_sub(first);
            sample.end = sample.end.saturating_sub(first);
        }
    }
    Ok(recording)
}

fn add(samples: &mut Vec<RateSample>, sum: &Sum) -> Result<(), RecordingError> {
    let time = |s| within(None, "a time in seconds", s, TIME_S_MAX).map(Duration::from_s_f64);
    let (begin, end) = (time(sum.start)?, time(sum.end)?);
    let bit_per_s = rate(None, sum.bits_per_second)?;
    // iperf3 may print an empty interval at the end.
    if sum.omitted || end <= begin {
        return Ok(());
    }
    if samples.last().is_some_and(|last| begin < last.begin) {
        let what = format!("the interval from {} s is earlier than the one before it", sum.start);
        return Err(RecordingError::whole(what, "is this the output of one test?"));
    }
    samples.push(RateSample { begin, end, bit_per_s });
    Ok(())
}
