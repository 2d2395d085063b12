//! TCP connections between two proxies, and the kernel settings that they need.

use crate::keeper::line;
use crate::leg::{self, bound};
use crate::tunnel::transport::Sharing;
use midhop_linux::sockopt;
use midhop_pep::{config::PeerPlan, credit::Shares};
use midhop_units::{Bytes, Duration, Rate};
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::AsFd,
};
use tokio::net::{TcpSocket, TcpStream};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;
/// Time for which the kernel has data to send while the next bytes are selected.
const AHEAD: Duration = Duration::from_ms(10);
/// The least and the most bytes for that, and the number if the rate is not known.
const AHEAD_LEAST: Bytes = Bytes::new(32 << 10);
const AHEAD_MOST: Bytes = Bytes::new(256 << 10);
const AHEAD_UNMEASURED: Bytes = Bytes::new(128 << 10);
/// Products of rate and round-trip time that the kernel may buffer, each way. One is in flight, as much waits behind
/// a lost segment, and the kernel counts its own overhead.
const BUFFER_BDPS: f64 = 4.0;
/// The minimum of these buffers.
const BUFFER_LEAST: Bytes = Bytes::new(1 << 20);

/// Unit: bytes. The most bytes that may be queued in front of the link.
pub fn ahead(peer: &PeerPlan) -> Bytes {
    let known = peer.rate.map(|rate| rate.bytes_in(AHEAD));
    known.map_or(AHEAD_UNMEASURED, |bytes| bytes.max(AHEAD_LEAST).min(AHEAD_MOST))
}

/// Opens this many listeners at one address, for peers that cannot use UDP. The kernel divides connections among them.
///
/// # Errors
/// When the address is taken or not this host's.
pub fn listen_shards(
    address: SocketAddr,
    peers: &[PeerPlan],
    count: usize,
) -> io::Result<Vec<TcpListener>> {
    if count < 2 {
        return Ok(vec![listen(address, peers, Sharing::Nobody)?]);
    }
    let first = listen(address, peers, Sharing::Followers)?;
    let address = first.local_addr()?;
    let others = (1..count).map(|_| listen(address, peers, Sharing::Others));
    std::iter::once(Ok(first)).chain(others).collect()
}

/// Listens for peers that cannot use UDP.
///
/// # Errors
/// When the address is taken or not this host's.
pub fn listen(
    address: SocketAddr,
    peers: &[PeerPlan],
    sharing: Sharing,
) -> io::Result<TcpListener> {
    let socket = open(address)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Accepted connections inherit the buffer, which limits the window that may be offered. It
    // suffices for each of the peers.
    let product =
        |peer: &&PeerPlan| peer.rate_in.zip(peer.rtt).map(|(rate, rtt)| rate.bytes_in(rtt));
    if let Some(widest) = peers.iter().max_by_key(product) {
        equip(&socket, widest)?;
    }
    if sharing == Sharing::Others {
        socket.set_reuse_port(true)?;
    }
    line::bind(&socket, address)?;
    if sharing == Sharing::Followers {
        // Only now: a conflict is how another daemon's socket is detected.
        socket.set_reuse_port(true)?;
    }
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Connects to a peer.
///
/// # Errors
/// When there is no connection.
pub async fn dial(address: SocketAddr, peer: &PeerPlan) -> io::Result<TcpStream> {
    let socket = open(address)?;
    equip(&socket, peer)?;
    TcpSocket::from_std_stream(socket.into()).connect(address).await
}

/// Applies this peer's settings to a socket.
///
/// # Errors
/// When the kernel refuses an option that every kernel has.
pub fn equip(socket: impl AsFd, peer: &PeerPlan) -> io::Result<()> {
    let handle = socket2::SockRef::from(&socket);
    handle.set_tcp_nodelay(true)?;
    if let Some(name) = &peer.kernel_congestion {
        // The algorithm was available when the daemon started. TCP works without it as well.
        if let Err(error) = leg::congestion(&handle, name) {
            tracing::warn!(peer = peer.name, name, %error, "the congestion control of a tunnel over TCP could not be set: the kernel's default is used");
        }
    }
    let known = |rate: Option<Rate>| {
        let product = rate.zip(peer.rtt).map(|(rate, rtt)| rate.bytes_in(rtt));
        product.map(|bytes| bytes.scale(BUFFER_BDPS).max(BUFFER_LEAST))
    };
    let (send, receive) = (known(peer.rate), known(peer.rate_in));
    bound(&socket, &Shares { send, receive, unsent: Some(ahead(peer)), ..Shares::of(None) })?;
    if let Some(rate) = peer.rate {
        pace(&socket, rate)?;
    }
    // The connection breaks if sent data is not acknowledged within that time.
    let ms = i32::try_from(peer.timeout.as_ns() / 1_000_000).unwrap_or(i32::MAX);
    sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ms)
}

/// Limits the send rate from now on.
///
/// # Errors
/// When the kernel refuses.
pub fn pace(socket: impl AsFd, rate: Rate) -> io::Result<()> {
    let bytes = rate.bits_per_s() / 8;
    sockopt::set_u64(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes)
}

fn open(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    Socket::new_raw(Domain::for_address(address), kind, Some(Protocol::TCP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_an_address_among_themselves_and_with_nobody_else() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let any = any.parse().expect("an address");
            let mut shards = listen_shards(any, &[], 3).expect("listeners");
            let address = shards[0].local_addr().expect("an address");
            assert!(shards.iter().all(|it| it.local_addr().ok() == Some(address)));
            for count in [1, 2] {
                let refused = listen_shards(address, &[], count).map_err(|error| error.kind());
                assert_eq!(refused.err(), Some(io::ErrorKind::AddrInUse), "{count}");
            }
            // One that failed is replaced.
            shards.truncate(2);
            listen(address, &[], Sharing::Others).expect("its place");
            drop(shards);
            listen_shards(address, &[], 1).expect("it is free");
        }
    }
}
