//! How a failure is told: what went wrong, why, what would do, and by which exit code.

use midhop_config::ConfigError;
use std::{error::Error, fmt, process::ExitCode};

/// It could not be done, or not to its end.
pub const RUN: u8 = 1;
/// The command line or the configuration file is wrong.
pub const USAGE: u8 = 64;

/// An error as the user meets it.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    hint: Option<String>,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// The command line or a file is wrong; the user can mend it.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { code: USAGE, message: message.to_string(), hint: None, cause: None }
    }

    /// It could not be done.
    pub fn run(message: impl fmt::Display) -> Self {
        Self { code: RUN, message: message.to_string(), hint: None, cause: None }
    }

    /// Adds why.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Prints it to standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("error: {self}");
        let mut cause = self.source();
        while let Some(error) = cause {
            eprintln!("  because: {error}");
            cause = error.source();
        }
        if let Some(hint) = &self.hint {
            eprintln!("hint: {hint}");
        }
        ExitCode::from(self.code)
    }

    /// What the user can do about it.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<Box<ConfigError>> for Failure {
    fn from(error: Box<ConfigError>) -> Self {
        let hint = error.hint.clone();
        Self { code: USAGE, message: error.to_string(), hint, cause: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}
