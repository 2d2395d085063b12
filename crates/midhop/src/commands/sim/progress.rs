//! A progress bar on standard error: how much of a batch is done, and the time that is left.

use crate::commands::records::not_kept;
use indicatif::{ProgressBar, ProgressStyle};
use midhop_campaign::{Observer, StoreError};
use midhop_experiment::Plan;
use midhop_workbench::weight;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Each run counts with its expected cost, so that the remaining time is right even when long runs
/// come first.
pub struct SimProgress {
    bar: ProgressBar,
    state: Mutex<State>,
}

struct State {
    done: u64,
    whole: u64,
    runs_done: usize,
    runs: usize,
}

impl SimProgress {
    /// A bar for all of `plans`; hidden where standard error is no terminal.
    pub fn new(plans: &[&Plan]) -> Self {
        let whole = plans.iter().map(|plan| weight(plan)).sum::<u64>().max(1);
        let bar = ProgressBar::new(whole);
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed} gone, {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(500));
        let state = Mutex::new(State { done: 0, whole, runs_done: 0, runs: plans.len() });
        Self { bar, state }
    }

    /// Ends the bar.
    pub fn end(self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for SimProgress {
    fn finished(&self, plan: &Plan, failed: Option<&dyn fmt::Display>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done += weight(plan);
        state.runs_done += 1;
        let share = state.done as f64 / state.whole as f64;
        let left = self.bar.elapsed().as_secs_f64() * (1.0 / share.max(1e-9) - 1.0);
        self.bar.set_position(state.done);
        self.bar.set_message(format!(
            "about {} s left, {} of {} runs",
            left.ceil(),
            state.runs_done,
            state.runs
        ));
        drop(state);
        if let Some(error) = failed {
            self.bar.suspend(|| eprintln!("error: {}: {error}", plan.label()));
        }
    }

    fn unwritten(&self, error: &StoreError) {
        self.bar.suspend(|| eprintln!("{}", not_kept(error)));
    }
}
