//! Entries of routing tables (`ip-route(8)`): lists, adds and removes them.

use crate::netlink::{Channel, Message, attributes};
use nix::libc;
use std::io;
use std::net::IpAddr;

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_ADVMSS: u16 = 8;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_HOST: u8 = 254;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
/// Unit: bytes. `struct rtmsg`.
const HEADER: usize = 12;

/// A family of addresses. Each has routes and rules of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Its number for the kernel (`AF_…`).
    pub fn number(self) -> u8 {
        let number = match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        };
        u8::try_from(number).unwrap_or(0)
    }
}

/// The bytes of an address, as the kernel's messages have them.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// An address of a message; none if the length is neither family's.
pub(crate) fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
        _ => None,
    }
}

/// An entry of a routing table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteEntry {
    family: Family,
    /// The length of the destination's prefix.
    bits: u8,
    /// The table's number, if below 256; larger numbers are in an attribute.
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    attributes: Vec<(u16, Vec<u8>)>,
}

impl RouteEntry {
    /// An entry of the main table to a prefix through a router; prefix length 0 is the default route. None if the two
    /// are not of one address family.
    pub fn over(destination: IpAddr, bits: u8, router: IpAddr) -> Option<Self> {
        let family = Family::of(destination);
        let to = (RTA_DST, octets(destination));
        let over = (RTA_GATEWAY, octets(router));
        let kind = RTN_UNICAST;
        (family == Family::of(router)).then(|| Self {
            bits,
            attributes: vec![to, over],
            ..Self::any(family, RT_TABLE_MAIN, kind)
        })
    }

    /// An entry that delivers every packet to this host, whatever its destination is.
    pub fn to_this_host(family: Family, table: u32, loopback: u32) -> Self {
        let (small, more) = match u8::try_from(table) {
            Ok(small) => (small, None),
            Err(_) => (0, Some((RTA_TABLE, table.to_ne_bytes().to_vec()))),
        };
        let device = (RTA_OIF, loopback.to_ne_bytes().to_vec());
        let route = Self::any(family, small, RTN_LOCAL);
        let scope = if family == Family::V4 { RT_SCOPE_HOST } else { route.scope };
        Self { scope, attributes: std::iter::once(device).chain(more).collect(), ..route }
    }

    /// The same entry in another table, whose number is below 256.
    #[must_use]
    pub fn in_table(mut self, table: u8) -> Self {
        self.table = table;
        self
    }

    fn any(family: Family, table: u8, kind: u8) -> Self {
        let (bits, scope, attributes) = (0, 0, Vec::new());
        Self { family, bits, table, protocol: RTPROT_STATIC, scope, kind, attributes }
    }

    /// All entries of a family.
    ///
    /// # Errors
    /// When the kernel refuses, or does not respond.
    pub fn all(channel: &Channel, family: Family) -> io::Result<Vec<Self>> {
        let mut header = [0; HEADER];
        header[0] = family.number();
        let question = Message::new(RTM_GETROUTE, libc::NLM_F_DUMP, &header);
        let mut routes = Vec::new();
        channel.dump(question, &mut vec![0; 1 << 15], |message| {
            let route = (message.kind == RTM_NEWROUTE).then(|| Self::read(family, message.body));
            routes.extend(route.flatten());
        })?;
        Ok(routes)
    }

    /// Adds it.
    ///
    /// # Errors
    /// When the kernel refuses, for example because there is such a route.
    pub fn add(&self, channel: &Channel) -> io::Result<()> {
        self.create(channel, libc::NLM_F_EXCL)
    }

    /// Adds it, and replaces an entry to the same destination.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn replace(&self, channel: &Channel) -> io::Result<()> {
        self.create(channel, libc::NLM_F_REPLACE)
    }

    fn create(&self, channel: &Channel, flag: i32) -> io::Result<()> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | flag;
        channel.request(&self.message(RTM_NEWROUTE, flags).finish())
    }

    /// Removes it.
    ///
    /// # Errors
    /// When the kernel refuses, for example because there is no such route.
    pub fn remove(&self, channel: &Channel) -> io::Result<()> {
        channel.request(&self.message(RTM_DELROUTE, libc::NLM_F_ACK).finish())
    }

    /// Whether packets to other hosts take it. The kernel's own routes do not count: those to this host's addresses, to
    /// IPv6 neighbours on the link, and to groups.
    pub fn leads_to_others(&self) -> bool {
        let own = match self.destination() {
            Some(IpAddr::V6(to)) => to.is_unicast_link_local() || to.is_multicast(),
            _ => false,
        };
        self.table == RT_TABLE_MAIN && self.kind == RTN_UNICAST && !own
    }

    /// Its destination; none for a default route.
    pub fn destination(&self) -> Option<IpAddr> {
        let found = self.attributes.iter().find(|(kind, _)| *kind == RTA_DST);
        found.and_then(|(_, value)| address(value))
    }

    /// The same entry with an MSS, in bytes, that connections over it advertise. Of the kernel's attributes only those
    /// that identify the route are kept.
    #[must_use]
    pub fn with_segment(mut self, bytes: u32) -> Self {
        let names = [RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC];
        self.attributes.retain(|(kind, _)| names.contains(kind));
        // One attribute within another, without netlink's own header.
        let length = 4 + 4_u16;
        let metric = [length.to_ne_bytes(), RTAX_ADVMSS.to_ne_bytes()].concat();
        self.attributes.push((RTA_METRICS, [metric, bytes.to_ne_bytes().to_vec()].concat()));
        self
    }

    fn message(&self, kind: u16, flags: i32) -> Message {
        let mut header = [0; HEADER];
        header[0] = self.family.number();
        header[1] = self.bits;
        header[4..8].copy_from_slice(&[self.table, self.protocol, self.scope, self.kind]);
        let message = Message::new(kind, flags, &header);
        self.attributes.iter().fold(message, |message, (kind, value)| message.with(*kind, value))
    }

    fn read(family: Family, body: &[u8]) -> Option<Self> {
        let (header, parts) = body.split_first_chunk::<HEADER>()?;
        let &[_, bits, _, _, table, protocol, scope, kind, ..] = header;
        let attributes = attributes(parts).map(|(kind, value)| (kind, value.to_vec())).collect();
        Some(Self { family, bits, table, protocol, scope, kind, attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{LOOPBACK_INDEX, set_up};
    use crate::netns::NetNamespace;
    use proptest::prelude::*;

    #[test]
    fn a_table_that_delivers_everything_here_is_filled_and_emptied() {
        let place = match NetNamespace::new() {
            Ok(place) => place,
            Err(error) => {
                return midhop_testkit::skipped(format!("this takes CAP_SYS_ADMIN: {error}"));
            }
        };
        for (family, table) in [(Family::V4, 70), (Family::V6, 70_000)] {
            let route = RouteEntry::to_this_host(family, table, LOOPBACK_INDEX);
            let of_table = |routes: Vec<RouteEntry>| {
                let number = (RTA_TABLE, table.to_ne_bytes().to_vec());
                routes.into_iter().filter(|it| it.attributes.contains(&number)).collect::<Vec<_>>()
            };
            let found = place.run(|| {
                let channel = Channel::routing()?;
                set_up(&channel, LOOPBACK_INDEX)?;
                route.replace(&channel)?;
                route.replace(&channel)?;
                let again = route.add(&channel).map_err(|error| error.raw_os_error());
                let between = of_table(RouteEntry::all(&channel, family)?);
                route.remove(&channel)?;
                let gone = route.remove(&channel).map_err(|error| error.raw_os_error());
                Ok::<_, io::Error>((
                    again,
                    between,
                    of_table(RouteEntry::all(&channel, family)?),
                    gone,
                ))
            });
            let (again, between, after, gone) = found.expect("entered").expect("the kernel agrees");
            assert_eq!(again, Err(Some(libc::EEXIST)), "{family:?}");
            assert_eq!(gone, Err(Some(libc::ESRCH)), "{family:?}");
            assert_eq!((between.len(), after.len()), (1, 0), "{family:?}: {between:?}");
            assert_eq!((between[0].kind, between[0].bits), (RTN_LOCAL, 0), "{family:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(route) = RouteEntry::read(Family::V6, &bytes) {
                let _ = route.leads_to_others();
                let _ = route.with_segment(1).message(RTM_NEWROUTE, 0).finish();
            }
        }
    }
}
