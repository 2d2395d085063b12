//! Tests that this machine cannot run.

use std::fmt::{Arguments, Display};
use std::fs::OpenOptions;
use std::io::{self, Write};

/// Reports that the running test is skipped because of `why`.
///
/// Rust's test harness has only passed and failed tests, and those that were ignored at build time.
/// A test that finds at run time that it lacks a privilege or a program can only return, and counts
/// as passed. So it calls this function, whose effect depends on `MIDHOP_SKIPS`:
///
/// | `MIDHOP_SKIPS` | result of the test |
/// |---|---|
/// | unset | it passes, with a line on standard output (`cargo test -- --nocapture`) |
/// | `refuse` | it fails: on this machine no test may be skipped |
/// | any other | it passes, with a line appended to the file of that name, which `make test` lists |
///
/// # Panics
/// Where no test may be skipped, or the list of skipped tests cannot be written.
#[track_caller]
pub fn skipped(why: impl Display) {
    // The harness names each test's thread after the test; a child process has the name from its
    // parent.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test").to_owned();
    let place = std::panic::Location::caller().file();
    match Policy::of(std::env::var("MIDHOP_SKIPS").ok().as_deref()) {
        Policy::Print => println!("skipped: {test} ({place}): {why}"),
        Policy::Refuse => panic!("{test} must not be skipped here, but: {why}"),
        Policy::List(file) => append(&file, format_args!("{test} ({place}): {why}"))
            .unwrap_or_else(|error| panic!("{test} cannot be listed as skipped: {error}")),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Policy {
    Print,
    Refuse,
    List(String),
}

impl Policy {
    fn of(variable: Option<&str>) -> Self {
        match variable {
            None | Some("") => Self::Print,
            Some("refuse") => Self::Refuse,
            Some(file) => Self::List(file.to_owned()),
        }
    }
}

/// A single write per line: test programs may run in parallel.
fn append(file: &str, line: Arguments<'_>) -> io::Result<()> {
    let line = line.to_string().replace('\n', " ") + "\n";
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_of_the_variable_is_a_policy() {
        assert_eq!(Policy::of(None), Policy::Print);
        assert_eq!(Policy::of(Some("refuse")), Policy::Refuse);
        assert_eq!(Policy::of(Some("/tmp/list")), Policy::List("/tmp/list".to_owned()));
    }
}
