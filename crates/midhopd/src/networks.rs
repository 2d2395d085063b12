//! Counts members per network, for bounds that one host must not use up alone.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Counts by network. It has at most twice as many entries as there are members.
#[derive(Debug, Default)]
pub struct Networks {
    counts: Mutex<BTreeMap<(Width, IpAddr), usize>>,
}

/// The part of the address that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Width {
    /// The range of one host: an IPv4 address, or an IPv6 prefix of 64 bits.
    Host,
    /// The range of one site: 256 IPv4 addresses, or an IPv6 prefix of 48 bits.
    Site,
}

/// A member of a network. Dropping it removes it.
#[derive(Debug)]
pub struct Member {
    networks: Arc<Networks>,
    address: IpAddr,
}

/// One address that represents all addresses of the same host.
pub fn host_of(address: IpAddr) -> IpAddr {
    prefix(Width::Host, address)
}

impl Networks {
    /// How many members the host at this address has.
    pub fn of_host(&self, address: IpAddr) -> usize {
        self.count(Width::Host, address)
    }

    /// How many members its site has.
    pub fn of_site(&self, address: IpAddr) -> usize {
        self.count(Width::Site, address)
    }

    fn count(&self, width: Width, address: IpAddr) -> usize {
        self.lock().get(&(width, prefix(width, address))).copied().unwrap_or(0)
    }

    /// Adds a member.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Member {
        let mut counts = self.lock();
        for width in [Width::Host, Width::Site] {
            *counts.entry((width, prefix(width, address))).or_default() += 1;
        }
        drop(counts);
        Member { networks: self.clone(), address }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Width, IpAddr), usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut counts = self.networks.lock();
        for width in [Width::Host, Width::Site] {
            let key = (width, prefix(width, self.address));
            if let Some(count) = counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&key);
                }
            }
        }
    }
}

fn prefix(width: Width, address: IpAddr) -> IpAddr {
    match (address.to_canonical(), width) {
        (IpAddr::V6(address), Width::Host) => masked(address, 64),
        (IpAddr::V6(address), Width::Site) => masked(address, 48),
        (IpAddr::V4(address), Width::Site) => {
            let [a, b, c, _] = address.octets();
            [a, b, c, 0].into()
        }
        (v4, Width::Host) => v4,
    }
}

fn masked(address: Ipv6Addr, bits: u32) -> IpAddr {
    let rest = u128::BITS - bits;
    Ipv6Addr::from(u128::from(address) >> rest << rest).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_counted_by_host_and_by_site_and_forgotten() {
        let networks = Arc::<Networks>::default();
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let members: Vec<_> = [
            "192.0.2.1",
            "::ffff:192.0.2.1",
            "192.0.2.2",
            "2001:db8::1",
            "2001:db8::2",
            "2001:db8:0:1::1",
        ]
        .map(|text| networks.enter(address(text)))
        .into();
        for (text, host, site) in [
            ("192.0.2.1", 2, 3),
            ("192.0.3.1", 0, 0),
            ("2001:db8::9", 2, 3),
            ("2001:db8:1::9", 0, 0),
        ] {
            let counts = (networks.of_host(address(text)), networks.of_site(address(text)));
            assert_eq!(counts, (host, site), "{text}");
        }
        drop(members);
        assert!(networks.lock().is_empty());
    }
}
