//! A progress bar on standard error: how much of an experiment is done, and the time that is left.

use crate::commands::records::not_kept;
use indicatif::{ProgressBar, ProgressStyle};
use midhop_campaign::pace::expected;
use midhop_campaign::{Observer, StoreError};
use midhop_experiment::plan::Plan;
use midhop_experiment::record::Record;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which running runs are checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Each run counts with its expected time, so that the remaining time is right even when long runs
/// come first.
pub struct LabProgress {
    bar: ProgressBar,
    shared: Arc<Mutex<State>>,
    /// The number of runs that have a line each, if they do.
    lines: Option<usize>,
    stop: Sender<()>,
    ticker: Option<JoinHandle<()>>,
}

struct State {
    jobs: usize,
    /// Expected time of the runs of this batch that have not started.
    waiting: Duration,
    /// Expected time of all later batches.
    later: Duration,
    /// Expected time of finished runs.
    done: Duration,
    /// Runs with a final record.
    recorded: usize,
    running: Vec<Running>,
}

struct Running {
    number: u32,
    since: Instant,
    expected: Duration,
}

impl LabProgress {
    /// A bar for work with the expected time `whole`, batch by batch; hidden where standard error
    /// is no terminal. With `lines`, so many runs have a line each when they are finished.
    pub fn new(whole: Duration, lines: Option<usize>) -> Self {
        let bar = ProgressBar::new(whole.as_millis() as u64);
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let state = State {
            jobs: 1,
            waiting: Duration::ZERO,
            later: whole,
            done: Duration::ZERO,
            recorded: 0,
            running: Vec::new(),
        };
        let shared = Arc::new(Mutex::new(state));
        let (stop, stopped) = channel();
        let (ticked, state) = (bar.clone(), shared.clone());
        let tick = move || {
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                state.lock().unwrap_or_else(PoisonError::into_inner).show(&ticked);
            }
        };
        // Without the thread, the bar only moves in steps.
        let ticker = std::thread::Builder::new().name("progress".to_owned()).spawn(tick).ok();
        Self { bar, shared, lines, stop, ticker }
    }

    /// Prints a line that the bar does not overwrite.
    fn print(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Ends the bar.
    pub fn end(mut self) {
        let _ = self.stop.send(());
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
        self.bar.finish_and_clear();
    }
}

impl Observer for LabProgress {
    fn begin(&self, plans: &[&Plan], at_once: usize) {
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.jobs = at_once.max(1);
        state.waiting = plans.iter().map(|plan| expected(plan)).sum();
        state.later = state.later.saturating_sub(state.shared(state.waiting));
        state.show(&self.bar);
    }

    fn started(&self, plan: &Plan) {
        let expected = expected(plan);
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting = state.waiting.saturating_sub(expected);
        state.running.push(Running { number: plan.number, since: Instant::now(), expected });
        state.show(&self.bar);
    }

    fn finished(&self, plan: &Plan, failed: Option<&dyn fmt::Display>) {
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.running.retain(|run| run.number != plan.number);
        let share = state.shared(expected(plan));
        state.done += share;
        state.show(&self.bar);
        drop(state);
        if let Some(error) = failed {
            self.print(&format!("error: {}: {error}", plan.label()));
        }
    }

    fn unwritten(&self, error: &StoreError) {
        self.print(&not_kept(error));
    }

    fn recorded(&self, plan: &Plan, record: &Record, is_late: bool) {
        let Some(runs) = self.lines else { return };
        let count = {
            let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            state.recorded += usize::from(!is_late);
            state.recorded
        };
        let late = if is_late { ", late" } else { "" };
        self.print(&format!("{count:>3}/{runs} {}{late}", line(plan, record)));
    }

    fn stays_late(&self, late: usize) {
        self.print(&format!("{late} runs were late each time: enough, they are marked invalid"));
    }

    fn again(&self, late: usize, ran: usize, at_once: usize) {
        let company = if at_once == 1 { "alone" } else { "fewer at a time" };
        self.print(&format!("{late} of {ran} runs were late: again, {company}"));
    }
}

impl State {
    /// The time per run, where so many runs share it.
    fn shared(&self, time: Duration) -> Duration {
        time / u32::try_from(self.jobs).unwrap_or(u32::MAX).max(1)
    }

    fn show(&self, bar: &ProgressBar) {
        // A run that takes longer than expected stops near its end.
        let gone = |run: &Running| run.since.elapsed().min(run.expected.mul_f64(0.95));
        let part: Duration = self.running.iter().map(gone).sum();
        let under_way: Duration = self.running.iter().map(|run| run.expected - gone(run)).sum();
        let longest = self.running.iter().map(|run| run.expected - gone(run)).max();
        let left = self.shared(under_way + self.waiting).max(longest.unwrap_or_default());
        let left = left + self.later;
        bar.set_position((self.done + self.shared(part)).as_millis() as u64);
        bar.set_message(message(left, self.running.len()));
    }
}

/// The result of a run, on one line.
fn line(plan: &Plan, record: &Record) -> String {
    let short = |axis: &str| axis.rsplit('.').next().unwrap_or_default().to_owned();
    let mut place: Vec<String> =
        plan.axes.iter().map(|at| format!("{} {}", short(&at.axis), at.label)).collect();
    if plan.seeds > 1 || place.is_empty() {
        place.push(format!("seed {}", plan.seed));
    }
    let figures = record.transfers.iter().map(|transfer| {
        let bound = if transfer.complete { "" } else { "> " };
        let (time, rate) = (transfer.took.as_s_f64(), transfer.goodput.mbit_per_s());
        format!("{} {bound}{time:.2} s, {rate:.2} Mbit/s", transfer.name)
    });
    format!("{}: {}", place.join(", "), figures.collect::<Vec<_>>().join("; "))
}

/// Short, so that it fits a terminal of 40 columns together with the percentage.
fn message(left: Duration, under_way: usize) -> String {
    format!("about {} left, {under_way} under way", spoken(left))
}

/// A time as a person writes it.
pub fn spoken(time: Duration) -> String {
    let minutes = time.as_secs().div_ceil(60);
    match (time.as_secs(), minutes / 60, minutes % 60) {
        (seconds @ 0..100, ..) => format!("{seconds} s"),
        (_, 0, minutes) => format!("{minutes} min"),
        (_, hours, 0) => format!("{hours} h"),
        (_, hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_has_room_for_all_but_the_bar() {
        let beside = "100 %  ".len();
        assert!(beside + message(Duration::from_secs(86_399), 64).len() <= 40);
    }

    #[test]
    fn times_are_written_as_people_write_them() {
        let written = [0, 99, 100, 3540, 3541, 3600, 7321].map(|s| spoken(Duration::from_secs(s)));
        assert_eq!(written, ["0 s", "99 s", "2 min", "59 min", "1 h", "1 h", "2 h 3 min"]);
    }
}
