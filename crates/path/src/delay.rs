//! The propagation delay of packets: constant, or in steps over time.

use crate::delay_csv;
use crate::recorded::{self, RecordedFormat};
use crate::resolve::{ResolveError, check_time};
use crate::trace::Trace;
use crate::written::{self, Written};
use midhop_units::Duration;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::str::FromStr;

const EXPECTED: &str = "a time such as \"300 ms\", or a table such as \
                        { trace = [[\"0 s\", \"20 ms\"], [\"15 s\", \"35 ms\"]] }";

/// The one-way propagation delay of a link as written and as resolved.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkDelay {
    /// Always the same.
    Constant(Duration),
    /// In steps. If the delay falls, packets sent later still arrive no earlier than those before
    /// them.
    Trace(Trace<Duration>),
}

impl LinkDelay {
    /// The shortest delay of the link: the lower bound for a transfer.
    pub fn shortest(&self) -> Duration {
        match self {
            Self::Constant(delay) => *delay,
            Self::Trace(trace) => trace.values().min().unwrap_or(Duration::ZERO),
        }
    }

    /// The delay at a time after the link's start.
    pub fn at(&self, elapsed: Duration) -> Duration {
        match self {
            Self::Constant(delay) => *delay,
            Self::Trace(trace) => trace.at(elapsed).0,
        }
    }

    /// The longest delay of the link, for which buffers are sized.
    pub fn longest(&self) -> Duration {
        match self {
            Self::Constant(delay) => *delay,
            Self::Trace(trace) => trace.values().max().unwrap_or(Duration::ZERO),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ResolveError> {
        if let Self::Trace(trace) = self {
            trace.check("delay")?;
        }
        check_time("delay", self.longest())
    }
}

impl FromStr for LinkDelay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self::Constant).map_err(|_| format!("\"{text}\" is not {EXPECTED}"))
    }
}

/// A delay in steps over time, as written or as recorded. Times count from the start of the link. After the last step its
/// value stays, or, with `repeat`, the trace starts again.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct DelayTable {
    /// When each delay begins, and the delay. The first begins at zero; times rise strictly.
    #[serde(default)]
    trace: Option<Vec<(Duration, Duration)>>,
    /// The period after which the trace starts again.
    #[serde(default)]
    repeat: Option<Duration>,
    /// The text of a recorded trace: lines with a time and a delay, in the units that its first line names.
    #[serde(default)]
    csv: Option<String>,
    /// A file with it, whose content becomes `csv` when the scenario is read.
    #[serde(default)]
    csv_file: Option<String>,
    /// The text of a recording, see [`crate::recorded`].
    #[serde(default)]
    recorded: Option<String>,
    /// A file with it, whose content becomes `recorded` when the scenario is read.
    #[serde(default)]
    recorded_file: Option<String>,
    /// Its format, if the beginning of the text does not show it.
    #[serde(default)]
    format: Option<RecordedFormat>,
    /// The moment of the recording at which the link begins. Default: its beginning.
    #[serde(default)]
    from: Option<Duration>,
}

impl Written for LinkDelay {
    const EXPECTED: &'static str = EXPECTED;

    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        let table = DelayTable::deserialize(table)?;
        let repeat = table.repeat;
        let recording = table.recorded.is_some() || table.recorded_file.is_some();
        if !recording && (table.format.is_some() || table.from.is_some()) {
            return Err(de::Error::custom(
                "`format` and `from` are of a recording: name its `recorded_file`",
            ));
        }
        if recording && (table.trace.is_some() || table.csv.is_some() || table.csv_file.is_some()) {
            return Err(de::Error::custom("a recording stands without `trace` and `csv`"));
        }
        if let Some(text) = &table.recorded {
            let from = table.from.unwrap_or_default();
            let read = recorded::read(text, table.format)
                .and_then(|it| it.delay_trace())
                .and_then(|trace| recorded::beginning(trace, from));
            let named = table.recorded_file.as_deref().unwrap_or("the recording");
            let trace = read.map_err(|error| de::Error::custom(format!("{named}, {error}")))?;
            return Ok(Self::Trace(Trace { repeat: repeat.or(trace.repeat), ..trace }));
        }
        let steps = match table {
            DelayTable { recorded_file: Some(file), .. } => {
                let message = "has not been read; only commands that read scenarios do that";
                return Err(de::Error::custom(format!("the file {file} {message}")));
            }
            DelayTable { csv: Some(text), csv_file, trace: None, .. } => {
                let file = csv_file.as_deref().unwrap_or("the trace");
                delay_csv::read(&text)
                    .map_err(|error| de::Error::custom(format!("{file}, {error}")))?
            }
            DelayTable { csv_file: Some(file), csv: None, trace: None, .. } => {
                let message = "has not been read; only commands that read scenarios do that";
                return Err(de::Error::custom(format!("the file {file} {message}")));
            }
            DelayTable { csv: None, csv_file: None, trace: Some(steps), .. } => steps,
            DelayTable { csv: None, csv_file: None, trace: None, .. } => {
                return Err(de::Error::missing_field("trace"));
            }
            _ => return Err(de::Error::custom("a recorded trace stands without `trace`")),
        };
        Ok(Self::Trace(Trace { steps, repeat }))
    }
}

impl<'de> Deserialize<'de> for LinkDelay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        written::deserialize(from)
    }
}

written::schema!(LinkDelay, EXPECTED, DelayTable);

impl Serialize for LinkDelay {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Constant(delay) => delay.serialize(to),
            Self::Trace(trace) => trace.serialize(to),
        }
    }
}
