//! The limits of peers: counts the connections and flows of each peer here, over all of its connections and on all threads.

use midhop_pep::config::PeerPlan;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The resources that are limited per peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Connection,
    Flow,
}

/// The connections and flows of all peers that connect to this daemon.
#[derive(Debug, Default)]
pub struct PeerLimits(Mutex<BTreeMap<String, [u32; 2]>>);

/// A place that a peer has taken. Dropping it frees the place.
#[derive(Debug)]
pub struct PeerSlot {
    limits: Arc<PeerLimits>,
    peer: String,
    kind: Kind,
}

impl PeerLimits {
    /// Takes a place for one more connection of the peer, within its limit.
    pub fn connect(self: &Arc<Self>, peer: &PeerPlan) -> Option<PeerSlot> {
        self.take(peer, Kind::Connection, peer.connections)
    }

    /// Takes a place for one more flow of the peer, within its limit.
    pub fn open(self: &Arc<Self>, peer: &PeerPlan) -> Option<PeerSlot> {
        self.take(peer, Kind::Flow, peer.flows)
    }

    fn take(self: &Arc<Self>, peer: &PeerPlan, kind: Kind, most: u32) -> Option<PeerSlot> {
        let mut counts = self.lock();
        let count = &mut counts.entry(peer.name.clone()).or_default()[kind as usize];
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(PeerSlot { limits: self.clone(), peer: peer.name.clone(), kind })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, [u32; 2]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let mut counts = self.limits.lock();
        if let Some(own) = counts.get_mut(&self.peer) {
            own[self.kind as usize] -= 1;
            if *own == [0; 2] {
                counts.remove(&self.peer);
            }
        }
    }
}
