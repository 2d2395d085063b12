//! Standard output: data for a person or for another program.

use anyhow::Context;
use std::io::{self, ErrorKind, Write};

/// Wider than any of our tables: lines of a file have no maximum length.
const COLUMNS: u16 = 10_000;

/// The line width of standard output: that of a terminal, otherwise unlimited.
pub fn columns() -> u16 {
    terminal_size::terminal_size_of(io::stdout()).map_or(COLUMNS, |(width, _)| width.0)
}

/// Writes to standard output; a reader that has closed it (`| head`) is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}
