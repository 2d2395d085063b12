//! A saved record, which one connection at a time uses.

use super::Saved;
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering::Relaxed},
};

const FREE: u8 = 0;
const CLAIMED: u8 = 1;
const FAILED: u8 = 2;

/// What an earlier connection measured, for all connections over the same path that hold this handle or
/// a clone of it.
///
/// Source: RFC 9959, Reconnaissance Phase (one connection uses a set of saved parameters) and Safe
/// Retreat Phase (they are deleted).
#[derive(Debug, Clone)]
pub struct Record(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    saved: Saved,
    state: AtomicU8,
}

impl Record {
    /// A record of `saved`.
    pub fn new(saved: Saved) -> Self {
        Self(Arc::new(Shared { saved, state: AtomicU8::new(FREE) }))
    }

    /// The saved values; `None` once a connection had to retreat from them.
    pub fn saved(&self) -> Option<Saved> {
        (self.0.state.load(Relaxed) != FAILED).then_some(self.0.saved)
    }

    /// Takes the record for a connection; `None` where another has it, or it has failed.
    pub(super) fn claim(&self) -> Option<Claim> {
        let taken = self.0.state.compare_exchange(FREE, CLAIMED, Relaxed, Relaxed);
        taken.ok().map(|_| Claim(self.clone()))
    }
}

/// Two handles are equal where they are of the same record.
impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Record {}

/// A connection's use of a record; releases it when it is dropped.
#[derive(Debug)]
pub(super) struct Claim(Record);

impl Claim {
    /// The path does not carry the saved window: no connection may use it again.
    pub fn fail(self) {
        self.0.0.state.store(FAILED, Relaxed);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.0.0.state.compare_exchange(CLAIMED, FREE, Relaxed, Relaxed);
    }
}
