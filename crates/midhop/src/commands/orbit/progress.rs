//! A progress bar on standard error for long computations.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// A shorter computation has no bar.
const SHOWN_AFTER: Duration = Duration::from_secs(2);

/// The progress through a time span.
pub struct OrbitProgress {
    span: midhop_units::Duration,
    since: Instant,
    bar: Option<ProgressBar>,
}

impl OrbitProgress {
    /// The beginning of `span`.
    pub fn new(span: midhop_units::Duration) -> Self {
        Self { span, since: Instant::now(), bar: None }
    }

    /// Sets the progress.
    pub fn reached(&mut self, at: midhop_units::Duration) {
        if self.bar.is_none() && self.since.elapsed() >= SHOWN_AFTER {
            let bar = ProgressBar::new(self.span.as_ns());
            let style =
                ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed} gone, {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(at.as_ns());
        }
    }
}

impl Drop for OrbitProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
