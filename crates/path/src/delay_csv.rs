//! Reads the delay of a link from a recorded trace: CSV with a column of times and a column of delays.
//!
//! The first line may name the columns, each with its unit: `time_s,delay_ms`. A round trip
//! (`rtt_ms`) counts half for each direction. Without such a line, times are in seconds and delays
//! in milliseconds. Empty lines, lines that begin with `#`, and columns after the second are
//! ignored. Times count from the first sample, with any recording clock; each delay holds until the
//! next sample.

use crate::trace::STEPS_MAX;
use midhop_units::Duration;

/// A time beyond this is a mistake: seconds since 1970 are below it, milliseconds are not.
const TIME_S_MAX: f64 = 1e10;
/// A delay beyond this is a mistake.
const DELAY_S_MAX: f64 = 1e4;

/// Why a text is no trace of delays.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DelayCsvError {
    /// The first line names other columns.
    #[error(
        "line {line}: \"{text}\" names no two columns of a delay trace: write time_s,delay_ms; known are time_s, time_ms, \
         time_us, delay_s, delay_ms, delay_us, rtt_s, rtt_ms, rtt_us"
    )]
    Header {
        /// The line, from 1.
        line: usize,
        /// The line as it stands.
        text: String,
    },
    /// A line holds no sample.
    #[error("line {line}: \"{text}\" is no time and delay, two numbers with a comma between them")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The line as it stands.
        text: String,
    },
    /// A number that no link has.
    #[error("line {line}: {what} of {value} s is out of range")]
    Range {
        /// The line, from 1.
        line: usize,
        /// What the number is.
        what: &'static str,
        /// The number. Unit: seconds.
        value: f64,
    },
    /// Time goes backwards, or stands still.
    #[error("line {line}: each sample must be later than the one before it")]
    Backwards {
        /// The line, from 1.
        line: usize,
    },
    /// There are too many.
    #[error("line {line}: a trace has at most {STEPS_MAX} changes: thin it out or shorten it")]
    Long {
        /// The line, from 1.
        line: usize,
    },
    /// There is none.
    #[error("there is no sample in it: write one a line, such as 0,20.5")]
    Empty,
}

/// What the columns hold. Unit of both: seconds per unit of the column.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CsvColumns {
    time_s: f64,
    delay_s: f64,
}

impl CsvColumns {
    const UNNAMED: Self = Self { time_s: 1.0, delay_s: 1e-3 };

    fn named(header: &str) -> Option<Self> {
        let mut names = header.split(',').map(|name| name.trim().to_ascii_lowercase());
        let unit = |name: &str, quantity: &str| match name.strip_prefix(quantity)? {
            "_s" => Some(1.0),
            "_ms" => Some(1e-3),
            "_us" => Some(1e-6),
            _ => None,
        };
        let time_s = unit(&names.next()?, "time")?;
        let second = names.next()?;
        let half = unit(&second, "rtt").map(|unit| unit / 2.0);
        Some(Self { time_s, delay_s: unit(&second, "delay").or(half)? })
    }
}

/// Reads a trace: the beginning of each delay, counted from zero, and the delay.
///
/// # Errors
/// When a line holds no sample, time goes backwards, or there is no sample.
pub fn read(text: &str) -> Result<Vec<(Duration, Duration)>, DelayCsvError> {
    let mut columns = None;
    let mut begin_s = None;
    let mut steps: Vec<(Duration, Duration)> = Vec::new();
    let mut last = None;
    for (number, written) in text.lines().enumerate() {
        // A byte order mark, which some programs write at the beginning of a file.
        let content = written.trim_start_matches('\u{feff}').trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let line = number + 1;
        let text = || content.chars().take(40).collect::<String>();
        let begins_with_letter = content.starts_with(|c: char| c.is_alphabetic() || c == '"');
        if columns.is_none() && begins_with_letter {
            let header = content.replace('"', "");
            let named = CsvColumns::named(&header);
            columns = Some(named.ok_or_else(|| DelayCsvError::Header { line, text: text() })?);
            continue;
        }
        let CsvColumns { time_s, delay_s } = *columns.get_or_insert(CsvColumns::UNNAMED);
        let mut cells = content.split(',').map(|cell| cell.trim().parse::<f64>().ok());
        let sample = cells.next().flatten().zip(cells.next().flatten());
        let (time, delay) = sample.ok_or_else(|| DelayCsvError::Line { line, text: text() })?;
        let (time, delay) = (time * time_s, delay * delay_s);
        let within = |what, value: f64, range: std::ops::RangeInclusive<f64>| {
            let refused = DelayCsvError::Range { line, what, value };
            range.contains(&value).then_some(value).ok_or(refused)
        };
        let time = within("a time", time, -TIME_S_MAX..=TIME_S_MAX)?;
        let delay = Duration::from_s_f64(within("a delay", delay, 0.0..=DELAY_S_MAX)?);
        let after_s = time - *begin_s.get_or_insert(time);
        if after_s < 0.0 {
            return Err(DelayCsvError::Backwards { line });
        }
        let after = Duration::from_s_f64(after_s);
        if last.is_some_and(|last| after <= last) {
            return Err(DelayCsvError::Backwards { line });
        }
        last = Some(after);
        if steps.last().is_none_or(|(_, before)| *before != delay) {
            if steps.len() == STEPS_MAX {
                return Err(DelayCsvError::Long { line });
            }
            steps.push((after, delay));
        }
    }
    if steps.is_empty() { Err(DelayCsvError::Empty) } else { Ok(steps) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn us(us: u64) -> Duration {
        Duration::from_us(us)
    }

    #[test]
    fn columns_are_read_in_their_units() {
        let bare = "0, 20\n0.5,25.5\n\n# an hour later\n1.25,20,whatever\n";
        let expected =
            [(us(0), us(20_000)), (us(500_000), us(25_500)), (us(1_250_000), us(20_000))];
        assert_eq!(read(bare).expect("a trace"), expected);
        let named = "\u{feff}\"time_ms\",\"rtt_us\"\r\n1000,40000\r\n1500,51000\r\n2250,40000\r\n";
        assert_eq!(read(named).expect("a trace"), expected);
        // Seconds since 1970, and a delay that is constant.
        let absolute = "time_s,delay_s\n1764230400.5,0.02\n1764230401,0.0255\n1764230401.5,0.0255\n1764230401.75,0.02\n";
        assert_eq!(read(absolute).expect("a trace"), expected);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        for (text, line, words) in [
            ("when,how long\n0,20\n", "line 1", "time_s,delay_ms"),
            ("time_s,delay_h\n0,20\n", "line 1", "names no two columns"),
            ("time_s\n0\n", "line 1", "names no two columns"),
            ("0,20\n1;30\n", "line 2", "two numbers"),
            ("0,20\n1\n", "line 2", "two numbers"),
            ("0,20\n1,\n", "line 2", "two numbers"),
            ("0,20\n1,NaN\n", "line 2", "a delay of NaN s"),
            ("0,20\n1,-3\n", "line 2", "out of range"),
            ("0,20\n1,1e9\n", "line 2", "out of range"),
            ("0,20\n1e300,3\n", "line 2", "a time of"),
            ("0,20\n2,30\n1,20\n", "line 3", "later than"),
            ("0,20\n1,30\n1,30\n", "line 3", "later than"),
            ("5,20\n4,30\n", "line 2", "later than"),
            ("", "", "no sample"),
            ("time_s,delay_ms\n# nothing\n", "", "no sample"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(line) && error.contains(words), "{text:?}: {error}");
        }
        let long: String = (0..=STEPS_MAX).map(|at| format!("{at},{}\n", at % 2)).collect();
        let error = read(&long).expect_err("too long").to_string();
        assert!(error.starts_with("line 100001: "), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_trace_or_refused(text in "[0-9,.\\-e#a-z_\n ]{0,60}") {
            if let Ok(steps) = read(&text) {
                prop_assert!(steps[0].0.is_zero());
                prop_assert!(steps.is_sorted_by(|a, b| a.0 < b.0));
            }
        }
    }
}
