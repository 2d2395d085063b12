//! Counters of source prefixes: clients that are counted as one, such as those behind one terminal.
//!
//! Invariant: there are at most [`PREFIXES_MAX`] of them, whatever clients connect; the flows of
//! all others are counted together. A flow looks its prefix up once, when it opens, and keeps the
//! counters: bytes are added to them without a lock.

use crate::ledger::Counter;
use ipnet::IpNet;
use midhop_pep::config::Sources;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of prefixes that are counted separately. Configured prefixes always have a place.
pub const PREFIXES_MAX: usize = 128;

/// Counters of the clients of one prefix.
#[derive(Debug, Default)]
pub struct PrefixBook {
    /// Live flows.
    pub flows: Counter,
    /// Flows that have begun.
    pub started: Counter,
    /// Unit: bytes. From these clients.
    pub up: Counter,
    /// Unit: bytes. To them.
    pub down: Counter,
}

/// The prefixes of all workers.
#[derive(Debug, Default)]
pub struct Prefixes {
    state: Mutex<State>,
    others: Arc<PrefixBook>,
}

#[derive(Debug, Default)]
struct State {
    sources: Sources,
    books: BTreeMap<IpNet, Arc<PrefixBook>>,
}

impl Prefixes {
    /// Applies other lengths and lists. Live flows stay where they were counted.
    pub fn follow(&self, sources: &Sources) {
        let mut state = self.lock();
        if state.sources == *sources && !state.books.is_empty() {
            return;
        }
        state.sources = sources.clone();
        for listed in sources.prefixes.iter() {
            if !state.books.contains_key(&listed.trunc()) {
                state.make_room();
                state.books.insert(listed.trunc(), Arc::default());
            }
        }
    }

    /// Counts a flow of a client. Returns the counters of its prefix.
    pub fn enter(&self, client: IpAddr) -> Arc<PrefixBook> {
        let mut state = self.lock();
        let prefix = state.sources.of(client);
        if !state.books.contains_key(&prefix) {
            state.make_room();
        }
        let book = match state.books.get(&prefix) {
            Some(book) => book.clone(),
            None if state.books.len() >= PREFIXES_MAX => self.others.clone(),
            None => state.books.entry(prefix).or_default().clone(),
        };
        // Under the lock, so that a prefix with a flow is never removed.
        book.flows.add(1);
        book.started.add(1);
        book
    }

    /// Each prefix with its counters, and those of all others.
    pub fn all(&self) -> (Vec<(IpNet, Arc<PrefixBook>)>, Arc<PrefixBook>) {
        let state = self.lock();
        let books = state.books.iter().map(|(prefix, book)| (*prefix, book.clone())).collect();
        (books, self.others.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// If there is no place left, removes the prefix without flows that moved the fewest bytes. Its
    /// series ends, and starts at zero if the prefix comes back, as a counter may do.
    fn make_room(&mut self) {
        if self.books.len() < PREFIXES_MAX {
            return;
        }
        let listed = &self.sources.prefixes;
        let idle = self.books.iter().filter(|(prefix, book)| {
            book.flows.value() == 0 && !listed.iter().any(|own| own.trunc() == **prefix)
        });
        let least = idle.min_by_key(|(_, book)| book.up.value() + book.down.value());
        if let Some(prefix) = least.map(|(prefix, _)| *prefix) {
            self.books.remove(&prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_pep::config::OneOrMany;

    #[test]
    fn prefixes_are_bounded_and_those_that_are_configured_stay() {
        let prefixes = Prefixes::default();
        let listed: IpNet = "203.0.113.0/28".parse().expect("a prefix");
        let sources = Sources { prefixes: OneOrMany(vec![listed]), ..Sources::default() };
        prefixes.follow(&sources);
        let client = |number: u16| IpAddr::from([10, (number >> 8) as u8, number as u8, 1]);
        let books: Vec<_> = (0..1000).map(|number| prefixes.enter(client(number))).collect();
        let (all, others) = prefixes.all();
        assert_eq!(all.len(), PREFIXES_MAX);
        assert!(all.iter().any(|(prefix, _)| *prefix == listed));
        assert_eq!(others.flows.value(), 1000 - (PREFIXES_MAX as u64 - 1), "all are counted");
        // A prefix whose flows have ended gives its place to a new one.
        books[5].flows.sub(1);
        let late = prefixes.enter("192.0.2.1".parse().expect("an address"));
        assert!(!Arc::ptr_eq(&late, &others));
        let (all, _) = prefixes.all();
        assert_eq!(all.len(), PREFIXES_MAX);
        assert!(all.iter().all(|(prefix, _)| prefix.to_string() != "10.0.5.0/24"));
        assert!(all.iter().any(|(prefix, _)| *prefix == listed));
    }
}
