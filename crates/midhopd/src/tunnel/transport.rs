//! Configures QUIC between two proxies.

use super::{
    quic::QuicEndpoint,
    shards::{Keys, Shard},
    silence, windows,
};
use crate::keeper::{line, order::Setting};
use crate::ledger::Ledger;
use midhop_linux::sockopt;
use midhop_pep::config::{PeerPlan, Repair};
use midhop_pki::handshake::TlsHandshake;
use midhop_pki::identity::Identity;
use midhop_tunnel::{control::Steering, peer};
use midhop_units::Bytes;
use nix::libc;
use quinn_proto::{ClientConfig, EndpointConfig, ServerConfig, TransportConfig, VarInt};
use ring::hmac;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

/// The kernel's buffers for the time in which this daemon is busy: 50 ms at 1 Gbit/s, and as much
/// again.
const SOCKET_BYTES: i32 = 12 << 20;

/// Which sockets share an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// No other socket. Refused if another one has the address.
    Nobody,
    /// Later sockets. This is the first, refused if another one has the address.
    Followers,
    /// Existing sockets.
    Others,
}

/// Opens a UDP socket with room for bursts.
///
/// # Errors
/// When the address is taken or not this host's.
pub fn bind(address: SocketAddr, sharing: Sharing) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    for (force, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        // Without privilege the buffer is smaller, which is enough.
        let set = |option| sockopt::set_int(&socket, libc::SOL_SOCKET, option, SOCKET_BYTES);
        let sends = force == libc::SO_SNDBUFFORCE;
        let setting = || Setting::Buffer { sends, bytes: SOCKET_BYTES };
        let _ = line::set(&socket, setting, || set(force)).or_else(|_| set(plain));
    }
    if sharing == Sharing::Others {
        socket.set_reuse_port(true)?;
    }
    line::bind(&socket, address)?;
    if sharing == Sharing::Followers {
        // Only now: a conflict is how another daemon's socket is detected.
        socket.set_reuse_port(true)?;
    }
    Ok(socket.into())
}

/// Opens this many sockets at one address. The kernel divides the datagrams to the address among them.
///
/// # Errors
/// When the address is taken or not this host's.
pub fn bind_shards(address: SocketAddr, count: usize) -> io::Result<Vec<UdpSocket>> {
    if count < 2 {
        return Ok(vec![bind(address, Sharing::Nobody)?]);
    }
    let first = bind(address, Sharing::Followers)?;
    let address = first.local_addr()?;
    let others = (1..count).map(|_| bind(address, Sharing::Others));
    std::iter::once(Ok(first)).chain(others).collect()
}

/// The keys of the connection IDs that this daemon makes. They outlive the process, so that its successor can reset
/// connections whose state it does not have.
pub fn keys(identity: &Identity) -> Keys {
    Keys::of(&identity.secret("connection IDs"))
}

/// Creates a UDP endpoint on `socket`. Its datagrams leave at the pace of their connections, and are counted in
/// `ledger`.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub fn endpoint(
    socket: UdpSocket,
    server: Option<ServerConfig>,
    identity: &Identity,
    shard: Shard,
    ledger: Arc<Ledger>,
) -> io::Result<QuicEndpoint> {
    // The key outlives this process as well (RFC 9000 §10.3), so peers need not wait for their timeout.
    let reset = hmac::Key::new(hmac::HMAC_SHA256, &identity.secret("stateless reset"));
    let mut config = EndpointConfig::new(Arc::new(reset));
    let ids = shard.clone();
    config.cid_generator(move || Box::new(ids.ids()));
    // This bit distinguishes QUIC from packets of the layer below it.
    config.grease_quic_bit(false);
    QuicEndpoint::open(socket, config, server, shard, ledger)
}

/// Whether losses on the path to one of them may be repaired.
pub fn may_repair(peers: &[PeerPlan]) -> bool {
    peers.iter().any(|peer| peer.repair != Repair::Off)
}

/// The settings of a connection that this end opens, its steering, and the values that its
/// handshake will provide.
///
/// # Errors
/// When the congestion control is not available.
pub fn client(
    identity: &Identity,
    peer: &PeerPlan,
    remote: SocketAddr,
) -> io::Result<(ClientConfig, Arc<Steering>, Arc<TlsHandshake>)> {
    let (mut transport, steering) = common(peer, remote, peer.repair != Repair::Off)?;
    // Requests go in one direction only.
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    let (crypto, handshake) = identity.quic_client().map_err(io::Error::other)?;
    let mut config = ClientConfig::new(crypto);
    config.transport_config(Arc::new(transport));
    Ok((config, steering, handshake))
}

/// The settings of an accepting endpoint, before any peer connects.
///
/// # Errors
/// When TLS lacks what QUIC needs.
pub fn welcoming(identity: &Identity) -> io::Result<(ServerConfig, Arc<TlsHandshake>)> {
    let (crypto, handshake) = identity.quic_server().map_err(io::Error::other)?;
    Ok((ServerConfig::with_crypto(crypto), handshake))
}

/// What a connection needs that a peer opens.
pub struct Welcome<'a> {
    /// Its settings.
    pub config: ServerConfig,
    /// The handle that steers it.
    pub steering: Arc<Steering>,
    /// The peer that the settings are for. The handshake shows which peer it is. Then
    /// [`QuicConnection::adapt`](super::quic::QuicConnection::adapt) follows.
    pub guess: &'a PeerPlan,
    /// The values that the handshake will provide.
    pub handshake: Arc<TlsHandshake>,
}

/// The settings of a connection that a peer opens from `remote`.
///
/// # Errors
/// When there is no peer, or the congestion control is not available.
pub fn server<'a>(
    identity: &Identity,
    peers: &'a [PeerPlan],
    remote: SocketAddr,
) -> io::Result<Welcome<'a>> {
    let known = |peer: &&PeerPlan| peer.address.is_some_and(|address| address.ip() == remote.ip());
    let unknown = |peer: &&PeerPlan| peer.address.is_none();
    let found = peers.iter().find(known).or_else(|| peers.iter().find(unknown)).or(peers.first());
    let peer = found.ok_or_else(|| io::Error::other("there are no peers"))?;
    // QUIC requires some values to be fixed now, which cannot be changed once the peer is
    // identified.
    let anybody = silence::of_anybody(peer, peers);
    let (mut transport, steering) = common(&anybody, remote, may_repair(peers))?;
    transport.stream_receive_window(varint(widest(peers)));
    transport.receive_window(varint(windows::first(peer.receive_window)));
    let (mut config, handshake) = welcoming(identity)?;
    config.transport_config(Arc::new(transport));
    Ok(Welcome { config, steering, guess: peer, handshake })
}

/// The widest stream window of all peers, granted before anything of the stream is read.
pub fn widest(peers: &[PeerPlan]) -> Bytes {
    peers.iter().map(|peer| peer.flow_window).max().unwrap_or(Bytes::ZERO)
}

fn common(
    peer: &PeerPlan,
    remote: SocketAddr,
    repaired: bool,
) -> io::Result<(TransportConfig, Arc<Steering>)> {
    let settings = peer::congestion(peer);
    peer::transport(peer, remote.is_ipv6(), repaired, settings).map_err(io::Error::other)
}

fn varint(bytes: Bytes) -> VarInt {
    VarInt::from_u64(bytes.get()).unwrap_or(VarInt::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn an_address_is_shared_with_nobody_else() {
        let any: [SocketAddr; 2] =
            [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
        for any in any {
            let shards = bind_shards(any, 3).expect("sockets");
            let address = shards[0].local_addr().expect("an address");
            assert!(shards.iter().all(|it| it.local_addr().ok() == Some(address)));
            for count in [1, 2] {
                let refused = bind_shards(address, count).map_err(|error| error.kind());
                assert_eq!(refused.err(), Some(io::ErrorKind::AddrInUse), "{count}");
            }
            // One that failed is replaced.
            let mut shards = shards;
            shards.truncate(2);
            bind(address, Sharing::Others).expect("its place");
            drop(shards);
            bind_shards(address, 1).expect("it is free");
        }
    }
}
