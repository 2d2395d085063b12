//! How a command that failed tells its user: what, why, and what would do.

use std::fmt;
use std::process::ExitCode;

/// A run failed.
pub const RUN: u8 = 1;
/// The command line or a file was wrong.
pub const USAGE: u8 = 64;

/// An error with the exit code it deserves and, where there is one, a way out.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// The command line or a file is wrong; the user can mend it.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { code: USAGE, message: message.to_string(), hint: None }
    }

    /// A run failed.
    pub fn run(message: impl fmt::Display) -> Self {
        Self { code: RUN, message: message.to_string(), hint: None }
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Prints `error` and its causes to standard error and gives the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
    match error.downcast_ref::<Failure>() {
        Some(failure) => {
            if let Some(hint) = &failure.hint {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(failure.code)
        }
        None => ExitCode::from(RUN),
    }
}
