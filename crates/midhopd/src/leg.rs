//! One side of a flow: which settings its socket gets, and how the far side is opened.

mod buffers;
mod egress;
mod refusal;
mod sample;

pub use buffers::{bound, offer};
pub use egress::{Egress, name_of};
pub use refusal::{Failure, Refusal};
pub use sample::{Backlog, Sample};

use crate::flow::Ends;
use crate::intercept::Segment;
use crate::sockopt;
use midhop_pep::config::{Keepalive, LegPlan};
use midhop_pep::credit::Shares;
use midhop_units::Duration;
use nix::libc;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
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
    keep_alive(&socket, &leg.keepalive)?;
    sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 1)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Starts to connect to the server with the client's own address and port. With `explain`, what the
/// network says is asked for in its own words, see [`Refusal`].
///
/// # Errors
/// When a local resource is missing; what the far side says comes with [`Opening::finish`].
pub fn dial(ends: Ends, leg: &LegPlan, class: u8, explain: bool) -> io::Result<Opening> {
    let socket = open(ends.server)?;
    socket.set_reuse_address(true)?;
    apply(&socket, leg)?;
    set_class(&socket, ends.server, class)?;
    if explain {
        refusal::explain(&socket, ends.server, true)?;
    }
    socket.bind(&ends.client.into())?;
    connect(socket, ends.server, explain)
}

fn connect(socket: Socket, server: SocketAddr, explain: bool) -> io::Result<Opening> {
    match socket.connect(&server.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        // Said at once by this host's own routes: an answer like any other.
        Err(error) if refusal::of(&error, None, server).is_some() => {
            return Ok(Opening { answer: Err(error), server, explain });
        }
        Err(error) => return Err(error),
    }
    let answer = Ok(TcpStream::from_std(socket.into())?);
    Ok(Opening { answer, server, explain })
}

/// Starts to connect to a server with this host's own address, for a client that asked to.
///
/// # Errors
/// When a local resource is missing; what the far side says comes with [`Opening::finish`].
pub fn dial_as_self(server: SocketAddr, leg: &LegPlan) -> io::Result<Opening> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(server), kind, Some(Protocol::TCP))?;
    apply(&socket, leg)?;
    refusal::explain(&socket, server, true)?;
    connect(socket, server, true)
}

/// Makes losing a socket a reset, as [`listen`] and [`dial`] do for theirs, and lets small writes go
/// at once.
///
/// # Errors
/// When the kernel refuses.
pub fn guard(socket: impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    socket.set_tcp_nodelay(true)?;
    // Urgent data stays in the stream: a byte out of its place would be a byte lost.
    socket.set_out_of_band_inline(true)?;
    // Until a flow has ended in order, losing its socket is a reset: should this process die, nobody
    // takes half a stream for a whole one.
    socket.set_linger(Some(time::Duration::ZERO))
}

/// A connection that the far side has not answered yet.
#[derive(Debug)]
pub struct Opening {
    answer: io::Result<TcpStream>,
    server: SocketAddr,
    explain: bool,
}

impl Opening {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The far side's own: refused, unreachable, silent.
    pub async fn finish(self) -> Result<TcpStream, Failure> {
        let server = self.server;
        let failed = |error: io::Error, code| {
            let refusal = refusal::of(&error, code, server);
            Failure { error, refusal }
        };
        let stream = self.answer.map_err(|error| failed(error, None))?;
        stream.writable().await?;
        match sockopt::take_error(&stream)? {
            Some(error) => {
                let code = if self.explain { refusal::code(&stream) } else { None };
                Err(failed(error, code))
            }
            None => {
                if self.explain {
                    // From now on a passing ICMP message is no reason to end.
                    refusal::explain(&stream, server, false)?;
                }
                Ok(stream)
            }
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

/// The class of service of the SYN that opened an accepted connection; 0 if the kernel kept none.
pub fn saved_class(accepted: impl AsFd) -> u8 {
    let mut headers = [0; 256];
    sockopt::read(accepted, libc::IPPROTO_TCP, libc::TCP_SAVED_SYN, &mut headers)
        .ok()
        .and_then(Segment::parse)
        .map_or(0, |syn| syn.class)
}

/// What every socket of a leg has.
fn apply(socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    guard(socket)?;
    settings(socket, leg)
}

/// What a leg asks of its sockets.
///
/// # Errors
/// When the kernel refuses a setting.
pub fn settings(socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    if let Some(name) = &leg.congestion {
        let fallback = leg.fallback.as_ref();
        match (socket.set_tcp_congestion(name.as_bytes()), fallback) {
            (Ok(()), _) => {}
            (Err(_), Some(fallback)) => socket.set_tcp_congestion(fallback.as_bytes())?,
            (Err(error), None) => return Err(error),
        }
    }
    bound(socket, &Shares::of(leg.buffer).offering(leg.window))?;
    if let Some(rate) = leg.pacing {
        let bytes = rate.bits_per_s() / 8;
        sockopt::set_u64(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes)?;
    }
    Ok(())
}

/// Has the kernel probe a silent far end. Four system calls that most flows do not live to need: see
/// [`Watch`](crate::watch::Watch).
///
/// # Errors
/// When the kernel refuses.
pub fn keep_alive(socket: impl AsFd, wanted: &Keepalive) -> io::Result<()> {
    if wanted.count == 0 {
        return Ok(());
    }
    let keepalive = TcpKeepalive::new()
        .with_time(time(wanted.idle))
        .with_interval(time(wanted.interval))
        .with_retries(wanted.count);
    SockRef::from(&socket).set_tcp_keepalive(&keepalive)
}

fn time(duration: Duration) -> time::Duration {
    time::Duration::from_nanos(duration.as_ns())
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_pep::config::Plan;

    #[test]
    fn accepted_sockets_inherit_what_the_leg_asks() {
        let text = "[legs.sat0]\ncongestion = \"reno\"\npacing = \"8 Mbit/s\"\nbuffer = \"1 MiB\"\n\
                    keepalive = { idle = \"7 s\", interval = \"3 s\", count = 2 }";
        let plan = Plan::read("test.toml", text).expect("a plan");
        let leg = &plan.legs[0];
        let listener = match listen(([127, 0, 0, 1], 0).into(), leg) {
            Ok(listener) => listener,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED, this takes CAP_NET_ADMIN: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        listener.set_nonblocking(false).expect("a mode");
        let address = listener.local_addr().expect("an address");
        let _client = std::net::TcpStream::connect(address).expect("a connection");
        let (accepted, _) = listener.accept().expect("its other end");
        let socket = SockRef::from(&accepted);
        assert!(socket.tcp_nodelay().expect("an option"), "small writes go at once");
        assert!(!socket.tcp_cork().expect("an option"));
        assert_eq!(socket.linger().expect("an option"), Some(time::Duration::ZERO));
        assert!(socket.out_of_band_inline().expect("an option"));
        assert_eq!(
            socket.tcp_congestion().expect("a name").split(|byte| *byte == 0).next(),
            Some(&b"reno"[..])
        );
        assert_eq!(socket.tcp_keepalive_time().expect("a time"), time::Duration::from_secs(7));
        assert_eq!(socket.tcp_keepalive_retries().expect("a number"), 2);
        assert_eq!(socket.send_buffer_size().expect("a size"), 832 << 10);
        assert_eq!(socket.recv_buffer_size().expect("a size"), 1 << 20);
        let mut pacing = [0; 8];
        sockopt::read(&accepted, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &mut pacing)
            .expect("a rate");
        assert_eq!(u64::from_ne_bytes(pacing), 1_000_000);
    }
}
