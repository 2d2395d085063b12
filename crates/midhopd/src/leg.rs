//! One side of a flow: which settings its socket gets, and how the far side is opened.

use crate::flow::Ends;
use crate::sockopt;
use midhop_pep::config::LegPlan;
use midhop_units::Duration;
use nix::libc;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time;
use tokio::net::TcpStream;

/// Connections that wait to be accepted, per listener.
const BACKLOG: i32 = 4096;

/// Opens a listener on the loopback for the flows of one leg's clients. All that the leg asks for is
/// set here and inherited by every accepted socket, so that accepting costs one system call.
///
/// # Errors
/// When the address is taken or a setting is refused.
pub fn listen(address: SocketAddr, leg: &LegPlan) -> io::Result<TcpListener> {
    let socket = open(address)?;
    socket.set_reuse_address(true)?;
    // Each worker has a listener of its own at the same address.
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    apply(&socket, leg)?;
    sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 1)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Starts to connect to the server with the client's own address and port.
///
/// # Errors
/// When a local resource is missing; what the far side says comes with [`Opening::finish`].
pub fn dial(ends: Ends, leg: &LegPlan, class: u8) -> io::Result<Opening> {
    let socket = open(ends.server)?;
    socket.set_reuse_address(true)?;
    apply(&socket, leg)?;
    set_class(&socket, ends.server, class)?;
    socket.bind(&ends.client.into())?;
    start(socket, ends.server)
}

fn start(socket: Socket, server: SocketAddr) -> io::Result<Opening> {
    match socket.connect(&server.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(Opening { stream: TcpStream::from_std(socket.into())? })
}

/// A connection that the far side has not answered yet.
#[derive(Debug)]
pub struct Opening {
    stream: TcpStream,
}

impl Opening {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The far side's own: refused, unreachable, silent.
    pub async fn finish(self) -> io::Result<TcpStream> {
        self.stream.writable().await?;
        match sockopt::take_error(&self.stream)? {
            Some(error) => Err(error),
            None => Ok(self.stream),
        }
    }
}

/// Sets the class of service (the DSCP, shifted; ECN bits are the kernel's).
pub fn set_class(socket: impl AsFd, far: SocketAddr, class: u8) -> io::Result<()> {
    let value = i32::from(class & 0xfc);
    if value == 0 {
        return Ok(());
    }
    match far {
        SocketAddr::V4(_) => sockopt::set_int(socket, libc::IPPROTO_IP, libc::IP_TOS, value),
        SocketAddr::V6(_) => sockopt::set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, value),
    }
}

fn open(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    match address {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    Ok(socket)
}

/// What every socket of a leg has.
fn apply(socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // Urgent data stays in the stream: a byte out of its place would be a byte lost.
    socket.set_out_of_band_inline(true)?;
    // Until a flow has ended in order, losing its socket is a reset: should this process die, nobody
    // takes half a stream for a whole one.
    socket.set_linger(Some(time::Duration::ZERO))?;
    settings(socket, leg)
}

fn settings(socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    if leg.keepalive.count > 0 {
        let keepalive = TcpKeepalive::new()
            .with_time(time(leg.keepalive.idle))
            .with_interval(time(leg.keepalive.interval))
            .with_retries(leg.keepalive.count);
        socket.set_tcp_keepalive(&keepalive)?;
    }
    if let Some(name) = &leg.congestion {
        let fallback = leg.fallback.as_ref();
        match (socket.set_tcp_congestion(name.as_bytes()), fallback) {
            (Ok(()), _) => {}
            (Err(_), Some(fallback)) => socket.set_tcp_congestion(fallback.as_bytes())?,
            (Err(error), None) => return Err(error),
        }
    }
    if let Some(rate) = leg.pacing {
        let bytes = rate.bits_per_s() / 8;
        sockopt::set_u64(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes)?;
    }
    Ok(())
}

fn time(duration: Duration) -> time::Duration {
    time::Duration::from_nanos(duration.as_ns())
}
