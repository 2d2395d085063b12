//! Writes log lines to standard error, as text or JSON.
//!
//! Levels: `error` and `warn` would wake someone, `info` reports changes of the daemon's own state, `debug` each
//! flow, `trace` each step of a flow.
//!
//! Invariant: whatever a stranger or a peer sends, a line stays one line and contains no control
//! sequence ([`escape`]).

mod escape;

use escape::{Escaped, Form};
use midhop_failure::Failure;
use midhop_pep::config::{Log, LogFormat};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    Layer, Registry,
    filter::{ParseError, Targets},
    fmt,
    layer::{Context, SubscriberExt},
    reload,
    util::SubscriberInitExt,
};

/// The environment variable that overrides `log.level`.
pub const ENVIRONMENT: &str = "MIDHOPD_LOG";

/// What this process has logged: there is one log.
static ERRORS: AtomicU64 = AtomicU64::new(0);
static WARNINGS: AtomicU64 = AtomicU64::new(0);

/// Errors and warnings that were logged since the start, by level. Those that the level keeps out are not counted. A
/// panic counts as an error.
pub fn counts() -> BTreeMap<String, u64> {
    let named = [("error", &ERRORS), ("warn", &WARNINGS)];
    named.into_iter().map(|(level, count)| (level.to_owned(), count.load(Relaxed))).collect()
}

/// Counts what the log gets.
struct Counting;

impl<S: Subscriber> Layer<S> for Counting {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        match *event.metadata().level() {
            Level::ERROR => ERRORS.fetch_add(1, Relaxed),
            Level::WARN => WARNINGS.fetch_add(1, Relaxed),
            _ => 0,
        };
    }
}

fn count_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        ERRORS.fetch_add(1, Relaxed);
        report(panic);
    }));
}

/// A way to change the level while the daemon runs.
pub struct Logging(reload::Handle<Targets, Registry>);

impl Logging {
    /// Starts logging for the whole process.
    ///
    /// # Errors
    /// When the level is not one, or when the process logs already.
    pub fn start(log: &Log) -> Result<Self, Failure> {
        let (filter, handle) = reload::Layer::new(filter(log)?);
        let registry = tracing_subscriber::registry().with(filter).with(Counting);
        match log.format {
            LogFormat::Text => {
                let lines = fmt::layer().with_writer(Escaped::new(std::io::stderr, Form::Text));
                registry.with(lines.with_ansi(false)).try_init()
            }
            LogFormat::Json => {
                let lines = fmt::layer().with_writer(Escaped::new(std::io::stderr, Form::Json));
                registry.with(lines.json().flatten_event(true)).try_init()
            }
        }
        .map_err(|error| Failure::run("logging could not be started").because(error))?;
        count_panics();
        Ok(Self(handle))
    }

    /// Changes what is logged from now on.
    ///
    /// # Errors
    /// When the level is not one; the old one stays.
    pub fn set(&self, log: &Log) -> Result<(), Failure> {
        let filter = filter(log)?;
        self.0
            .reload(filter)
            .map_err(|error| Failure::run("the log level could not be changed").because(error))
    }
}

/// The filter of `log`, or of the environment where it has one.
fn filter(log: &Log) -> Result<Targets, Failure> {
    let refused = |from: &str, directives: &str, error: ParseError| {
        Failure::usage(format!("{from}: \"{directives}\" is not a log level"))
            .because(error)
            .hint("error, warn, info, debug or trace, or directives such as midhopd::relay=debug")
    };
    match std::env::var(ENVIRONMENT) {
        Ok(directives) => directives.parse().map_err(|e| refused(ENVIRONMENT, &directives, e)),
        Err(_) => log.level.parse().map_err(|e| refused("log.level", &log.level, e)),
    }
}

/// Whether `log` would be accepted.
///
/// # Errors
/// When the level is not one.
pub fn check(log: &Log) -> Result<(), Failure> {
    filter(log).map(drop)
}
