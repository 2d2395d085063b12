//! Options of the meter's sockets, the same at both ends.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::TcpStream;

/// Length of the accept queue: a thousand flows may begin at once.
const BACKLOG: i32 = 4096;
/// Longest name of a congestion control (`TCP_CA_NAME_MAX` less its NUL).
const CONGESTION_LENGTH_MAX: usize = 15;

/// A listening, non-blocking socket and its address. On `[::]` it serves IPv4 as well. Where the
/// kernel has no IPv6, `[::]` means all addresses of IPv4.
pub(super) fn listen(address: SocketAddr) -> io::Result<(std::net::TcpListener, SocketAddr)> {
    let any_v6 = address.is_ipv6() && address.ip().is_unspecified();
    let socket = match listen_exactly(address) {
        Err(error) if any_v6 && no_such_family(&error) => {
            listen_exactly(SocketAddr::from(([0, 0, 0, 0], address.port())))
        }
        other => other,
    }?;
    let listener = std::net::TcpListener::from(socket);
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

fn listen_exactly(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn no_such_family(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

/// Sets the options of every connection of the meter: small messages are sent at once, and a peer
/// that vanished is detected after two minutes.
pub(super) fn prepare(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15))
        .with_retries(4);
    // A right result needs neither option: where they cannot be set, a run may wait longer.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
}

/// The congestion control of `socket`, as the kernel names it.
pub(super) fn congestion(socket: &impl AsFd) -> io::Result<String> {
    let name = SockRef::from(socket).tcp_congestion()?;
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..length]).into_owned())
}

/// Chooses the congestion control of `socket`.
pub(super) fn set_congestion(socket: &impl AsFd, name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() > CONGESTION_LENGTH_MAX {
        // The kernel would truncate the name, and might then find another one.
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    SockRef::from(socket).set_tcp_congestion(name.as_bytes())
}

/// The congestion controls that the kernel has loaded, for messages.
pub(super) fn available_congestion() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .map_or_else(|_| "unknown".to_owned(), |names| names.trim().replace(' ', ", "))
}

/// Whether `accept` failed for want of descriptors or memory.
pub(super) fn out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Raises the limit of open files to the hard limit: each flow takes one.
pub(super) fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // With the lower limit most runs still work. A run that does not reports the cause.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Closes the sending side and keeps reading for at most `patience`. The data that was sent last
/// then arrives before the reset that unread data would cause.
pub(super) async fn farewell(stream: &TcpStream, patience: Duration) {
    if SockRef::from(stream).shutdown(std::net::Shutdown::Write).is_err() {
        return;
    }
    let drain = async {
        let mut bytes = vec![0; 64 << 10];
        while stream.readable().await.is_ok() {
            match stream.try_read(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    };
    let _ = tokio::time::timeout(patience, drain).await;
}
