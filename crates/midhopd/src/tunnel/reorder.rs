//! Counts stream data that has arrived and waits: behind a gap, or because it is not read.
//!
//! Streams are read as data arrives, which renews QUIC's credit, so QUIC does not bound this data. Here it is counted
//! per peer, over all of its connections and all threads.
//!
//! Invariant: the streams of a peer hold at most its room, plus what each connection has added since it was last
//! counted, plus one chunk of each stream. The byte that the first gap of a stream waits for is always accepted, so a
//! full room stops no stream for good.

use midhop_pep::budget::Budget;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The rooms of all peers, by name.
#[derive(Debug, Default)]
pub struct Rooms(Mutex<BTreeMap<String, Weak<ReorderRoom>>>);

impl Rooms {
    /// The room of one peer, whose memory is part of `budget`.
    pub fn of(&self, peer: &str, budget: &Arc<Budget>) -> Arc<ReorderRoom> {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = rooms.get(peer).and_then(Weak::upgrade) {
            return room;
        }
        rooms.retain(|_, room| room.strong_count() > 0);
        let room = ReorderRoom::new(budget.clone());
        rooms.insert(peer.to_owned(), Arc::downgrade(&room));
        room
    }
}

/// The bytes that the streams of one peer hold.
#[derive(Debug)]
pub struct ReorderRoom {
    budget: Arc<Budget>,
    /// Unit: bytes.
    held: AtomicU64,
}

impl ReorderRoom {
    /// Creates an empty room.
    pub fn new(budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { budget, held: AtomicU64::new(0) })
    }

    /// The memory budget that it is a part of.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Unit: bytes. What is held.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// A connection that held `before` now holds `now`. Unit: bytes.
    pub fn recount(&self, before: u64, now: u64) {
        self.held.fetch_add(now.wrapping_sub(before), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_one_room_as_long_as_anybody_has_it() {
        let budget = Arc::new(Budget::new(1000));
        let rooms = Rooms::default();
        let room = rooms.of("far", &budget);
        assert!(Arc::ptr_eq(&room, &rooms.of("far", &budget)));
        room.recount(0, 300);
        room.recount(300, 100);
        assert_eq!((room.held(), rooms.of("far", &budget).held()), (100, 100));
        assert_eq!(rooms.of("other", &budget).held(), 0);
        drop(room);
        assert_eq!(rooms.of("far", &budget).held(), 0);
    }
}
