//! The samples of a recording, and the errors of reading one.

use crate::mahimahi::MahimahiError;
use crate::trace::{STEPS_MAX, Trace};
use midhop_units::{Duration, Rate};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Samples further apart than this belong to two measurements.
const GAP: Duration = Duration::from_s(2);
/// An upper bound for rates. Unit: bit/s.
const RATE_MAX: f64 = 1e12;
/// An upper bound for delays. Unit: seconds.
const DELAY_S_MAX: f64 = 1e3;

/// The format of a file, by the program that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RecordedFormat {
    /// Packet opportunities.
    Mahimahi,
    /// One-way delays, one per 10 ms.
    DelayLines,
    /// irtt's JSON.
    Irtt,
    /// The output of ping.
    Ping,
    /// iperf3's JSON.
    Iperf3,
    /// CSV of iperf seconds, both directions.
    WetLinks,
    /// Two columns.
    Csv,
}

impl RecordedFormat {
    /// The name in scenarios and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mahimahi => "mahimahi",
            Self::DelayLines => "delay-lines",
            Self::Irtt => "irtt",
            Self::Ping => "ping",
            Self::Iperf3 => "iperf3",
            Self::WetLinks => "wetlinks",
            Self::Csv => "csv",
        }
    }

    /// Detects the format of a text from its beginning; lines with one number each are
    /// [`RecordedFormat::Mahimahi`] if they never fall.
    pub fn of(text: &str) -> Option<Self> {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let first =
            text.lines().find(|line| !line.trim().is_empty() && !line.starts_with('#'))?.trim();
        if text.starts_with('{') {
            return Some(if text.contains("\"round_trips\"") { Self::Irtt } else { Self::Iperf3 });
        }
        if first.contains("timestamp_start") {
            return Some(Self::WetLinks);
        }
        if first.starts_with("PING ") || (first.contains("bytes from") && first.contains("time=")) {
            return Some(Self::Ping);
        }
        if first.contains(',') {
            return Some(Self::Csv);
        }
        if text.contains("bytes from") {
            return Some(Self::Ping);
        }
        first.parse::<f64>().ok()?;
        let mut last = 0;
        let rises = text.lines().map(str::trim).filter(|line| !line.is_empty()).all(|line| {
            let at: Option<u64> = line.parse().ok();
            let later = at.is_some_and(|at| at >= last);
            last = at.unwrap_or(last);
            later
        });
        let begins: u64 = first.parse().unwrap_or(0);
        Some(if rises && last > begins { Self::Mahimahi } else { Self::DelayLines })
    }
}

/// One thing is wrong with a recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct RecordingError {
    /// The line, from 1; none where it is the whole text.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}: {}", self.what, self.hint),
            None => write!(f, "{}: {}", self.what, self.hint),
        }
    }
}

impl RecordingError {
    pub(crate) fn at(line: usize, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { line: Some(line), what: what.into(), hint: hint.into() }
    }

    pub(crate) fn whole(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { line: None, what: what.into(), hint: hint.into() }
    }

    /// The error of a line that does not match its format.
    pub(crate) fn line(line: usize, text: &str, expected: &str) -> Self {
        let shown: String = text.trim().chars().take(40).collect();
        Self::at(
            line,
            format!("\"{shown}\" is no {expected}"),
            "see the formats of recordings in docs/links.md",
        )
    }
}

impl From<MahimahiError> for RecordingError {
    fn from(error: MahimahiError) -> Self {
        // Its text names the line.
        Self::whole(error.to_string(), "each line is a millisecond at which a packet may leave")
    }
}

/// The mean rate over a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateSample {
    /// When the time begins.
    pub begin: Duration,
    /// When it ends.
    pub end: Duration,
    /// Unit: bit/s.
    pub bit_per_s: f64,
}

/// Packets of which it is known whether they arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossSample {
    /// When they were sent.
    pub at: Duration,
    /// How many.
    pub sent: u64,
    /// How many of them never arrived.
    pub lost: u64,
}

/// What a file contains about a link.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Its format.
    pub format: RecordedFormat,
    /// Rates towards the user, or of the only direction that there is.
    pub down: Vec<RateSample>,
    /// Rates from the user.
    pub up: Vec<RateSample>,
    /// When a delay was seen, and the delay, one way. A round trip counts half.
    pub delays: Vec<(Duration, Duration)>,
    /// Whether these are round trips halved.
    pub halved: bool,
    /// Packets sent and lost.
    pub losses: Vec<LossSample>,
}

impl Recording {
    pub(crate) fn new(format: RecordedFormat) -> Self {
        Self {
            format,
            down: Vec::new(),
            up: Vec::new(),
            delays: Vec::new(),
            halved: false,
            losses: Vec::new(),
        }
    }

    /// Its duration.
    pub fn span(&self) -> Duration {
        let rates = self.down.iter().chain(&self.up).map(|sample| sample.end);
        let delays = self.delays.iter().map(|(at, _)| *at);
        rates
            .chain(delays)
            .chain(self.losses.iter().map(|sample| sample.at))
            .max()
            .unwrap_or_default()
    }

    /// Its rates as those of a link, which repeat after the last. Times between measurements are
    /// cut out.
    ///
    /// # Errors
    /// When it has none, or too many.
    pub fn rate_trace(&self, up: bool) -> Result<Trace<Rate>, RecordingError> {
        let samples = if up { &self.up } else { &self.down };
        let mut steps: Vec<(Duration, Rate)> = Vec::new();
        let (mut at, mut last) = (Duration::ZERO, None::<Duration>);
        for sample in samples {
            if let Some(last) = last {
                let gap = sample.begin.saturating_sub(last);
                at += if gap > GAP { Duration::ZERO } else { gap };
            }
            let rate = Rate::from_bits_per_s(sample.bit_per_s.round() as u64);
            if steps.last().is_none_or(|(_, before)| *before != rate) {
                steps.push((at, rate));
            }
            at += sample.end.saturating_sub(sample.begin);
            last = Some(sample.end);
        }
        self.checked("rate", steps, at)
    }

    /// Its delays as those of a link, which repeat after the last.
    ///
    /// # Errors
    /// When it has none, or too many.
    pub fn delay_trace(&self) -> Result<Trace<Duration>, RecordingError> {
        let mut steps: Vec<(Duration, Duration)> = Vec::new();
        for &(at, delay) in &self.delays {
            if steps.last().is_none_or(|(_, before)| *before != delay) {
                steps.push((if steps.is_empty() { Duration::ZERO } else { at }, delay));
            }
        }
        // The last sample counts as long as the mean of the others.
        let count = self.delays.len().saturating_sub(1).max(1) as u64;
        let last = self.delays.last().map_or(Duration::ZERO, |(at, _)| *at);
        let every = (last / count).max(Duration::from_ms(1));
        self.checked("delay", steps, last + every)
    }

    fn checked<T: Copy>(
        &self,
        quantity: &str,
        steps: Vec<(Duration, T)>,
        length: Duration,
    ) -> Result<Trace<T>, RecordingError> {
        let format = self.format.name();
        if steps.is_empty() || length.is_zero() {
            let what = format!("a recording of {format} has no {quantity} here");
            return Err(RecordingError::whole(what, "name a file of a format that has it"));
        }
        if steps.len() > STEPS_MAX {
            let what = format!("it has more than {STEPS_MAX} changes of the {quantity}");
            return Err(RecordingError::whole(what, "thin it out or shorten it"));
        }
        Ok(Trace { steps, repeat: Some(length) })
    }
}

/// A number within a range, or the error for the user.
pub(crate) fn within(
    line: Option<usize>,
    what: &str,
    value: f64,
    most: f64,
) -> Result<f64, RecordingError> {
    if (0.0..=most).contains(&value) {
        return Ok(value);
    }
    Err(RecordingError {
        line,
        what: format!("{what} of {value} is out of range"),
        hint: format!("it must be between 0 and {most:e}"),
    })
}

/// A delay in seconds.
pub(crate) fn delay(line: Option<usize>, seconds: f64) -> Result<Duration, RecordingError> {
    within(line, "a delay in seconds", seconds, DELAY_S_MAX).map(Duration::from_s_f64)
}

/// A rate in bit/s.
pub(crate) fn rate(line: Option<usize>, bit_per_s: f64) -> Result<f64, RecordingError> {
    within(line, "a rate in bit/s", bit_per_s, RATE_MAX)
}
