//! What the kernel has between two addresses and ports (`sock_diag(7)`).

use crate::netlink::{Channel, Message, messages};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// `include/uapi/linux/sock_diag.h`
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// The kernel's states of a connection on which either end may still send: from `TCP_ESTABLISHED` on, without
/// `TCP_SYN_SENT`, `TCP_SYN_RECV`, `TCP_TIME_WAIT`, `TCP_CLOSE` and `TCP_LISTEN`.
const CONNECTED: [u8; 6] = [1, 4, 5, 8, 9, 11];
/// Where the cookie of a socket stands in what the kernel says of it: the last 8 of 48 bytes, behind 4.
const COOKIE: std::ops::Range<usize> = 44..52;
/// That of whatever socket there is.
const ANY: [u8; 8] = [0xff; 8];

/// A socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundSocket {
    /// The kernel's number of its state.
    pub state: u8,
    /// What tells it from any that comes after it.
    pub cookie: [u8; 8],
}

/// The socket that has these ends, or a listener there.
///
/// # Errors
/// When the kernel does not tell: it has to know `INET_DIAG`.
pub fn find(own: SocketAddr, other: SocketAddr) -> io::Result<Option<FoundSocket>> {
    let channel = Channel::open(SockProtocol::NetlinkSockDiag)?;
    let question = Message::new(SOCK_DIAG_BY_FAMILY, 0, &request(own, other, ANY));
    channel.send(&question.finish())?;
    let mut buffer = vec![0; 8192];
    let received = channel.receive(&mut buffer, true)?;
    let answer = messages(received).find(|message| message.kind == SOCK_DIAG_BY_FAMILY);
    Ok(answer.and_then(|answer| {
        let cookie = answer.body.get(COOKIE)?.try_into().ok()?;
        Some(FoundSocket { state: *answer.body.get(1)?, cookie })
    }))
}

/// Whether a connection of this host has these ends.
///
/// # Errors
/// As [`find`].
pub fn is_connected(own: SocketAddr, other: SocketAddr) -> io::Result<bool> {
    Ok(find(own, other)?.is_some_and(|found| CONNECTED.contains(&found.state)))
}

/// Sends a socket away that was found.
///
/// # Errors
/// When it has gone, or the kernel refuses: it has to know `INET_DIAG_DESTROY`, and this process takes
/// `CAP_NET_ADMIN`.
pub fn destroy(own: SocketAddr, other: SocketAddr, cookie: [u8; 8]) -> io::Result<()> {
    let channel = Channel::open(SockProtocol::NetlinkSockDiag)?;
    let order = Message::new(SOCK_DESTROY, libc::NLM_F_ACK, &request(own, other, cookie));
    channel.request(&order.finish())
}

/// `struct inet_diag_req_v2`.
fn request(own: SocketAddr, other: SocketAddr, cookie: [u8; 8]) -> Vec<u8> {
    let family = if other.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let byte = |number: i32| u8::try_from(number).unwrap_or(0);
    let mut out = vec![byte(family), byte(libc::IPPROTO_TCP), 0, 0];
    // In whatever state it is.
    out.extend_from_slice(&u32::MAX.to_ne_bytes());
    for end in [own, other] {
        out.extend_from_slice(&end.port().to_be_bytes());
    }
    for end in [own, other] {
        out.extend_from_slice(&octets(end));
    }
    // On whatever interface.
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&cookie);
    out
}

/// An address in the 16 bytes that the kernel has for either family.
fn octets(end: SocketAddr) -> [u8; 16] {
    match end.ip() {
        IpAddr::V4(address) => {
            let mut out = [0; 16];
            out[..4].copy_from_slice(&address.octets());
            out
        }
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_told_from_a_listener_and_from_nothing() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).expect("a listener");
            let server = listener.local_addr().expect("an address");
            let client = TcpStream::connect(server).expect("a connection");
            let (accepted, from) = listener.accept().expect("a client");
            assert!(is_connected(server, from).expect("an answer"));
            assert!(is_connected(from, server).expect("an answer"));
            drop((client, accepted));
            let nobody = SocketAddr::new(from.ip(), 1);
            assert!(!is_connected(server, nobody).expect("an answer"), "only a listener");
            drop(listener);
            assert!(!is_connected(server, nobody).expect("an answer"), "nothing");
        }
    }
}
