//! How QUIC is set up between two proxies.

use super::identity::Identity;
use crate::sockopt;
use midhop_pep::config::PeerPlan;
use midhop_units::{Bytes, Duration};
use nix::libc;
use quinn::{
    AckFrequencyConfig, ClientConfig, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig,
    VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time,
};

/// Unidirectional streams that a peer may open: its control stream, two for header fields, and some
/// that extensions may ask for.
const CONTROL_STREAMS: u32 = 8;
/// What the kernel keeps for us while we are busy: 50 ms at 1 Gbit/s, and as much again.
const SOCKET_BYTES: i32 = 12 << 20;

/// Opens a UDP socket with room for bursts.
///
/// # Errors
/// When the address is taken or not this host's.
pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
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
        // Without privilege there is less to be had, and less will do.
        let set = |option| sockopt::set_int(&socket, libc::SOL_SOCKET, option, SOCKET_BYTES);
        let _ = set(force).or_else(|_| set(plain));
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// The settings of a UDP endpoint.
pub fn endpoint() -> EndpointConfig {
    EndpointConfig::default()
}

/// The settings of a connection that this end opens.
pub fn client(identity: &Identity, peer: &PeerPlan) -> ClientConfig {
    let mut config = ClientConfig::new(identity.client.clone());
    let mut transport = common(peer);
    // Requests go one way only.
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    config.transport_config(Arc::new(transport));
    config
}

/// The settings of connections that peers open from `from`. Which peer it is shows later, unless it is
/// known by its address; then [`adapt`] follows.
pub fn server(identity: &Identity, peers: &[PeerPlan], from: Option<SocketAddr>) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(identity.server.clone());
    let known = |peer: &&PeerPlan| {
        peer.address.is_some_and(|address| from.is_some_and(|from| address.ip() == from.ip()))
    };
    let unknown = |peer: &&PeerPlan| peer.address.is_none();
    let found = peers.iter().find(known).or_else(|| peers.iter().find(unknown)).or(peers.first());
    if let Some(peer) = found {
        let mut transport = common(peer);
        let widest = peers.iter().map(|peer| peer.flow_window).max();
        transport.stream_receive_window(varint(widest.unwrap_or(peer.flow_window)));
        transport.max_concurrent_bidi_streams(VarInt::from_u32(peer.flows));
        config.transport_config(Arc::new(transport));
    }
    config
}

/// Gives a connection that a peer has opened the limits of that peer.
pub fn adapt(connection: &quinn::Connection, peer: &PeerPlan) {
    connection.set_send_window(peer.send_window.get());
    connection.set_receive_window(varint(peer.receive_window));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(peer.flows));
}

fn common(peer: &PeerPlan) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .send_window(peer.send_window.get())
        .stream_receive_window(varint(peer.flow_window))
        .receive_window(varint(peer.receive_window))
        .max_concurrent_uni_streams(VarInt::from_u32(CONTROL_STREAMS))
        .keep_alive_interval(Some(std_time(peer.keepalive)))
        .max_idle_timeout(IdleTimeout::try_from(std_time(peer.timeout)).ok())
        .ack_frequency_config(Some(AckFrequencyConfig::default()))
        // Flows take turns; nothing is said in datagrams.
        .send_fairness(true)
        .datagram_receive_buffer_size(None);
    if let Some(rtt) = peer.rtt {
        transport.initial_rtt(std_time(rtt));
    }
    transport
}

fn varint(bytes: Bytes) -> VarInt {
    VarInt::from_u64(bytes.get()).unwrap_or(VarInt::MAX)
}

fn std_time(duration: Duration) -> time::Duration {
    time::Duration::from_nanos(duration.as_ns())
}
