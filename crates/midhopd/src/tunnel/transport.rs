//! How QUIC is set up between two proxies.

use super::{identity::Identity, socket::Paced};
use crate::sockopt;
use midhop_congestion::{Settings, committed};
use midhop_pep::config::{PeerPlan, Repair};
use midhop_tunnel::{LegSettings, control::Steering, fec};
use midhop_units::Bytes;
use nix::libc;
use quinn::{ClientConfig, Endpoint, EndpointConfig, ServerConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
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

/// A UDP endpoint on `socket`, whose datagrams leave at the pace of their connections.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub fn endpoint(
    socket: UdpSocket,
    server: Option<ServerConfig>,
    identity: &Identity,
) -> io::Result<(Endpoint, Arc<Paced>)> {
    let socket = Paced::new(socket)?;
    // Both outlive this process, so that its successor can reset what it knows nothing of (RFC 9000
    // §10.3): peers need not wait until they give up.
    let reset = hmac::Key::new(hmac::HMAC_SHA256, &identity.secret("stateless reset"));
    let number = identity.secret("connection IDs").first_chunk().copied().map(u64::from_be_bytes);
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || {
        Box::new(HashedConnectionIdGenerator::from_key(number.unwrap_or_default()))
    });
    // That bit tells QUIC from what may be said below it.
    config.grease_quic_bit(false);
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = Endpoint::new_with_abstract_socket(config, server, socket.clone(), runtime)?;
    let driven = socket.clone();
    tokio::task::spawn_local(async move {
        let Err(error) = driven.drive().await;
        tracing::error!(%error, "datagrams cannot leave");
    });
    Ok((endpoint, socket))
}

/// The leg to a peer, as this end sees it.
fn leg(peer: &PeerPlan, remote: SocketAddr) -> LegSettings {
    LegSettings {
        rtt: peer.rtt,
        rate: peer.rate,
        return_rate: peer.rate_in,
        ipv6: remote.is_ipv6(),
        streams_max: peer.flows,
        idle_timeout: peer.timeout,
        keep_alive: peer.keepalive,
        ..LegSettings::default()
    }
}

/// How losses on the way to a peer are repaired below QUIC, where they may be.
pub fn repairs(peer: &PeerPlan, remote: SocketAddr) -> Option<fec::Settings> {
    let despite_congestion = match peer.repair {
        Repair::Off => return None,
        Repair::Auto => false,
        Repair::Always => true,
    };
    Some(fec::Settings { despite_congestion, ..leg(peer, remote).fec() })
}

/// Whether losses on the way to one of them may be repaired.
pub fn may_repair(peers: &[PeerPlan]) -> bool {
    peers.iter().any(|peer| peer.repair != Repair::Off)
}

/// What the peer's plan says to its congestion control.
fn settings(peer: &PeerPlan) -> Settings {
    let mut settings = Settings::default();
    settings.hybla.rate = peer.rate;
    settings.committed = peer.committed.map(committed::Settings::new);
    if let Some(rtt0) = peer.rtt0 {
        settings.hybla.rtt0 = rtt0;
    }
    settings
}

/// The settings of a connection that this end opens, and what steers it.
///
/// # Errors
/// When the congestion control cannot be had.
pub fn client(
    identity: &Identity,
    peer: &PeerPlan,
    remote: SocketAddr,
) -> io::Result<(ClientConfig, Arc<Steering>)> {
    let (mut transport, steering) = common(peer, remote, peer.repair != Repair::Off)?;
    // Requests go one way only.
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    let mut config = ClientConfig::new(identity.client.clone());
    config.transport_config(Arc::new(transport));
    Ok((config, steering))
}

/// The settings of an endpoint that is come to, before anybody has.
pub fn welcoming(identity: &Identity) -> ServerConfig {
    ServerConfig::with_crypto(identity.server.clone())
}

/// The settings of a connection that a peer opens from `remote`, what steers it, and for which of
/// the peers they are: which it is shows later, unless it is known by its address. Then [`adapt`]
/// follows.
///
/// # Errors
/// When there is no peer, or the congestion control cannot be had.
pub fn server<'a>(
    identity: &Identity,
    peers: &'a [PeerPlan],
    remote: SocketAddr,
) -> io::Result<(ServerConfig, Arc<Steering>, &'a PeerPlan)> {
    let known = |peer: &&PeerPlan| peer.address.is_some_and(|address| address.ip() == remote.ip());
    let unknown = |peer: &&PeerPlan| peer.address.is_none();
    let found = peers.iter().find(known).or_else(|| peers.iter().find(unknown)).or(peers.first());
    let peer = found.ok_or_else(|| io::Error::other("there are no peers"))?;
    // What QUIC must leave free cannot be changed once it is known who has come.
    let (mut transport, steering) = common(peer, remote, may_repair(peers))?;
    let widest = peers.iter().map(|peer| peer.flow_window).max();
    transport.stream_receive_window(varint(widest.unwrap_or(peer.flow_window)));
    let mut config = welcoming(identity);
    config.transport_config(Arc::new(transport));
    Ok((config, steering, peer))
}

/// Gives a connection that a peer has opened what is that peer's.
///
/// # Errors
/// When the congestion control cannot be had.
pub fn adapt(
    connection: &quinn::Connection,
    steering: &Steering,
    peer: &PeerPlan,
) -> io::Result<()> {
    connection.set_send_window(peer.send_window.get());
    connection.set_receive_window(varint(peer.receive_window));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(peer.flows));
    let leg = leg(peer, connection.remote_address());
    let now = tokio::time::Instant::now().into_std();
    leg.turn(steering, now, peer.congestion, settings(peer)).map_err(io::Error::other)
}

fn common(
    peer: &PeerPlan,
    remote: SocketAddr,
    repaired: bool,
) -> io::Result<(TransportConfig, Arc<Steering>)> {
    let leg = leg(peer, remote);
    let leg = if repaired { leg.repaired() } else { leg };
    let steering = leg.steering(peer.congestion, settings(peer)).map_err(io::Error::other)?;
    let mut transport = midhop_tunnel::transport(&leg, steering.clone());
    transport
        .send_window(peer.send_window.get())
        .stream_receive_window(varint(peer.flow_window))
        .receive_window(varint(peer.receive_window))
        .max_concurrent_uni_streams(VarInt::from_u32(CONTROL_STREAMS))
        // Flows take turns; nothing is said in datagrams.
        .send_fairness(true)
        .datagram_receive_buffer_size(None);
    Ok((transport, steering))
}

fn varint(bytes: Bytes) -> VarInt {
    VarInt::from_u64(bytes.get()).unwrap_or(VarInt::MAX)
}
