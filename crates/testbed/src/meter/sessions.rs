//! A server's logs of its clients' runs, until the clients fetch them.
//!
//! Invariant: memory is bounded. At most [`LOGS_MAX`] logs are kept. Beyond that, the run that was
//! inactive for longest is removed.

use super::message::Log;
use super::sampler::SharedLog;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Most logs kept, all runs together.
const LOGS_MAX: usize = 8192;
/// How long a fetch waits for connections that have not closed yet.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Sessions {
    kept: Mutex<Kept>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    sessions: BTreeMap<u64, Session>,
    /// Counts accesses. The session with the smallest `touched` was inactive for longest.
    touches: u64,
}

impl Kept {
    fn len(&self) -> usize {
        self.sessions.values().map(|session| session.logs.len()).sum()
    }
}

#[derive(Debug, Default)]
struct Session {
    logs: Vec<SharedLog>,
    touched: u64,
}

impl Sessions {
    /// How many logs are kept.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Adds a connection's log to its run.
    pub(super) fn add(&self, session: u64, log: SharedLog) {
        let mut kept = self.lock();
        kept.touches += 1;
        let touched = kept.touches;
        let entry = kept.sessions.entry(session).or_default();
        entry.touched = touched;
        entry.logs.push(log);
        while kept.len() > LOGS_MAX {
            let quietest = kept.sessions.iter().min_by_key(|(_, session)| session.touched);
            let Some((&quietest, _)) = quietest else { break };
            kept.sessions.remove(&quietest);
        }
    }

    /// Notifies waiting fetches that the log of a connection is complete.
    pub(super) fn note_closed(&self) {
        self.closed.notify_waiters();
    }

    /// Removes and returns the logs of a run once all its connections are closed or [`PATIENCE`] is
    /// over. Empty for an unknown run.
    pub(super) async fn take(&self, session: u64) -> Vec<Log> {
        let logs = self.lock().sessions.remove(&session).map(|kept| kept.logs).unwrap_or_default();
        let all_closed = async {
            loop {
                let closed = self.closed.notified();
                tokio::pin!(closed);
                // Enabled before the check, so that a close in between is not missed.
                closed.as_mut().enable();
                if logs.iter().all(|log| log.lock().closed) {
                    return;
                }
                closed.await;
            }
        };
        // A connection that has not closed in time is reported as it is.
        let _ = tokio::time::timeout(PATIENCE, all_closed).await;
        logs.iter().map(|log| log.lock().clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::series::Capacity;

    #[tokio::test]
    async fn a_fetch_waits_for_the_last_connection() {
        let sessions = std::sync::Arc::new(Sessions::default());
        let log = SharedLog::begin(4, 0, None, Capacity::default(), false);
        sessions.add(1, log.clone());
        let fetch = tokio::spawn({
            let sessions = std::sync::Arc::clone(&sessions);
            async move { sessions.take(1).await }
        });
        tokio::task::yield_now().await;
        log.lock().closed = true;
        sessions.note_closed();
        let logs = fetch.await.expect("no panic");
        assert_eq!(logs.iter().map(|log| (log.flow, log.closed)).collect::<Vec<_>>(), [(4, true)]);
        assert!(sessions.take(1).await.is_empty(), "a run is fetched once");
    }

    #[test]
    fn the_quietest_run_is_forgotten_first() {
        let sessions = Sessions::default();
        sessions.add(1, SharedLog::begin(0, 0, None, Capacity::default(), false));
        for flow in 0..LOGS_MAX as u32 {
            sessions.add(2, SharedLog::begin(flow, 0, None, Capacity::default(), false));
        }
        assert_eq!(sessions.lock().sessions.keys().copied().collect::<Vec<_>>(), [2]);
    }
}
