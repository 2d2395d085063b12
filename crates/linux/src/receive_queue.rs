//! Copies what a TCP socket has received and nobody has read; it stays in the queue.
//!
//! The kernel looks for each segment that it copies from the beginning of the queue on (`tcp_recvmsg_locked` with `MSG_PEEK`).
//! So a copy takes a time that grows with the square of the number of segments, and one processor does nothing else
//! meanwhile, whoever waits for it. Usually the kernel has merged them: 6 MB take some 1 ms. It cannot merge
//! segments whose buffers were allocated in one piece, as those of a packet socket are: 33 MB of them took 22 s. Nothing
//! reports the number of segments.
//!
//! Decision 0075.
//!
//! Invariant: no copy takes much longer than [`COST_MAX`] of processor time. What takes longer is noticed at its beginning.

use nix::libc;
use nix::sys::socket::{MsgFlags, recv};
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Unit: bytes. What is copied first: some 80 ms for segments of 1,428 bytes that are not merged, by calculation.
const FIRST: usize = 2 << 20;
/// The processor time that the next copy may be expected to take. On the thread's clock, so that a busy machine changes nothing.
const COST_MAX: Duration = Duration::from_millis(200);

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The queue has too many segments.
    #[error(
        "a copy of {unread} unread bytes would take a processor too long: {copied} took {cost:?}"
    )]
    TooSlow {
        /// Unit: bytes. What was to be copied.
        unread: usize,
        /// Unit: bytes. What was copied to find that out.
        copied: usize,
        /// The processor time of that.
        cost: Duration,
    },
    /// The kernel refuses. `WouldBlock`: nothing is unread.
    #[error(transparent)]
    Kernel(#[from] io::Error),
}

/// Copies what is unread, `bytes_max` bytes at most. Less if there is less.
///
/// # Errors
/// When the kernel refuses, nothing is unread, or it would take too long.
pub fn copy_unread(socket: impl AsFd, bytes_max: usize) -> Result<Vec<u8>, CopyError> {
    copy_in_steps(socket, bytes_max, FIRST)
}

fn copy_in_steps(socket: impl AsFd, bytes_max: usize, first: usize) -> Result<Vec<u8>, CopyError> {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let mut length = first.min(bytes_max);
    loop {
        let before = processor_time()?;
        let mut bytes = vec![0; length];
        let copied =
            recv(socket.as_fd().as_raw_fd(), &mut bytes, flags).map_err(io::Error::from)?;
        let cost = processor_time()?.saturating_sub(before);
        if copied < length || length == bytes_max {
            bytes.truncate(copied);
            return Ok(bytes);
        }
        let too_slow = CopyError::TooSlow { unread: bytes_max, copied, cost };
        length = longer(length, bytes_max, cost).ok_or(too_slow)?;
    }
}

/// Unit: bytes. How much to copy after `length` has taken `cost`: the most that would not take too long if no segments are
/// merged. None: twice as much would.
fn longer(length: usize, bytes_max: usize, cost: Duration) -> Option<usize> {
    let steps = [bytes_max, length.saturating_mul(4), length.saturating_mul(2)];
    steps.into_iter().map(|step| step.min(bytes_max)).find(|step| {
        let times = *step as f64 / length as f64;
        cost.mul_f64(times * times) <= COST_MAX
    })
}

fn processor_time() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::from_raw(libc::CLOCK_THREAD_CPUTIME_ID))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockopt;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_copy_goes_on_while_it_is_quick() {
        const MS: Duration = Duration::from_millis(1);
        let all = 33 << 20;
        // That are merged: 1 ms for each 2 MB, and five times as slow.
        for (cost, expected) in [(MS, vec![8, 33]), (5 * MS, vec![8, 16, 33])] {
            let mut lengths = vec![FIRST];
            while lengths[lengths.len() - 1] < all {
                let length = lengths[lengths.len() - 1];
                let cost = cost.mul_f64(length as f64 / FIRST as f64);
                lengths.push(longer(length, all, cost).expect("it goes on"));
            }
            let expected: Vec<usize> = expected.into_iter().map(|it: usize| it << 20).collect();
            assert_eq!(lengths[1..], expected, "{cost:?}");
        }
        // That are not merged.
        assert_eq!(longer(FIRST, all, 80 * MS), None);
        // Of 3 MB the rest is worth it all the same.
        assert_eq!(longer(FIRST, 3 << 20, 80 * MS), Some(3 << 20));
    }

    #[test]
    fn what_is_unread_is_copied_whole_and_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let mut far = TcpStream::connect(listener.local_addr().expect("an address")).expect("up");
        let (near, _) = listener.accept().expect("a connection");
        let nothing = copy_unread(&near, 9).expect_err("nothing is unread");
        assert!(
            matches!(&nothing, CopyError::Kernel(error) if error.kind() == io::ErrorKind::WouldBlock),
            "{nothing}"
        );
        // It fits into the smallest receive buffer.
        let sent: Vec<u8> = (0..50_000_u32).map(|n| (n % 251) as u8).collect();
        far.write_all(&sent).expect("room");
        let is_there = || sockopt::unread(&near).expect("a count") == sent.len();
        while !is_there() {
            std::thread::yield_now();
        }
        for first in [FIRST, 1_000, 1] {
            for room in [999, 1_000, 1_001, 50_000, 50_001] {
                let copy = copy_in_steps(&near, room, first).expect("a copy");
                assert!(copy == sent[..room.min(sent.len())], "{first}: {} of {room}", copy.len());
            }
        }
        assert!(is_there());
    }
}
