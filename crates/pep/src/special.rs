//! Addresses with a special purpose: they do not belong to servers on the Internet.
//!
//! A proxy that connects to any requested address lets its clients use its own place in the network. The meaning of
//! special-purpose addresses depends on that place: private networks, the link, the host itself, metadata services
//! of clouds.
//!
//! Source: the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890, RFC 8190), the
//! multicast registries (RFC 5771, RFC 4291), and what RFC 3879 and RFC 4291 deprecate.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range of the registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    /// Its addresses.
    pub prefix: IpNet,
    /// Its name in the registry.
    pub name: &'static str,
    /// What assigned it.
    pub source: &'static str,
    /// Whether its addresses are reachable from everywhere, although an enclosing range is special.
    global: bool,
}

/// The range that makes `address` special; none: it is an ordinary address.
///
/// An IPv6 address with an embedded IPv4 address, to which translators or relays forward, is as special as the IPv4
/// address.
pub fn special(address: IpAddr) -> Option<&'static Special> {
    let found = match address.to_canonical() {
        IpAddr::V4(address) => longest(&V4, address.into()),
        IpAddr::V6(address) => longest(&V6, address.into())
            .filter(|range| !range.global)
            .or_else(|| embedded(address).find_map(|inner| longest(&V4, inner.into()))),
    };
    found.filter(|range| !range.global)
}

/// Whether `address` may be a target; `allowed` lists the special prefixes that may be.
pub fn is_allowed(address: IpAddr, allowed: &[IpNet]) -> bool {
    let address = address.to_canonical();
    special(address).is_none() || allowed.iter().any(|prefix| prefix.contains(&address))
}

/// Whether `allowed` contains `address` alone as a prefix.
pub fn is_named(address: IpAddr, allowed: &[IpNet]) -> bool {
    let alone = IpNet::from(address.to_canonical());
    allowed.contains(&alone)
}

/// The IPv4 addresses to which an IPv6 address leads: NAT64 (RFC 6052), 6to4 (RFC 3056), and Teredo's server and
/// client, the client's being inverted (RFC 4380).
pub fn embedded(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let bits = u128::from(address);
    let word = |shift: u32| Ipv4Addr::from_bits((bits >> shift) as u32);
    let found = match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => [Some(word(0)), None],
        [0x2002, ..] => [Some(word(80)), None],
        [0x2001, 0, ..] => [Some(word(64)), Some(Ipv4Addr::from_bits(!word(0).to_bits()))],
        _ => [None, None],
    };
    found.into_iter().flatten()
}

/// The narrowest range that contains the address.
fn longest(ranges: &'static [Special], address: IpAddr) -> Option<&'static Special> {
    let holding = ranges.iter().filter(|range| range.prefix.contains(&address));
    holding.max_by_key(|range| range.prefix.prefix_len())
}

const fn v4(octets: [u8; 4], bits: u8, name: &'static str, source: &'static str) -> Special {
    let [a, b, c, d] = octets;
    let prefix = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits));
    Special { prefix, name, source, global: false }
}

const fn v6(head: [u16; 4], bits: u8, name: &'static str, source: &'static str) -> Special {
    let [a, b, c, d] = head;
    let prefix = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), bits));
    Special { prefix, name, source, global: false }
}

const fn low(tail: u16, bits: u8, name: &'static str, source: &'static str) -> Special {
    let prefix = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, tail), bits));
    Special { prefix, name, source, global: false }
}

/// A part of a special range that is reachable from everywhere.
const fn reachable(range: Special) -> Special {
    Special { global: true, ..range }
}

/// The IPv4 registry. AS112 (192.31.196.0/24, 192.175.48.0/24) and AMT (192.52.193.0/24) are reachable from
/// everywhere and lie in no special range.
const V4: [Special; 20] = [
    v4([0, 0, 0, 0], 8, "This network", "RFC 791"),
    v4([10, 0, 0, 0], 8, "Private-Use", "RFC 1918"),
    v4([100, 64, 0, 0], 10, "Shared Address Space", "RFC 6598"),
    v4([127, 0, 0, 0], 8, "Loopback", "RFC 1122"),
    v4([169, 254, 0, 0], 16, "Link Local", "RFC 3927"),
    v4([172, 16, 0, 0], 12, "Private-Use", "RFC 1918"),
    v4([192, 0, 0, 0], 24, "IETF Protocol Assignments", "RFC 6890"),
    reachable(v4([192, 0, 0, 9], 32, "Port Control Protocol Anycast", "RFC 7723")),
    reachable(v4([192, 0, 0, 10], 32, "TURN Anycast", "RFC 8155")),
    v4([192, 0, 2, 0], 24, "Documentation (TEST-NET-1)", "RFC 5737"),
    v4([192, 88, 99, 0], 24, "Deprecated (6to4 Relay Anycast)", "RFC 7526"),
    v4([192, 168, 0, 0], 16, "Private-Use", "RFC 1918"),
    v4([198, 18, 0, 0], 15, "Benchmarking", "RFC 2544"),
    v4([198, 51, 100, 0], 24, "Documentation (TEST-NET-2)", "RFC 5737"),
    v4([203, 0, 113, 0], 24, "Documentation (TEST-NET-3)", "RFC 5737"),
    v4([224, 0, 0, 0], 4, "Multicast", "RFC 5771"),
    v4([233, 252, 0, 0], 24, "Documentation (MCAST-TEST-NET)", "RFC 6676"),
    v4([240, 0, 0, 0], 4, "Reserved", "RFC 1112"),
    v4([192, 0, 0, 170], 31, "NAT64/DNS64 Discovery", "RFC 7050"),
    v4([255, 255, 255, 255], 32, "Limited Broadcast", "RFC 919"),
];

/// The IPv6 registry.
const V6: [Special; 26] = [
    low(0, 128, "Unspecified Address", "RFC 4291"),
    low(1, 128, "Loopback Address", "RFC 4291"),
    low(0, 96, "Deprecated (IPv4-Compatible)", "RFC 4291"),
    v6([0x64, 0xff9b, 1, 0], 48, "IPv4-IPv6 Translation, local use", "RFC 8215"),
    v6([0x100, 0, 0, 0], 64, "Discard-Only Address Block", "RFC 6666"),
    v6([0x100, 0, 0, 1], 64, "Dummy IPv6 Prefix", "RFC 9780"),
    v6([0x2001, 0, 0, 0], 23, "IETF Protocol Assignments", "RFC 2928"),
    // Teredo: as special as the IPv4 addresses in it.
    reachable(v6([0x2001, 0, 0, 0], 32, "TEREDO", "RFC 4380")),
    reachable(one([0x2001, 1], 1, "Port Control Protocol Anycast", "RFC 7723")),
    reachable(one([0x2001, 1], 2, "TURN Anycast", "RFC 8155")),
    reachable(one([0x2001, 1], 3, "DNS-SD SRP Anycast", "RFC 9665")),
    v6([0x2001, 2, 0, 0], 48, "Benchmarking", "RFC 5180"),
    reachable(v6([0x2001, 3, 0, 0], 32, "AMT", "RFC 7450")),
    reachable(v6([0x2001, 4, 0x112, 0], 48, "AS112-v6", "RFC 7535")),
    v6([0x2001, 0x10, 0, 0], 28, "Deprecated (ORCHID)", "RFC 4843"),
    reachable(v6([0x2001, 0x20, 0, 0], 28, "ORCHIDv2", "RFC 7343")),
    reachable(v6([0x2001, 0x30, 0, 0], 28, "Drone Remote ID Entity Tags", "RFC 9374")),
    v6([0x2001, 0xdb8, 0, 0], 32, "Documentation", "RFC 3849"),
    v6([0x3fff, 0, 0, 0], 20, "Documentation", "RFC 9637"),
    v6([0x5f00, 0, 0, 0], 16, "Segment Routing (SRv6) SIDs", "RFC 9602"),
    v6([0xfc00, 0, 0, 0], 7, "Unique-Local", "RFC 4193"),
    v6([0xfe80, 0, 0, 0], 10, "Link-Local Unicast", "RFC 4291"),
    v6([0xfec0, 0, 0, 0], 10, "Deprecated (Site-Local)", "RFC 3879"),
    v6([0xff00, 0, 0, 0], 8, "Multicast", "RFC 4291"),
    // IPv4-mapped addresses, where they do not stand for IPv4, and SIIT's, which are translated (RFC 2765).
    mapped(0, 0xffff, "IPv4-mapped Address", "RFC 4291"),
    mapped(0xffff, 0, "IPv4-translated Address", "RFC 2765"),
];

const fn one(head: [u16; 2], tail: u16, name: &'static str, source: &'static str) -> Special {
    let address = Ipv6Addr::new(head[0], head[1], 0, 0, 0, 0, 0, tail);
    let prefix = IpNet::V6(Ipv6Net::new_assert(address, 128));
    Special { prefix, name, source, global: false }
}

const fn mapped(fifth: u16, sixth: u16, name: &'static str, source: &'static str) -> Special {
    let address = Ipv6Addr::new(0, 0, 0, 0, fifth, sixth, 0, 0);
    Special { prefix: IpNet::V6(Ipv6Net::new_assert(address, 96)), name, source, global: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(address: &str) -> Option<&'static str> {
        special(address.parse().expect(address)).map(|range| range.name)
    }

    #[test]
    fn both_ends_of_each_range_are_special_and_their_neighbours_are_not() {
        for (first, last, before, after) in [
            ("0.0.0.0", "0.255.255.255", None, Some("1.0.0.0")),
            ("10.0.0.0", "10.255.255.255", Some("9.255.255.255"), Some("11.0.0.0")),
            ("100.64.0.0", "100.127.255.255", Some("100.63.255.255"), Some("100.128.0.0")),
            ("127.0.0.0", "127.255.255.255", Some("126.255.255.255"), Some("128.0.0.0")),
            ("169.254.0.0", "169.254.255.255", Some("169.253.255.255"), Some("169.255.0.0")),
            ("172.16.0.0", "172.31.255.255", Some("172.15.255.255"), Some("172.32.0.0")),
            ("192.168.0.0", "192.168.255.255", Some("192.167.255.255"), Some("192.169.0.0")),
            ("198.18.0.0", "198.19.255.255", Some("198.17.255.255"), Some("198.20.0.0")),
            ("224.0.0.0", "255.255.255.255", Some("223.255.255.255"), None),
            ("fc00::", "fdff:ffff::", Some("fbff:ffff::"), Some("fe00::")),
            ("fe80::", "feff:ffff::", Some("fe7f:ffff::"), None),
            ("ff00::", "ffff::", None, None),
            ("2001:db8::", "2001:db8:ffff::", Some("2001:db7::"), Some("2001:db9::")),
            ("3fff::", "3fff:fff::", Some("3ffe::"), Some("3fff:1000::")),
            ("100::", "100:0:0:1:ffff::", Some("ff::"), Some("100:0:0:2::")),
            ("2001:2::", "2001:2:0:ffff::", None, None),
            ("64:ff9b:1::", "64:ff9b:1:ffff::", None, Some("64:ff9b:2::")),
        ] {
            for inside in [first, last] {
                assert!(name(inside).is_some(), "{inside}");
            }
            for outside in [before, after].into_iter().flatten() {
                assert_eq!(name(outside), None, "{outside}");
            }
        }
    }

    #[test]
    fn parts_that_are_reachable_from_everywhere_are_not_special() {
        for address in ["192.0.0.9", "192.0.0.10", "2001:1::1", "2001:3::1", "2001:20::1"] {
            assert_eq!(name(address), None, "{address}");
        }
        for address in ["192.0.0.8", "192.0.0.170", "2001:1::4", "2001:10::1", "2001:100::1"] {
            assert!(name(address).is_some(), "{address}");
        }
        for address in
            ["192.31.196.1", "192.175.48.1", "8.8.8.8", "2606:4700::1", "2620:4f:8000::1"]
        {
            assert_eq!(name(address), None, "{address}");
        }
    }

    #[test]
    fn an_address_within_an_address_counts() {
        for (address, inner) in [
            ("::ffff:10.0.0.1", Some("Private-Use")),
            ("::ffff:169.254.169.254", Some("Link Local")),
            ("::ffff:8.8.8.8", None),
            ("64:ff9b::10.0.0.1", Some("Private-Use")),
            ("64:ff9b::127.0.0.1", Some("Loopback")),
            ("64:ff9b::8.8.8.8", None),
            ("2002:a9fe:a9fe::1", Some("Link Local")),
            ("2002:808:808::1", None),
            // Teredo: the server 8.8.8.8, the client 192.168.0.1 inverted; then a special server.
            ("2001:0:808:808::3f57:fffe", Some("Private-Use")),
            ("2001:0:a00:1::f7f7:f7f7", Some("Private-Use")),
            ("2001:0:808:808::f7f7:f7f7", None),
            ("::10.0.0.1", Some("Deprecated (IPv4-Compatible)")),
            ("::ffff:0:10.0.0.1", Some("IPv4-translated Address")),
        ] {
            assert_eq!(name(address), inner, "{address}");
        }
    }

    #[test]
    fn what_is_allowed_is_allowed_by_its_prefix() {
        let allowed = ["10.0.0.0/8", "fd00::/8", "192.168.1.1/32"].map(|it| it.parse().expect(it));
        for (address, may) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("fd00::1", true),
            ("192.168.1.1", true),
            ("192.168.1.2", false),
            ("172.16.0.1", false),
            // Through a translator this is 10.0.0.0/8 of another network.
            ("64:ff9b::10.0.0.1", false),
            ("8.8.8.8", true),
        ] {
            assert_eq!(is_allowed(address.parse().expect(address), &allowed), may, "{address}");
        }
        let [own, other] = ["192.168.1.1", "10.0.0.1"].map(|it| it.parse().expect(it));
        assert!(is_named(own, &allowed) && !is_named(other, &allowed));
    }
}
