//! LeoReplayer's delays: a line each 10 ms, one way, in milliseconds.

use super::sample::{RecordedFormat, Recording, RecordingError, delay};
use midhop_units::Duration;

/// The time from one line to the next.
const EVERY: Duration = Duration::from_ms(10);

pub(super) fn read(text: &str) -> Result<Recording, RecordingError> {
    let mut delays = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let content = line.trim_start_matches('\u{feff}').trim();
        let ms: f64 = content.parse().map_err(|_| {
            RecordingError::line(number + 1, content, "delay in milliseconds, one number")
        })?;
        delays.push((EVERY * delays.len() as u64, delay(Some(number + 1), ms / 1e3)?));
    }
    Ok(Recording { delays, ..Recording::new(RecordedFormat::DelayLines) })
}
