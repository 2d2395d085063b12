//! One side of a flow: its socket's settings, and how the far side is opened.

mod buffers;
mod egress;
mod refusal;
mod sample;
mod time_wait;
mod window;

pub use buffers::{bound, offer};
pub use egress::{Egress, InterfaceNames};
pub use refusal::{Failure, Refusal};
pub use sample::{Sample, SendBacklog};
pub use time_wait::dismiss;
pub use window::BoundedWindow;

use crate::ends::Ends;
use crate::keeper::line;
use crate::keeper::order::{Recipe, Setting};
use midhop_linux::sockopt;
use midhop_linux::tcp_repair::{self, Buffer, Buffers};
use midhop_linux::tproxy::set_transparent;
use midhop_pep::config::{Keepalive, LegPlan};
use midhop_pep::credit::Shares;
use midhop_units::{Bytes, Duration};
use nix::libc;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time;
use tokio::net::TcpStream;

/// Number of retransmissions of a SYN: some 15 s at most. A client that goes on retransmits its own
/// SYN.
const SYN_RETRIES: i32 = 3;
/// Number of retransmissions of a SYN-ACK: some 7 s. A client that retransmits its SYN gets it
/// again.
const ANSWER_RETRIES: i32 = 2;
/// The priority of retransmitted SYNs. Of the priorities that need no privilege, it is the one that
/// no type of service has.
pub const REPEATS: i32 = 5;
/// The most connections per listener that wait to be accepted.
const BACKLOG: i32 = 4096;

/// Opens a listener on the loopback for the flows of one leg's clients. All of the leg's settings, and the firewall
/// mark, are set here and inherited by every accepted socket, so that accepting costs one system call.
///
/// # Errors
/// When the address is taken or a setting is refused.
pub fn listen(address: SocketAddr, leg: &LegPlan, mark: u32) -> io::Result<TcpListener> {
    let socket = open(address, mark)?;
    sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_SYNCNT, ANSWER_RETRIES)?;
    socket.set_reuse_address(true)?;
    // Each worker has a listener of its own at the same address.
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    apply(&socket, leg)?;
    keep_alive(&socket, &leg.keepalive)?;
    line::bind(&socket, address)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Takes over a listener for clients of a leg that another process has opened, perhaps with other
/// settings.
///
/// # Errors
/// When a setting is refused.
pub fn listen_on(listener: TcpListener, leg: &LegPlan, mark: u32) -> io::Result<TcpListener> {
    let socket = Socket::from(listener);
    socket.set_mark(mark)?;
    apply(&socket, leg)?;
    keep_alive(&socket, &leg.keepalive)?;
    Ok(socket.into())
}

/// How a flow leaves this host after forwarding, or would leave it if it were not split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// Its addresses and ports, after every translation.
    pub ends: Ends,
    /// Its packets' firewall mark.
    pub mark: u32,
    /// The interface by which it leaves; none if that is not known.
    pub egress: Option<String>,
}

/// A socket with a flow's own address and port, to be connected.
#[derive(Debug)]
pub struct Bound {
    socket: Socket,
    ends: Ends,
}

/// Opens a socket to a flow's server.
///
/// # Errors
/// When a local resource is missing, or another socket on this host has the address and port.
pub fn bind(departure: &Departure, leg: &LegPlan, class: u8) -> io::Result<Bound> {
    let Ends { client, server } = departure.ends;
    let recipe = recipe(server, departure.mark, leg);
    let socket = match line::line() {
        Some(line) => line.socket(&recipe)?,
        None => prepare(&recipe)?,
    };
    socket.set_reuse_address(true)?;
    guard(&socket)?;
    plain_settings(&socket, leg)?;
    set_class(&socket, server, class)?;
    // The network's report is kept with its ICMP code, see [`Refusal`].
    refusal::explain(&socket, server, true)?;
    // The client's own SYNs limit the time for which the attempt matters.
    sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_SYNCNT, SYN_RETRIES)?;
    line::bind(&socket, client)?;
    Ok(Bound { socket, ends: departure.ends })
}

impl Bound {
    /// Starts to connect.
    ///
    /// # Errors
    /// When a local resource is missing. [`Opening::finish`] reports the far side's refusal.
    pub fn connect(self) -> io::Result<Opening> {
        let Self { socket, ends } = self;
        let started = match socket.connect(&ends.server.into()) {
            // An earlier connection of these ends waits here for late segments. Neither the client
            // nor the server waits for them.
            Err(error)
                if error.raw_os_error() == Some(libc::EADDRNOTAVAIL)
                    && dismiss(ends).unwrap_or(false) =>
            {
                socket.connect(&ends.server.into())
            }
            outcome => outcome,
        };
        opening(socket, ends.server, started, true)
    }

    /// Starts to connect. Until the far side has responded, SYNs after the first have the priority [`REPEATS`], by
    /// which the firewall recognizes them. (A mark would be clearer, but takes a privilege.)
    ///
    /// # Errors
    /// As [`Bound::connect`].
    pub fn connect_once(self) -> io::Result<Opening> {
        let mut opening = self.connect()?;
        if let Ok(stream) = &opening.answer {
            let mut before = [0; 4];
            sockopt::read(stream, libc::SOL_SOCKET, libc::SO_PRIORITY, &mut before)?;
            // The first SYN has left by now.
            set_priority(stream, REPEATS)?;
            opening.priority = Some(i32::from_ne_bytes(before));
        }
        Ok(opening)
    }
}

/// Starts to connect to the server with the client's own address and port.
///
/// # Errors
/// As [`bind`] and [`Bound::connect`].
pub fn dial(departure: &Departure, leg: &LegPlan, class: u8) -> io::Result<Opening> {
    bind(departure, leg, class)?.connect()
}

fn opening(
    socket: Socket,
    server: SocketAddr,
    started: io::Result<()>,
    explain: bool,
) -> io::Result<Opening> {
    match started {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        // This host's own routes can report a failure at once: it is a response like any other.
        Err(error) if refusal::of(&error, None, server).is_some() => {
            return Ok(Opening { answer: Err(error), server, explain, priority: None });
        }
        Err(error) => return Err(error),
    }
    let answer = Ok(TcpStream::from_std(socket.into())?);
    Ok(Opening { answer, server, explain, priority: None })
}

/// Starts to connect to a server with this host's own address, for a client that requested it.
///
/// # Errors
/// When a local resource is missing. [`Opening::finish`] reports the far side's refusal.
pub fn dial_as_self(server: SocketAddr, leg: &LegPlan) -> io::Result<Opening> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(server), kind, Some(Protocol::TCP))?;
    apply(&socket, leg)?;
    refusal::explain(&socket, server, true)?;
    let started = socket.connect(&server.into());
    opening(socket, server, started, true)
}

/// Makes the closing of a socket a reset, as [`listen`] and [`dial`] do, and sends small writes at
/// once.
///
/// # Errors
/// When the kernel refuses.
pub fn guard(socket: impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    socket.set_tcp_nodelay(true)?;
    // Urgent data stays in the stream: otherwise a byte would be lost.
    socket.set_out_of_band_inline(true)?;
    // Until a flow has ended in order, closing its socket sends a reset. So if this process dies,
    // no end takes half a stream for a whole one.
    socket.set_linger(Some(time::Duration::ZERO))
}

/// A connection that the far side has not responded to yet.
#[derive(Debug)]
pub struct Opening {
    answer: io::Result<TcpStream>,
    server: SocketAddr,
    explain: bool,
    /// The priority of the connection once it is established, if it has another one until then.
    priority: Option<i32>,
}

impl Opening {
    /// The address from which it is opened; none if opening has failed already.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.answer.as_ref().ok()?.local_addr().ok()
    }

    /// Waits for the response.
    ///
    /// # Errors
    /// The failure of the far side: refused, unreachable or silent.
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
                if let Some(priority) = self.priority {
                    set_priority(&stream, priority)?;
                }
                if self.explain {
                    // From now on, a passing ICMP message does not end the connection.
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

fn set_priority(socket: impl AsFd, priority: i32) -> io::Result<()> {
    sockopt::set_int(socket, libc::SOL_SOCKET, libc::SO_PRIORITY, priority)
}

/// A socket that may use other hosts' addresses.
fn open(address: SocketAddr, mark: u32) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    let v4 = address.is_ipv4();
    let transparent = || Setting::Transparent { v4 };
    line::set(&socket, transparent, || set_transparent(&socket, v4))?;
    line::set(&socket, || Setting::Mark(mark), || socket.set_mark(mark))?;
    Ok(socket)
}

/// The privileged properties of sockets towards servers on a leg.
fn recipe(server: SocketAddr, mark: u32, leg: &LegPlan) -> Recipe {
    let shares = Shares::of(leg.buffer).offering(leg.window);
    Recipe {
        v4: server.is_ipv4(),
        mark,
        congestion: leg.congestion.clone(),
        fallback: leg.fallback.clone(),
        receive: shares.receive.map(buffers::asked),
        send: shares.send.map(buffers::asked),
    }
}

/// Makes a socket of a kind.
///
/// # Errors
/// When the kernel refuses something of it.
pub fn prepare(recipe: &Recipe) -> io::Result<Socket> {
    let any: IpAddr =
        if recipe.v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = open((any, 0).into(), recipe.mark)?;
    privileged_settings(&socket, recipe)?;
    Ok(socket)
}

/// Applies those of a leg's settings that may take privileges.
fn privileged_settings(socket: &Socket, recipe: &Recipe) -> io::Result<()> {
    choose_congestion(socket, recipe.congestion.as_deref(), recipe.fallback.as_deref())?;
    buffers::hold_both(socket, recipe.receive, recipe.send)
}

/// Sets a congestion control, or the other one where that is refused.
fn choose_congestion(
    socket: &Socket,
    name: Option<&str>,
    fallback: Option<&str>,
) -> io::Result<()> {
    let Some(name) = name else { return Ok(()) };
    match (congestion(socket, name), fallback) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(fallback)) => congestion(socket, fallback),
        (Err(error), None) => Err(error),
    }
}

/// Sets a socket's congestion control, which may take a privilege.
///
/// # Errors
/// When the kernel refuses.
pub fn congestion(socket: &Socket, name: &str) -> io::Result<()> {
    let setting = || Setting::Congestion(name.to_owned());
    line::set(socket, setting, || socket.set_tcp_congestion(name.as_bytes()))
}

/// Applies the settings of every socket of a leg.
fn apply(socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    guard(socket)?;
    settings(socket, leg)
}

/// Applies a leg's settings to its sockets.
///
/// # Errors
/// When the kernel refuses a setting.
pub fn settings(socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    privileged_settings(socket, &recipe(any, 0, leg))?;
    plain_settings(socket, leg)
}

/// Applies a leg's settings to the socket of a connection that moves here, but for its buffers, which are as large as what
/// is in them.
///
/// # Errors
/// When the kernel refuses a setting.
pub fn settle(socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    guard(socket)?;
    choose_congestion(socket, leg.congestion.as_deref(), leg.fallback.as_deref())?;
    plain_settings(socket, leg)
}

/// Gives one buffer of a connection that has moved here its size, once what was in it has been restored: until then it
/// is larger. Without a bound of the leg this is the size `before`, at the old place. A buffer that stayed large would
/// be filled, and so would grow with each move.
///
/// # Errors
/// When the kernel refuses.
pub fn settle_buffer(
    socket: impl AsFd,
    leg: &LegPlan,
    before: &Buffers,
    sends: bool,
) -> io::Result<()> {
    let shares = Shares::of(leg.buffer).offering(leg.window);
    let (bound, size) = match sends {
        true => (shares.send, before.send.bytes),
        false => (shares.receive, before.receive.bytes),
    };
    let size =
        Some(bound.map_or_else(|| i32::try_from(size / 2).unwrap_or(i32::MAX), buffers::asked));
    let (receive, send) = if sends { (None, size) } else { (size, None) };
    buffers::hold_both(&socket, receive, send)?;
    let locked = |bound: Option<Bytes>, buffer: Buffer| Buffer {
        locked: bound.is_some() || buffer.locked,
        ..buffer
    };
    let locks = Buffers {
        receive: locked(shares.receive, before.receive),
        send: locked(shares.send, before.send),
    };
    tcp_repair::lock(&socket, &locks)
}

/// Applies those of a leg's settings that take no privilege.
fn plain_settings(socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    buffers::hold_unsent(socket, &Shares::of(leg.buffer).offering(leg.window))?;
    if let Some(rate) = leg.pacing {
        let bytes = rate.bits_per_s() / 8;
        sockopt::set_u64(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes)?;
    }
    if let Some(timeout) = leg.user_timeout {
        socket.set_tcp_user_timeout(Some(time(timeout)))?;
    }
    Ok(())
}

/// Makes the kernel probe a silent far end. This takes four system calls that most flows are too short to need: see
/// [`FlowSampler`](crate::flow_sampler::FlowSampler).
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
        let listener = match listen(([127, 0, 0, 1], 0).into(), leg, 1) {
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
