//! The log of one connection at one end, and the task that keeps it up to date.

use super::clock;
use super::gaps::Gaps;
use super::message::Log;
use super::series::{Arrivals, Capacity, Samples};
use super::tcp_sample::TcpSample;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::MissedTickBehavior;

/// Shortest time between two samples: at a shorter one, sampling would distort the load that it
/// measures.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// A [`Log`] that its connection writes and others read.
#[derive(Debug, Clone)]
pub(super) struct SharedLog(Arc<Mutex<Log>>);

impl SharedLog {
    /// The log of a connection that begins now.
    pub(super) fn begin(
        flow: u32,
        origin_ns: u64,
        interval_ns: Option<u64>,
        capacity: Capacity,
        with_gaps: bool,
    ) -> Self {
        let gaps = with_gaps.then(Gaps::default);
        let arrivals = Arrivals::new(interval_ns.unwrap_or(0), capacity);
        let samples = Samples::new(capacity);
        Self(Arc::new(Mutex::new(Log {
            flow,
            origin_ns,
            arrivals,
            samples,
            gaps,
            ..Log::default()
        })))
    }

    /// The log, to read or change. Never held across an await.
    pub(super) fn lock(&self) -> MutexGuard<'_, Log> {
        // A log consists of plain counts: it stays valid after a panic elsewhere.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records what the kernel reports of the connection now; also adds a sample when `interval_ns`
    /// is given.
    pub(super) fn look(&self, stream: &TcpStream, interval_ns: Option<u64>) {
        // A closed socket has nothing more to report.
        let Ok(info) = TcpSample::of(stream) else { return };
        let now = clock::now().as_ns();
        let mut log = self.lock();
        log.retransmissions = info.retransmissions;
        log.rtt_min_us = info.rtt_min_us.or(log.rtt_min_us);
        if let Some(interval_ns) = interval_ns {
            let at = now.saturating_sub(log.origin_ns);
            log.samples.push(at, interval_ns, info);
        }
    }

    /// Samples `stream` for as long as it is polled, or not at all without `interval_ns`.
    pub(super) async fn watch(&self, stream: &TcpStream, interval_ns: Option<u64>) -> Infallible {
        match interval_ns {
            None => std::future::pending().await,
            Some(interval_ns) => {
                let interval = Duration::from_nanos(interval_ns).max(INTERVAL_MIN);
                let mut ticks = tokio::time::interval(interval);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                loop {
                    ticks.tick().await;
                    self.look(stream, Some(interval_ns));
                }
            }
        }
    }
}
