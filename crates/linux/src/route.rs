//! Routes: rtnetlink by its library, and the one question that is asked for each flow.

use crate::netlink::{Channel, Message, attributes, messages};
use nix::libc;
use rtnetlink::{Error, Handle};
use std::io;
use std::net::IpAddr;

/// Changes to routing rules of IPv4 and IPv6, as bits of multicast groups of [`nix::sys::socket::SockProtocol::NetlinkRoute`].
pub const RULE_CHANGES: u32 = 1 << (8 - 1) | 1 << (19 - 1);

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
/// Unit: bytes. `struct rtmsg`, where a route's type is in it, and the types of addresses that are this host's.
const HEADER: usize = 12;
const TYPE: usize = 7;
const RTN_LOCAL: u8 = 2;
const RTN_ANYCAST: u8 = 4;

/// Has `talk` send requests over rtnetlink, on the calling thread's runtime and in its network namespace.
///
/// # Errors
/// The kernel's refusal, or that it gives no channel.
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

/// The same on a runtime of its own.
///
/// # Errors
/// As [`exchange`], or that there can be no runtime.
pub fn on_own_runtime(talk: impl AsyncFnOnce(Handle) -> Result<(), Error>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(exchange(talk))
}

/// Takes a refusal with one of the system's `codes` for success: the thing is as wanted already.
///
/// # Errors
/// Every other one.
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

/// What the kernel does with packets to an address; nothing where there is no route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Route {
    /// Whether they are delivered to this host.
    pub is_own: bool,
    /// Index of the interface by which they leave.
    pub interface: Option<u32>,
    /// The router that they leave to.
    pub gateway: Option<IpAddr>,
}

/// Asks for the route to an address, over a channel of [`nix::sys::socket::SockProtocol::NetlinkRoute`].
///
/// # Errors
/// When the kernel cannot be asked.
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
    // A router of the other address family stands behind two bytes that name its family.
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
