//! What flows cost and carried: plain counters, one ledger per worker, summed by whoever asks.

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
