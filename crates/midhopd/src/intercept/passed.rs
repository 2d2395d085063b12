//! Counts SYNs that the firewall lets pass without the daemon, by reason.
//!
//! Invariant: a reported count never falls, though a reload replaces the table and the new counters start at zero.

use super::table;
use midhop_linux::nft::Table;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

/// The counters of an instance's table.
#[derive(Debug)]
pub struct PassedCounters {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    table: Table,
    /// What earlier tables counted (modulo 2⁶⁴, less what this one had counted for another program), and what this one had counted when it was last read.
    counts: BTreeMap<&'static str, Count>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    before: u64,
    now: u64,
}

impl PassedCounters {
    /// Opens a channel to the table of an instance, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel gives no channel.
    pub fn open(instance: &str) -> io::Result<Self> {
        let counts = table::PASSED.into_iter().map(|reason| (reason, Count::default())).collect();
        let table = table::open_table(instance)?;
        Ok(Self { state: Mutex::new(State { table, counts }) })
    }

    /// SYNs let pass since the start, by the reasons of [`table::PASSED`]. If the kernel does not
    /// answer, for example because the table is gone, these are the last counts.
    pub fn total(&self) -> BTreeMap<String, u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read();
        let sum = |count: &Count| count.before.wrapping_add(count.now);
        state.counts.iter().map(|(reason, count)| ((*reason).to_owned(), sum(count))).collect()
    }

    /// Counts from now on: what the table has counted so far was counted for another program.
    pub fn begin_anew(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read();
        for count in state.counts.values_mut() {
            count.before = 0_u64.wrapping_sub(count.now);
        }
    }

    /// Runs `replace`, which replaces the table, and keeps the counts of the old one.
    ///
    /// # Errors
    /// The error of `replace`; then the old table is still there.
    pub fn across<E>(&self, replace: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read();
        replace()?;
        for count in state.counts.values_mut() {
            *count = Count { before: count.before.wrapping_add(count.now), now: 0 };
        }
        Ok(())
    }
}

impl State {
    fn read(&mut self) {
        match self.table.counters() {
            Ok(counters) => {
                for (reason, count) in &mut self.counts {
                    if let Some(packets) = counters.get(&table::counter(reason)) {
                        if *packets < count.now {
                            // Another program replaced the table unnoticed, or reset its counters.
                            count.before = count.before.wrapping_add(count.now);
                        }
                        count.now = *packets;
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the firewall's counters cannot be read"),
        }
    }
}
