//! Who may come in by an explicit listener, decided before a byte of it is read.
//!
//! Invariant: a stranger takes no place and gets no word: its connection is reset as it is accepted. A client takes
//! at most its part of the places, so a host that opens connections and says nothing keeps no other out.

use crate::networks::{Member, Networks};
use midhop_pep::config::Plan;
use std::{net::IpAddr, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of all places, the part that one host may have.
const EACH_PARTS: usize = 4;
/// And what it may have at least: as many as a browser opens at once, and more.
const EACH_LEAST: usize = 16;

/// The places of clients that are on their way.
#[derive(Debug)]
pub struct Entry {
    places: Arc<Semaphore>,
    /// What one host may have.
    each: usize,
    networks: Arc<Networks>,
}

/// A place; dropping it leaves.
#[derive(Debug)]
pub struct HandshakePlace {
    _permit: OwnedSemaphorePermit,
    _member: Member,
}

/// Why somebody does not come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// `explicit.clients` does not name it.
    Stranger,
    /// Its host has as many places as it may have.
    TooMany,
}

impl Entry {
    /// As many places as clients may be on their way.
    pub fn new(places: usize) -> Self {
        let each = (places / EACH_PARTS).max(EACH_LEAST);
        Self { places: Arc::new(Semaphore::new(places)), each, networks: Arc::default() }
    }

    /// Waits until there is a place for whoever comes next.
    pub async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed: this holds it.
        self.places.clone().acquire_owned().await.ok()
    }

    /// Lets a client in.
    ///
    /// # Errors
    /// When it may not come in.
    pub fn admit(
        &self,
        plan: &Plan,
        from: IpAddr,
        permit: OwnedSemaphorePermit,
    ) -> Result<HandshakePlace, Refused> {
        let from = from.to_canonical();
        if !plan.explicit.clients.iter().any(|prefix| prefix.contains(&from)) {
            return Err(Refused::Stranger);
        }
        if self.networks.of_host(from) >= self.each {
            return Err(Refused::TooMany);
        }
        Ok(HandshakePlace { _permit: permit, _member: self.networks.enter(from) })
    }
}
