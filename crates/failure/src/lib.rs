//! How a failure is reported: what failed, why, how to fix it, and the exit code.
//!
//! `midhop` and `midhopd` report it in the same words, on standard error:
//!
//! ```text
//! error: what went wrong
//!   because: why
//! hint: what would do
//! ```

use midhop_config::ConfigError;
use std::{error::Error, fmt, process::ExitCode};

/// It failed, or was not completed.
pub const RUN: u8 = 1;
/// The command line or a file is wrong.
pub const USAGE: u8 = 64;

/// An error in the form for the user.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    hint: Option<String>,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// The command line or a file is wrong; the user can correct it.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { code: USAGE, message: message.to_string(), hint: None, cause: None }
    }

    /// It failed.
    pub fn run(message: impl fmt::Display) -> Self {
        Self { code: RUN, message: message.to_string(), hint: None, cause: None }
    }

    /// Adds the cause.
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

    /// The exit code of a program that ends with it.
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// What the user can do about it.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let hint = error.hint.clone();
        Self { code: USAGE, message: error.to_string(), hint, cause: None }
    }
}

impl From<Box<ConfigError>> for Failure {
    fn from(error: Box<ConfigError>) -> Self {
        Self::from(*error)
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

/// Prints `error` with its causes to standard error and returns the exit code: that of the first
/// [`Failure`] among them, with its hint, otherwise [`RUN`].
pub fn report(error: &(dyn Error + 'static)) -> ExitCode {
    eprint!("{}", rendered(error));
    ExitCode::from(failure_in(error).map_or(RUN, |failure| failure.code))
}

fn rendered(error: &(dyn Error + 'static)) -> String {
    let mut text = format!("error: {error}\n");
    for cause in chain(error).skip(1) {
        text += &format!("  because: {cause}\n");
    }
    if let Some(hint) = failure_in(error).and_then(Failure::hint_text) {
        text += &format!("hint: {hint}\n");
    }
    text
}

fn failure_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Failure> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_failure_is_printed_with_its_causes_and_its_hint() {
        let cause = Failure::run("no room").because(io::Error::other("the disk is full"));
        let failure = Failure::usage("nothing was written").because(cause).hint("make room");
        let text = "error: nothing was written\n  because: no room\n  \
                    because: the disk is full\nhint: make room\n";
        assert_eq!(rendered(&failure), text);
        assert_eq!(failure_in(&failure).map(|failure| failure.code), Some(USAGE));
    }

    #[test]
    fn a_failure_below_other_errors_still_decides() {
        #[derive(Debug)]
        struct Above(Failure);
        impl fmt::Display for Above {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("cannot go on")
            }
        }
        impl Error for Above {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = Above(Failure::usage("no such name").hint("take another"));
        assert!(rendered(&error).ends_with("hint: take another\n"), "{}", rendered(&error));
        assert_eq!(failure_in(&error).map(|failure| failure.code), Some(USAGE));
        assert!(failure_in(&io::Error::other("alone")).is_none());
    }
}
