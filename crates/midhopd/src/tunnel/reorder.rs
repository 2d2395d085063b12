//! What has come on streams and waits there: behind a gap, or because nobody reads it.
//!
//! Streams are read as they come, which renews QUIC's credit, so QUIC bounds nothing of this. Here it is counted
//! for each peer, over all of its connections and all threads.
//!
//! Invariant: what streams of a peer hold is at most its room, what each connection has come to hold since it was last
//! counted, and one chunk of each stream; the byte that the first gap of a stream waits for is always taken, so a full
//! room stops no stream for good.

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
    /// That of one peer, whose memory is part of `budget`.
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

/// What the streams of one peer hold.
#[derive(Debug)]
pub struct ReorderRoom {
    budget: Arc<Budget>,
    /// Unit: bytes.
    held: AtomicU64,
}

impl ReorderRoom {
    /// Nothing is held.
    pub fn new(budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { budget, held: AtomicU64::new(0) })
    }

    /// The memory that it is a part of.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Unit: bytes. What is held.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// A connection that held `before` holds so much `now`. Unit: bytes.
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
