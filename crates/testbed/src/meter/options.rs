//! The options of a client's run.

use super::error::MeterError;
use super::message::{Amount, Direction};
use midhop_experiment::plan::RestartPlan;
use midhop_units::{Bytes, Duration, Instant, Seed};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most connections of one run.
pub const FLOWS_MAX: u32 = 20_000;

/// One run of the client.
#[derive(Debug, Clone, PartialEq)]
pub struct MeterOptions {
    /// The transfer's name: the `name` of the result and the `place` of its series.
    pub name: String,
    /// The server: a name or an address.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// The local address to use; the system's choice when none.
    pub bind: Option<IpAddr>,
    /// Which way the payload goes.
    pub direction: Direction,
    /// What to transfer.
    pub workload: Workload,
    /// Congestion control of the sending end; its system's default when none. In a download, the
    /// server resolves the name. In an upload, it has to be the kernel's name.
    pub congestion: Option<String>,
    /// Time between samples and width of the bins of goodput; no series when none.
    pub interval: Option<Duration>,
    /// How many flows get series of their own. The sum of all flows always has series.
    pub series_flows: u32,
    /// When to begin, counted from the epoch.
    pub start_delay: Duration,
    /// How long the run may take from its beginning. What is unfinished then is reported as
    /// unfinished.
    pub time_limit: Option<Duration>,
    /// How to restart items of a broken connection; none: they are not restarted.
    pub restarts: Option<RestartPlan>,
    /// Whether the report has the times in which flows got no payload.
    pub gaps: bool,
    /// Decides every byte of the payload.
    pub seed: Seed,
    /// The moment, on this machine's `CLOCK_MONOTONIC`, from which all times in the report count;
    /// the moment of the call when none.
    pub epoch: Option<Instant>,
}

/// What a run transfers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// Parallel flows, each on its own connection.
    Flows {
        /// How many.
        count: u32,
        /// How much each sends.
        each: Amount,
    },
    /// The objects of a page.
    Page {
        /// Their sizes, in the order of the requests.
        objects: Vec<Bytes>,
        /// Number of parallel connections.
        parallel: u32,
        /// Whether a connection carries one object or many.
        connections: Connections,
    },
}

/// Whether a connection carries one object or many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connections {
    /// A new connection for each object.
    New,
    /// One object after another on the same connections.
    Persistent,
}

impl MeterOptions {
    /// A download of `each` over one flow, with a sample every 100 ms.
    pub fn new(host: impl Into<String>, port: u16, each: Amount) -> Self {
        Self {
            name: "meter".to_owned(),
            host: host.into(),
            port,
            bind: None,
            direction: Direction::Down,
            workload: Workload::Flows { count: 1, each },
            congestion: None,
            interval: Some(Duration::from_ms(100)),
            series_flows: 32,
            start_delay: Duration::ZERO,
            time_limit: None,
            restarts: None,
            gaps: false,
            seed: Seed(1),
            epoch: None,
        }
    }

    /// The payload of the run when all goes well; none when the run is limited by time.
    pub fn expected(&self) -> Option<Bytes> {
        match &self.workload {
            Workload::Flows { count, each: Amount::Bytes(bytes) } => {
                Some(Bytes::new(bytes.saturating_mul(u64::from(*count))))
            }
            Workload::Flows { .. } => None,
            Workload::Page { objects, .. } => Some(objects.iter().copied().sum()),
        }
    }

    /// Most connections that the run opens.
    pub(super) fn connections(&self) -> usize {
        match &self.workload {
            Workload::Flows { count, .. } => *count as usize,
            Workload::Page { objects, .. } => objects.len(),
        }
    }

    /// How many connections the run opens if none breaks.
    pub(super) fn connections_planned(&self) -> u32 {
        match &self.workload {
            Workload::Page { objects, parallel, connections: Connections::Persistent } => {
                (*parallel).min(u32::try_from(objects.len()).unwrap_or(*parallel))
            }
            _ => u32::try_from(self.connections()).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn check(&self) -> Result<(), MeterError> {
        let refuse = |why: String| Err(MeterError::Options(why));
        match &self.workload {
            Workload::Flows { count, .. } if !(1..=FLOWS_MAX).contains(count) => {
                refuse(format!("{count} flows are not between 1 and {FLOWS_MAX}"))
            }
            Workload::Flows { each: Amount::TimeNs(0), .. } => {
                refuse("a flow of no time sends nothing; give it at least 1 ms".to_owned())
            }
            Workload::Page { objects, .. } if objects.is_empty() => {
                refuse("a page has at least one object".to_owned())
            }
            Workload::Page { objects, .. } if objects.len() > FLOWS_MAX as usize => {
                refuse(format!("a page has at most {FLOWS_MAX} objects"))
            }
            Workload::Page { parallel: 0, .. } => {
                refuse("a page is loaded over at least one connection".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The progress of a run, readable while it goes on.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    flows_done: AtomicU64,
}

impl Progress {
    /// Payload moved so far: received in a download, handed to the kernel in an upload.
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes.load(Ordering::Relaxed))
    }

    /// Connections that are done.
    pub fn flows_done(&self) -> u64 {
        self.flows_done.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn flow_done(&self) {
        self.flows_done.fetch_add(1, Ordering::Relaxed);
    }
}
