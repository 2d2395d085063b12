//! Takes the state of a connection out of a socket in repair mode.

use super::snapshot::{
    Buffer, Buffers, Keepalive, LocalEnd, Negotiated, PathState, ReceiveQueue, SendQueue,
    SocketOptions, TcpSnapshot, Timestamps, Window, WindowScales,
};
use super::{Queue, is_on, negotiated, select};
use crate::receive_queue::{CopyError, copy_unread};
use crate::sockopt;
use crate::tcp_info::TcpInfo;
use crate::tcp_state;
use nix::libc;
use nix::sys::socket::{MsgFlags, SockaddrStorage, getpeername, getsockname, recv};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `include/uapi/asm-generic/socket.h`.
pub(super) const SO_BUF_LOCK: libc::c_int = 72;
/// Bits of its value (`include/uapi/linux/socket.h`).
pub(super) const SEND_LOCKED: i32 = 1;
pub(super) const RECEIVE_LOCKED: i32 = 2;
/// Unit: bytes. `struct tcp_repair_window`.
const WINDOW_BYTES: usize = 20;
/// Unit: segments. RFC 6928.
const WINDOW_INITIAL: u32 = 10;
/// Unit: bytes. `TCP_CA_NAME_MAX`.
pub(super) const NAME_BYTES: usize = 16;
/// Unit: bytes. A segment of which a part is acknowledged stays whole in the send queue until it is sent again
/// (`tcp_clean_rtx_queue`), and is read whole.
const SEGMENT_MAX: usize = 1 << 16;
/// The bits of ECN in a traffic class.
const ECN_BITS: u8 = 3;

/// Why a connection cannot be dumped. It is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// It is no TCP socket.
    #[error("this is not a TCP socket")]
    NotTcp,
    /// [`switch`](super::switch) was not called.
    #[error("the socket is not in repair mode")]
    NotInRepair,
    /// It is not connected, has not finished its handshake, or is over.
    #[error("a TCP connection in state {state} of the kernel cannot move")]
    State {
        /// As in `include/net/tcp_states.h`.
        state: u8,
    },
    /// Another protocol of the kernel has state of its own, such as TLS.
    #[error("the connection uses the kernel's {name}, which cannot move with it")]
    UpperLayer {
        /// Its name (`TCP_ULP`).
        name: String,
    },
    /// One of the addresses has a meaning on this link only.
    #[error("{address} is not valid on another machine")]
    LinkLocal {
        /// The address.
        address: IpAddr,
    },
    /// A queue has more than the caller lets it.
    #[error("a queue has {bytes} bytes, more than {bytes_max}")]
    TooLong {
        /// Unit: bytes. What is in it.
        bytes: usize,
        /// Unit: bytes. The limit.
        bytes_max: usize,
    },
    /// What is unread came in so many segments that copying it would hold up the machine.
    #[error("{bytes} unread bytes are in too many segments")]
    TooManySegments {
        /// Unit: bytes. What is unread.
        bytes: usize,
    },
    /// The connection is not frozen, or somebody reads or writes.
    #[error("the connection changed while it was dumped: its packets must be dropped first")]
    Changing,
    /// The kernel refuses a query.
    #[error("the kernel does not report the connection's {what}: {source}")]
    Kernel {
        /// What was asked for.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Marks an error with what was asked for.
fn on<T>(what: &'static str, result: io::Result<T>) -> Result<T, DumpError> {
    result.map_err(|source| DumpError::Kernel { what, source })
}

/// Takes the whole state of a connection, and leaves the socket as it is. Requires no privilege, only that a socket
/// is in repair mode ([`switch`](super::switch)), that its packets are dropped, and that nobody reads or writes.
///
/// A socket whose owner has shut its reading down, though the far end has not ended its stream, passes for one whose
/// far end has.
///
/// # Errors
/// When the socket has no connection that can move, when a queue has more than `queue_bytes_max` bytes, or when the
/// connection changes meanwhile.
pub fn dump(socket: impl AsFd, queue_bytes_max: usize) -> Result<TcpSnapshot, DumpError> {
    let socket = socket.as_fd();
    let protocol = on("protocol", sockopt::read_int(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL))?;
    if protocol != libc::IPPROTO_TCP {
        return Err(DumpError::NotTcp);
    }
    let info = on("state", TcpInfo::of(socket))?;
    let movable = [
        tcp_state::ESTABLISHED,
        tcp_state::FIN_WAIT_1,
        tcp_state::FIN_WAIT_2,
        tcp_state::CLOSE_WAIT,
        tcp_state::LAST_ACK,
        tcp_state::CLOSING,
    ];
    let remote_ended = on("end", sockopt::is_read_side_shut(socket))?;
    // A connection that was restored after the far end's FIN is over in this state.
    let over = info.state == tcp_state::FIN_WAIT_2 && remote_ended;
    if !movable.contains(&info.state) || over {
        return Err(DumpError::State { state: info.state });
    }
    if !on("mode", is_on(socket))? {
        return Err(DumpError::NotInRepair);
    }
    refuse_upper_layer(socket)?;
    let [local, remote] = addresses(socket)?;
    let before = Position::of(socket)?;
    let local_end = before.local_end();
    let send = send_queue(socket, &before, local_end, queue_bytes_max)?;
    let receive = receive_queue(socket, &before, queue_bytes_max)?;
    let snapshot = TcpSnapshot {
        local,
        remote,
        local_end,
        remote_ended,
        send,
        receive,
        negotiated: negotiated_by(socket, &info)?,
        window: before.window.acceptable(before.received),
        buffers: buffers(socket)?,
        options: options(socket, local.is_ipv4())?,
        path: path(&info),
    };
    on("queues", select(socket, Queue::None))?;
    if Position::of(socket)? != before {
        return Err(DumpError::Changing);
    }
    Ok(snapshot)
}

fn refuse_upper_layer(socket: BorrowedFd<'_>) -> Result<(), DumpError> {
    let mut room = [0; NAME_BYTES];
    match sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_ULP, &mut room) {
        Ok([]) => Ok(()),
        Ok(name) => Err(DumpError::UpperLayer { name: text(name) }),
        // Linux before 4.13 has none.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        Err(source) => Err(DumpError::Kernel { what: "upper layer", source }),
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

fn addresses(socket: BorrowedFd<'_>) -> Result<[SocketAddr; 2], DumpError> {
    let fd = socket.as_raw_fd();
    let own = getsockname::<SockaddrStorage>(fd).map_err(io::Error::from);
    let far = getpeername::<SockaddrStorage>(fd).map_err(io::Error::from);
    let own = on("address", own.and_then(|it| internet(&it)))?;
    let far = on("far end", far.and_then(|it| internet(&it)))?;
    for address in [own.ip(), far.ip()] {
        if is_link_local(address) {
            return Err(DumpError::LinkLocal { address });
        }
    }
    Ok([own, far])
}

/// The address as a program compares it: IPv4 where it is IPv4 in IPv6, without a scope or a flow label.
pub(super) fn internet(address: &SockaddrStorage) -> io::Result<SocketAddr> {
    if let Some(address) = address.as_sockaddr_in() {
        return Ok(SocketAddr::new(address.ip().into(), address.port()));
    }
    let address = address.as_sockaddr_in6().ok_or(io::ErrorKind::Unsupported)?;
    Ok(SocketAddr::new(IpAddr::from(address.ip()).to_canonical(), address.port()))
}

pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Where a connection stands; constant while it is frozen.
#[derive(Debug, PartialEq, Eq)]
struct Position {
    state: u8,
    /// Behind the last byte written, FIN included (`write_seq`).
    written: u32,
    /// RCV.NXT.
    received: u32,
    /// Unit: bytes, FIN included.
    unacknowledged: usize,
    /// Unit: bytes, FIN included.
    unsent: usize,
    /// Unit: bytes, without a FIN.
    unread: usize,
    window: Window,
}

impl Position {
    fn of(socket: BorrowedFd<'_>) -> Result<Self, DumpError> {
        Ok(Self {
            state: on("state", TcpInfo::of(socket))?.state,
            written: on("send queue", sequence(socket, Queue::Send))?,
            received: on("receive queue", sequence(socket, Queue::Receive))?,
            unacknowledged: on("send queue", sockopt::unacknowledged(socket))?,
            unsent: on("send queue", sockopt::unsent(socket))?,
            unread: on("receive queue", sockopt::unread(socket))?,
            window: on("window", window(socket))?,
        })
    }

    fn local_end(&self) -> LocalEnd {
        match self.state {
            tcp_state::FIN_WAIT_2 => LocalEnd::Acknowledged,
            // The FIN is the last in the queue.
            tcp_state::FIN_WAIT_1 | tcp_state::CLOSING | tcp_state::LAST_ACK if self.unsent > 0 => {
                LocalEnd::Unsent
            }
            tcp_state::FIN_WAIT_1 | tcp_state::CLOSING | tcp_state::LAST_ACK => LocalEnd::Sent,
            _ => LocalEnd::Open,
        }
    }
}

/// The sequence number at the end of a queue, which it selects (`TCP_QUEUE_SEQ`).
pub(super) fn sequence(socket: BorrowedFd<'_>, queue: Queue) -> io::Result<u32> {
    select(socket, queue)?;
    Ok(sockopt::read_int(socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)? as u32)
}

fn window(socket: BorrowedFd<'_>) -> io::Result<Window> {
    let mut room = [0; WINDOW_BYTES];
    let read = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &mut room)?;
    let words: Vec<u32> = read.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let [send_updated_at, send, send_max, receive, receive_updated_at] = words[..] else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    Ok(Window { send_updated_at, send, send_max, receive, receive_updated_at })
}

impl Window {
    /// `struct tcp_repair_window`.
    pub(super) fn as_option(&self) -> Vec<u8> {
        let words =
            [self.send_updated_at, self.send, self.send_max, self.receive, self.receive_updated_at];
        words.map(u32::to_ne_bytes).concat()
    }
}

fn send_queue(
    socket: BorrowedFd<'_>,
    position: &Position,
    local_end: LocalEnd,
    bytes_max: usize,
) -> Result<SendQueue, DumpError> {
    let fin = usize::from(local_end.is_queued());
    let bytes = position.unacknowledged.checked_sub(fin).ok_or(DumpError::Changing)?;
    let unsent = position.unsent.saturating_sub(fin);
    within(bytes, bytes_max)?;
    let mut sent = Vec::new();
    if bytes > 0 {
        on("send queue", select(socket, Queue::Send))?;
        sent = peek(socket, bytes + SEGMENT_MAX)?;
        // What is acknowledged of the first segment.
        sent.drain(..sent.len().checked_sub(bytes).ok_or(DumpError::Changing)?);
    }
    let kept = bytes.checked_sub(unsent).ok_or(DumpError::Changing)?;
    let unsent = sent.split_off(kept);
    let unacknowledged = position.written.wrapping_sub(position.unacknowledged as u32);
    Ok(SendQueue { unacknowledged, sent, unsent })
}

fn receive_queue(
    socket: BorrowedFd<'_>,
    position: &Position,
    bytes_max: usize,
) -> Result<ReceiveQueue, DumpError> {
    within(position.unread, bytes_max)?;
    let mut unread = Vec::new();
    if position.unread > 0 {
        on("receive queue", select(socket, Queue::Receive))?;
        unread = match copy_unread(socket, position.unread) {
            Ok(unread) => unread,
            Err(CopyError::TooSlow { .. }) => {
                return Err(DumpError::TooManySegments { bytes: position.unread });
            }
            Err(CopyError::Kernel(error)) => return Err(refused(error)),
        };
        if unread.len() != position.unread {
            return Err(DumpError::Changing);
        }
    }
    Ok(ReceiveQueue { next: position.received, unread })
}

fn within(bytes: usize, bytes_max: usize) -> Result<(), DumpError> {
    if bytes > bytes_max { Err(DumpError::TooLong { bytes, bytes_max }) } else { Ok(()) }
}

/// Copies what the send queue has, at most `room` bytes.
fn peek(socket: BorrowedFd<'_>, room: usize) -> Result<Vec<u8>, DumpError> {
    let mut bytes = vec![0; room];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    match recv(socket.as_raw_fd(), &mut bytes, flags) {
        Ok(length) => {
            bytes.truncate(length);
            Ok(bytes)
        }
        Err(error) => Err(refused(error.into())),
    }
}

/// Why a queue could not be copied.
fn refused(error: io::Error) -> DumpError {
    match error.raw_os_error() {
        // More is queued than was counted, and the kernel copies whole segments only.
        Some(libc::EFAULT | libc::EAGAIN) => DumpError::Changing,
        _ => DumpError::Kernel { what: "queues", source: error },
    }
}

fn negotiated_by(socket: BorrowedFd<'_>, info: &TcpInfo) -> Result<Negotiated, DumpError> {
    let has = |bit| info.options & bit != 0;
    // In repair mode this is the clamp, not the size in use.
    let mss = on("MSS", sockopt::read_int(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG))?;
    let mss = on("MSS", u16::try_from(mss).map_err(io::Error::other))?;
    let mut timestamps = None;
    if has(negotiated::TIMESTAMPS) {
        let now = sockopt::read_int(socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP);
        let microseconds = has(negotiated::MICROSECONDS);
        timestamps = Some(Timestamps::reported(on("timestamp", now)? as u32, microseconds));
    }
    let [send, receive] = info.window_scales;
    Ok(Negotiated {
        mss,
        selective_acks: has(negotiated::SELECTIVE_ACKS),
        window_scales: has(negotiated::WINDOW_SCALES).then_some(WindowScales { send, receive }),
        timestamps,
        ecn: has(negotiated::ECN),
    })
}

impl Timestamps {
    /// What the kernel reports as its clock: the lowest bit is its unit since Linux 6.7, so that the reading may be one
    /// less than what was sent. A far end discards what is older than the last (PAWS).
    fn reported(value: u32, microseconds: bool) -> Self {
        let value = if microseconds { value | 1 } else { (value & !1).wrapping_add(2) };
        Self { value, microseconds }
    }
}

fn buffers(socket: BorrowedFd<'_>) -> Result<Buffers, DumpError> {
    let size = |what, name| {
        let bytes = on(what, sockopt::read_int(socket, libc::SOL_SOCKET, name))?;
        Ok(bytes.max(0) as u32)
    };
    let all = SEND_LOCKED | RECEIVE_LOCKED;
    let locked = sockopt::read_int(socket, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(all);
    Ok(Buffers {
        receive: Buffer {
            bytes: size("receive buffer", libc::SO_RCVBUF)?,
            locked: locked & RECEIVE_LOCKED != 0,
        },
        send: Buffer {
            bytes: size("send buffer", libc::SO_SNDBUF)?,
            locked: locked & SEND_LOCKED != 0,
        },
    })
}

fn options(socket: BorrowedFd<'_>, v4: bool) -> Result<SocketOptions, DumpError> {
    let number = |what, level, name| on(what, sockopt::read_int(socket, level, name));
    let tcp = |what, name| Ok::<_, DumpError>(number(what, libc::IPPROTO_TCP, name)?.max(0) as u32);
    let class = match v4 {
        true => number("traffic class", libc::SOL_IP, libc::IP_TOS)?,
        false => number("traffic class", libc::SOL_IPV6, libc::IPV6_TCLASS)?,
    };
    let (mut rate, mut name) = ([0; 8], [0; NAME_BYTES]);
    let pacing = sockopt::read(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &mut rate);
    let name = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name);
    Ok(SocketOptions {
        no_delay: tcp("no delay", libc::TCP_NODELAY)? != 0,
        cork: tcp("cork", libc::TCP_CORK)? != 0,
        keepalive: Keepalive {
            on: number("keepalive", libc::SOL_SOCKET, libc::SO_KEEPALIVE)? != 0,
            idle_s: small(tcp("keepalive", libc::TCP_KEEPIDLE)?, i16::MAX as u16),
            interval_s: small(tcp("keepalive", libc::TCP_KEEPINTVL)?, i16::MAX as u16),
            probes: small(tcp("keepalive", libc::TCP_KEEPCNT)?, 127) as u8,
        },
        user_timeout_ms: tcp("user timeout", libc::TCP_USER_TIMEOUT)?,
        traffic_class: class.clamp(0, 255) as u8 & !ECN_BITS,
        unsent_low_water: tcp("low-water mark", libc::TCP_NOTSENT_LOWAT)?,
        window_clamp: tcp("window clamp", libc::TCP_WINDOW_CLAMP)?,
        pacing_rate_max: match on("pacing rate", pacing)? {
            // Of a kernel of 32 bits.
            &[a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
            rate => rate.try_into().map_or(u64::MAX, u64::from_ne_bytes),
        },
        congestion_control: text(on("congestion control", name)?),
    })
}

/// A value that the system's defaults may put outside of what can be set.
fn small(value: u32, most: u16) -> u16 {
    value.clamp(1, u32::from(most)) as u16
}

/// Unit: segments. The congestion window with which the next segment would be sent: the kernel halves it for each
/// retransmission timeout in which nothing was sent, down to that of a new connection (`tcp_cwnd_restart`).
fn window_after_idle(info: &TcpInfo) -> u32 {
    let (mut window, mut idle) = (info.cwnd, u64::from(info.data_sent_ms_ago) * 1000);
    let rto = u64::from(info.rto_us).max(1);
    while info.unacknowledged == 0 && window > WINDOW_INITIAL && idle > rto {
        window = (window / 2).max(WINDOW_INITIAL);
        idle -= rto;
    }
    window
}

fn path(info: &TcpInfo) -> PathState {
    PathState {
        mss: info.mss,
        cwnd: window_after_idle(info),
        ssthresh: info.ssthresh,
        rtt_us: info.rtt_us,
        rtt_variation_us: info.rtt_variation_us,
        rtt_min_us: info.rtt_min_us,
        pacing_rate: info.pacing_rate,
        delivery_rate: info.delivery_rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_was_not_used_lasts_for_a_timeout() {
        let used = TcpInfo { cwnd: 100, rto_us: 200_000, ..TcpInfo::default() };
        let after = |idle_ms, outstanding| {
            let info = TcpInfo { data_sent_ms_ago: idle_ms, unacknowledged: outstanding, ..used };
            window_after_idle(&info)
        };
        assert_eq!([0, 200, 201, 401, 601].map(|idle| after(idle, 0)), [100, 100, 50, 25, 12]);
        assert_eq!([801, 3_600_000].map(|idle| after(idle, 0)), [10, 10]);
        assert_eq!(after(3_600_000, 1), 100, "it is in use");
        let small = TcpInfo { cwnd: 3, data_sent_ms_ago: 1 << 30, ..used };
        assert_eq!(window_after_idle(&small), 3);
    }
}
