//! The progress of a campaign, and requests to stop it: both handled by the thread that has the interpreter.

use midhop_campaign::{Observer, StoreError};
use midhop_experiment::Plan;
use pyo3::prelude::*;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time between two checks for signals while plans run.
const LOOK: Duration = Duration::from_millis(50);

/// What a campaign notes for its observer.
#[derive(Debug, Default)]
pub struct Notes {
    done: AtomicUsize,
    /// Why runs have no record, and records are not kept.
    pub failures: Mutex<Vec<String>>,
}

impl Notes {
    fn note(&self, failure: String) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
    }

    /// All failures, taken out.
    pub fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.failures.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Notes {
    fn finished(&self, plan: &Plan, failed: Option<&dyn fmt::Display>) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = failed {
            self.note(format!("{}: {error}", plan.label()));
        }
    }

    fn unwritten(&self, error: &StoreError) {
        let cause =
            std::error::Error::source(error).map_or_else(String::new, |it| format!(": {it}"));
        self.note(format!("{error}{cause}"));
    }
}

/// Calls `work` in a thread of its own, without the interpreter. Meanwhile checks for signals, and calls `watch` with
/// how many of `whole` runs are over. A signal, or an exception of `watch`, sets `stop`, and is returned together with
/// the result of `work` when that has stopped.
pub fn watched<T: Send>(
    py: Python<'_>,
    stop: &AtomicBool,
    notes: &Notes,
    whole: usize,
    watch: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce() -> T + Send,
) -> (T, PyResult<()>) {
    if let Some(Err(error)) = watch.map(|it| it.call1((0, whole))) {
        stop.store(true, Ordering::Relaxed);
        return (work(), Err(error));
    }
    let watch = watch.map(|it| it.clone().unbind());
    py.detach(|| {
        std::thread::scope(|scope| {
            let (ended, end) = channel();
            let worker = scope.spawn(move || {
                let value = work();
                // Only after a panic does nobody wait for this.
                let _ = ended.send(());
                value
            });
            let mut shown = 0;
            let mut raised = Ok(());
            loop {
                let over = end.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
                let done = notes.done.load(Ordering::Relaxed);
                if raised.is_ok() {
                    raised = Python::attach(|py| {
                        py.check_signals()?;
                        match &watch {
                            Some(watch) if done != shown => {
                                watch.call1(py, (done, whole)).map(drop)
                            }
                            _ => Ok(()),
                        }
                    });
                    shown = done;
                    if raised.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                if over {
                    break;
                }
            }
            let value = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (value, raised)
        })
    })
}
