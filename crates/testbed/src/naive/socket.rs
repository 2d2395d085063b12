//! The sockets of a leg: the window that they offer, how they send, and what their far end has
//! acknowledged.

use super::NaiveLegOptions;
use midhop_linux::sockopt;
use midhop_linux::tcp_info::TcpInfo;
use midhop_linux::tproxy::set_transparent;
use midhop_units::Bytes;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Length of the accept queue.
const BACKLOG: i32 = 4096;

/// Listens for connections to other hosts' addresses. Accepted sockets inherit the leg's options.
pub(super) fn listen(address: SocketAddr, leg: &NaiveLegOptions) -> io::Result<TcpListener> {
    let socket = open(address, leg)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Connects to a server from the client's address.
pub(super) async fn dial(
    client: SocketAddr,
    server: SocketAddr,
    leg: &NaiveLegOptions,
) -> io::Result<TcpStream> {
    let socket = open(server, leg)?;
    socket.bind(&client.into())?;
    match socket.connect(&server.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

fn open(address: SocketAddr, leg: &NaiveLegOptions) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    set_transparent(&socket, address.is_ipv4())?;
    socket.set_reuse_address(true)?;
    guard(&socket)?;
    socket.set_tcp_congestion(leg.congestion.as_bytes())?;
    // The kernel doubles the value, since it accounts segments with their overhead.
    sockopt::set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, int(leg.window))?;
    offer(&socket, leg.window)?;
    if let Some(rate) = leg.pacing {
        let bytes = rate.bits_per_s() / 8;
        sockopt::set_u64(&socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes)?;
    }
    Ok(socket)
}

/// Sends small writes at once, and makes closing a socket a reset: what a flow holds is then
/// discarded.
pub(super) fn guard(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_linger(Some(Duration::ZERO))
}

/// Makes closing a socket orderly again: data that waits in it is still sent.
pub(super) fn release(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(None)
}

/// Clamps the window. The kernel's estimate of how much fits into the buffer, and so the window
/// that it offers, changes with the segments that arrive. So this has to be set again after each
/// read.
pub(super) fn offer(socket: &impl AsFd, window: Bytes) -> io::Result<()> {
    sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, int(window))
}

/// What the far end of a socket has acknowledged. Unit: bytes; SYN and FIN count.
pub(super) fn acknowledged(socket: &impl AsFd) -> Option<u64> {
    TcpInfo::of(socket).ok().map(|info| info.acknowledged_bytes)
}

fn int(bytes: Bytes) -> i32 {
    // The kernel computes with twice the value, in an int.
    i32::try_from(bytes.get()).unwrap_or(i32::MAX).min(1 << 30)
}
