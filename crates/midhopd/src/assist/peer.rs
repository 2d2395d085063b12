//! Reports to and from the daemon at the far end of a lossy link, as UDP datagrams.
//!
//! A datagram is a report as [`message`] encodes it, a number, and an HMAC-SHA256 (RFC 2104) of
//! both under the secret of the two ends. The HMAC also covers the addresses and ports of sender
//! and receiver, so an end never accepts its own datagrams as the peer's.
//!
//! The number is the clock's, and at least one more than the last. A number that does not rise is
//! refused, which prevents replay. One case remains: a daemon that was restarted accepts datagrams
//! that it has not received before. After a clock was set back, reports are refused until it has
//! caught up.

use midhop_assist::wire::Route;
use midhop_assist::{Report, message};
use midhop_linux::sockopt;
use midhop_pep::config::AssistPeer;
use midhop_pki::key_file;
use midhop_pki::key_file::KeyFileError;
use nix::libc;
use ring::hmac;
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::SystemTime;

/// Unit: bytes. Length of the authentication code.
const CODE: usize = 32;
/// Unit: bytes. A shorter secret can be guessed.
const SECRET_MIN: usize = 16;
/// Unit: bytes. Length of a report's number.
const NUMBER: usize = 8;
/// Unit: bytes. The longest report, over IPv6, its number and its code.
const DATAGRAM_MAX: usize = 48 + NUMBER + CODE;
/// The most datagrams that are read in one turn, because packets wait meanwhile.
const TURN: usize = 64;

/// Why reports cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssistPeerError {
    /// The secret cannot be read.
    #[error("assist.peer.key: {file}: {reason}", file = .file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: KeyFileError,
    },
    /// The secret is too short.
    #[error("assist.peer.key: {file} has less than {SECRET_MIN} bytes", file = .file.display())]
    Short {
        /// The file.
        file: PathBuf,
    },
    /// A socket was refused.
    #[error("assist.peer.listen: cannot listen on {address} (UDP): {reason}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        reason: io::Error,
    },
}

impl AssistPeerError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Key { reason: KeyFileError::Exposed { .. }, .. } => key_file::HINT_EXPOSED,
            Self::Key { .. } | Self::Short { .. } => {
                "`openssl rand 32 > FILE`, mode 600, and the same file at both ends"
            }
            Self::Listen { .. } => "`ip address` shows the addresses that this host has",
        }
    }
}

/// The secret of both ends.
///
/// # Errors
/// When the file cannot be read, others can read it, or it is too short.
pub fn secret(peer: &AssistPeer) -> Result<Secret, AssistPeerError> {
    let file = || peer.key.clone();
    let bytes = key_file::read(&peer.key)
        .map_err(|reason| AssistPeerError::Key { file: file(), reason })?;
    if bytes.len() < SECRET_MIN {
        return Err(AssistPeerError::Short { file: file() });
    }
    // The scope identifier of a link-local address differs between hosts.
    let name = |of: SocketAddr| format!("{} {} ", of.ip(), of.port());
    let between = |from: SocketAddr, to: SocketAddr| (name(from) + &name(to)).into_bytes();
    Ok(Secret {
        key: hmac::Key::new(hmac::HMAC_SHA256, &bytes),
        ours: between(peer.listen, peer.address),
        theirs: between(peer.address, peer.listen),
    })
}

/// Authenticates datagrams of the two daemons.
#[derive(Debug)]
pub struct Secret {
    key: hmac::Key,
    /// Prefixes for the HMAC: of a datagram from here, and of one from the peer.
    ours: Vec<u8>,
    theirs: Vec<u8>,
}

impl Secret {
    fn sealed(&self, mut report: Vec<u8>, number: u64) -> Vec<u8> {
        report.extend(number.to_be_bytes());
        let code = hmac::sign(&self.key, &[&self.ours[..], &report].concat());
        report.extend(code.as_ref());
        report
    }

    /// The number and the report of an authentic datagram of the peer.
    fn opened(&self, datagram: &[u8]) -> Option<(u64, (Route, Report))> {
        let (content, code) = datagram.split_last_chunk::<CODE>()?;
        let sealed = [&self.theirs[..], content].concat();
        hmac::verify(&self.key, &sealed, code).ok()?;
        let (report, number) = content.split_last_chunk::<NUMBER>()?;
        Some((u64::from_be_bytes(*number), message::decode(report)?))
    }
}

/// A socket for reports to and from the peer.
#[derive(Debug)]
pub struct Peer {
    socket: UdpSocket,
    address: SocketAddr,
    secret: Secret,
}

impl Peer {
    /// Reads the secret and opens the socket. The own address and the route to the peer may appear
    /// later, with a modem for example.
    ///
    /// # Errors
    /// When either is refused.
    pub fn open(plan: &AssistPeer) -> Result<Self, AssistPeerError> {
        let secret = secret(plan)?;
        let open = || -> io::Result<UdpSocket> {
            let socket = Socket::new(Domain::for_address(plan.listen), Type::DGRAM, None)?;
            let (level, name) = match plan.listen {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_FREEBIND),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
            };
            sockopt::set_int(&socket, level, name, 1)?;
            socket.set_nonblocking(true)?;
            socket.bind(&plan.listen.into())?;
            Ok(socket.into())
        };
        let refused = |reason| AssistPeerError::Listen { address: plan.listen, reason };
        Ok(Self { socket: open().map_err(refused)?, address: plan.address, secret })
    }

    /// Lets the runtime of the calling thread watch it.
    ///
    /// # Errors
    /// When it cannot.
    pub fn watch(self) -> io::Result<WatchedPeer> {
        let Self { socket, address, secret } = self;
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        let counts = PeerCounts::default();
        Ok(WatchedPeer { socket, address, secret, sent: 0, received: 0, counts })
    }
}

/// The numbers of reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct PeerCounts {
    sent: u64,
    unsent: u64,
    received: u64,
    refused: u64,
}

/// The same, in a runtime.
#[derive(Debug)]
pub struct WatchedPeer {
    socket: tokio::net::UdpSocket,
    address: SocketAddr,
    secret: Secret,
    /// The numbers of the latest reports to and from the peer.
    sent: u64,
    received: u64,
    counts: PeerCounts,
}

impl WatchedPeer {
    /// Sends a report, if there is room for it: a lost report is sent again, or not needed.
    pub fn send(&mut self, way: Route, report: Report) {
        let Some(report) = message::encode(way, report) else { return };
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let clock = u64::try_from(clock.as_micros()).unwrap_or(0);
        self.sent = clock.max(self.sent + 1);
        match self.socket.try_send_to(&self.secret.sealed(report, self.sent), self.address) {
            Ok(_) => self.counts.sent += 1,
            Err(_) => self.counts.unsent += 1,
        }
    }

    /// Waits until there may be a report.
    ///
    /// # Errors
    /// When the runtime ends.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Some or all of the peer's reports that have arrived.
    pub fn receive(&mut self) -> Vec<(Route, Report)> {
        let mut reports = Vec::new();
        for _ in 0..TURN {
            // One byte more, to detect a datagram that is too long.
            let mut datagram = [0; DATAGRAM_MAX + 1];
            // No datagram is left, or the kernel reports that the peer was not reached.
            let Ok((length, _)) = self.socket.try_recv_from(&mut datagram) else { break };
            match self.secret.opened(&datagram[..length]) {
                Some((number, report)) if number > self.received => {
                    self.received = number;
                    reports.push(report);
                }
                _ => self.counts.refused += 1,
            }
        }
        self.counts.received += reports.len() as u64;
        reports
    }

    /// How many reports there were.
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        let PeerCounts { sent, unsent, received, refused } = self.counts;
        [
            ("reports-sent", sent),
            ("reports-unsent", unsent),
            ("reports-received", received),
            ("reports-refused", refused),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_assist::Topic;
    use midhop_units::{Bytes, Duration};
    use std::io::Write;

    fn written(secret: &[u8], ports: [u16; 2]) -> (AssistPeer, tempfile::NamedTempFile) {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(secret).expect("its content");
        let [listen, address] = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let (held, hold) = (Bytes::new(1), Duration::from_s(1));
        let key = file.path().to_owned();
        (AssistPeer { listen, address, key, held, hold, requests: 1 }, file)
    }

    fn of(keys: [&[u8]; 2], ports: [[u16; 2]; 2]) -> [Secret; 2] {
        [0, 1].map(|at| {
            let (peer, _file) = written(keys[at], ports[at]);
            secret(&peer).expect("a secret")
        })
    }

    #[test]
    fn a_report_is_taken_from_the_peer_and_from_nobody_else() {
        let key: &[u8] = &[7; SECRET_MIN];
        let end = |text: &str| text.parse::<SocketAddr>().expect("an address");
        for ends in [["10.0.0.1:1", "10.0.0.2:2"], ["[fd00::1]:1", "[fd00::2]:2"]] {
            let [source, destination] = ends.map(end);
            let route = Route { source, destination };
            let report = Report { topic: Topic::Wanted, from: 5, to: 9 };
            let bare = || message::encode(route, report).expect("of one family");
            let [near, far] = of([key, key], [[1, 2], [2, 1]]);
            let sealed = near.sealed(bare(), 7);
            assert!(sealed.len() <= DATAGRAM_MAX);
            assert_eq!(far.opened(&sealed), Some((7, (route, report))));
            assert_eq!(near.opened(&sealed), None, "its own, sent back");
            for at in 0..sealed.len() {
                assert_eq!(far.opened(&sealed[..at]), None);
                let mut other = sealed.clone();
                other[at] ^= 1;
                assert_eq!(far.opened(&other), None, "byte {at}");
            }
            let [_, stranger] = of([key, &[8; SECRET_MIN]], [[1, 2], [2, 1]]);
            assert_eq!(stranger.opened(&sealed), None, "another secret");
            let [_, elsewhere] = of([key, key], [[1, 2], [2, 3]]);
            assert_eq!(elsewhere.opened(&sealed), None, "another pair with the same secret");
        }
    }

    #[tokio::test]
    async fn a_report_that_is_sent_again_is_refused() {
        let bound = || UdpSocket::bind("127.0.0.1:0").expect("a port");
        let [one, other] = [bound(), bound()].map(|it| it.local_addr().expect("an address").port());
        let (near, _file) = written(&[7; SECRET_MIN], [one, other]);
        let (far, _file) = written(&[7; SECRET_MIN], [other, one]);
        let [mut near, mut far] =
            [&near, &far].map(|it| Peer::open(it).expect("a socket").watch().expect("watched"));
        let [source, destination] = [1, 2].map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        let route = Route { source, destination };
        let report = Report { topic: Topic::Resent, from: 5, to: 9 };
        near.socket.writable().await.expect("writable");
        near.send(route, report);
        far.readable().await.expect("readable");
        assert_eq!(far.receive(), [(route, report)]);
        let again =
            near.secret.sealed(message::encode(route, report).expect("a report"), near.sent);
        near.socket.try_send_to(&again, near.address).expect("sent");
        far.readable().await.expect("readable");
        assert_eq!((far.receive(), far.counts.refused), (Vec::new(), 1));
        near.send(route, report);
        far.readable().await.expect("readable");
        assert_eq!(far.receive(), [(route, report)]);
    }

    #[test]
    fn a_secret_that_is_none_is_refused() {
        let refused = |of: &AssistPeer| secret(of).expect_err("no secret").to_string();
        let (short, _file) = written(&[7; SECRET_MIN - 1], [1, 2]);
        assert!(refused(&short).contains("less than 16 bytes"));
        let (gone, file) = written(&[7; SECRET_MIN], [1, 2]);
        file.close().expect("closed");
        assert!(refused(&gone).contains("assist.peer.key: "));
    }
}
