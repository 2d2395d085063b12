//! Whether the daemon works, and what it lacks.
//!
//! Each worker beats as often as its loop permits. A task that the daemon cannot work without reports its end. What
//! has failed and is being replaced is a [`Fault`] until it works again. `/healthz` reports all of that, and waits
//! for no thread: it takes no lock that a worker holds, and builds nothing.
//!
//! Invariant: nothing vital ends unnoticed. The daemon ends with it, interception first, so that new flows pass
//! directly and the service manager starts the daemon again.

use crate::histogram::Histogram;
use futures_util::FutureExt;
use std::{
    any::Any,
    collections::BTreeMap,
    fmt, io,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_local},
    time::{self, MissedTickBehavior},
};

/// How often a worker beats.
const BEAT: Duration = Duration::from_millis(250);
/// A worker that has not beaten for this long is stuck.
const STUCK: Duration = Duration::from_secs(10);

/// The health of a data plane and of what serves it.
#[derive(Debug)]
pub struct Health {
    since: Instant,
    workers: Vec<Pulse>,
    /// Names of what has failed and is being replaced, with the reason.
    faults: Mutex<BTreeMap<String, String>>,
    /// How often something has failed.
    failures: AtomicU64,
    /// What was lost for good.
    lost: watch::Sender<Option<String>>,
}

/// The beat of one worker.
#[derive(Debug, Default)]
struct Pulse {
    /// Unit: milliseconds since the health's beginning. The last beat; zero: it has not begun.
    last_ms: AtomicU64,
    delays: Histogram,
}

/// Something that has failed and is being replaced. Dropping this reports that it works again.
#[derive(Debug)]
pub struct Fault {
    health: Arc<Health>,
    what: String,
}

/// A problem of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Illness {
    /// Something vital has ended.
    Lost(String),
    /// This worker has not responded for this long.
    Stuck(usize, Duration),
    /// Something has failed and is being replaced.
    Failed(String, String),
}

impl fmt::Display for Illness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(what) => write!(f, "{what}"),
            Self::Stuck(number, lasted) => {
                write!(f, "worker {number} has not answered for {} s", lasted.as_secs())
            }
            Self::Failed(what, why) => write!(f, "{what}: {why}"),
        }
    }
}

impl Health {
    /// The health of this many workers.
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            workers: (0..workers).map(|_| Pulse::default()).collect(),
            faults: Mutex::default(),
            failures: AtomicU64::new(0),
            lost: watch::Sender::new(None),
        })
    }

    /// The worst problem, if any.
    pub fn illness(&self) -> Option<Illness> {
        if let Some(what) = &*self.lost.borrow() {
            return Some(Illness::Lost(what.clone()));
        }
        let now_ms = self.now_ms();
        for (number, pulse) in self.workers.iter().enumerate() {
            let silent = Duration::from_millis(now_ms.saturating_sub(pulse.last_ms.load(Relaxed)));
            if silent >= STUCK {
                return Some(Illness::Stuck(number, silent));
            }
        }
        let faults = self.faults();
        faults.first_key_value().map(|(what, why)| Illness::Failed(what.clone(), why.clone()))
    }

    /// How often something has failed that was then replaced, or is being replaced.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// By how much the beats of each worker were late.
    pub fn delays(&self) -> impl Iterator<Item = &Histogram> {
        self.workers.iter().map(|pulse| &pulse.delays)
    }

    /// Beats for a worker, on its thread, for ever.
    pub async fn beat(self: Arc<Self>, number: usize) {
        let Some(pulse) = self.workers.get(number) else { return std::future::pending().await };
        let mut ticks = time::interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = ticks.tick().await;
            pulse.delays.observe(due.elapsed());
            pulse.last_ms.store(self.now_ms(), Relaxed);
        }
    }

    /// Something has failed and is being replaced.
    pub fn fault(self: &Arc<Self>, what: &str, why: &dyn fmt::Display) -> Fault {
        self.faults().insert(what.to_owned(), why.to_string());
        self.failures.fetch_add(1, Relaxed);
        Fault { health: self.clone(), what: what.to_owned() }
    }

    /// Something vital was lost: the daemon ends.
    pub fn lose(&self, what: String) {
        tracing::error!(what, "the daemon cannot continue, and ends");
        self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert(what);
            is_first
        });
    }

    /// Waits until something vital was lost. Returns its name.
    pub async fn lost(&self) -> String {
        let mut lost = self.lost.subscribe();
        // The sender is owned by the same value.
        let what = lost.wait_for(Option::is_some).await;
        what.ok().and_then(|what| what.clone()).unwrap_or_default()
    }

    /// Runs a thread's work. If it fails or panics, it is reported as lost.
    ///
    /// # Errors
    /// The error of the work.
    pub fn run(&self, what: &str, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match panic::catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                self.lose(format!("{what} has ended: {error}"));
                Err(error)
            }
            Err(panic) => {
                self.lose(format!("{what} has panicked: {}", words_of(&*panic)));
                panic::resume_unwind(panic)
            }
        }
    }

    /// Starts a task of this thread that must run for ever. If it ends, and was not aborted, it is reported as lost.
    pub fn keep<T>(
        self: &Arc<Self>,
        what: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> JoinHandle<()> {
        let health = self.clone();
        self.start(what, async move {
            task.await;
            health.lose(format!("{what} has ended"));
        })
    }

    /// Starts a task of this thread that may end once it has nothing left to do. If it panics, it is reported as
    /// lost.
    pub fn start(
        self: &Arc<Self>,
        what: &'static str,
        task: impl Future<Output = ()> + 'static,
    ) -> JoinHandle<()> {
        let health = self.clone();
        spawn_local(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                health.lose(format!("{what} has panicked: {}", words_of(&*panic)));
            }
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn faults(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        self.health.faults().remove(&self.what);
    }
}

/// The message of a panic.
fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no word")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::LocalSet;

    #[test]
    fn a_thread_that_panics_or_fails_is_lost_and_one_that_ends_is_not() {
        let health = Health::new(1);
        health.run("a thread", || Ok(())).expect("no fault");
        assert_eq!(health.illness(), None);
        health.run("a thread", || Err(io::ErrorKind::Other.into())).expect_err("a fault");
        let worse = panic::catch_unwind(AssertUnwindSafe(|| {
            health.run("another", || -> io::Result<()> { panic!("a bug") })
        }));
        assert!(worse.is_err(), "the panic goes on");
        // The first loss may have caused all others.
        let lost = health.illness().expect("something").to_string();
        assert!(lost.starts_with("a thread has ended"), "{lost}");
    }

    #[tokio::test]
    async fn a_vital_task_that_panics_is_lost_and_one_that_is_dropped_is_not() {
        let health = Health::new(1);
        let local = LocalSet::new();
        local.run_until(async { drop(health.keep("a task", std::future::pending::<()>())) }).await;
        drop(local);
        assert_eq!(health.illness(), None);
        let local = LocalSet::new();
        let lost = local.run_until(async {
            health.keep("a task", async { panic!("a bug") });
            health.lost().await
        });
        assert_eq!(lost.await, "a task has panicked: a bug");
    }

    #[tokio::test]
    async fn a_task_that_may_end_is_lost_only_when_it_panics() {
        let health = Health::new(1);
        let local = LocalSet::new();
        let ended = local.run_until(async { health.start("a task", async {}).await });
        ended.await.expect("no panic");
        assert_eq!(health.illness(), None);
        let lost = local.run_until(async {
            health.start("another", async { panic!("a bug") });
            health.lost().await
        });
        assert_eq!(lost.await, "another has panicked: a bug");
    }

    #[test]
    fn what_has_failed_is_reported_until_it_is_there_again() {
        let health = Health::new(1);
        let first = health.fault("tunnel.listen 192.0.2.1:443", &"gone");
        let illness = health.illness().map(|illness| illness.to_string());
        assert_eq!(illness.as_deref(), Some("tunnel.listen 192.0.2.1:443: gone"));
        drop(first);
        assert_eq!(health.illness(), None);
    }

    #[tokio::test]
    async fn a_worker_whose_loop_stands_still_is_stuck() {
        let mut health = Health::new(2);
        let aged = Instant::now().checked_sub(2 * STUCK).expect("a time before");
        Arc::get_mut(&mut health).expect("nobody else").since = aged;
        let is_stuck = |health: &Health, number| matches!(health.illness(), Some(Illness::Stuck(stuck, _)) if stuck == number);
        assert!(is_stuck(&health, 0));
        LocalSet::new()
            .run_until(async {
                let beats = health.clone();
                spawn_local(async move { beats.beat(0).await });
                while health.delays().next().is_none_or(|delays| delays.count() == 0) {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        assert!(is_stuck(&health, 1));
    }
}
