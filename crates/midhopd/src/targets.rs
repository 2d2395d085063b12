//! The targets that clients and peers may request this host to connect to.
//!
//! The address that is dialled is checked, after names were resolved. So a name that resolves to
//! another address the second time gains nothing. Flows that this host intercepted itself are not
//! requests, and are not checked here.
//!
//! Decision 0025.

use crate::leg::Egress;
use ipnet::IpNet;
use midhop_pep::{
    config::{Explicit, PeerPlan, TunnelPlan},
    special::{embedded, is_allowed, is_named},
};
use std::net::IpAddr;

/// The permitted targets in addition to addresses without a special purpose.
#[derive(Debug, Clone, Copy)]
pub struct Targets<'a> {
    /// Whether this host's own addresses may be targets.
    own: bool,
    /// Special-purpose addresses that may be targets, and own addresses that are permitted individually.
    listed: &'a [IpNet],
}

impl<'a> Targets<'a> {
    /// The permitted targets of `peer`.
    pub fn of_peer(tunnel: &'a TunnelPlan, peer: &'a PeerPlan) -> Self {
        let listed = peer.targets.as_deref().unwrap_or(&tunnel.targets);
        Self { own: tunnel.local_targets, listed }
    }

    /// The permitted targets of clients of the explicit listeners.
    pub fn of_clients(explicit: &'a Explicit) -> Self {
        Self { own: explicit.local_targets, listed: &explicit.targets }
    }

    /// Whether `server` may be dialled.
    pub fn allow(&self, server: IpAddr, egress: &Egress) -> bool {
        let server = server.to_canonical();
        if is_named(server, self.listed) {
            return true;
        }
        if is_own(server, egress) { self.own } else { is_allowed(server, self.listed) }
    }
}

/// Whether an address is only meaningful on one host or one link, so that nobody routes responses to it.
pub fn is_of_one_link(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_broadcast()
                || address.is_multicast()
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_unspecified()
                || address.is_multicast()
        }
    }
}

/// Whether this host itself responds at `address`. The kernel is queried each time, because addresses change.
fn is_own(address: IpAddr, egress: &Egress) -> bool {
    // Connecting to the unspecified address connects to this host.
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let inner = match address {
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(address) => embedded(address).map(IpAddr::from).collect(),
    };
    // If the kernel does not answer, the address counts as one of this host's.
    let asked = |address| egress.is_own(address).unwrap_or(true);
    asked(address) || inner.into_iter().any(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_one_link_knows_is_distinguished_from_what_is_routed() {
        for (address, of_one_link) in [
            ("::ffff:127.1.2.3", true),
            ("169.254.169.254", true),
            ("0.0.0.0", true),
            ("::1", true),
            ("fe80::1", true),
            ("ff02::1", true),
            ("10.0.0.1", false),
            ("fd00::1", false),
        ] {
            assert_eq!(is_of_one_link(address.parse().expect(address)), of_one_link, "{address}");
        }
    }

    #[test]
    fn this_host_is_closed_unless_it_is_opened_or_named() {
        let egress = Egress::open().expect("a channel");
        let all = ["0.0.0.0/0", "::/0"].map(|it| it.parse().expect(it));
        let own = ["127.0.0.1", "::1", "::ffff:127.0.0.2", "0.0.0.0", "::", "64:ff9b::127.0.0.1"];
        for address in own.map(|it| it.parse::<IpAddr>().expect(it)) {
            let may = |own, listed: &[IpNet]| Targets { own, listed }.allow(address, &egress);
            assert!(!may(false, &[]) && !may(false, &all), "{address}");
            assert!(may(true, &[]), "{address}");
            assert!(may(false, &[IpNet::from(address.to_canonical())]), "{address}");
        }
    }
}
