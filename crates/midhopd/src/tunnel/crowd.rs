//! Those who have come to a socket and have not shown yet who they are.
//!
//! A handshake costs this end a signature and some memory, and its beginning can be sent in anybody's
//! name. A few are served at once. Where many come, each has to answer from the address that it gives
//! (RFC 9000 §8.1.2), which costs nothing here, and no network gets more than its part of the places; and
//! beyond a bound nobody is answered at all.
//!
//! Invariant: peers that are in are not counted, and are none the worse for it.

use quinn::Incoming;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    rc::Rc,
};

/// Handshakes at a time that are served without proof of address.
const FEW: usize = 64;
/// Those of one network, once there are more than a few.
const EACH: usize = 16;
/// Handshakes at a time that are served at all.
const MOST: usize = 1024;

/// The handshakes of one socket that have not ended.
#[derive(Debug, Default)]
pub struct Crowd {
    count: Cell<usize>,
    /// Those of each network.
    networks: RefCell<BTreeMap<IpAddr, usize>>,
    /// Whether it was told that there are many.
    told: Cell<bool>,
}

/// A place in the crowd; dropping it leaves.
#[derive(Debug)]
pub struct Place {
    crowd: Rc<Crowd>,
    network: IpAddr,
}

impl Crowd {
    /// Lets somebody begin, where there is room; else it is answered, or not, and gone.
    pub fn admit(self: &Rc<Self>, incoming: Incoming) -> Option<(Incoming, Place)> {
        let count = self.count.get();
        if count >= FEW && !self.told.replace(true) {
            tracing::warn!("many handshakes at once: whoever comes has to prove its address");
        }
        let network = network_of(incoming.remote_address().ip());
        let of_network = self.networks.borrow().get(&network).copied().unwrap_or(0);
        if count >= MOST || (count >= FEW && of_network >= EACH) {
            incoming.ignore();
            return None;
        }
        if count >= FEW && !incoming.remote_address_validated() {
            // Nothing is kept of it: it comes again, with the proof.
            if let Err(refused) = incoming.retry() {
                refused.into_incoming().ignore();
            }
            return None;
        }
        Some((incoming, self.take(network)))
    }

    /// The same for somebody who has come by TCP, and so from where it says.
    pub fn enter(self: &Rc<Self>, from: IpAddr) -> Option<Place> {
        let count = self.count.get();
        if count >= FEW && !self.told.replace(true) {
            tracing::warn!(
                "many handshakes at once over TCP: each network has its part of the places"
            );
        }
        let network = network_of(from);
        let of_network = self.networks.borrow().get(&network).copied().unwrap_or(0);
        let is_full = count >= MOST || (count >= FEW && of_network >= EACH);
        (!is_full).then(|| self.take(network))
    }

    fn take(self: &Rc<Self>, network: IpAddr) -> Place {
        self.count.set(self.count.get() + 1);
        *self.networks.borrow_mut().entry(network).or_default() += 1;
        Place { crowd: self.clone(), network }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let crowd = &self.crowd;
        let left = crowd.count.get().saturating_sub(1);
        crowd.count.set(left);
        let mut networks = crowd.networks.borrow_mut();
        if let Some(count) = networks.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                networks.remove(&self.network);
            }
        }
        if left == 0 && crowd.told.replace(false) {
            tracing::info!("the crowd of handshakes is gone");
        }
    }
}

/// What one host may have for itself: an address, or 64 bits of them.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        v4 => v4,
    }
}
