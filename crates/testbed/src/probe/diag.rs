//! The kernel's list of TCP sockets over netlink (sock_diag(7), `include/uapi/linux/inet_diag.h`).
//!
//! Invariant: what the kernel sends is parsed as if a stranger had sent it; a message that is cut
//! short or of another shape is skipped.

use crate::meter::tcp_sample::TcpSample;
use midhop_linux::tcp_info::TcpInfo;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH`.
const DUMP: u16 = 0x301;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Bytes of `struct inet_diag_msg`.
const DESCRIPTION: usize = 72;
const INET_DIAG_INFO: u16 = 2;
/// Groups of `enum sknetlink_groups` as bits: TCP sockets destroyed, of IPv4 and of IPv6.
const DESTROYED: u32 = 1 | 1 << 2;
/// The kernel fills at most 32 KiB at once.
const BUFFER: usize = 64 * 1024;

/// `TCP_ESTABLISHED`, where both ends may send.
pub(super) const ESTABLISHED: u8 = 1;
/// `TCP_FIN_WAIT2`, where all that was sent is acknowledged.
pub(super) const FIN_WAIT2: u8 = 5;
/// The states in which a socket has, or had, a peer and is not a mere remembrance: `TCP_FIN_WAIT1`,
/// `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING` besides those above.
const STATES: u32 = 1 << ESTABLISHED | 1 << 4 | 1 << FIN_WAIT2 | 1 << 8 | 1 << 9 | 1 << 11;

/// A TCP socket as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// As in `include/net/tcp_states.h`.
    pub(super) state: u8,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Its name; no two sockets of one boot share it.
    pub(super) cookie: u64,
    pub(super) info: TcpSample,
}

/// One netlink message.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Socket(Seen),
    /// The end of a dump.
    Done,
    /// An error number, positive.
    Refused(i32),
    Other,
}

/// Asks for sockets.
#[derive(Debug)]
pub(super) struct Diag {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Diag {
    /// Opens it in the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Self> {
        let fd = netlink(SockFlag::empty())?;
        // Answers are made while they are read; if one never came, the run should not hang on it.
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
        Ok(Self { fd, buffer: vec![0; BUFFER], sequence: 0 })
    }

    /// Shows `take` every TCP socket that has a peer.
    pub(super) fn dump(&mut self, mut take: impl FnMut(Seen)) -> io::Result<()> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.sequence = self.sequence.wrapping_add(1);
            let request = request(family as u8, self.sequence);
            send(self.fd.as_raw_fd(), &request, MsgFlags::empty())?;
            'answer: loop {
                let length = recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
                for (sequence, message) in messages(self.buffer.get(..length).unwrap_or_default()) {
                    match message {
                        // What is left of an answer that was given up.
                        _ if sequence != self.sequence => {}
                        Message::Socket(seen) => take(seen),
                        Message::Done => break 'answer,
                        Message::Refused(number) => {
                            return Err(io::Error::from_raw_os_error(number));
                        }
                        Message::Other => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// Hears of sockets when they end, with their last figures.
#[derive(Debug)]
pub(super) struct Notices {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Notices {
    /// Opens it in the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Self> {
        let fd = netlink(SockFlag::SOCK_NONBLOCK)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, DESTROYED))?;
        Ok(Self { fd, buffer: vec![0; BUFFER] })
    }

    /// Shows `take` the sockets that have ended since the last call. `false`: more ended at once than the kernel
    /// kept notices of.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Seen)) -> bool {
        let mut all = true;
        loop {
            match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(length) => {
                    for (_, message) in messages(self.buffer.get(..length).unwrap_or_default()) {
                        if let Message::Socket(seen) = message {
                            take(seen);
                        }
                    }
                }
                Err(Errno::ENOBUFS) => all = false,
                Err(Errno::EINTR) => {}
                Err(_) => break all,
            }
        }
    }
}

fn netlink(flags: SockFlag) -> nix::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag)
}

/// A request for all sockets of `family`: `struct nlmsghdr`, then `struct inet_diag_req_v2`.
fn request(family: u8, sequence: u32) -> [u8; HEADER + 56] {
    let mut bytes = [0; HEADER + 56];
    bytes[..4].copy_from_slice(&(HEADER as u32 + 56).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    bytes[HEADER] = family;
    bytes[HEADER + 1] = libc::IPPROTO_TCP as u8;
    bytes[HEADER + 2] = 1 << (INET_DIAG_INFO - 1);
    bytes[HEADER + 4..HEADER + 8].copy_from_slice(&STATES.to_ne_bytes());
    bytes
}

/// The messages of a datagram with their sequence numbers, up to the first that is cut short.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (u32, Message)> {
    std::iter::from_fn(move || {
        let length = word(datagram, 0)? as usize;
        let kind = half(datagram, 4)?;
        let sequence = word(datagram, 8)?;
        let payload = datagram.get(HEADER..length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        let message = match kind {
            NLMSG_DONE => Message::Done,
            NLMSG_ERROR => Message::Refused(
                word(payload, 0).map_or(0, |code| code.cast_signed()).wrapping_neg(),
            ),
            SOCK_DIAG_BY_FAMILY => description(payload).map_or(Message::Other, Message::Socket),
            _ => Message::Other,
        };
        Some((sequence, message))
    })
}

/// Reads `struct inet_diag_msg` and the `struct tcp_info` behind it.
fn description(bytes: &[u8]) -> Option<Seen> {
    let port = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes);
    let family = i32::from(*bytes.first()?);
    let address = |at: usize| -> Option<IpAddr> {
        match family {
            libc::AF_INET => {
                let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
                Some(Ipv4Addr::from(octets).into())
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
                // An IPv4 connection of an IPv6 socket is one of IPv4.
                Some(Ipv6Addr::from(octets).to_canonical())
            }
            _ => None,
        }
    };
    let info = attribute(bytes.get(DESCRIPTION..)?, INET_DIAG_INFO)?;
    Some(Seen {
        state: *bytes.get(1)?,
        local: SocketAddr::new(address(8)?, port(4)?),
        remote: SocketAddr::new(address(24)?, port(6)?),
        cookie: u64::from(word(bytes, 44)?) | u64::from(word(bytes, 48)?) << 32,
        info: TcpInfo::parse(info)?.into(),
    })
}

/// The value of the attribute `kind` among `attributes` (`struct nlattr`).
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(half(attributes, 0)?);
        let value = attributes.get(4..length)?;
        if half(attributes, 2)? == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};

    /// Answers of Linux 6.18 (little-endian) with both ends of one connection: 20,000 bytes were
    /// sent from port 5201 to port 40001, and one back.
    const CAPTURED: [&[u8]; 2] =
        [include_bytes!("captured/ipv4.bin"), include_bytes!("captured/ipv6.bin")];

    fn sockets(datagram: &[u8]) -> Vec<Seen> {
        let seen = messages(datagram).filter_map(|(_, message)| match message {
            Message::Socket(seen) => Some(seen),
            _ => None,
        });
        seen.collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn captured_answers_are_read() {
        for (datagram, address) in CAPTURED.iter().zip(["127.0.0.1", "::1"]) {
            let address: IpAddr = address.parse().expect("an address");
            let seen = sockets(datagram);
            assert_eq!(seen.len(), 2, "{seen:?}");
            assert!(messages(datagram).all(|(sequence, _)| sequence == 7));
            let server = seen[0];
            assert_eq!(server.state, ESTABLISHED);
            assert_eq!(server.local, SocketAddr::new(address, 5201));
            assert_eq!(server.remote, SocketAddr::new(address, 40001));
            assert_eq!(server.info.acknowledged_bytes, 20_000);
            assert_eq!((server.info.in_flight_bytes, server.info.retransmissions), (0, 0));
            assert!(server.info.cwnd_bytes > 20_000 && server.info.rtt_us > 0, "{server:?}");
            let client = seen[1];
            assert_eq!((client.local, client.remote), (server.remote, server.local));
            assert_eq!(client.info.acknowledged_bytes, 2, "SYN and one byte");
            assert_ne!(client.cookie, server.cookie);
        }
    }

    #[test]
    fn ends_and_refusals_are_read() {
        let message = |kind: u16, payload: &[u8]| {
            let mut bytes = vec![0; HEADER];
            bytes[..4].copy_from_slice(&((HEADER + payload.len()) as u32).to_ne_bytes());
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(payload);
            bytes
        };
        let both = [message(NLMSG_ERROR, &(-2i32).to_ne_bytes()), message(NLMSG_DONE, &[0; 4])];
        let read: Vec<Message> = messages(&both.concat()).map(|(_, message)| message).collect();
        assert_eq!(read, [Message::Refused(2), Message::Done]);
        let least = message(NLMSG_ERROR, &i32::MIN.to_ne_bytes());
        assert_eq!(messages(&least).count(), 1);
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
            // Each message takes at least its header: the iterator ends.
            prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER + 1);
            let _ = description(&bytes);
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
    fn a_live_connection_is_dumped_and_its_end_is_heard_of() {
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
            assert_eq!((found[0].state, found[0].remote), (ESTABLISHED, server));
            drop(listener);
            drop(client);
            // The kernel frees a socket when its last packet is through, a moment later.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            let mut ended = false;
            while !ended {
                assert!(std::time::Instant::now() < deadline, "no notice of {local}");
                notices.drain(|seen| ended |= seen.cookie == found[0].cookie);
                std::thread::yield_now();
            }
        }
    }
}
