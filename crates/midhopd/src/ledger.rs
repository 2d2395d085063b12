//! What flows cost and carried: plain counters, one ledger per worker, summed by whoever asks.

use crate::leg::{Failure, Refusal};
use crate::relay::Carried;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only its own worker changes and anybody may read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds to it.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    /// Takes away from it; for numbers of things that are there now.
    pub fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Relaxed);
    }

    /// Its value.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One worker's counters.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Flows taken from the wire or asked for.
    pub flows: Count,
    /// Flows that are split now.
    pub flows_live: Count,
    /// Flows both of whose ends ended their streams.
    pub flows_ended: Count,
    /// Flows that one end reset or that lost one end.
    pub flows_reset: Count,
    /// Flows that the far side refused.
    pub refused: Count,
    /// Flows whose far side could not be reached.
    pub unreachable: Count,
    /// Flows whose far side never answered.
    pub timed_out: Count,
    /// Flows whose far side could not be opened for a fault of this host, or whose client left.
    pub local_failures: Count,
    /// Flows that a rule let pass by.
    pub bypassed_by_rule: Count,
    /// Flows that passed by because a limit was met, or for want of descriptors or ports.
    pub bypassed_by_limit: Count,
    /// Flows that a rule rejected.
    pub rejected: Count,
    /// Unit: bytes. From clients to servers.
    pub bytes_up: Count,
    /// Unit: bytes. From servers to clients.
    pub bytes_down: Count,
    /// Clients whose SYN waits for the far side now.
    pub held: Count,
    /// Unit: bytes. Read and not yet acknowledged by the other end, as last seen.
    pub buffered: Count,
    /// How often a direction had to wait because all flows together held the limit.
    pub memory_waits: Count,
}

impl Ledger {
    /// Books a far side that did not accept.
    pub fn book_failure(&self, failure: &Failure) {
        match failure.refusal {
            Some(Refusal::Reset) => self.refused.add(1),
            Some(Refusal::Unreachable(_)) => self.unreachable.add(1),
            Some(Refusal::Silence) => self.timed_out.add(1),
            None => self.local_failures.add(1),
        }
    }

    /// Books a flow that has ended.
    pub fn book_end(&self, carried: &Carried) {
        self.flows_live.sub(1);
        self.bytes_up.add(carried.up);
        self.bytes_down.add(carried.down);
        match carried.outcome {
            Ok(()) => self.flows_ended.add(1),
            Err(_) => self.flows_reset.add(1),
        }
    }
}
