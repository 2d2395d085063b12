//! Recordings of links by other tools: the rate, delay and loss over time in their files.
//!
//! [`read`] reads the text of one file. A link description names it (`rate = { recorded_file =
//! "trace" }`), and `midhop calibrate` compares a preset with it. Times count from the first
//! sample.
//!
//! | format | has | source |
//! |---|---|---|
//! | `mahimahi` | rate | packet opportunities, a millisecond a line ([`crate::mahimahi`]) |
//! | `delay-lines` | delay | one-way delay in ms, a value each 10 ms a line: LeoReplayer (LeoCC, SIGCOMM 2025) |
//! | `irtt` | delay, loss | `irtt client -o FILE`, as in the LENS dataset (MMSys 2024) |
//! | `ping` | delay, loss | what ping prints, best with `-D` |
//! | `iperf3` | rate, of UDP loss | `iperf3 --json`, interval by interval |
//! | `wetlinks` | rate both ways | CSV of iperf seconds of the WetLinks dataset (arXiv 2402.16448) |
//! | `csv` | rate or delay | two columns with their units in the first line |

mod columns;
mod iperf3;
mod irtt;
mod lines;
mod ping;
mod sample;
mod wetlinks;

pub use sample::{LossSample, RateSample, RecordedFormat, Recording, RecordingError};

use crate::mahimahi;
use crate::trace::Trace;
use midhop_units::Duration;

/// The longest recording: three years.
const SPAN_MAX: Duration = Duration::from_s(100_000_000);

/// Reads a recording of `format`, or of the detected format.
///
/// # Errors
/// When the format is not recognised, or something in it cannot be read.
pub fn read(text: &str, format: Option<RecordedFormat>) -> Result<Recording, RecordingError> {
    if text.trim().is_empty() {
        return Err(RecordingError::whole("it is empty", "is this the whole recording?"));
    }
    let format = format.or_else(|| RecordedFormat::of(text)).ok_or_else(|| {
        RecordingError::whole(
            "this is no recording of a known format",
            "known are mahimahi, delay-lines, irtt, ping, iperf3, wetlinks and csv",
        )
    })?;
    let recording = match format {
        RecordedFormat::Mahimahi => opportunities(text)?,
        RecordedFormat::DelayLines => lines::read(text)?,
        RecordedFormat::Irtt => irtt::read(text)?,
        RecordedFormat::Ping => ping::read(text)?,
        RecordedFormat::Iperf3 => iperf3::read(text)?,
        RecordedFormat::WetLinks => wetlinks::read(text)?,
        RecordedFormat::Csv => columns::read(text)?,
    };
    let empty = recording.down.is_empty() && recording.up.is_empty() && recording.delays.is_empty();
    if empty {
        let what = format!("there is no sample in this recording of {}", format.name());
        return Err(RecordingError::whole(what, "was the measurement cut off before it began?"));
    }
    if recording.span() > SPAN_MAX {
        return Err(RecordingError::whole(
            "it lasts longer than three years",
            "which unit have its times?",
        ));
    }
    Ok(recording)
}

/// The rest of a recorded trace from `from` on, as a trace that begins there.
///
/// # Errors
/// When the recording is over by then.
pub(crate) fn beginning<T: Copy>(
    trace: Trace<T>,
    from: Duration,
) -> Result<Trace<T>, RecordingError> {
    let length = trace.repeat.unwrap_or(Duration::MAX);
    if from >= length {
        return Err(RecordingError::whole(
            format!("it lasts {length}, and the link is to begin at {from} of it"),
            "let `from` be less than that",
        ));
    }
    let (value, _) = trace.at(from);
    let later = trace.steps.iter().filter(|(at, _)| *at > from);
    let mut steps = vec![(Duration::ZERO, value)];
    steps.extend(later.map(|(at, value)| (at.saturating_sub(from), *value)));
    Ok(Trace { steps, repeat: trace.repeat.map(|length| length.saturating_sub(from)) })
}

fn opportunities(text: &str) -> Result<Recording, RecordingError> {
    let trace = mahimahi::read(text)?;
    let ends = trace.steps.iter().skip(1).map(|step| step.0).chain(trace.repeat);
    let down = trace.steps.iter().zip(ends).map(|((begin, rate), end)| RateSample {
        begin: *begin,
        end,
        bit_per_s: rate.bits_per_s() as f64,
    });
    Ok(Recording { down: down.collect(), ..Recording::new(RecordedFormat::Mahimahi) })
}

#[cfg(test)]
mod tests;
