//! What the kernel measured on a connection.

use crate::sockopt;
use nix::libc;
use std::os::fd::AsFd;

/// Some of `TCP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Unit: microseconds. Smoothed round-trip time.
    pub rtt_us: u32,
    /// Unit: microseconds. The shortest.
    pub rtt_min_us: u32,
    /// Unit: segments. Sent again.
    pub retransmissions: u32,
    /// Unit: bytes. Acknowledged by the far end.
    pub sent: u64,
    /// Unit: bytes. Received in order.
    pub received: u64,
    /// Unit: bytes. Written, and not sent even once.
    pub unsent: u32,
    /// Unit: segments. Received with data.
    pub segments: u32,
    /// Unit: segments. Of these, those that came out of order: lost on the way before, or overtaken.
    pub out_of_order: u32,
    /// Unit: segments. Sent, again or for the first time.
    pub sent_segments: u32,
    /// Unit: bytes. What may be in flight.
    pub window: u64,
    /// Unit: bytes. What is.
    pub in_flight: u64,
    /// Whether both ends have ended and all is acknowledged.
    pub closed: bool,
}

/// The kernel's `TCP_CLOSE`.
const CLOSED: u8 = 7;

impl Sample {
    /// Asks the kernel; `None` where there is no answer.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let mut buffer = [0; 280];
        let info = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut buffer).ok()?;
        // Offsets in `struct tcp_info`, to which the kernel only ever appends.
        let word = |offset| at(info, offset).map(u32::from_ne_bytes);
        let mss = u64::from(word(16)?);
        let [unacked, sacked, lost, again] = [word(24)?, word(28)?, word(32)?, word(36)?];
        let in_flight = unacked.saturating_sub(sacked).saturating_sub(lost).saturating_add(again);
        Some(Self {
            rtt_us: u32::from_ne_bytes(at(info, 68)?),
            rtt_min_us: u32::from_ne_bytes(at(info, 148)?),
            retransmissions: u32::from_ne_bytes(at(info, 100)?),
            sent: u64::from_ne_bytes(at(info, 120)?),
            received: u64::from_ne_bytes(at(info, 128)?),
            unsent: u32::from_ne_bytes(at(info, 144)?),
            segments: word(152)?,
            out_of_order: word(224).unwrap_or(0),
            sent_segments: word(136)?,
            window: u64::from(word(80)?) * mss,
            in_flight: u64::from(in_flight) * mss,
            closed: *info.first()? == CLOSED,
        })
    }

    /// Whether a round trip was ever measured.
    pub fn is_measured(&self) -> bool {
        self.rtt_us > 0
    }
}

/// What a connection has still to send, and what it has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendBacklog {
    /// Unit: bytes. Written, and not sent even once.
    pub unsent: u32,
    /// Unit: bytes. Sent, again or for the first time.
    pub sent: u64,
}

impl SendBacklog {
    /// Asks the kernel.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let mut buffer = [0; 280];
        let info = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut buffer).ok()?;
        Some(Self {
            unsent: u32::from_ne_bytes(at(info, 144)?),
            sent: u64::from_ne_bytes(at(info, 200)?),
        })
    }
}

fn at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_measured() -> std::io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut near = TcpStream::connect(listener.local_addr()?)?;
        let (mut far, _) = listener.accept()?;
        near.write_all(&[1; 1000])?;
        far.read_exact(&mut [0; 1000])?;
        let sample = Sample::of(&far).expect("a measured connection");
        assert_eq!((sample.received, sample.retransmissions), (1000, 0));
        assert!(sample.is_measured() && sample.rtt_min_us < 1_000_000);
        assert_eq!((sample.unsent, sample.closed), (0, false));
        assert_eq!((sample.segments, sample.out_of_order), (1, 0));
        let before = SendBacklog::of(&near).expect("an answer");
        assert!(before.sent == 1000 && before.unsent == 0, "{before:?}");
        // Nobody reads: the window closes, and what is written then waits.
        near.set_nonblocking(true)?;
        while near.write(&[1; 64 << 10]).is_ok() {}
        let after = SendBacklog::of(&near).expect("an answer");
        assert!(after.sent > before.sent && after.unsent > 0, "{after:?}");
        Ok(())
    }

    #[test]
    fn what_waits_and_what_is_over_shows() -> std::io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut near = TcpStream::connect(listener.local_addr()?)?;
        let (mut far, _) = listener.accept()?;
        near.set_nonblocking(true)?;
        while near.write(&[1; 1 << 16]).is_ok() {}
        assert!(Sample::of(&near).expect("an answer").unsent > 0);
        near.set_nonblocking(false)?;
        near.shutdown(std::net::Shutdown::Write)?;
        std::io::copy(&mut far, &mut std::io::sink())?;
        far.shutdown(std::net::Shutdown::Write)?;
        near.read_to_end(&mut Vec::new())?;
        let sample = Sample::of(&near).expect("an answer");
        assert_eq!((sample.unsent, sample.closed), (0, true));
        Ok(())
    }
}
