//! Seconds of iperf in the format of the dataset WetLinks: CSV with `timestamp_start`,
//! `timestamp_end`, `download` and `upload`.
//!
//! Rates are in bit/s, times in ISO 8601. Source: `net_iperf.txt` of the dataset. Its measurements last 15 s and are
//! minutes apart.

use super::sample::{RateSample, RecordedFormat, Recording, RecordingError, rate};
use midhop_units::Duration;

const COLUMNS: &str = "line with timestamp_start, timestamp_end, download and upload";

pub(super) fn read(text: &str) -> Result<Recording, RecordingError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (number, header) = lines.next().unwrap_or((0, ""));
    let names: Vec<&str> = cells(header.trim_start_matches('\u{feff}')).collect();
    let column = |name: &str| names.iter().position(|it| *it == name);
    let [Some(start), Some(end), Some(down), Some(up)] =
        ["timestamp_start", "timestamp_end", "download", "upload"].map(column)
    else {
        return Err(RecordingError::line(number + 1, header, COLUMNS));
    };
    let mut recording = Recording::new(RecordedFormat::WetLinks);
    let mut first = None;
    for (number, line) in lines {
        let number = number + 1;
        let cells: Vec<&str> = cells(line).collect();
        let cell = |at: usize| {
            cells.get(at).copied().ok_or_else(|| RecordingError::line(number, line, COLUMNS))
        };
        let time = |at: usize| {
            let text = cell(at)?;
            seconds(text).ok_or_else(|| {
                RecordingError::at(
                    number,
                    format!("\"{}\" is no time", text.chars().take(40).collect::<String>()),
                    "write it as 2023-09-01T00:00:05Z",
                )
            })
        };
        let (begin_s, end_s) = (time(start)?, time(end)?);
        let first_s = *first.get_or_insert(begin_s);
        if begin_s < first_s || end_s < begin_s {
            let hint = "the lines must be in the order of time";
            return Err(RecordingError::at(number, "it is earlier than the one before it", hint));
        }
        let begin = Duration::from_s_f64(begin_s - first_s);
        // Times are whole seconds: an interval within one second begins and ends at the same time.
        let end =
            Duration::from_s_f64(end_s - first_s).max(begin.saturating_add(Duration::from_s(1)));
        for (at, samples) in [(down, &mut recording.down), (up, &mut recording.up)] {
            let text = cell(at)?;
            if text.is_empty() || text.eq_ignore_ascii_case("nan") {
                continue;
            }
            let value =
                text.parse().map_err(|_| RecordingError::line(number, text, "rate in bit/s"))?;
            let bit_per_s = rate(Some(number), value)?;
            match samples.last_mut() {
                Some(RateSample { begin: last, .. }) if *last >= begin => {
                    if *last > begin {
                        let hint = "the lines must be in the order of time";
                        return Err(RecordingError::at(
                            number,
                            "it is earlier than the one before it",
                            hint,
                        ));
                    }
                }
                Some(last) => {
                    last.end = last.end.min(begin);
                    samples.push(RateSample { begin, end, bit_per_s });
                }
                None => samples.push(RateSample { begin, end, bit_per_s }),
            }
        }
    }
    Ok(recording)
}

fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|cell| cell.trim().trim_matches('"').trim())
}

/// Seconds since 1970 of `2023-09-01 00:00:05.25+02:00`, `2023-09-01T00:00:05Z`, or without a zone.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.split_once(['T', ' '])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone_at = time.find(['Z', '+', '-']).unwrap_or(time.len());
    let (clock, zone) = time.split_at(zone_at);
    let offset_s = match zone {
        "" | "Z" => 0,
        _ => {
            let (hours, minutes) =
                zone.get(1..)?.split_once(':').or(zone.get(1..3).zip(zone.get(3..5)))?;
            let (hours, minutes) = (hours.parse::<u8>().ok()?, minutes.parse::<u8>().ok()?);
            let offset = i64::from(hours) * 3600 + i64::from(minutes) * 60;
            if zone.starts_with('-') { -offset } else { offset }
        }
    };
    let mut clock = clock.splitn(3, ':');
    let (hour, minute): (i64, i64) = (clock.next()?.parse().ok()?, clock.next()?.parse().ok()?);
    let second: f64 = clock.next()?.parse().ok()?;
    let possible = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..61.0).contains(&second);
    if !possible || offset_s.abs() > 86_400 {
        return None;
    }
    // Days since 1970 by the calendar's rule, with March as the first month.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 719_469;
    Some((days * 86_400 + hour * 3600 + minute * 60 - offset_s) as f64 + second)
}
