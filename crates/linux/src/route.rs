//! Routes: rtnetlink by its library, and the one request that is made for each flow.

use crate::netlink::{Channel, Message, attributes, messages};
use nix::libc;
use rtnetlink::{Error, Handle};
use std::io;
use std::net::IpAddr;

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

/// Lets `talk` send requests over rtnetlink, on the calling thread's runtime and in its network namespace.
///
/// # Errors
/// When the kernel refuses a request, or opens no channel.
pub async fn exchange(talk: impl AsyncFnOnce(Handle) -> Result<(), Error>) -> io::Result<()> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let answer = talk(handle).await;
    connection.abort();
    answer.map_err(|error| match error {
        Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    })
}

/// The same on a new runtime.
///
/// # Errors
/// As [`exchange`], or when no runtime can be created.
pub fn on_own_runtime(talk: impl AsyncFnOnce(Handle) -> Result<(), Error>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(exchange(talk))
}

/// Treats a refusal with one of the system's `codes` as success: the state is already as wanted.
///
/// # Errors
/// All other refusals.
pub fn allow(codes: &[i32], result: Result<(), Error>) -> Result<(), Error> {
    match &result {
        Err(Error::NetlinkError(message))
            if message.code.is_some_and(|code| codes.contains(&-code.get())) =>
        {
            Ok(())
        }
        _ => result,
    }
}

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
    let (family, octets) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let bits = u8::try_from(octets.len() * 8).unwrap_or(0);
    let mut header = [0; HEADER];
    header[0] = u8::try_from(family).unwrap_or(0);
    header[1] = bits;
    let question = Message::new(RTM_GETROUTE, 0, &header).with(RTA_DST, &octets);
    channel.send(&question.finish())?;
    let mut buffer = vec![0; 8192];
    let received = channel.receive(&mut buffer, true)?;
    let answer = messages(received).find(|message| message.kind == RTM_NEWROUTE);
    Ok(answer.map(|answer| route(answer.body)).unwrap_or_default())
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

fn read(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
        _ => None,
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
