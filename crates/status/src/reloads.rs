//! How often the configuration was read again, and with what results.

use crate::control::answer::Reload;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The reloads of a daemon since its start.
#[derive(Debug, Default)]
pub struct Reloads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    applied: u64,
    refused: u64,
    last: Option<Reload>,
}

impl Reloads {
    /// Books a reload with its result.
    pub fn book(&self, result: Reload) {
        let mut state = self.state();
        match result.error {
            None => state.applied += 1,
            Some(_) => state.refused += 1,
        }
        state.last = Some(result);
    }

    /// The last reload.
    pub fn last(&self) -> Option<Reload> {
        self.state().last.clone()
    }

    /// How many there were, by result.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let state = self.state();
        let named = [("applied", state.applied), ("refused", state.refused)];
        named.into_iter().map(|(result, count)| (result.to_owned(), count)).collect()
    }

    /// A panic elsewhere does not affect the counters.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
