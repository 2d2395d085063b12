//! The simulator as a campaign's executor.

use midhop_campaign::Executor;
use midhop_experiment::Plan;
use midhop_experiment::plan::Work;
use midhop_experiment::record::Record;
use midhop_sim::watch::Watcher;
use midhop_sim::{Options, RunError};
use midhop_units::{Bytes, Duration};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The number of available processors.
pub fn processors() -> usize {
    available_parallelism().map_or(1, |count| count.get())
}

/// The watchers of a run.
pub type Watchers = io::Result<Vec<Box<dyn Watcher>>>;

/// Runs plans in virtual time.
pub struct Simulator<'w> {
    /// Makes the watchers of a plan's run.
    pub watch: &'w (dyn Fn(&Plan) -> Watchers + Sync),
    /// Whether records keep their curves over time.
    pub curves: bool,
}

impl Simulator<'_> {
    /// A simulator without watchers, whose records are complete.
    pub fn unwatched() -> Self {
        Self { watch: &|_| Ok(Vec::new()), curves: true }
    }
}

impl Executor for Simulator<'_> {
    type Error = RunError;

    /// One run, with the wall clock and the machine added to its record.
    fn run(&self, plan: &Plan, stop: &AtomicBool) -> Result<Record, RunError> {
        let (began, started) = (Instant::now(), SystemTime::now());
        let interrupted = || stop.load(Ordering::Relaxed);
        let options = Options { interrupted: &interrupted, ..Options::default() };
        let (mut record, _) = midhop_sim::run_watched(plan, &options, (self.watch)(plan)?)?;
        let environment = &mut record.environment;
        environment.processors = u32::try_from(processors()).unwrap_or(u32::MAX);
        environment.started_unix_s =
            started.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
        environment.took = Duration::from(began.elapsed());
        if !self.curves {
            record.series.clear();
        }
        Ok(record)
    }

    fn cost(&self, plan: &Plan) -> u64 {
        weight(plan)
    }

    fn interrupted() -> RunError {
        RunError::Interrupted
    }

    fn is_interruption(error: &RunError) -> bool {
        matches!(error, RunError::Interrupted)
    }
}

/// The cost of a run, in packets and links: an estimate, only for comparison with other runs.
pub fn weight(plan: &Plan) -> u64 {
    const PACKET_BYTES: u64 = 1448;
    const BUILDING: u64 = 500;
    let transfers = plan.transfers.iter().map(|transfer| {
        let limit = transfer.limit.as_ref().map(|limit| limit.goodput);
        let passing = limit.map_or(Bytes::MAX, |rate| rate.bytes_in(plan.duration));
        let bytes = match &transfer.work {
            Work::Time { span, .. } => limit.map_or(Bytes::ZERO, |rate| rate.bytes_in(*span)),
            work => work.bytes().unwrap_or(Bytes::ZERO).min(passing),
        };
        let links = transfer.route.len() + transfer.route_back.len();
        bytes.get() / PACKET_BYTES * links as u64
    });
    let traffic = plan.traffic.len() as u64 * plan.duration.as_ns() / 1_000_000;
    transfers.fold(BUILDING + traffic, u64::saturating_add)
}
