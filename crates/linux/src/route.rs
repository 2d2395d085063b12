//! The route to an address: the one request that is made for each flow.

use crate::netlink::{Channel, Message, attributes, messages};
use crate::route_table::{Family, address as read, octets};
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Changes of routing rules of IPv4 and IPv6, as bits of multicast groups of
/// [`nix::sys::socket::SockProtocol::NetlinkRoute`].
pub const RULE_CHANGES: u32 = 1 << (8 - 1) | 1 << (19 - 1);

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
/// Unit: bytes. `struct rtmsg`; it holds the type of a route, by which addresses of this host are recognized.
const HEADER: usize = 12;
const TYPE: usize = 7;
const RTN_LOCAL: u8 = 2;
const RTN_ANYCAST: u8 = 4;
/// The time between two checks for a route that is awaited.
const LOOK: Duration = Duration::from_micros(200);

/// What the kernel does with packets to an address; empty if there is no route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Route {
    /// Whether they are delivered to this host.
    pub is_own: bool,
    /// The index of the interface through which they leave.
    pub interface: Option<u32>,
    /// The router to which they are sent.
    pub gateway: Option<IpAddr>,
}

/// Requests the route to an address, over a channel of [`nix::sys::socket::SockProtocol::NetlinkRoute`].
///
/// # Errors
/// When the request fails.
pub fn lookup(channel: &Channel, address: IpAddr) -> io::Result<Route> {
    let destination = octets(address);
    let mut header = [0; HEADER];
    header[0] = Family::of(address).number();
    header[1] = u8::try_from(destination.len() * 8).unwrap_or(0);
    let question = Message::new(RTM_GETROUTE, 0, &header).with(RTA_DST, &destination);
    channel.send(&question.finish())?;
    let mut buffer = vec![0; 8192];
    let received = channel.receive(&mut buffer, true)?;
    let answer = messages(received).find(|message| message.kind == RTM_NEWROUTE);
    Ok(answer.map(|answer| route(answer.body)).unwrap_or_default())
}

/// Waits until packets to an address are delivered to this host. The kernel adds the route of a new IPv6 address in the
/// background, even if it does not check for duplicates. Until then the address can be bound, and cannot be reached.
///
/// Returns whether they are. They are not if the address belongs to another host, or its device is down.
///
/// # Errors
/// When the route cannot be requested.
pub fn wait_until_own(address: IpAddr, patience: Duration) -> io::Result<bool> {
    let channel = Channel::open(SockProtocol::NetlinkRoute)?;
    let begin = Instant::now();
    loop {
        if lookup(&channel, address)?.is_own {
            return Ok(true);
        }
        if begin.elapsed() > patience {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
}

fn route(body: &[u8]) -> Route {
    let parts = body.get(HEADER..).unwrap_or_default();
    let part = |wanted| attributes(parts).find(|(kind, _)| *kind == wanted).map(|it| it.1);
    // For a router of the other address family, the attribute begins with two bytes for the family.
    let via = part(RTA_VIA).and_then(|via| via.get(2..));
    Route {
        is_own: matches!(body.get(TYPE), Some(&(RTN_LOCAL | RTN_ANYCAST))),
        interface: part(RTA_OIF).and_then(|it| Some(u32::from_ne_bytes(it.try_into().ok()?))),
        gateway: part(RTA_GATEWAY).or(via).and_then(read),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::net::if_::if_nametoindex;
    use nix::sys::socket::SockProtocol;
    use proptest::prelude::*;

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let channel = Channel::open(SockProtocol::NetlinkRoute).expect("a channel");
        for address in ["127.0.0.1", "127.9.9.9", "::1"] {
            let found = lookup(&channel, address.parse().expect(address)).expect("an answer");
            assert!(found.is_own, "{address}");
            assert_eq!(found.interface, if_nametoindex("lo").ok(), "{address}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = route(&bytes);
        }
    }
}
