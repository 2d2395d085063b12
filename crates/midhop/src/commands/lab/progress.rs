//! A bar on standard error: how much of an experiment is done, and how long it still takes.

use indicatif::{ProgressBar, ProgressStyle};
use midhop_experiment::plan::Plan;
use midhop_experiment::record::Record;
use midhop_testbed::runner::RunError;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs weigh as much as they are expected to take, so that the time left is honest when a long one
/// comes first.
pub struct Progress {
    bar: ProgressBar,
    running: Mutex<Vec<(u32, Instant, Duration)>>,
    done_ms: Mutex<u64>,
}

impl Progress {
    /// A bar for all of `plans`; hidden where standard error is no terminal.
    pub fn new(plans: &[Plan], jobs: usize) -> Self {
        let total: u64 = plans.iter().map(weight_ms).sum();
        let bar = ProgressBar::new(total);
        let style = ProgressStyle::with_template(
            "{bar:30} {percent:>3} %  {msg}  {elapsed} gone, about {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(format!("{} runs, {jobs} at a time", plans.len()));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, running: Mutex::new(Vec::new()), done_ms: Mutex::new(0) }
    }

    /// A run has begun.
    pub fn started(&self, plan: &Plan) {
        let expected = Duration::from_millis(weight_ms(plan));
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.push((plan.number, Instant::now(), expected));
        drop(running);
        self.bar.set_message(plan.label());
        self.update();
    }

    /// A run is over.
    pub fn finished(&self, plan: &Plan, result: &Result<Record, RunError>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|(number, ..)| *number != plan.number);
        drop(running);
        *self.done_ms.lock().unwrap_or_else(PoisonError::into_inner) += weight_ms(plan);
        if let Err(error) = result {
            self.bar.suspend(|| eprintln!("error: {}: {error}", plan.label()));
        }
        self.update();
    }

    /// All is over.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn update(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let part = running.iter().map(|(_, since, expected)| since.elapsed().min(*expected));
        let part = part.sum::<Duration>().as_millis() as u64;
        let done = *self.done_ms.lock().unwrap_or_else(PoisonError::into_inner);
        self.bar.set_position(done + part);
    }
}

fn weight_ms(plan: &Plan) -> u64 {
    // Building and taking down a lab costs about this much, whatever runs in it.
    const AROUND_MS: u64 = 300;
    plan.expected_time().as_ns() / 1_000_000 + AROUND_MS
}
