//! The rate of a link: without limit, constant, or in steps over time.

use crate::direction::Direction;
use crate::mahimahi;
use crate::recorded::{self, RecordedFormat};
use crate::resolve::{ResolveError, check_rate};
use crate::trace::Trace;
use crate::written::{self, Written};
use midhop_units::{Duration, Rate};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::str::FromStr;

const EXPECTED: &str = "a rate such as \"20 Mbit/s\", \"unlimited\", or a table such as \
                        { trace = [[\"0 s\", \"20 Mbit/s\"], [\"5 s\", \"5 Mbit/s\"]] }";

/// The rate of a link as written and as resolved.
///
/// Rates count the bytes of a packet as it is handed to the link (IP header included, no link-layer
/// overhead).
#[derive(Debug, Clone, PartialEq)]
pub enum LinkRate {
    /// Sending takes no time.
    Unlimited,
    /// Always the same.
    Constant(Rate),
    /// In steps. A step with rate zero holds packets until the next step.
    Trace(Trace<Rate>),
}

impl LinkRate {
    /// The highest rate of the link; `None` without a limit. Queues in BDP or time are computed
    /// from it.
    pub fn highest(&self) -> Option<Rate> {
        match self {
            Self::Unlimited => None,
            Self::Constant(rate) => Some(*rate),
            Self::Trace(trace) => trace.values().max(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ResolveError> {
        if let Self::Trace(trace) = self {
            trace.check("rate")?;
        }
        match self.highest() {
            Some(Rate::ZERO) => Err(ResolveError::out_of_range(
                "rate",
                Rate::ZERO,
                "nothing would ever pass; for a link that is down for a while use `outages`",
            )),
            Some(rate) => check_rate("rate", rate),
            None => Ok(()),
        }
    }
}

impl FromStr for LinkRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        text.parse().map(Self::Constant).map_err(|_| format!("\"{text}\" is not {EXPECTED}"))
    }
}

/// The table form as written.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct RateTable {
    #[serde(default)]
    trace: Option<Vec<(Duration, Rate)>>,
    #[serde(default)]
    repeat: Option<Duration>,
    /// The text of a trace, see [`mahimahi`].
    #[serde(default)]
    mahimahi: Option<String>,
    /// A file with it, whose content becomes `mahimahi` when the scenario is read.
    #[serde(default)]
    mahimahi_file: Option<String>,
    /// The text of a recording, see [`crate::recorded`].
    #[serde(default)]
    recorded: Option<String>,
    /// A file with it, whose content becomes `recorded` when the scenario is read.
    #[serde(default)]
    recorded_file: Option<String>,
    /// Its format, if the beginning of the text does not show it.
    #[serde(default)]
    format: Option<RecordedFormat>,
    /// Which direction of a recording that has both: `down` (the default) or `up`.
    #[serde(default)]
    direction: Option<Direction>,
    /// The moment of the recording at which the link begins. Default: its beginning.
    #[serde(default)]
    from: Option<Duration>,
}

impl Written for LinkRate {
    const EXPECTED: &'static str = EXPECTED;

    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        let table = RateTable::deserialize(table)?;
        let recording = table.recorded.is_some() || table.recorded_file.is_some();
        let of_recordings =
            table.format.is_some() || table.direction.is_some() || table.from.is_some();
        if !recording && of_recordings {
            return Err(de::Error::custom(
                "`format`, `direction` and `from` are of a recording: name its `recorded_file`",
            ));
        }
        match table {
            RateTable { recorded: Some(text), trace: None, mahimahi: None, .. } => {
                let up = table.direction == Some(Direction::Up);
                let from = table.from.unwrap_or_default();
                let read = recorded::read(&text, table.format)
                    .and_then(|it| it.rate_trace(up))
                    .and_then(|trace| recorded::beginning(trace, from));
                let named = table.recorded_file.as_deref().unwrap_or("the recording");
                let trace = read.map_err(|error| de::Error::custom(format!("{named}, {error}")))?;
                Ok(Self::Trace(Trace { repeat: table.repeat.or(trace.repeat), ..trace }))
            }
            RateTable { recorded_file: Some(file), recorded: None, .. } => {
                let message = "has not been read; only commands that read scenarios do that";
                Err(de::Error::custom(format!("the file {file} {message}")))
            }
            RateTable {
                mahimahi: Some(text), trace: None, repeat: None, recorded: None, ..
            } => mahimahi::read(&text).map(Self::Trace).map_err(de::Error::custom),
            RateTable { mahimahi_file: Some(file), mahimahi: None, .. } => {
                let message = "has not been read; only commands that read scenarios do that";
                Err(de::Error::custom(format!("the file {file} {message}")))
            }
            RateTable { mahimahi: None, trace: Some(steps), repeat, .. } => {
                Ok(Self::Trace(Trace { steps, repeat }))
            }
            RateTable { mahimahi: None, trace: None, .. } => Err(de::Error::missing_field("trace")),
            _ => Err(de::Error::custom("a trace of Mahimahi stands alone, without `trace`")),
        }
    }
}

impl<'de> Deserialize<'de> for LinkRate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        written::deserialize(from)
    }
}

written::schema!(LinkRate, EXPECTED, RateTable);

impl Serialize for LinkRate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unlimited => to.serialize_str("unlimited"),
            Self::Constant(rate) => rate.serialize(to),
            Self::Trace(trace) => trace.serialize(to),
        }
    }
}
