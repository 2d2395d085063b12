//! The datagram sockets of a link's measurement.

use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, ReceiveTimestampns, RxqOvfl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Receive buffer for what a busy host does not read at once. Unit: bytes.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Interval at which a reader checks whether to stop.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
/// A device that takes no datagram for so long has failed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// An unconnected socket that receives datagrams to `address` from anybody.
pub(super) fn shared(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // Sessions' own sockets share the port. The kernel permits this only to processes of the same
    // user.
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// A socket that is connected from `local` to `peer`, with arrival timestamps.
pub(super) fn connected(local: SocketAddr, peer: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))?;
    if local.port() != 0 {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&local.into())?;
    socket.connect(&peer.into())?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
    setsockopt(&socket, ReceiveTimestampns, &true)?;
    setsockopt(&socket, RxqOvfl, &1)?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER)
        .or_else(|_| setsockopt(&socket, RcvBuf, &RECEIVE_BUFFER))?;
    Ok(socket.into())
}

/// A datagram as it was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedDatagram {
    pub(super) length: usize,
    /// When the kernel received it. Clock: `CLOCK_REALTIME`.
    pub(super) at_ns: u64,
    /// Datagrams that the socket had no room for so far, where the kernel reports it.
    pub(super) overflowed: Option<u32>,
}

/// The next datagram.
pub(super) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<ReceivedDatagram> {
    let mut parts = [IoSliceMut::new(buffer)];
    let mut space = nix::cmsg_space!(TimeSpec, u32);
    let flags = MsgFlags::empty();
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut received = ReceivedDatagram { length: message.bytes, at_ns: 0, overflowed: None };
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::ScmTimestampns(time) => received.at_ns = ns(time),
            ControlMessageOwned::RxqOvfl(count) => received.overflowed = Some(count),
            _ => {}
        }
    }
    if received.at_ns == 0 {
        received.at_ns = now_ns();
    }
    Ok(received)
}

/// The current moment on `CLOCK_REALTIME`, by which the kernel stamps datagrams.
pub(super) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, ns)
}

fn ns(time: TimeSpec) -> u64 {
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec()).saturating_mul(1_000_000_000).saturating_add(part(time.tv_nsec()))
}
