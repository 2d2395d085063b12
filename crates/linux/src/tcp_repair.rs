//! Moves a live TCP connection from one kernel to another, unnoticed by its far end (`TCP_REPAIR`,
//! `include/uapi/linux/tcp.h`).
//!
//! # Order of a move
//! | | where | privilege | step |
//! |---|---|---|---|
//! | 1 | both places | `CAP_NET_ADMIN` | Rules drop all packets of the connection, at the new place first. |
//! | 2 | old | `CAP_NET_ADMIN` | [`switch`] to [`Mode::On`]. |
//! | 3 | old | | [`dump()`] takes a [`TcpSnapshot`], which travels as [`TcpSnapshot::encode`] writes it. |
//! | 4 | new | `CAP_NET_ADMIN` | [`prepare`] creates a socket in repair mode, with the address and the buffers of the snapshot. |
//! | 5 | new | | [`restore()`] makes it the connection. |
//! | 6 | new | `CAP_NET_ADMIN` | It may get its congestion window ([`seed()`]). The rule goes and the route changes; [`go_on`]. |
//! | 7 | new | | [`Unsent::send`] writes what had not been sent, and the FIN behind it. |
//! | 8 | old | | The socket is closed. In repair mode that sends nothing, neither FIN nor RST. |
//!
//! A move that fails before step 6 is undone at the old place by [`Mode::Off`] alone: dumping changes nothing. After step
//! 6 the old socket must never leave repair mode.
//!
//! # Why packets have to be dropped
//! Repair mode stops neither reception nor timers. A segment that arrives between dump and close would be acknowledged by
//! a kernel that is about to forget it, and one that arrives where there is no socket is answered by a RST. A rule at
//! the output hook has a second effect: the kernel learns that nothing went out (`EPERM`), and counts the bytes as
//! unsent. At the old place incoming packets are dropped first, and outgoing ones a moment later, so that the last
//! acknowledgements and windows still reach the far end: what it does not learn then, it learns from its own
//! retransmission.
//!
//! Nothing has to be lost at the new place: where a queue of nftables ([`nfqueue`](crate::nfqueue)) holds what comes instead
//! of a rule that drops it, and the route changes before the dump, the segments are delivered once the connection is
//! restored. No base chain may be added or deleted in that network namespace meanwhile: the kernel resumes a queued
//! packet at the next chain by its number (`nf_reinject`), and drops all that are queued when a chain goes
//! (`nf_queue_nf_hook_drop`). Rules and sets may change.
//!
//! # The probe
//! A restored kernel knows no round-trip time: it retransmits after 3 s, or probes for a lost tail after 1 s. So one octet is
//! queued in front of what is unacknowledged, which the far end has acknowledged before. The answer to the window probe of
//! [`go_on`] acknowledges it again, and is the first measurement: what the freeze has lost is retransmitted after a few
//! round trips instead of seconds. If no answer comes, the octet is retransmitted, and is what a keepalive with a garbage
//! octet is (RFC 9293 §3.8.4): the far end discards it by its sequence number. A far end that was probed less than half a
//! second ago does not answer (Linux: `tcp_invalid_ratelimit`).
//!
//! # Half-closed connections
//! A FIN of this end is restored by `shutdown` in repair mode, which queues it as sent. One that the far end has
//! acknowledged becomes unacknowledged again: the next acknowledgement, of whatever kind, confirms it, and before that at
//! most some retransmissions of the FIN are seen by the far end, which acknowledges them.
//!
//! A FIN of the far end cannot be put into the receive queue without a raw socket and a route on which a packet of the far
//! end's address reaches the own machine; a transparent proxy has neither. It is not needed either. The restored kernel
//! starts with RCV.NXT behind the FIN, so that every acknowledgement covers it: a far end in FIN_WAIT_1 leaves it, and one
//! in FIN_WAIT_2 waits for the same FIN of this end as before. The bytes that are unread are labelled one sequence number
//! higher, which nobody sees, for they are acknowledged. `shutdown` for reading makes reads return the end of the stream
//! behind them, and `poll` report `POLLRDHUP`. What differs is the state's name: ESTABLISHED stands for CLOSE_WAIT, and
//! FIN_WAIT_1 for CLOSING and LAST_ACK. When this end's FIN is acknowledged, the socket is in FIN_WAIT_2, where it would
//! be closed: [`is_over`] knows that. Closed by its owner, it is kept for a second or 3.5 retransmission timeouts
//! (`tcp_fin_time`, with `TCP_LINGER2` at a second) where TIME_WAIT would not have been kept at all; the far end, which
//! closed first, is the one in TIME_WAIT.
//!
//! # What the kernel cannot restore
//! - Congestion window, threshold, round-trip times and pacing rate: [`PathState`] carries them. The restored connection
//!   starts with a window of 10 segments, as a new one does, unless it is given its own ([`seed()`]).
//! - Segments received out of order. The far end transmits them again, as RFC 2018 §8 lets a receiver demand.
//! - ECN: no `TCP_REPAIR_OPTIONS` turns it on. The restored end sends packets that are not ECN-capable, and does not
//!   echo marks; [`Negotiated::ecn`] reports a connection that loses it.
//! - The timestamp to echo: segments carry TSecr 0 until one of the far end has arrived.
//! - Urgent data, MD5 and TCP-AO keys, Fast Open, upper-layer protocols (`TCP_ULP`; [`dump()`] refuses them), and error
//!   queues.
//! - What is policy of the new place: marks, priorities, bound devices, reuse of ports, lifetimes of packets. Its owner sets
//!   them.
//!
//! Decision 0064.

mod dump;
mod restore;
mod seed;
mod snapshot;
mod wire;

#[cfg(test)]
mod tests;

pub use dump::{DumpError, dump};
pub use restore::{
    RestoreError, Unsent, go_on, lock, prepare, prepare_socket, restore, unprepared,
};
pub use seed::{Seed, seed};
pub use snapshot::{
    Acknowledgement, Buffer, Buffers, Keepalive, LocalEnd, Negotiated, PathState, ReceiveQueue,
    SendQueue, SocketOptions, TcpSnapshot, Timestamps, Window, WindowScales,
};
pub use wire::DecodeError;

use crate::sockopt;
use crate::tcp_info::TcpInfo;
use crate::tcp_state;
use nix::libc;
use std::io;
use std::os::fd::AsFd;

/// Bits of `tcpi_options`.
mod negotiated {
    pub const TIMESTAMPS: u8 = 1;
    pub const SELECTIVE_ACKS: u8 = 2;
    pub const WINDOW_SCALES: u8 = 4;
    pub const ECN: u8 = 8;
    pub const MICROSECONDS: u8 = 64;
}

/// What `TCP_REPAIR` is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The queues and their sequence numbers can be read, and set while the socket is not connected. Closing is silent.
    On,
    /// The connection goes on. In ESTABLISHED, a window probe is sent (`tcp_send_window_probe`): the far end's
    /// acknowledgement brings its window up to date and confirms what it has received.
    Off,
    /// The connection goes on, without that probe. Linux 4.19.
    OffWithoutProbe,
}

impl Mode {
    const fn value(self) -> libc::c_int {
        match self {
            Self::On => 1,
            Self::Off => 0,
            Self::OffWithoutProbe => -1,
        }
    }
}

/// Puts a TCP socket into repair mode, or has it leave. All else that a move takes needs no privilege once a
/// socket is in repair mode.
///
/// Before it enters, an acknowledgement that the kernel delays is sent, unless data are still to be read: a restored
/// connection does not know that it owes one.
///
/// The kernel clears `SO_REUSEADDR` with this option, so that a connection would keep others from listening on its
/// port; it is put back.
///
/// # Errors
/// When the kernel refuses: this requires `CAP_NET_ADMIN` in the user namespace of the socket's network namespace, and a
/// TCP socket that does not listen.
pub fn switch(socket: impl AsFd, mode: Mode) -> io::Result<()> {
    let socket = socket.as_fd();
    let reuse = sockopt::read_int(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    if mode == Mode::On {
        sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1)?;
    }
    sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, mode.value())?;
    sockopt::set_int(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, i32::from(reuse != 0))
}

/// Whether a TCP socket is in repair mode.
///
/// # Errors
/// When it is not a TCP socket.
pub fn is_on(socket: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::read_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR)? == Mode::On.value())
}

/// Whether both ends of a connection have closed and all is acknowledged, or one has reset it. Right for restored
/// connections too, whose kernel does not know of the far end's FIN.
///
/// # Errors
/// When it is not a TCP socket.
pub fn is_over(socket: impl AsFd) -> io::Result<bool> {
    let state = TcpInfo::of(&socket)?.state;
    Ok(state == tcp_state::CLOSED
        || (state == tcp_state::FIN_WAIT_2 && sockopt::is_read_side_shut(socket)?))
}

/// A queue of a socket in repair mode (`TCP_REPAIR_QUEUE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    None = 0,
    Receive = 1,
    Send = 2,
}

/// Chooses the queue that reads, writes and `TCP_QUEUE_SEQ` apply to.
fn select(socket: impl AsFd, queue: Queue) -> io::Result<()> {
    sockopt::set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue as i32)
}
