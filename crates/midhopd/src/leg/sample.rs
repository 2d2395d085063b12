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
}

impl Sample {
    /// Asks the kernel; `None` where it never measured a round trip.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let mut buffer = [0; 280];
        let info = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut buffer).ok()?;
        // Offsets in `struct tcp_info`, to which the kernel only ever appends.
        let sample = Self {
            rtt_us: u32::from_ne_bytes(at(info, 68)?),
            rtt_min_us: u32::from_ne_bytes(at(info, 148)?),
            retransmissions: u32::from_ne_bytes(at(info, 100)?),
            sent: u64::from_ne_bytes(at(info, 120)?),
            received: u64::from_ne_bytes(at(info, 128)?),
        };
        (sample.rtt_us > 0).then_some(sample)
    }
}

/// What a connection has still to send, and what it has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Unit: bytes. Written, and not sent even once.
    pub unsent: u32,
    /// Unit: bytes, in whole segments. Acknowledged in order or out of it.
    pub delivered: u64,
}

impl Backlog {
    /// Asks the kernel.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let mut buffer = [0; 280];
        let info = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut buffer).ok()?;
        let segments = u64::from(u32::from_ne_bytes(at(info, 192)?));
        let segment = u64::from(u32::from_ne_bytes(at(info, 16)?));
        let unsent = u32::from_ne_bytes(at(info, 144)?);
        Some(Self { unsent, delivered: segments * segment })
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
        assert!(sample.rtt_us > 0 && sample.rtt_min_us < 1_000_000);
        let before = Backlog::of(&near).expect("an answer");
        assert!(before.delivered > 0 && before.unsent == 0, "{before:?}");
        // Nobody reads: the window closes, and what is written then waits.
        near.set_nonblocking(true)?;
        while near.write(&[1; 64 << 10]).is_ok() {}
        let after = Backlog::of(&near).expect("an answer");
        assert!(after.delivered > before.delivered && after.unsent > 0, "{after:?}");
        Ok(())
    }
}
