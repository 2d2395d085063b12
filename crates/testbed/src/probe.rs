//! Samples the kernel's TCP connections of proxies during a run.
//!
//! A transfer's own sender knows only its own leg; behind a proxy that is the short one. The probe
//! asks the kernel of every node with a proxy for its TCP sockets ten times a second, over the
//! netlink family that `ss` uses (sock_diag(7)). It adds up the sockets of each leg: the link that
//! leads to the socket's remote address.
//!
//! ```text
//! node with a proxy ─ sock_diag ─┬ dump, every 100 ms ──────┐
//!                                └ notice of each closing ──┴ Legs ─ one curve per leg, totals
//! ```
//! Invariants: the probe only reads, and the proxy is not involved, so any proxy can be watched.
//! Sums never lose a closed connection: its retransmissions stay counted.

mod legs;

use crate::meter::clock;
use crate::namespace::{Namespace, NamespaceError};
use legs::{Legs, Seen};
use midhop_experiment::plan::{Plan, PlannedNode};
use midhop_experiment::record::{LegResult, Series};
use midhop_linux::sock_diag::{Diag, Notices};
use midhop_units::{Duration, Instant};
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

/// Time between two samples, as in the meter.
const INTERVAL: Duration = Duration::from_ms(100);

/// How long the last sample waits for notices of closed sockets.
const NOTICES: Duration = Duration::from_s(5);
/// Time between two attempts of it.
const TRY_AGAIN: Duration = Duration::from_ms(5);

/// Why proxies could not be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A node could not be entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The kernel does not report its sockets.
    #[error(
        "cannot query the TCP sockets of {node}: {source}; \
         it needs CONFIG_INET_TCP_DIAG (module tcp_diag)"
    )]
    Refused {
        /// The proxy's node.
        node: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// No thread for it.
    #[error("cannot start the probe's thread: {0}")]
    Thread(io::Error),
}

/// The results of a [`Probe`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeReport {
    /// One per leg that carried a connection, in the order of the nodes and links.
    pub legs: Vec<LegResult>,
    /// `cwnd`, `rtt`, `retransmissions`, `delivery_rate`, `in_flight`, `outstanding` and
    /// `pacing_rate` of each leg: the median for the round trips, the sum for all others.
    pub series: Vec<Series>,
}

/// Watches the proxies of a run. Dropping it stops it.
#[derive(Debug)]
pub struct Probe {
    /// Dropped to stop the thread.
    running: Sender<()>,
    thread: JoinHandle<ProbeReport>,
}

impl Probe {
    /// Starts to watch the nodes of `plan` that have a proxy; none when none has. Times count from
    /// `epoch`.
    ///
    /// # Errors
    /// When a node cannot be entered or its kernel refuses.
    pub fn start<'a>(
        plan: &Plan,
        namespace: impl Fn(&str) -> Option<&'a Namespace>,
        epoch: Instant,
    ) -> Result<Option<Self>, ProbeError> {
        let mut watched = Vec::new();
        for node in plan.nodes.iter().filter(|node| node.pep.is_some()) {
            if let Some(namespace) = namespace(&node.name) {
                watched.push(Watched::open(plan, node, namespace)?);
            }
        }
        if watched.is_empty() {
            return Ok(None);
        }
        let (running, stopped) = channel::<()>();
        let work = move || {
            let mut due = clock::now();
            loop {
                for node in &mut watched {
                    node.look(epoch);
                }
                // A sample that is late does not make the next ones follow faster.
                due = (due + INTERVAL).max(clock::now());
                let left = due.saturating_since(clock::now()).into();
                if stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            let mut report = ProbeReport::default();
            for mut node in watched {
                node.last_look(epoch);
                node.legs.report(&mut report);
            }
            report
        };
        let thread = std::thread::Builder::new()
            .name("probe".to_owned())
            .spawn(work)
            .map_err(ProbeError::Thread)?;
        Ok(Some(Self { running, thread }))
    }

    /// Takes the last sample and reports the results.
    pub fn finish(self) -> ProbeReport {
        drop(self.running);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// A node with a proxy.
struct Watched {
    diag: Diag,
    notices: Notices,
    legs: Legs,
}

impl Watched {
    fn open(plan: &Plan, node: &PlannedNode, namespace: &Namespace) -> Result<Self, ProbeError> {
        let refused = |source| ProbeError::Refused { node: node.name.clone(), source };
        // A netlink socket reads the namespace in which it was made, whichever thread uses it.
        let (mut diag, notices) =
            namespace.run(|| Ok((Diag::open()?, Notices::open()?)))?.map_err(refused)?;
        diag.dump(|_| {}).map_err(refused)?;
        Ok(Self { diag, notices, legs: Legs::of(plan, node) })
    }

    /// Adds a sample of now. Returns `true` when the final counts of every closed socket are
    /// included.
    fn look(&mut self, epoch: Instant) -> bool {
        let legs = &mut self.legs;
        legs.begin(clock::now().saturating_since(epoch));
        // A dump that fails is one sample less; the next one includes what this one missed.
        let dumped = self.diag.dump(|socket| Seen::of(socket).iter().for_each(|it| legs.see(it)));
        let at = clock::now().saturating_since(epoch);
        // Some notices were lost. Dumps have included most of those sockets.
        if !self.notices.drain(|socket| Seen::of(socket).iter().for_each(|it| legs.bury(it))) {
            legs.await_no_notice();
        }
        legs.sample(at, dumped.is_ok())
    }

    /// Samples until the final counts of every closed socket are included. The kernel reports a
    /// closed socket through a queue, on a busy machine long after the connection's peer knows of
    /// it.
    fn last_look(&mut self, epoch: Instant) {
        let deadline = clock::now() + NOTICES;
        while !self.look(epoch) && clock::now() < deadline {
            std::thread::sleep(TRY_AGAIN.into());
        }
    }
}
