//! The kernel's measurements of a TCP connection (`TCP_INFO`, `struct tcp_info` in `include/uapi/linux/tcp.h`).

use crate::sockopt;
use crate::tcp_state;
use nix::libc;
use std::io;
use std::os::fd::AsFd;

/// Unit: bytes. The size up to and including `tcpi_delivery_rate`, which exists since Linux 4.9.
const NEEDED: usize = 168;
/// Unit: bytes. Larger than the structure of any kernel.
const ROOM: usize = 512;

/// Some fields of `TCP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpInfo {
    /// As in `include/net/tcp_states.h`.
    pub state: u8,
    /// What both ends negotiated, as bits (`TCPI_OPT_*`).
    pub options: u8,
    /// Unit: bits. The shifts of the windows that the far end advertises, and of those that this end does; 0 where they are
    /// not scaled.
    pub window_scales: [u8; 2],
    /// Unit: microseconds. Retransmission timeout (RFC 6298).
    pub rto_us: u32,
    /// Unit: bytes. The sending MSS.
    pub mss: u32,
    /// Unit: microseconds. Smoothed round-trip time; 0 before the first sample.
    pub rtt_us: u32,
    /// Unit: microseconds. The mean deviation of the round-trip time (RTTVAR, RFC 6298).
    pub rtt_variation_us: u32,
    /// Unit: segments. Slow start threshold; 2³¹ − 1 before the first loss.
    pub ssthresh: u32,
    /// Unit: microseconds. The smallest round-trip time; `u32::MAX` before the first sample.
    pub rtt_min_us: u32,
    /// Unit: segments. Congestion window.
    pub cwnd: u32,
    /// Unit: segments. Sent, and not acknowledged cumulatively.
    pub unacknowledged: u32,
    /// Unit: segments. How many of these SACK has acknowledged.
    pub sacked: u32,
    /// Unit: segments. How many of these count as lost.
    pub lost: u32,
    /// Unit: segments. How many of these were retransmitted and are not acknowledged.
    pub resent: u32,
    /// Unit: milliseconds. Time since data was last sent.
    pub data_sent_ms_ago: u32,
    /// Unit: bytes. The most that was read of it within a round trip.
    pub read_per_rtt: u32,
    /// Unit: segments. Retransmitted since the connection began.
    pub retransmissions: u32,
    /// Unit: segments. Sent, retransmissions included.
    pub segments_sent: u32,
    /// Unit: segments. Received with data.
    pub data_segments_received: u32,
    /// Unit: segments. How many of these arrived out of order; 0 before Linux 5.4.
    pub out_of_order: u32,
    /// Unit: segments. Sent with data, again or for the first time: what `retransmissions` is a part of.
    pub data_segments_sent: u32,
    /// Unit: microseconds. How long a closed window of the far end has kept data from being sent; 0 before Linux 4.10.
    pub window_limited_us: u64,
    /// Unit: bytes. Acknowledged by the far end; SYN and FIN count.
    pub acknowledged_bytes: u64,
    /// Unit: bytes. Received in order.
    pub received_bytes: u64,
    /// Unit: bytes. Written, and never sent.
    pub unsent_bytes: u32,
    /// Unit: bytes. Sent, retransmissions included; none before Linux 4.19.
    pub sent_bytes: Option<u64>,
    /// Unit: bytes. How much of that was sent again; none before Linux 4.19.
    pub resent_bytes: Option<u64>,
    /// Unit: bytes per second. The recent delivery rate.
    pub delivery_rate: u64,
    /// Unit: bytes per second. `u64::MAX` if the connection is not paced.
    pub pacing_rate: u64,
}

impl TcpInfo {
    /// Reads the measurements of a socket.
    ///
    /// # Errors
    /// When it is not a TCP socket, or the kernel is older than 4.9.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut room = [0; ROOM];
        let info = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut room)?;
        Self::parse(info)
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "TCP_INFO is too short here"))
    }

    /// Parses `struct tcp_info` as written by the kernel, which only ever appends fields to it; none if it is too
    /// short.
    pub fn parse(info: &[u8]) -> Option<Self> {
        if info.len() < NEEDED {
            return None;
        }
        let word = |offset| at(info, offset).map(u32::from_ne_bytes);
        let long = |offset| at(info, offset).map(u64::from_ne_bytes);
        Some(Self {
            state: *info.first()?,
            options: *info.get(5)?,
            window_scales: scales(*info.get(6)?),
            rto_us: word(8)?,
            mss: word(16)?,
            rtt_us: word(68)?,
            rtt_variation_us: word(72)?,
            ssthresh: word(76)?,
            rtt_min_us: word(148)?,
            cwnd: word(80)?,
            unacknowledged: word(24)?,
            sacked: word(28)?,
            lost: word(32)?,
            resent: word(36)?,
            data_sent_ms_ago: word(44)?,
            read_per_rtt: word(96)?,
            retransmissions: word(100)?,
            segments_sent: word(136)?,
            data_segments_received: word(152)?,
            data_segments_sent: word(156)?,
            window_limited_us: long(176).unwrap_or(0),
            out_of_order: word(224).unwrap_or(0),
            acknowledged_bytes: long(120)?,
            received_bytes: long(128)?,
            unsent_bytes: word(144)?,
            sent_bytes: long(200),
            resent_bytes: long(208),
            delivery_rate: long(160)?,
            pacing_rate: long(104)?,
        })
    }

    /// Unit: bytes. Congestion window, in segments of the sending MSS.
    pub fn cwnd_bytes(&self) -> u64 {
        self.segments(u64::from(self.cwnd))
    }

    /// Unit: bytes. Sent, neither acknowledged nor counted as lost, in whole segments.
    pub fn in_flight_bytes(&self) -> u64 {
        let sent = u64::from(self.unacknowledged) + u64::from(self.resent);
        self.segments(sent.saturating_sub(u64::from(self.sacked) + u64::from(self.lost)))
    }

    /// Unit: bytes. Sent and not acknowledged cumulatively, lost or not, in whole segments.
    pub fn outstanding_bytes(&self) -> u64 {
        self.segments(u64::from(self.unacknowledged))
    }

    /// Unit: bytes. Sent and not acknowledged cumulatively, lost or not (FlightSize, RFC 5681): to the byte since Linux
    /// 4.19, but for SYN and FIN; before that in whole segments.
    pub fn flight_bytes(&self) -> u64 {
        let sent = self.sent_bytes.zip(self.resent_bytes);
        sent.map_or(self.outstanding_bytes(), |(sent, resent)| {
            sent.saturating_sub(resent).saturating_sub(self.acknowledged_bytes)
        })
    }

    /// Whether both ends have closed and everything is acknowledged.
    pub fn is_closed(&self) -> bool {
        self.state == tcp_state::CLOSED
    }

    fn segments(&self, count: u64) -> u64 {
        count * u64::from(self.mss)
    }
}

/// Two bit fields of four bits, which lie in a byte as the machine orders them.
fn scales(byte: u8) -> [u8; 2] {
    let halves = [byte & 15, byte >> 4];
    if cfg!(target_endian = "big") { [halves[1], halves[0]] } else { halves }
}

fn at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    fn connected() -> io::Result<[TcpStream; 2]> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        Ok([near, listener.accept()?.0])
    }

    #[test]
    fn a_connection_that_moved_data_is_measured() -> io::Result<()> {
        let [mut near, mut far] = connected()?;
        near.write_all(&[7; 10_000])?;
        let mut taken = vec![0; 10_000];
        far.read_exact(&mut taken)?;
        far.write_all(b"k")?;
        near.read_exact(&mut taken[..1])?;
        let sender = TcpInfo::of(&near)?;
        assert!(sender.cwnd_bytes() >= 10_000, "{sender:?}");
        assert!(sender.rtt_us > 0 && sender.rtt_us < 1_000_000, "{sender:?}");
        assert!(sender.rtt_min_us < 1_000_000, "{sender:?}");
        assert!(sender.rtt_variation_us > 0 && sender.rto_us > sender.rtt_us, "{sender:?}");
        assert!(sender.ssthresh > 10 && sender.window_scales.iter().all(|it| *it < 15));
        assert_eq!((sender.in_flight_bytes(), sender.sent_bytes), (0, Some(10_000)), "{sender:?}");
        let receiver = TcpInfo::of(&far)?;
        assert_eq!((receiver.received_bytes, receiver.retransmissions), (10_000, 0));
        assert!(receiver.data_segments_received > 0, "{receiver:?}");
        assert_eq!((receiver.out_of_order, receiver.is_closed()), (0, false));
        Ok(())
    }

    #[test]
    fn what_waits_and_what_is_over_shows() -> io::Result<()> {
        let [mut near, mut far] = connected()?;
        near.set_nonblocking(true)?;
        // Nobody reads: the window closes, and what is written afterwards waits.
        while near.write(&[1; 64 << 10]).is_ok() {}
        assert!(TcpInfo::of(&near)?.unsent_bytes > 0);
        near.set_nonblocking(false)?;
        near.shutdown(Shutdown::Write)?;
        io::copy(&mut far, &mut io::sink())?;
        far.shutdown(Shutdown::Write)?;
        near.read_to_end(&mut Vec::new())?;
        let info = TcpInfo::of(&near)?;
        assert_eq!((info.unsent_bytes, info.is_closed()), (0, true));
        Ok(())
    }

    #[test]
    fn what_has_arrived_behind_a_hole_is_outstanding_and_not_in_flight() {
        let mut raw = [0; NEEDED];
        // The sending MSS. Of ten segments sent, three have arrived, two are lost, and one was retransmitted.
        for (at, word) in [(16, 1_448u32), (24, 10), (28, 3), (32, 2), (36, 1)] {
            raw[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        let info = TcpInfo::parse(&raw).expect("long enough");
        assert_eq!((info.outstanding_bytes(), info.in_flight_bytes()), (14_480, 6 * 1_448));
    }

    #[test]
    fn segments_that_are_not_full_count_with_what_is_in_them() {
        let mut raw = [0; 216];
        // Ten segments of a thousand bytes each were sent, two of them again. Four are acknowledged, with the SYN.
        for (at, word) in [(16, 1_448u32), (24, 6)] {
            raw[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        for (at, long) in [(120, 4_001u64), (200, 12_000), (208, 2_000)] {
            raw[at..at + 8].copy_from_slice(&long.to_ne_bytes());
        }
        let info = TcpInfo::parse(&raw).expect("long enough");
        assert_eq!((info.outstanding_bytes(), info.flight_bytes()), (6 * 1_448, 5_999));
        let older = TcpInfo::parse(&raw[..200]).expect("long enough");
        assert_eq!(older.flight_bytes(), 6 * 1_448);
    }

    #[test]
    fn another_socket_is_an_error() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
        assert!(TcpInfo::of(&socket).is_err());
    }

    #[test]
    fn a_short_answer_is_refused() {
        assert_eq!(TcpInfo::parse(&[0; NEEDED - 1]), None);
        assert_eq!(
            TcpInfo::parse(&[0; NEEDED]),
            Some(TcpInfo { sent_bytes: None, ..TcpInfo::default() })
        );
    }
}
