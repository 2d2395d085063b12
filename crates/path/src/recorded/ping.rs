//! The output of ping, of iputils and similar programs: `[1700182800.41] 64 bytes from …:
//! icmp_seq=1 ttl=63 time=60.6 ms`.
//!
//! Without `-D` there are no times; then one second is assumed from one sequence number to the
//! next. A missing number counts as lost, except after the last answer, where it is unknown. Lines
//! that are no answers are ignored.

use super::sample::{LossSample, RecordedFormat, Recording, RecordingError, delay};
use midhop_units::Duration;

/// ping's default interval, for lines without a time.
const INTERVAL_S: f64 = 1.0;
/// Sequence numbers have 16 bits.
const TURN: u64 = 65_536;
/// An upper bound for losses in a row.
const GAP_MAX: u64 = 1_000_000;
/// An upper bound for seconds since 1970.
const TIME_S_MAX: f64 = 1e11;

pub(super) fn read(text: &str) -> Result<Recording, RecordingError> {
    let mut recording = Recording { halved: true, ..Recording::new(RecordedFormat::Ping) };
    let (mut first, mut next): (Option<f64>, Option<u64>) = (None, None);
    for (number, line) in text.lines().enumerate() {
        let Some((_, after)) = line.split_once("time=") else { continue };
        if line.contains("(DUP!)") {
            continue;
        }
        let number = number + 1;
        let refused =
            || RecordingError::line(number, line, "answer to a ping with icmp_seq and time");
        let ms: f64 = word(after).parse().map_err(|_| refused())?;
        let sequence = line.split_once("icmp_seq=").or_else(|| line.split_once("icmp_req="));
        let sequence: u64 =
            sequence.and_then(|(_, it)| word(it).parse().ok()).ok_or_else(refused)?;
        let stamp = line.trim_start().strip_prefix('[').and_then(|it| it.split_once(']'));
        let seconds: f64 = match stamp {
            Some((stamp, _)) => stamp.parse().map_err(|_| refused())?,
            None => sequence as f64 * INTERVAL_S,
        };
        if !(0.0..=TIME_S_MAX).contains(&seconds) {
            return Err(RecordingError::at(
                number,
                format!("a time of {seconds} s is out of range"),
                "are these seconds?",
            ));
        }
        let since = seconds - *first.get_or_insert(seconds);
        let at = Duration::from_s_f64(since.max(0.0));
        let expected = next.unwrap_or(sequence);
        // The sequence number wraps after 65535.
        let turned = sequence < expected && expected - sequence > TURN / 2;
        if sequence < expected && !turned {
            // A late answer, which counted as lost until now.
            if let Some(taken) = recording.losses.iter_mut().rev().find(|it| it.lost > 0) {
                taken.lost -= 1;
            }
        } else {
            let missing =
                (sequence.saturating_add(if turned { TURN } else { 0 })).saturating_sub(expected);
            if missing > GAP_MAX {
                let what = "more than a million answers are missing before it";
                return Err(RecordingError::at(number, what, "are these lines of one ping?"));
            }
            recording.losses.push(LossSample { at, sent: 1 + missing, lost: missing });
            next = Some(sequence.saturating_add(1));
        }
        if recording.delays.last().is_none_or(|(last, _)| *last < at) {
            recording.delays.push((at, delay(Some(number), ms / 2e3)?));
        }
    }
    Ok(recording)
}

/// The number at the beginning of a text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    &text[..end]
}
