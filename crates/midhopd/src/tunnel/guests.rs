//! What each peer has open here, over all of its connections and on all threads.

use midhop_pep::config::PeerPlan;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Of what a peer may only have so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Connection,
    Flow,
}

/// The connections and flows of all peers that have come.
#[derive(Debug, Default)]
pub struct Guests(Mutex<BTreeMap<String, [u32; 2]>>);

/// A place that a peer has taken; dropping it gives the place back.
#[derive(Debug)]
pub struct Seat {
    guests: Arc<Guests>,
    peer: String,
    kind: Kind,
}

impl Guests {
    /// Takes a place for one more connection of the peer, if it may have one.
    pub fn connect(self: &Arc<Self>, peer: &PeerPlan) -> Option<Seat> {
        self.take(peer, Kind::Connection, peer.connections)
    }

    /// Takes a place for one more flow of the peer, if it may have one.
    pub fn open(self: &Arc<Self>, peer: &PeerPlan) -> Option<Seat> {
        self.take(peer, Kind::Flow, peer.flows)
    }

    fn take(self: &Arc<Self>, peer: &PeerPlan, kind: Kind, most: u32) -> Option<Seat> {
        let mut counts = self.lock();
        let count = &mut counts.entry(peer.name.clone()).or_default()[kind as usize];
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Seat { guests: self.clone(), peer: peer.name.clone(), kind })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, [u32; 2]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = self.guests.lock();
        if let Some(own) = counts.get_mut(&self.peer) {
            own[self.kind as usize] -= 1;
            if *own == [0; 2] {
                counts.remove(&self.peer);
            }
        }
    }
}
