//! The kernel's TCP sockets over netlink (`sock_diag(7)`, `include/uapi/linux/inet_diag.h`), as in `ss`.

use crate::netlink::{Channel, Message, Received, attributes, messages};
use crate::tcp_info::TcpInfo;
use crate::tcp_state;
use nix::libc;
use nix::sys::socket::{SockProtocol, setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The states of a connection in which either end may still send: not [`TIME_WAIT`](tcp_state::TIME_WAIT).
const CONNECTED: u32 = {
    use tcp_state::{CLOSE_WAIT, CLOSING, ESTABLISHED, FIN_WAIT_1, FIN_WAIT_2, LAST_ACK};
    1 << ESTABLISHED
        | 1 << FIN_WAIT_1
        | 1 << FIN_WAIT_2
        | 1 << CLOSE_WAIT
        | 1 << LAST_ACK
        | 1 << CLOSING
};

// include/uapi/linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// Groups of `enum sknetlink_groups` as bits: destroyed TCP sockets of IPv4 and of IPv6.
const DESTROYED: u32 = 1 | 1 << 2;
/// Unit: bytes. `struct inet_diag_msg`.
const DESCRIPTION: usize = 72;
const INET_DIAG_INFO: u16 = 2;
/// The cookie that matches any socket.
const ANY: u64 = u64::MAX;
/// Unit: bytes. The kernel writes at most 32 KiB at once.
const BUFFER: usize = 64 << 10;

/// A TCP socket as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiagSocket {
    /// As in `include/net/tcp_states.h`.
    pub state: u8,
    /// The local address.
    pub local: SocketAddr,
    /// The remote address.
    pub remote: SocketAddr,
    /// Its identifier, unique since the system booted.
    pub cookie: u64,
    /// Its measurements; none if they were not requested, or the kernel has none.
    pub info: Option<TcpInfo>,
}

/// The socket with these ends, or a listener there.
///
/// # Errors
/// When the request fails: the kernel must support `INET_DIAG`.
pub fn find(own: SocketAddr, other: SocketAddr) -> io::Result<Option<DiagSocket>> {
    let channel = Channel::open(SockProtocol::NetlinkSockDiag)?;
    let question = Message::new(SOCK_DIAG_BY_FAMILY, 0, &request_for(own, other, ANY));
    channel.send(&question.finish())?;
    let mut buffer = vec![0; 8192];
    let received = channel.receive(&mut buffer, true)?;
    Ok(messages(received).find_map(|message| socket(&message)))
}

/// Whether a connection of this host has these ends.
///
/// # Errors
/// As [`find`].
pub fn is_connected(own: SocketAddr, other: SocketAddr) -> io::Result<bool> {
    let is_connected = |found: DiagSocket| {
        1u32.checked_shl(found.state.into()).is_some_and(|it| CONNECTED & it != 0)
    };
    Ok(find(own, other)?.is_some_and(is_connected))
}

/// Destroys a socket that was found.
///
/// # Errors
/// When it is gone, or the kernel refuses: it must support `INET_DIAG_DESTROY`, and this process needs
/// `CAP_NET_ADMIN`.
pub fn destroy(own: SocketAddr, other: SocketAddr, cookie: u64) -> io::Result<()> {
    let channel = Channel::open(SockProtocol::NetlinkSockDiag)?;
    let order = Message::new(SOCK_DESTROY, libc::NLM_F_ACK, &request_for(own, other, cookie));
    channel.request(&order.finish())
}

/// Lists all sockets that have a peer.
#[derive(Debug)]
pub struct Diag {
    channel: Channel,
    buffer: Vec<u8>,
    number: u32,
}

impl Diag {
    /// Opens it in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel opens no channel.
    pub fn open() -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkSockDiag)?;
        // The kernel writes the response while it is read. The timeout keeps the caller from waiting for ever.
        setsockopt(&channel, ReceiveTimeout, &TimeVal::seconds(1))?;
        Ok(Self { channel, buffer: vec![0; BUFFER], number: 0 })
    }

    /// Passes every TCP socket that has a peer to `take`, with its measurements.
    ///
    /// # Errors
    /// When the kernel refuses, or does not respond.
    pub fn dump(&mut self, mut take: impl FnMut(DiagSocket)) -> io::Result<()> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.number = self.number.wrapping_add(1);
            let request = request(family, 1 << (INET_DIAG_INFO - 1), CONNECTED, &[0; 48]);
            let question =
                Message::new(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, &request).numbered(self.number);
            self.channel.dump(question, &mut self.buffer, |message| {
                socket(&message).into_iter().for_each(&mut take);
            })?;
        }
        Ok(())
    }
}

/// Receives a notice when a socket ends, with its last measurements.
#[derive(Debug)]
pub struct Notices {
    channel: Channel,
    buffer: Vec<u8>,
}

impl Notices {
    /// Opens it in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel sends no notices.
    pub fn open() -> io::Result<Self> {
        let channel = Channel::subscribe(SockProtocol::NetlinkSockDiag, DESTROYED)?;
        Ok(Self { channel, buffer: vec![0; BUFFER] })
    }

    /// Passes the sockets that have ended since the last call to `take`. `false`: the kernel dropped notices,
    /// because too many sockets ended at once.
    pub fn drain(&mut self, mut take: impl FnMut(DiagSocket)) -> bool {
        let mut all = true;
        loop {
            match self.channel.receive(&mut self.buffer, false) {
                Ok(received) => {
                    messages(received).filter_map(|message| socket(&message)).for_each(&mut take);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOBUFS) => all = false,
                    Some(libc::EINTR) => {}
                    _ => break all,
                },
            }
        }
    }
}

/// A request for the socket with these ends, in any state and on any interface.
fn request_for(own: SocketAddr, other: SocketAddr, cookie: u64) -> [u8; 56] {
    let family = if other.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // `struct inet_diag_sockid`
    let mut id = [0; 48];
    for (end, port, address) in [(own, 0, 4), (other, 2, 20)] {
        id[port..port + 2].copy_from_slice(&end.port().to_be_bytes());
        match end.ip() {
            IpAddr::V4(it) => id[address..address + 4].copy_from_slice(&it.octets()),
            IpAddr::V6(it) => id[address..address + 16].copy_from_slice(&it.octets()),
        }
    }
    let [low, high] = [cookie as u32, (cookie >> 32) as u32];
    id[40..44].copy_from_slice(&low.to_ne_bytes());
    id[44..].copy_from_slice(&high.to_ne_bytes());
    request(family, 0, u32::MAX, &id)
}

/// `struct inet_diag_req_v2`
fn request(family: i32, extensions: u8, states: u32, id: &[u8; 48]) -> [u8; 56] {
    let mut bytes = [0; 56];
    bytes[0] = family as u8;
    bytes[1] = libc::IPPROTO_TCP as u8;
    bytes[2] = extensions;
    bytes[4..8].copy_from_slice(&states.to_ne_bytes());
    bytes[8..].copy_from_slice(id);
    bytes
}

/// The socket that a message describes.
fn socket(message: &Received<'_>) -> Option<DiagSocket> {
    if message.kind == SOCK_DIAG_BY_FAMILY { description(message.body) } else { None }
}

/// Reads `struct inet_diag_msg` and the `struct tcp_info` behind it.
fn description(bytes: &[u8]) -> Option<DiagSocket> {
    let port = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes);
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let family = i32::from(*bytes.first()?);
    let address = |at: usize| -> Option<IpAddr> {
        match family {
            libc::AF_INET => {
                let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
                Some(Ipv4Addr::from(octets).into())
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
                // An IPv4 connection on an IPv6 socket counts as IPv4.
                Some(Ipv6Addr::from(octets).to_canonical())
            }
            _ => None,
        }
    };
    let info = attributes(bytes.get(DESCRIPTION..)?).find(|(kind, _)| *kind == INET_DIAG_INFO);
    Some(DiagSocket {
        state: *bytes.get(1)?,
        local: SocketAddr::new(address(8)?, port(4)?),
        remote: SocketAddr::new(address(24)?, port(6)?),
        cookie: u64::from(word(44)?) | u64::from(word(48)?) << 32,
        info: info.and_then(|(_, info)| TcpInfo::parse(info)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};

    /// Responses of Linux 6.18 (little-endian) with both ends of one connection. 20,000 bytes were sent from port
    /// 5201 to port 40001, and one byte back.
    const CAPTURED: [&[u8]; 2] =
        [include_bytes!("sock_diag/ipv4.bin"), include_bytes!("sock_diag/ipv6.bin")];

    fn sockets(datagram: &[u8]) -> Vec<DiagSocket> {
        messages(datagram).filter_map(|message| socket(&message)).collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn captured_answers_are_read() {
        for (datagram, address) in CAPTURED.iter().zip(["127.0.0.1", "::1"]) {
            let address: IpAddr = address.parse().expect("an address");
            let seen = sockets(datagram);
            assert_eq!(seen.len(), 2, "{seen:?}");
            assert!(messages(datagram).all(|message| message.number == 7));
            let [server, client] = [seen[0], seen[1]];
            let [sent, received] = [server, client].map(|it| it.info.expect("TCP_INFO"));
            assert_eq!(server.state, tcp_state::ESTABLISHED);
            assert_eq!(server.local, SocketAddr::new(address, 5201));
            assert_eq!(server.remote, SocketAddr::new(address, 40001));
            assert_eq!(sent.acknowledged_bytes, 20_000);
            assert_eq!((sent.in_flight_bytes(), sent.retransmissions), (0, 0));
            assert!(sent.cwnd_bytes() > 20_000 && sent.rtt_us > 0, "{server:?}");
            assert_eq!((client.local, client.remote), (server.remote, server.local));
            assert_eq!(received.acknowledged_bytes, 2, "SYN and one byte");
            assert_ne!(client.cookie, server.cookie);
        }
    }

    #[test]
    fn an_answer_cut_anywhere_gives_only_whole_sockets() {
        for datagram in CAPTURED {
            let whole = sockets(datagram);
            for length in 0..datagram.len() {
                let cut = sockets(&datagram[..length]);
                assert!(whole.starts_with(&cut), "{length}");
                assert_eq!(cut.len(), length / (datagram.len() / 2), "{length}");
            }
        }
    }

    proptest! {
        #[test]
        fn garbage_is_no_reason_to_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = (sockets(&bytes), description(&bytes));
        }

        #[test]
        fn a_spoiled_answer_is_no_reason_to_panic(at in 0usize..816, byte in any::<u8>()) {
            for datagram in CAPTURED {
                let mut spoiled = datagram.to_vec();
                spoiled[at] = byte;
                prop_assert!(sockets(&spoiled).len() <= 2);
            }
        }
    }

    #[test]
    fn a_live_connection_is_dumped_and_its_end_is_announced() {
        let mut notices = Notices::open().expect("sock_diag");
        let mut diag = Diag::open().expect("sock_diag");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).expect("loopback");
            let server = listener.local_addr().expect("bound");
            let client = TcpStream::connect(server).expect("connected");
            let local = client.local_addr().expect("bound");
            let mut found = Vec::new();
            diag.dump(|seen| found.extend(Some(seen).filter(|seen| seen.local == local)))
                .expect("a dump");
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((found[0].state, found[0].remote), (tcp_state::ESTABLISHED, server));
            assert!(found[0].info.is_some());
            let asked = find(local, server).expect("an answer").expect("a socket");
            assert_eq!((asked.cookie, asked.remote), (found[0].cookie, server));
            drop(listener);
            drop(client);
            // The kernel frees a socket shortly after its last packet.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            let mut ended = false;
            while !ended {
                assert!(std::time::Instant::now() < deadline, "no notice of {local}");
                notices.drain(|seen| ended |= seen.cookie == found[0].cookie);
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_connection_differs_from_a_listener_and_from_nothing() {
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
