//! A common start of several meters: each prints a line when it is ready, and reads the start from
//! standard input.

use super::serve::print_line;
use midhop_units::Instant;
use std::io;
use std::str::FromStr;

/// When a meter starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// At this moment of `CLOCK_MONOTONIC`.
    At(Instant),
    /// At the moment that standard input gives.
    Awaited,
}

impl FromStr for Start {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "-" => Ok(Self::Awaited),
            _ => parse(text).map(Self::At),
        }
    }
}

impl Start {
    /// The start; where it is read from standard input, first prints that the meter for `target` is
    /// ready.
    pub(super) fn moment(self, target: &str) -> io::Result<Instant> {
        match self {
            Self::At(moment) => Ok(moment),
            Self::Awaited => read(target),
        }
    }
}

/// Prints that the meter for `target` is ready, and reads when to start.
///
/// # Errors
/// When standard input ends or holds something else.
pub(super) fn read(target: &str) -> io::Result<Instant> {
    print_line(&serde_json::json!({ "ready": target }).to_string());
    let mut line = String::new();
    if io::stdin().read_line(&mut line)? == 0 {
        let what = "standard input ended before it gave the start";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
    }
    parse(line.trim()).map_err(|what| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{:?}: {what}", line.trim()))
    })
}

fn parse(text: &str) -> Result<Instant, &'static str> {
    let what = "a start is a whole number of nanoseconds of CLOCK_MONOTONIC";
    text.parse().map(Instant::from_ns).map_err(|_| what)
}
