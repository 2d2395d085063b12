//! Limits unauthenticated handshakes.
//!
//! A handshake costs this end a signature and some memory, and its first packet can be sent from a
//! spoofed address. A few handshakes are served at once. If there are many, each client has to
//! respond from its claimed address (RFC 9000 §8.1.2), which costs nothing here, and no network
//! gets more than its share of the places. Beyond a bound, a handshake gets no response at all.
//!
//! Invariant: peers that are admitted are not counted, and are not affected.

use super::quic::Incoming;
use crate::ledger::Ledger;
use crate::networks::{Member, Networks};
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

/// Concurrent handshakes that are served without proof of address.
const FEW: usize = 64;
/// Concurrent handshakes of one host, once there are more than a few.
const EACH: usize = 16;
/// Concurrent handshakes of one site: the owner of a prefix has any number of hosts.
const EACH_SITE: usize = 64;
/// Concurrent handshakes that are served at all.
const MOST: usize = 1024;

/// The unfinished handshakes at one address, on all workers. The bounds may be exceeded by the number of workers.
#[derive(Debug, Default)]
pub struct HandshakeLimiter {
    count: AtomicUsize,
    /// The handshakes of each network.
    networks: Arc<Networks>,
    /// Whether the log has reported that there are many.
    logged: AtomicBool,
}

/// The slot of an unfinished handshake. Dropping it frees the slot.
#[derive(Debug)]
pub struct HandshakeSlot {
    limiter: Arc<HandshakeLimiter>,
    _member: Member,
}

impl HandshakeLimiter {
    /// Admits a handshake if there is room. Otherwise it is sent a Retry, or nothing, and is
    /// dropped.
    pub fn admit(
        self: &Arc<Self>,
        incoming: Incoming,
        ledger: &Ledger,
    ) -> Option<(Incoming, HandshakeSlot)> {
        let count = self.count.load(Relaxed);
        if count >= FEW && !self.logged.swap(true, Relaxed) {
            tracing::warn!(
                "many handshakes at once: clients have to validate their addresses (QUIC Retry)"
            );
        }
        let from = incoming.remote_address().ip();
        if self.is_full(from) {
            ledger.dropped_handshakes.add(1);
            incoming.ignore();
            return None;
        }
        if count >= FEW && !incoming.remote_address_validated() {
            // No state is kept: the client sends its first packet again, with the proof.
            ledger.retried_handshakes.add(1);
            incoming.retry();
            return None;
        }
        Some((incoming, self.take(from)))
    }

    /// The same for a TCP connection, whose source address is proven.
    pub fn enter(self: &Arc<Self>, from: IpAddr) -> Option<HandshakeSlot> {
        let count = self.count.load(Relaxed);
        if count >= FEW && !self.logged.swap(true, Relaxed) {
            tracing::warn!(
                "many handshakes at once over TCP: their number is limited for each network"
            );
        }
        (!self.is_full(from)).then(|| self.take(from))
    }

    /// Whether there is no room for a handshake from this address.
    fn is_full(&self, from: IpAddr) -> bool {
        let (count, networks) = (self.count.load(Relaxed), &self.networks);
        let has_its_part = || networks.of_host(from) >= EACH || networks.of_site(from) >= EACH_SITE;
        count >= MOST || (count >= FEW && has_its_part())
    }

    fn take(self: &Arc<Self>, from: IpAddr) -> HandshakeSlot {
        self.count.fetch_add(1, Relaxed);
        HandshakeSlot { limiter: self.clone(), _member: self.networks.enter(from) }
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        let limiter = &self.limiter;
        let before = limiter.count.fetch_sub(1, Relaxed);
        if before == 1 && limiter.logged.swap(false, Relaxed) {
            tracing::info!("no handshakes are unfinished any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn neither_a_host_nor_a_site_takes_all_places() {
        let limiter = Arc::<HandshakeLimiter>::default();
        let site = u128::from("2001:db8::".parse::<Ipv6Addr>().expect("an address"));
        let mut places: Vec<_> = (0..4 * MOST as u128)
            .filter_map(|host| limiter.enter(Ipv6Addr::from(site + (host << 64)).into()))
            .collect();
        assert_eq!(places.len(), EACH_SITE.max(FEW));
        let other = [192, 0, 2, 1].into();
        places.extend((0..MOST).filter_map(|_| limiter.enter(other)));
        assert_eq!(limiter.networks.of_host(other), EACH);
        assert!(limiter.enter([198, 51, 100, 1].into()).is_some());
        drop(places);
        assert_eq!(limiter.count.load(Relaxed), 0);
    }
}
