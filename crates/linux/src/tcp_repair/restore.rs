//! Makes a connection of its state.

use super::dump::{NAME_BYTES, RECEIVE_LOCKED, SEND_LOCKED, SO_BUF_LOCK, internet, sequence};
use super::snapshot::{
    Buffers, LocalEnd, Negotiated, SocketOptions, TcpSnapshot, Timestamps, WindowScales,
};
use super::{Mode, Queue, is_on, negotiated, select, switch};
use crate::sockopt;
use crate::tcp_info::TcpInfo;
use crate::tcp_state;
use crate::tproxy::set_transparent;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockProtocol, SockType, SockaddrStorage, bind,
    connect, getsockname, send, shutdown, socket,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Codes of `struct tcp_repair_opt`, those of the options in a SYN (RFC 9293 §3.1, RFC 7323, RFC 2018).
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW_SCALE: u32 = 3;
const OPTION_SACK_PERMITTED: u32 = 4;
const OPTION_TIMESTAMPS: u32 = 8;
/// Unit: bytes. Written at a time.
const CHUNK: usize = 1 << 16;
/// Unit: seconds. See the module's text on half-closed connections.
const LINGER_S: i32 = 1;
/// Queued as sent in front of the first byte that is not acknowledged. See the module's text on the probe.
const GARBAGE: [u8; 1] = [0];

/// Why a connection was not restored. The socket is of no use any more; closing it sends nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The socket is not in repair mode, or is connected already.
    #[error("the socket was not prepared: it is connected, or not in repair mode")]
    NotPrepared,
    /// It is bound to another address.
    #[error("the socket is bound to {bound} and not to {local}")]
    Address {
        /// Where it is bound.
        bound: SocketAddr,
        /// The connection's address.
        local: SocketAddr,
    },
    /// The buffers of the socket do not take what is queued, and this process may not enlarge them.
    #[error("the buffers take {written} of {bytes} bytes")]
    NoRoom {
        /// Unit: bytes. What was written.
        written: usize,
        /// Unit: bytes. What the queue has.
        bytes: usize,
    },
    /// The far end expects timestamps of microseconds, which came with Linux 6.7.
    #[error("this kernel has no TCP timestamps in microseconds")]
    Microseconds,
    /// The kernel accepted all, and something is not as it was.
    #[error("the restored connection differs in its {0}")]
    Differs(
        /// What differs.
        &'static str,
    ),
    /// The kernel refused a step.
    #[error("cannot restore the connection's {what}: {source}")]
    Kernel {
        /// The step.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

fn on<T>(what: &'static str, result: io::Result<T>) -> Result<T, RestoreError> {
    result.map_err(|source| RestoreError::Kernel { what, source })
}

/// Creates a socket for [`restore`], in the calling thread's network namespace, and [prepares](prepare_socket) it.
///
/// # Errors
/// When the kernel refuses.
pub fn prepare(local: SocketAddr, buffers: &Buffers) -> io::Result<OwnedFd> {
    let made = unprepared(local)?;
    prepare_socket(&made, local, buffers)?;
    Ok(made)
}

/// Creates a socket that can be [prepared](prepare_socket), in the calling thread's network namespace. Requires no
/// privilege.
///
/// # Errors
/// When there is no descriptor.
pub fn unprepared(local: SocketAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(family, SockType::Stream, flags, SockProtocol::Tcp)?)
}

/// Makes a new socket one for [`restore`]: in repair mode, transparent, bound to `local`, with buffers as large as the
/// snapshot's. What depends on the new place, such as a mark, is set on it before it is restored.
///
/// The sizes come from another machine: the caller has bounded them.
///
/// # Errors
/// When the kernel refuses: this requires `CAP_NET_ADMIN`, and `CAP_NET_BIND_SERVICE` for a low port. A port on which others
/// listen, or are connected, can be bound.
pub fn prepare_socket(socket: impl AsFd, local: SocketAddr, buffers: &Buffers) -> io::Result<()> {
    let socket = socket.as_fd();
    set_transparent(socket, local.is_ipv4())?;
    // Not by `switch`: as the kernel has it, repair mode lets the address be bound whoever else has it.
    sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, Mode::On.value())?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(local))?;
    resize(socket, buffers)
}

/// Sets the buffers to these sizes, and leaves it to the kernel to resize those that are not locked. Root of a user
/// namespace may set no more than everybody: a larger queue then is [`RestoreError::NoRoom`].
fn resize(socket: BorrowedFd<'_>, buffers: &Buffers) -> io::Result<()> {
    let receive = (buffers.receive, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
    let send = (buffers.send, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
    for (buffer, forced, plain) in [receive, send] {
        // The kernel sets twice the value.
        let half = i32::try_from(buffer.bytes / 2).unwrap_or(i32::MAX / 2);
        let set = |name| sockopt::set_int(socket, libc::SOL_SOCKET, name, half);
        match set(forced) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => set(plain)?,
            result => result?,
        }
    }
    lock(socket, buffers)
}

/// Leaves it to the kernel to resize the buffers that are not locked.
///
/// # Errors
/// When the kernel refuses.
pub fn lock(socket: impl AsFd, buffers: &Buffers) -> io::Result<()> {
    let bit = |locked, bit| if locked { bit } else { 0 };
    let locked =
        bit(buffers.receive.locked, RECEIVE_LOCKED) | bit(buffers.send.locked, SEND_LOCKED);
    match sockopt::set_int(socket, libc::SOL_SOCKET, SO_BUF_LOCK, locked) {
        // Linux before 5.14: both are locked.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        result => result,
    }
}

/// Makes a prepared socket the connection of a snapshot, and leaves it in repair mode. Requires no privilege. The
/// connection's packets are dropped still: timers run, and a segment of the far end would move the queues.
///
/// A congestion control that this machine does not have, or does not let everybody use, is left out: the machine's
/// default then stays, unless [`prepare`]'s caller has set one.
///
/// [`go_on`] and [`Unsent::send`] are due then. The round-trip time from here to the acknowledgement of the probe is the
/// first that the kernel measures: no time should pass in between.
///
/// # Errors
/// When the socket is not prepared for this connection, when the far end cannot be routed to, when this machine has the
/// connection already (`EADDRNOTAVAIL`), or when the kernel refuses a part of it.
pub fn restore(socket: impl AsFd, snapshot: &TcpSnapshot) -> Result<Unsent, RestoreError> {
    let socket = socket.as_fd();
    is_prepared_for(socket, snapshot.local)?;
    // None of it is sent; keepalive has to be on when the connection begins.
    set_options(socket, &snapshot.options)?;
    connect_at(socket, snapshot)?;
    set_negotiated(socket, &snapshot.negotiated)?;
    on("receive queue", select(socket, Queue::Receive))?;
    fill(socket, &snapshot.receive.unread, libc::SO_RCVBUF)?;
    // The kernel checks the window against RCV.NXT, and uses it to size segments.
    set_window(socket, snapshot)?;
    set_sent(socket, snapshot)?;
    if snapshot.remote_ended {
        on("far end's end", shutdown(socket.as_raw_fd(), Shutdown::Read).map_err(Into::into))?;
        let linger = sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_LINGER2, LINGER_S);
        on("linger time", linger)?;
    }
    on("buffers", lock(socket, &snapshot.buffers))?;
    compare(socket, snapshot)?;
    on("queues", select(socket, Queue::None))?;
    Ok(Unsent {
        bytes: snapshot.send.unsent.clone(),
        again: 0,
        written: 0,
        end: snapshot.local_end,
        low_water: snapshot.options.unsent_low_water,
    })
}

fn is_prepared_for(socket: BorrowedFd<'_>, local: SocketAddr) -> Result<(), RestoreError> {
    let closed = on("state", TcpInfo::of(socket))?.is_closed();
    if !closed || !on("mode", is_on(socket))? {
        return Err(RestoreError::NotPrepared);
    }
    let bound = getsockname::<SockaddrStorage>(socket.as_raw_fd()).map_err(io::Error::from);
    let bound = on("address", bound.and_then(|it| internet(&it)))?;
    if bound == local { Ok(()) } else { Err(RestoreError::Address { bound, local }) }
}

fn set_options(socket: BorrowedFd<'_>, options: &SocketOptions) -> Result<(), RestoreError> {
    let set = |what, level, name, value| on(what, sockopt::set_int(socket, level, name, value));
    let tcp = |what, name, value| set(what, libc::IPPROTO_TCP, name, value);
    let keepalive = options.keepalive;
    tcp("keepalive", libc::TCP_KEEPIDLE, keepalive.idle_s.into())?;
    tcp("keepalive", libc::TCP_KEEPINTVL, keepalive.interval_s.into())?;
    tcp("keepalive", libc::TCP_KEEPCNT, keepalive.probes.into())?;
    set("keepalive", libc::SOL_SOCKET, libc::SO_KEEPALIVE, keepalive.on.into())?;
    tcp("no delay", libc::TCP_NODELAY, options.no_delay.into())?;
    tcp("cork", libc::TCP_CORK, options.cork.into())?;
    tcp("user timeout", libc::TCP_USER_TIMEOUT, int(options.user_timeout_ms))?;
    let own = on("address", getsockname::<SockaddrStorage>(socket.as_raw_fd()).map_err(Into::into));
    let (level, name) = match own?.as_sockaddr_in() {
        Some(_) => (libc::SOL_IP, libc::IP_TOS),
        None => (libc::SOL_IPV6, libc::IPV6_TCLASS),
    };
    set("traffic class", level, name, options.traffic_class.into())?;
    if options.pacing_rate_max != u64::MAX {
        let rate = options.pacing_rate_max;
        let set = sockopt::set_u64(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate);
        on("pacing rate", set)?;
    }
    let name = options.congestion_control.as_bytes();
    let mut current = [0; NAME_BYTES];
    let current = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut current);
    if !on("congestion control", current)?.starts_with(&[name, &[0]].concat()) {
        // A flow is worth more than its congestion control: see above.
        let _ = sockopt::set(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name);
    }
    Ok(())
}

fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Sets both sequence numbers, and has the kernel believe that the handshake is over.
fn connect_at(socket: BorrowedFd<'_>, snapshot: &TcpSnapshot) -> Result<(), RestoreError> {
    let unread = snapshot.receive.unread.len() as u32;
    // One before the first that is not acknowledged: for the FIN that was, or for the octet that is probed with.
    let places = [
        (Queue::Receive, snapshot.receive.next.wrapping_sub(unread)),
        (Queue::Send, snapshot.send.unacknowledged.wrapping_sub(1)),
    ];
    for (queue, sequence) in places {
        on("sequence numbers", select(socket, queue))?;
        let set = sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, sequence as i32);
        on("sequence numbers", set)?;
    }
    let far = SockaddrStorage::from(snapshot.remote);
    on("far end", connect(socket.as_raw_fd(), &far).map_err(Into::into))
}

fn set_negotiated(socket: BorrowedFd<'_>, negotiated: &Negotiated) -> Result<(), RestoreError> {
    // Connecting has chosen a shift for this end's windows, and the kernel applies it even where scaling is off. With
    // both shifts 0, a connection behaves as one without them.
    let none = WindowScales { send: 0, receive: 0 };
    let scales = negotiated.window_scales.unwrap_or(none);
    let scales = u32::from(scales.send) | u32::from(scales.receive) << 16;
    let mut options = vec![OPTION_MSS, negotiated.mss.into(), OPTION_WINDOW_SCALE, scales];
    if negotiated.selective_acks {
        options.extend([OPTION_SACK_PERMITTED, 0]);
    }
    if negotiated.timestamps.is_some() {
        options.extend([OPTION_TIMESTAMPS, 0]);
    }
    let options: Vec<u8> = options.into_iter().flat_map(u32::to_ne_bytes).collect();
    let set = sockopt::set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &options);
    on("TCP options", set)?;
    if let Some(clock) = negotiated.timestamps {
        set_clock(socket, clock)?;
    }
    // The segment size in use was computed with the default of 536 or 1220 bytes when connecting, and stays until the path
    // MTU changes. Changing the IP options computes it again, for IPv6 too; there are none before and after.
    on("MSS", sockopt::set(socket, libc::SOL_IP, libc::IP_OPTIONS, &[]))
}

fn set_clock(socket: BorrowedFd<'_>, clock: Timestamps) -> Result<(), RestoreError> {
    let value = (clock.value & !1) | u32::from(clock.microseconds);
    let set = sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, value as i32);
    on("timestamps", set)?;
    let options = on("timestamps", TcpInfo::of(socket))?.options;
    if clock.microseconds && options & negotiated::MICROSECONDS == 0 {
        return Err(RestoreError::Microseconds);
    }
    Ok(())
}

fn set_window(socket: BorrowedFd<'_>, snapshot: &TcpSnapshot) -> Result<(), RestoreError> {
    // Counted from the first byte in the queue, which is one before: the right edge stays where it is.
    let mut window = snapshot.window;
    window.send = window.send.saturating_add(1);
    window.send_max = window.send_max.max(window.send);
    let window = window.as_option();
    let set = sockopt::set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &window);
    on("window", set)?;
    let clamp = int(snapshot.options.window_clamp);
    if clamp > 1 {
        // Raising the clamp has the kernel offer the whole window again at once, where it would start from its first one.
        for clamp in [clamp - 1, clamp] {
            let set = sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, clamp);
            on("window clamp", set)?;
        }
    }
    Ok(())
}

/// Queues what has been sent, and a FIN that was acknowledged.
fn set_sent(socket: BorrowedFd<'_>, snapshot: &TcpSnapshot) -> Result<(), RestoreError> {
    on("send queue", select(socket, Queue::Send))?;
    if snapshot.local_end.is_probed() {
        fill(socket, &GARBAGE, libc::SO_SNDBUF)?;
    }
    fill(socket, &snapshot.send.sent, libc::SO_SNDBUF)?;
    if snapshot.local_end == LocalEnd::Acknowledged {
        on("end", shutdown(socket.as_raw_fd(), Shutdown::Write).map_err(Into::into))?;
    }
    Ok(())
}

/// Writes all of `bytes` into the selected queue. The same bytes may take more memory in other segments: the buffer is
/// enlarged as far as this process may.
fn fill(socket: BorrowedFd<'_>, bytes: &[u8], buffer: libc::c_int) -> Result<(), RestoreError> {
    let size = || on("buffers", sockopt::read_int(socket, libc::SOL_SOCKET, buffer));
    let before = size()?;
    let mut written = 0;
    while written < bytes.len() {
        let chunk = &bytes[written..bytes.len().min(written + CHUNK)];
        match send(socket.as_raw_fd(), chunk, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(count) => written += count,
            Err(Errno::EAGAIN | Errno::ENOMEM | Errno::ENOBUFS) => {
                let now = size()?;
                on("buffers", sockopt::set_int(socket, libc::SOL_SOCKET, buffer, now))?;
                if size()? <= now {
                    return Err(RestoreError::NoRoom { written, bytes: bytes.len() });
                }
            }
            Err(error) => return on("queues", Err(error.into())),
        }
    }
    if size()? != before {
        on("buffers", sockopt::set_int(socket, libc::SOL_SOCKET, buffer, before / 2))?;
    }
    Ok(())
}

/// Holds the restored connection to its snapshot.
fn compare(socket: BorrowedFd<'_>, snapshot: &TcpSnapshot) -> Result<(), RestoreError> {
    // One more: the FIN, or the octet for the probe.
    let queued = on("send queue", sockopt::unacknowledged(socket))?;
    let unsent = on("send queue", sockopt::unsent(socket))?;
    if queued != snapshot.send.sent.len() + 1 || unsent != 0 {
        return Err(RestoreError::Differs("send queue"));
    }
    if on("receive queue", sockopt::unread(socket))? != snapshot.receive.unread.len() {
        return Err(RestoreError::Differs("receive queue"));
    }
    let received = on("receive queue", sequence(socket, Queue::Receive))?;
    let written = on("send queue", sequence(socket, Queue::Send))?;
    let sent = snapshot.send.sent.len() as u32;
    let behind = snapshot.send.unacknowledged.wrapping_add(sent);
    if received != snapshot.receive.next || written != behind {
        return Err(RestoreError::Differs("sequence numbers"));
    }
    let now = on("state", TcpInfo::of(socket))?.state;
    let probed = snapshot.local_end.is_probed();
    let wanted = if probed { tcp_state::ESTABLISHED } else { tcp_state::FIN_WAIT_1 };
    if now == wanted { Ok(()) } else { Err(RestoreError::Differs("state")) }
}

/// Has a restored connection leave repair mode: its far end can be reached from now on. `end_is_sent` is
/// [`Unsent::is_end_sent`].
///
/// A window probe is sent ([`Mode::Off`]). A FIN that had been sent is queued as sent behind that, since no
/// probe is sent after a FIN: it takes a few microseconds in repair mode again.
///
/// # Errors
/// When the kernel refuses: this requires `CAP_NET_ADMIN`.
pub fn go_on(socket: impl AsFd, end_is_sent: bool) -> io::Result<()> {
    let socket = socket.as_fd();
    switch(socket, Mode::Off)?;
    if end_is_sent {
        switch(socket, Mode::On)?;
        select(socket, Queue::Send)?;
        shutdown(socket.as_raw_fd(), Shutdown::Write)?;
        select(socket, Queue::None)?;
        switch(socket, Mode::OffWithoutProbe)?;
    }
    Ok(())
}

/// What the old place had written and not sent. It is to be sent before anything else is written.
#[derive(Debug)]
#[must_use = "these bytes are missing from the stream until they are sent"]
pub struct Unsent {
    bytes: Vec<u8>,
    /// Unit: bytes. How many of them had been sent before.
    again: usize,
    written: usize,
    end: LocalEnd,
    low_water: u32,
}

impl Unsent {
    /// Whether this end's FIN had been sent, and is not known to be acknowledged: what [`go_on`] has to know.
    pub fn is_end_sent(&self) -> bool {
        self.end == LocalEnd::Sent
    }

    /// The first bytes had been sent before, as many as [`TcpSnapshot::send_again`] has returned.
    pub fn sent_before(self, bytes: usize) -> Self {
        Self { again: bytes, ..self }
    }

    /// Unit: bytes. What is still to be written.
    pub fn remaining_bytes(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Writes as much as the send buffer takes, and the FIN behind the last byte. Returns whether all is written; if not, it
    /// is to be called again when the socket is writable. Never blocks.
    ///
    /// # Errors
    /// When the socket has not [gone on](go_on): in repair mode, bytes would count as sent. When the connection is broken.
    pub fn send(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let socket = socket.as_fd();
        let early = match self.end {
            // The far end may have acknowledged the FIN, and what acknowledges more than was sent is discarded.
            LocalEnd::Sent => TcpInfo::of(socket)?.state == tcp_state::ESTABLISHED,
            _ => is_on(socket)?,
        };
        if early {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it has not gone on by `go_on`",
            ));
        }
        while self.remaining_bytes() > 0 {
            let mut flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let mut until = self.bytes.len();
            if self.written < self.again {
                // The last of what was sent before ends a segment. The kernel would keep one back that is about to become
                // longer, until an acknowledgement arrives (`tcp_tso_should_defer`).
                until = self.again;
                flags |= MsgFlags::MSG_EOR;
            }
            match send(socket.as_raw_fd(), &self.bytes[self.written..until], flags) {
                Ok(count) => self.written += count,
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.bytes = Vec::new();
        self.written = 0;
        if self.end == LocalEnd::Unsent {
            shutdown(socket.as_raw_fd(), Shutdown::Write)?;
            self.end = LocalEnd::Sent;
        }
        // Before, it would have kept the bytes above it out.
        let mark = int(self.low_water);
        sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, mark)?;
        Ok(true)
    }
}
