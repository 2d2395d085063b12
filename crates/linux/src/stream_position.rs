//! How far a program has read and written a TCP connection, by the kernel's own counts.
//!
//! Another process that has the socket can request the counts at any time, so a program that dies need not have
//! recorded anything. Meanwhile nobody may read or write the connection; its far end may do anything.

use crate::sockopt;
use crate::tcp_info::TcpInfo;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

/// States in which this end has sent a FIN, and the connection is not over (`include/net/tcp_states.h`):
/// `TCP_FIN_WAIT1`, `TCP_FIN_WAIT2`, `TCP_LAST_ACK`, `TCP_CLOSING`.
const FIN_SENT: [u8; 4] = [4, 5, 9, 11];
/// The option, and the message that it requests (`include/uapi/linux/tcp.h`).
const TCP_INQ: libc::c_int = 36;

/// Which end opened a connection: the kernel counts the SYN that it sent as acknowledged, and not the one with which
/// it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenedBy {
    /// This end, by `connect`.
    ThisEnd,
    /// The far end: this one was accepted.
    FarEnd,
}

/// The positions of a connection's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPosition {
    /// Unit: bytes. Received in order and taken from the receive queue.
    pub read: u64,
    /// Unit: bytes. Put into the send queue, whether sent or not. Meaningless once the connection is closed.
    pub written: u64,
    /// Whether the far end's FIN has arrived, read or not, here or where the connection was before it [moved
    /// here](crate::tcp_repair). False once a connection that moved here after that FIN is closed: only a reset closes it.
    pub ended: bool,
    /// Whether this end has sent its FIN, where none has reset the connection.
    pub shut: bool,
    /// Whether the connection is over: both ends have closed it, or one of them has reset it.
    pub closed: bool,
}

impl StreamPosition {
    /// The position of a socket. From now on the socket reports with each message how much is unread.
    ///
    /// # Errors
    /// When it is not a TCP socket, or the kernel is older than 4.18.
    pub fn of(socket: impl AsFd, opened_by: OpenedBy) -> io::Result<Self> {
        let socket = socket.as_fd();
        sockopt::set_int(socket, libc::IPPROTO_TCP, TCP_INQ, 1)?;
        let mut before = TcpInfo::of(socket)?;
        loop {
            let queues = Queues::of(socket)?;
            let info = TcpInfo::of(socket)?;
            // Bytes or a FIN that arrived, or were acknowledged, in between would be counted in one place and not in the
            // other. Nobody reads or writes, so these counts only grow.
            let counts =
                |info: &TcpInfo| (info.state, info.received_bytes, info.acknowledged_bytes);
            if counts(&info) == counts(&before) {
                return Ok(queues.position(&info, opened_by));
            }
            before = info;
        }
    }

    /// Whether the connection is over, and not because its far end has ended its stream.
    pub fn is_reset(&self) -> bool {
        self.closed && !self.ended
    }
}

/// The contents of a socket's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queues {
    unread: usize,
    /// The same, including the FIN if one has arrived.
    unread_with_fin: usize,
    unacknowledged: usize,
    /// The far end has ended its stream, or the connection is over. This is all that a connection which was restored after
    /// the far end's FIN has of it.
    is_read_side_shut: bool,
}

impl Queues {
    fn of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self {
            unread: sockopt::unread(&socket)?,
            unread_with_fin: unread_with_fin(&socket)?,
            unacknowledged: sockopt::unacknowledged(&socket)?,
            is_read_side_shut: sockopt::is_read_side_shut(&socket)?,
        })
    }

    fn position(&self, info: &TcpInfo, opened_by: OpenedBy) -> StreamPosition {
        // `FIONREAD` leaves the FIN out and `TCP_INQ` does not (`tcp_inq`, `tcp_inq_hint`).
        let fin_received = self.unread_with_fin != self.unread;
        let ended = fin_received || (self.is_read_side_shut && !info.is_closed());
        let fin_sent = FIN_SENT.contains(&info.state);
        let syn = opened_by == OpenedBy::ThisEnd;
        let received = info.received_bytes - u64::from(fin_received);
        let queued = info.acknowledged_bytes + self.unacknowledged as u64;
        StreamPosition {
            read: received.saturating_sub(self.unread as u64),
            written: queued.saturating_sub(u64::from(syn) + u64::from(fin_sent)),
            ended,
            shut: fin_sent || (info.is_closed() && ended),
            closed: info.is_closed(),
        }
    }
}

/// The count that `TCP_INQ` makes the kernel report with a message. Looks at one byte and leaves it in the queue.
fn unread_with_fin(socket: impl AsFd) -> io::Result<usize> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = cmsg_space!(libc::c_int);
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let fd = socket.as_fd().as_raw_fd();
    let message = match recvmsg::<()>(fd, &mut parts, Some(&mut space), flags) {
        // Nothing is unread, and no FIN has arrived: an open connection, or one that broke.
        Err(Errno::ENOTSOCK) => return Err(Errno::ENOTSOCK.into()),
        Err(_) => return Ok(0),
        Ok(message) => message,
    };
    for report in message.cmsgs()? {
        if let ControlMessageOwned::Unknown(report) = report
            && report.cmsg_header.cmsg_level == libc::IPPROTO_TCP
            && report.cmsg_header.cmsg_type == TCP_INQ
            && let Some(bytes) = report.data_bytes.first_chunk()
        {
            return Ok(usize::try_from(i32::from_ne_bytes(*bytes)).unwrap_or(0));
        }
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel does not count what is unread"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{setsockopt, sockopt};
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let near = TcpStream::connect(listener.local_addr().expect("an address"));
        let (far, _) = listener.accept().expect("a connection");
        (near.expect("a connection"), far)
    }

    fn at(socket: &TcpStream, opened_by: OpenedBy) -> StreamPosition {
        StreamPosition::of(socket, opened_by).expect("a position")
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed().as_secs() < 60, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn neither_syn_nor_fin_counts() {
        let (mut near, mut far) = pair();
        let fresh =
            StreamPosition { read: 0, written: 0, ended: false, closed: false, shut: false };
        assert_eq!(at(&near, OpenedBy::ThisEnd), fresh);
        assert_eq!(at(&far, OpenedBy::FarEnd), fresh);
        near.write_all(b"question").expect("writing");
        near.shutdown(Shutdown::Write).expect("ending");
        wait_until("the end arrives", || at(&far, OpenedBy::FarEnd).ended);
        let asked = StreamPosition { written: 8, shut: true, ..fresh };
        assert_eq!(at(&near, OpenedBy::ThisEnd), asked);
        assert_eq!(at(&far, OpenedBy::FarEnd), StreamPosition { ended: true, ..fresh });
        far.read_exact(&mut [0; 5]).expect("reading");
        let some = StreamPosition { read: 5, ended: true, ..fresh };
        assert_eq!(at(&far, OpenedBy::FarEnd), some);
        assert_eq!(far.read(&mut [0; 9]).expect("reading"), 3);
        assert_eq!(at(&far, OpenedBy::FarEnd), StreamPosition { read: 8, ..some });
        assert_eq!(far.read(&mut [0; 9]).expect("the end"), 0);
        assert_eq!(at(&far, OpenedBy::FarEnd), StreamPosition { read: 8, ..some });
        far.write_all(b"answer").expect("writing");
        far.shutdown(Shutdown::Write).expect("ending");
        wait_until("both have closed", || at(&near, OpenedBy::ThisEnd).closed);
        let over = at(&near, OpenedBy::ThisEnd);
        assert!(over.ended && over.read == 0 && !over.is_reset(), "{over:?}");
        near.read_exact(&mut [0; 6]).expect("reading");
        assert_eq!(at(&near, OpenedBy::ThisEnd).read, 6);
        wait_until("both have closed", || at(&far, OpenedBy::FarEnd).closed);
        assert_eq!(at(&far, OpenedBy::FarEnd).read, 8);
        assert!(!at(&far, OpenedBy::FarEnd).is_reset());
    }

    /// This is what is restored of a connection whose far end has ended its stream: nothing of the FIN is counted.
    #[test]
    fn an_end_that_came_before_a_move_is_one() {
        let (mut near, mut far) = pair();
        near.write_all(b"question").expect("writing");
        wait_until("it arrives", || crate::sockopt::unread(&far).is_ok_and(|bytes| bytes == 8));
        far.shutdown(Shutdown::Read).expect("as restoring does");
        let moved = StreamPosition { read: 0, written: 0, ended: true, closed: false, shut: false };
        assert_eq!(at(&far, OpenedBy::FarEnd), moved);
        far.read_exact(&mut [0; 8]).expect("reading");
        assert_eq!(at(&far, OpenedBy::FarEnd), StreamPosition { read: 8, ..moved });
        assert_eq!(far.read(&mut [0]).expect("the end"), 0);
        far.shutdown(Shutdown::Write).expect("ending");
        let shut = StreamPosition { read: 8, shut: true, ..moved };
        assert_eq!(at(&far, OpenedBy::FarEnd), shut);
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&near, sockopt::Linger, &at_once).expect("a linger time");
        drop(near);
        wait_until("the reset arrives", || at(&far, OpenedBy::FarEnd).closed);
        assert!(at(&far, OpenedBy::FarEnd).is_reset());
    }

    #[test]
    fn a_reset_is_no_end() {
        for noticed in [false, true] {
            let (mut near, mut far) = pair();
            near.write_all(b"half an ans").expect("writing");
            wait_until("it arrives", || {
                crate::sockopt::unread(&far).is_ok_and(|bytes| bytes == 11)
            });
            let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&near, sockopt::Linger, &at_once).expect("a linger time");
            drop(near);
            wait_until("the reset arrives", || at(&far, OpenedBy::FarEnd).closed);
            far.read_exact(&mut [0; 4]).expect("what came before");
            if noticed {
                // Reading the error has cleared it: what is left seems to end in order.
                assert!(crate::sockopt::take_error(&far).is_ok_and(|error| error.is_some()));
            }
            let reset = at(&far, OpenedBy::FarEnd);
            assert!(reset.is_reset() && reset.read == 4, "{reset:?}");
        }
    }

    #[test]
    fn what_waits_in_the_send_queue_is_written() {
        let (near, far) = pair();
        near.set_nonblocking(true).expect("a mode");
        let mut written = 0;
        while let Ok(count) = (&near).write(&[7; 70_000]) {
            written += count as u64;
        }
        assert_eq!(at(&near, OpenedBy::ThisEnd).written, written);
        near.shutdown(Shutdown::Write).expect("ending");
        assert_eq!(at(&near, OpenedBy::ThisEnd).written, written, "a FIN behind it is none of it");
        let read = (&far).take(100_000).read_to_end(&mut Vec::new()).expect("reading") as u64;
        assert_eq!(at(&far, OpenedBy::FarEnd).read, read);
        assert_eq!(at(&near, OpenedBy::ThisEnd).written, written);
    }
}
