//! Cross traffic: one of a plan's lines of traffic, at either end, until the run is over.
//!
//! The start and the size of each flow come from the same random draws as in the simulator
//! ([`midhop_experiment::traffic`]): a seed gives the same flows, pages and datagrams in both.
//! Connections use the meter's protocol. Payload is counted when and where it arrives, since a run
//! never waits for cross traffic and most of it is cut short.

mod datagrams;
mod flows;

use super::error::{MeterError, ServeError};
use super::options::Progress;
use super::series::{Arrivals, Capacity};
use super::server::Resolve;
use super::{clock, message::Refusal};
use crate::emulator::scheduling;
use midhop_experiment::record::{Lateness, Series};
use midhop_experiment::traffic::{Load, TrafficPlan};
use midhop_units::{Bytes, Duration, Instant, Number, Seed};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Interval at which arrivals are counted.
const COUNT_EVERY: Duration = Duration::from_ms(100);

/// The end of a line of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Opens the connections, or sends the datagrams.
    Opens,
    /// Listens for them.
    Listens,
}

/// Parameters of one end of a line of traffic.
pub struct TrafficOptions {
    /// The line.
    pub plan: TrafficPlan,
    /// The run's seed.
    pub seed: Seed,
    /// Where the listening end listens.
    pub address: SocketAddr,
    /// How to resolve names of congestion controls; none: names are used as they are.
    pub resolve: Option<Box<Resolve>>,
}

/// What one end of a line of traffic sent and received.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrafficReport {
    /// Flows that began here.
    pub flows: u64,
    /// Those that were completed.
    pub complete: u64,
    /// The sum of the durations of those.
    #[serde(rename = "took_s", with = "Number::<Duration>")]
    pub took: Duration,
    /// Payload that arrived here.
    #[serde(with = "Number::<Bytes>")]
    pub bytes: Bytes,
    /// When the last payload arrived, counted from the run's start.
    #[serde(rename = "last_s", with = "Number::<Duration>")]
    pub last: Duration,
    /// Datagrams sent from here.
    pub packets_sent: u64,
    /// Datagrams that arrived here.
    pub packets_received: u64,
    /// By how much datagrams left late.
    pub lateness: Option<Lateness>,
    /// The goodput of arrivals over time.
    pub goodput: Option<Series>,
    /// Reasons to doubt these figures, as sentences.
    pub faults: Vec<String>,
}

/// Why an end of a line of traffic gave no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrafficError {
    /// The opening end could not do its work.
    #[error(transparent)]
    Opens(#[from] MeterError),
    /// The listening end could not listen.
    #[error(transparent)]
    Listens(#[from] ServeError),
    /// The system refused something.
    #[error("cannot {doing}: {source}")]
    Local {
        /// What was tried.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl TrafficError {
    fn refused(refusal: &Refusal) -> Self {
        Self::Opens(MeterError::Refused(refusal.clone()))
    }
}

/// Runs one end of a line of traffic until `stop` is readable or hung up. `begins` is called once
/// this end listens or is able to open. It returns the run's start, on this machine's
/// `CLOCK_MONOTONIC`. `stop` is not checked before that.
///
/// # Errors
/// When there is no report.
pub fn run_traffic(
    options: TrafficOptions,
    part: Part,
    stop: BorrowedFd<'_>,
    begins: impl FnOnce() -> io::Result<Instant>,
) -> Result<TrafficReport, TrafficError> {
    let begins = || begins().map_err(local("learn when the run starts"));
    let datagrams = matches!(options.plan.load, Load::Constant { .. } | Load::OnOff { .. });
    match (datagrams, part) {
        (true, Part::Opens) => datagrams::send(&options, stop, begins),
        (true, Part::Listens) => datagrams::receive(&options, stop, begins),
        (false, Part::Opens) => flows::open(options, stop, begins),
        (false, Part::Listens) => flows::listen(options, stop, begins),
    }
}

fn local(doing: &'static str) -> impl FnOnce(io::Error) -> TrafficError {
    move |source| TrafficError::Local { doing, source }
}

/// Waits until `stop` is readable, for `pause` at most; returns whether it is.
fn stopped(stop: BorrowedFd<'_>, pause: Option<Duration>) -> io::Result<bool> {
    let mut watched = [watch(stop)];
    scheduling::wait(&mut watched, pause)?;
    Ok(watched[0].revents != 0)
}

fn watch(descriptor: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// Payload that has arrived, over time.
struct Arrived {
    epoch: Instant,
    bytes: Bytes,
    last: Duration,
    over_time: Arrivals,
}

impl Arrived {
    fn new(epoch: Instant) -> Self {
        let over_time = Arrivals::new(COUNT_EVERY.as_ns(), Capacity::default());
        Self { epoch, bytes: Bytes::ZERO, last: Duration::ZERO, over_time }
    }

    /// Counts payload that arrives now.
    fn add(&mut self, payload: Bytes) {
        if payload > Bytes::ZERO {
            self.bytes += payload;
            self.last = clock::now().saturating_since(self.epoch);
            self.over_time.add(self.last.as_ns(), payload.get() as f64);
        }
    }

    /// Counts the growth of `counter` since the last call.
    fn count(&mut self, counter: &Progress) {
        self.add(counter.bytes().saturating_sub(self.bytes));
    }

    fn report(self, plan: &TrafficPlan) -> TrafficReport {
        TrafficReport {
            bytes: self.bytes,
            last: self.last,
            goodput: self.over_time.series(&plan.name, None, 0.0),
            ..TrafficReport::default()
        }
    }
}
