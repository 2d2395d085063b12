//! Admission to an explicit listener, decided before a byte is read from the client.
//!
//! Invariant: a client that `explicit.clients` does not name takes no place and gets no response:
//! its connection is reset when it is accepted. A host has at most its part of the places, so one
//! that opens connections and sends nothing keeps no other host out.

use crate::networks::{Member, Networks};
use midhop_pep::config::Plan;
use std::{net::IpAddr, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The part of all places that one host may have.
const EACH_PARTS: usize = 4;
/// Its minimum: as many as a browser opens at once, and more.
const EACH_LEAST: usize = 16;

/// The places of clients in the handshake.
#[derive(Debug)]
pub struct Entry {
    places: Arc<Semaphore>,
    /// The most places of one host.
    each: usize,
    networks: Arc<Networks>,
}

/// A place. Dropping it frees the place.
#[derive(Debug)]
pub struct HandshakePlace {
    _permit: OwnedSemaphorePermit,
    _member: Member,
}

/// Why a client is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// `explicit.clients` does not name it.
    Stranger,
    /// Its host already has the maximum number of places.
    TooMany,
}

impl Entry {
    /// Creates the places: as many as clients may be in the handshake.
    pub fn new(places: usize) -> Self {
        let each = (places / EACH_PARTS).max(EACH_LEAST);
        Self { places: Arc::new(Semaphore::new(places)), each, networks: Arc::default() }
    }

    /// Waits until there is a place for the next client.
    pub async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed: this value holds it.
        self.places.clone().acquire_owned().await.ok()
    }

    /// Admits a client.
    ///
    /// # Errors
    /// When it is not admitted.
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
