//! The output of `irtt client -o`, version 0.9: a round trip for each packet.
//!
//! The clocks of the two ends need not agree (in LENS's example they are ten seconds apart), so only round trips count,
//! half for each way. Source: irtt-client(1) and the dataset LENS.

use super::sample::{LossSample, RecordedFormat, Recording, RecordingError, delay};
use midhop_units::Duration;
use serde::Deserialize;

#[derive(Deserialize)]
struct Output {
    round_trips: Vec<RoundTrip>,
}

#[derive(Deserialize)]
struct RoundTrip {
    #[serde(default)]
    lost: Lost,
    timestamps: Timestamps,
    #[serde(default)]
    delay: Delay,
}

/// `"false"`, `"true"`, `"true_up"`, `"true_down"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Lost {
    Word(String),
    Flag(bool),
}

impl Default for Lost {
    fn default() -> Self {
        Self::Flag(false)
    }
}

#[derive(Deserialize)]
struct Timestamps {
    client: Client,
}

#[derive(Deserialize)]
struct Client {
    send: Stamp,
}

/// Unit: nanoseconds.
#[derive(Deserialize)]
struct Stamp {
    wall: Option<i64>,
    monotonic: Option<i64>,
}

#[derive(Deserialize, Default)]
struct Delay {
    /// Unit: nanoseconds.
    rtt: Option<i64>,
}

pub(super) fn read(text: &str) -> Result<Recording, RecordingError> {
    let hint = "a file of `irtt client -o FILE` has a list `round_trips` with timestamps";
    let output: Output = serde_json::from_str(text)
        .map_err(|error| RecordingError::at(error.line(), error.to_string(), hint))?;
    let mut recording = Recording { halved: true, ..Recording::new(RecordedFormat::Irtt) };
    let mut first = None;
    for (number, trip) in output.round_trips.iter().enumerate() {
        let faulty =
            |what: &str| RecordingError::whole(format!("round trip {number} {what}"), hint);
        let Stamp { wall, monotonic } = trip.timestamps.client.send;
        // The monotonic clock is never set.
        let sent = monotonic.or(wall).ok_or_else(|| faulty("has no time of sending"))?;
        let since = sent.checked_sub(*first.get_or_insert(sent));
        let since = since.and_then(|ns| u64::try_from(ns).ok());
        let at = since.map(Duration::from_ns).ok_or_else(|| faulty("was sent before the first"))?;
        let lost = match &trip.lost {
            Lost::Word(word) => word != "false",
            Lost::Flag(lost) => *lost,
        };
        recording.losses.push(LossSample { at, sent: 1, lost: u64::from(lost) });
        if lost {
            continue;
        }
        let rtt = trip.delay.rtt.ok_or_else(|| faulty("has no delay"))?;
        let half = delay(None, rtt as f64 / 2e9)?;
        if recording.delays.last().is_none_or(|(last, _)| *last < at) {
            recording.delays.push((at, half));
        }
    }
    Ok(recording)
}
