//! CSV with two columns: `time_s,rate_mbit_per_s`, or a delay as [`crate::delay_csv`] reads it.

use super::sample::{RateSample, RecordedFormat, Recording, RecordingError, rate};
use crate::delay_csv::{self, DelayCsvError};
use midhop_units::Duration;

/// A time beyond this is a mistake. Unit: seconds.
const TIME_S_MAX: f64 = 1e10;

pub(super) fn read(text: &str) -> Result<Recording, RecordingError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim_start_matches('\u{feff}').trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let header = lines.next().map(|(_, line)| line.trim_start_matches('\u{feff}').replace('"', ""));
    let header = header.unwrap_or_default().to_ascii_lowercase();
    let mut names = header.split(',').map(str::trim);
    let (time, value) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    let unit = match value {
        "rate_bit_per_s" => 1.0,
        "rate_kbit_per_s" => 1e3,
        "rate_mbit_per_s" => 1e6,
        _ => return delays(text),
    };
    let time_s = match time {
        "time_s" => 1.0,
        "time_ms" => 1e-3,
        "time_us" => 1e-6,
        _ => {
            return Err(RecordingError::line(
                1,
                &header,
                "first line with time_s and rate_mbit_per_s",
            ));
        }
    };
    let (mut first, mut begun) = (None, None::<(Duration, f64)>);
    let mut recording = Recording::new(RecordedFormat::Csv);
    let mut spacing = Duration::from_s(1);
    for (number, line) in lines {
        let number = number + 1;
        let mut cells = line.split(',').map(|cell| cell.trim().parse::<f64>().ok());
        let sample = cells.next().flatten().zip(cells.next().flatten());
        let (time, value) =
            sample.ok_or_else(|| RecordingError::line(number, line, "time and rate"))?;
        let time = time * time_s;
        if !(-TIME_S_MAX..=TIME_S_MAX).contains(&time) {
            return Err(RecordingError::at(
                number,
                format!("a time of {time} s is out of range"),
                "which unit has it?",
            ));
        }
        let since = time - *first.get_or_insert(time);
        let at = Duration::from_s_f64(since.max(0.0));
        let bit_per_s = rate(Some(number), value * unit)?;
        if let Some((begin, before)) = begun {
            if at <= begin {
                let hint = "each sample must be later than the one before it";
                return Err(RecordingError::at(
                    number,
                    "time goes backwards or stands still",
                    hint,
                ));
            }
            spacing = at - begin;
            recording.down.push(RateSample { begin, end: at, bit_per_s: before });
        }
        begun = Some((at, bit_per_s));
    }
    if let Some((begin, bit_per_s)) = begun {
        recording.down.push(RateSample { begin, end: begin.saturating_add(spacing), bit_per_s });
    }
    Ok(recording)
}

fn delays(text: &str) -> Result<Recording, RecordingError> {
    let delays = delay_csv::read(text).map_err(|error| {
        let line = match error {
            DelayCsvError::Header { line, .. }
            | DelayCsvError::Line { line, .. }
            | DelayCsvError::Range { line, .. }
            | DelayCsvError::Backwards { line }
            | DelayCsvError::Long { line } => Some(line),
            DelayCsvError::Empty => None,
        };
        let what = error.to_string();
        let what = what
            .split_once(": ")
            .filter(|_| line.is_some())
            .map_or(what.clone(), |it| it.1.to_owned());
        RecordingError {
            line,
            what,
            hint: "columns are time_s,delay_ms or time_s,rate_mbit_per_s".to_owned(),
        }
    })?;
    Ok(Recording { delays, ..Recording::new(RecordedFormat::Csv) })
}
