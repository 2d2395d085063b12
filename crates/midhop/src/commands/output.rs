//! Standard output: data for a person or for the next program.

use anyhow::Context;
use std::io::{self, ErrorKind, Write};

/// More than any table of ours takes: a file has lines of any length.
const COLUMNS: u16 = 10_000;

/// How many characters a line of standard output has room for: a terminal's own, elsewhere as many as there are.
pub fn columns() -> u16 {
    terminal_size::terminal_size_of(io::stdout()).map_or(COLUMNS, |(width, _)| width.0)
}

/// Writes to standard output; a reader that went away (`| head`) is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}
