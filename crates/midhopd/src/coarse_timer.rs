//! A coarse timer: one for all checks of a thread that tolerate some milliseconds of delay: they are due in
//! rounds.
//!
//! A separate timer that expires before all others would wake the event loop twice: once when it is
//! set, and once when it expires. With many flows that end, this was a tenth of their cost.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Unit: milliseconds. Interval between two rounds.
const ROUND_MS: u64 = 4;

/// The tasks that wait for a check, by round.
#[derive(Debug)]
pub struct CoarseTimer {
    epoch: Instant,
    due: RefCell<BTreeMap<u64, Rc<Notify>>>,
    /// Notified when a task is due before all others.
    sooner: Notify,
}

impl Default for CoarseTimer {
    fn default() -> Self {
        Self { epoch: Instant::now(), due: RefCell::default(), sooner: Notify::new() }
    }
}

impl CoarseTimer {
    /// Waits for `pause`, and up to a round more. [`CoarseTimer::go_on`] has to run on the same thread.
    pub async fn after(&self, pause: Duration) {
        let round = self.round(Instant::now() + pause) + 1;
        let notify = {
            let mut due = self.due.borrow_mut();
            if due.first_key_value().is_none_or(|(first, _)| round < *first) {
                self.sooner.notify_one();
            }
            due.entry(round).or_default().clone()
        };
        notify.notified().await;
    }

    /// Wakes the tasks when they are due, for ever.
    pub async fn go_on(&self) -> Infallible {
        loop {
            let first = self.due.borrow().keys().next().copied();
            let Some(first) = first else {
                self.sooner.notified().await;
                continue;
            };
            tokio::select! {
                () = sleep_until(self.epoch + Duration::from_millis(ROUND_MS * first)) => {}
                () = self.sooner.notified() => continue,
            }
            let now = self.round(Instant::now());
            let mut due = self.due.borrow_mut();
            while let Some(round) = due.first_entry().filter(|round| *round.key() <= now) {
                round.remove().notify_waiters();
            }
        }
    }

    /// The last round that began before a time.
    fn round(&self, at: Instant) -> u64 {
        let passed = at.duration_since(self.epoch).as_millis();
        u64::try_from(passed).unwrap_or(u64::MAX / 2) / ROUND_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::task::{LocalSet, spawn_local};

    #[tokio::test(start_paused = true)]
    async fn each_look_comes_in_its_round() {
        LocalSet::new()
            .run_until(async {
                let timer = Rc::new(CoarseTimer::default());
                let going = timer.clone();
                spawn_local(async move { going.go_on().await });
                let begin = Instant::now();
                let ended = Rc::new(Cell::new(0));
                // The longest comes first: the others are due before it.
                let tasks = [1000, 50, 7, 1, 1].map(|ms| {
                    let (timer, ended) = (timer.clone(), ended.clone());
                    spawn_local(async move {
                        let pause = Duration::from_millis(ms);
                        timer.after(pause).await;
                        assert!(begin.elapsed() >= pause, "{ms} ms: too soon");
                        assert!(
                            begin.elapsed() <= pause + Duration::from_millis(2 * ROUND_MS),
                            "{ms} ms: late"
                        );
                        ended.set(ended.get() + 1);
                    })
                });
                for task in tasks {
                    task.await.expect("no panic");
                }
                assert_eq!(ended.get(), 5);
                assert!(timer.due.borrow().is_empty());
            })
            .await;
    }
}
