//! What has come on streams and waits there: behind a gap, or because nobody reads it.
//!
//! Streams are read as they come, which renews QUIC's credit, so QUIC bounds nothing of this. Here it is counted,
//! in the memory of all flows ([`BudgetPart`]), and bounded for each peer, over all of its connections and all threads.
//!
//! Invariant: what streams of a peer hold here is at most its room and one chunk of each stream; the byte that
//! the first gap of a stream waits for is always taken, so a full room stops no stream for good.

use crate::relay::{Budget, BudgetPart};
use bytes::Bytes;
use midhop_tunnel::reassembly::Reassembly;
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

/// What of a connection's streams may come, and where it waits.
#[derive(Debug)]
pub struct Intake {
    /// Its peer's.
    pub room: Arc<ReorderRoom>,
    /// What QUIC lets come of each stream before anything of it is read.
    pub initial: midhop_units::Bytes,
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

    /// Unit: bytes. What is held.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }
}

/// What has come on one stream and has not been taken.
#[derive(Debug)]
pub struct ArrivedData {
    pieces: Reassembly,
    room: Arc<ReorderRoom>,
    part: BudgetPart,
}

impl ArrivedData {
    /// Nothing has come.
    pub fn new(room: &Arc<ReorderRoom>) -> Self {
        let part = BudgetPart::new(room.budget.clone());
        Self { pieces: Reassembly::new(midhop_units::Bytes::MAX), room: room.clone(), part }
    }

    /// Takes what has come for this place of the stream. What it costs is counted by [`ArrivedData::settle`].
    pub fn insert(&mut self, offset: u64, bytes: Bytes) {
        self.pieces.insert(offset, bytes);
    }

    /// The next bytes in order, where they have come.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.pieces.pop()
    }

    /// How far the stream has been taken.
    pub fn position(&self) -> u64 {
        self.pieces.position()
    }

    /// Unit: bytes. What of the stream waits.
    pub fn held(&self) -> u64 {
        self.pieces.held().get()
    }

    /// Unit: bytes. What that costs.
    pub fn cost(&self) -> u64 {
        self.pieces.cost().get()
    }

    /// Whether the peer's streams together hold `most` bytes or more.
    pub fn is_crowded(&self, most: u64) -> bool {
        // What of this stream was not settled yet counts as well.
        let others = self.room.held().saturating_sub(self.part.held());
        others.saturating_add(self.cost()) >= most
    }

    /// Counts what waits now.
    pub fn settle(&mut self) {
        let (before, now) = (self.part.held(), self.cost());
        if now != before {
            self.part.set(now);
            self.room.held.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }
}

impl Drop for ArrivedData {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.part.held(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_once_for_the_peer_and_for_all_and_given_back() {
        let budget = Arc::new(Budget::new(1000));
        let rooms = Rooms::default();
        let room = rooms.of("far", &budget);
        assert!(Arc::ptr_eq(&room, &rooms.of("far", &budget)));
        let mut streams = [0, 1].map(|_| ArrivedData::new(&room));
        for stream in &mut streams {
            stream.insert(1, Bytes::from_static(&[7; 100]));
            stream.settle();
            stream.settle();
        }
        let each = streams[0].cost();
        assert!(each > 100, "a piece costs more than its bytes");
        assert_eq!((room.held(), budget.held()), (2 * each, 2 * each));
        assert!(streams[0].is_crowded(2 * each) && !streams[0].is_crowded(2 * each + 1));
        let [mut first, second] = streams;
        first.insert(0, Bytes::from_static(&[7; 1]));
        while first.pop().is_some() {}
        first.settle();
        assert_eq!((room.held(), budget.held()), (each, each));
        drop((first, second));
        assert_eq!((room.held(), budget.held()), (0, 0));
        drop(room);
        assert_eq!(rooms.of("far", &budget).held(), 0);
    }
}
