//! What the kernel tells of a TCP connection (`TCP_INFO`, `include/uapi/linux/tcp.h`).
#![expect(unsafe_code, reason = "getsockopt(TCP_INFO) has no safe wrapper that knows all fields")]

use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes of `struct tcp_info` up to and including `tcpi_delivery_rate`, which Linux 4.9 has.
const NEEDED: usize = 168;

/// The fields that the meter and the proxies' probe sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct TcpInfo {
    /// Congestion window. Unit: bytes (segments × the sending MSS).
    pub(crate) cwnd_bytes: u64,
    /// Smoothed round trip. Unit: microseconds.
    pub(crate) rtt_us: u64,
    /// Smallest round trip seen; none before the first sample. Unit: microseconds.
    pub(crate) rtt_min_us: Option<u64>,
    /// Segments sent again since the connection began.
    pub(crate) retransmissions: u64,
    /// Rate at which data was delivered lately. Unit: bytes per second.
    pub(crate) delivery_rate: u64,
    /// Sent, neither acknowledged nor thought lost. Unit: bytes.
    pub(crate) in_flight_bytes: u64,
    /// Sent and not acknowledged in sequence, lost or not, in whole segments. Unit: bytes.
    pub(crate) outstanding_bytes: u64,
    /// Pacing rate; none where the connection is not paced. Unit: bytes per second.
    pub(crate) pacing_rate: Option<u64>,
    /// Payload that the other end has acknowledged. Unit: bytes.
    pub(crate) acknowledged_bytes: u64,
}

/// Asks the kernel about `socket`.
///
/// # Errors
/// When `socket` is no TCP socket, or the kernel is older than 4.9.
pub(crate) fn read(socket: &impl AsFd) -> io::Result<TcpInfo> {
    let mut raw = [0u8; 512];
    let mut length = raw.len() as libc::socklen_t;
    // SAFETY: `raw` is writable for `length` bytes during the call, `length` is a valid in-out
    // parameter, and the descriptor is open for as long as `socket` is borrowed.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            raw.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    parse(raw.get(..length as usize).unwrap_or(&raw))
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "TCP_INFO is too short here"))
}

/// Reads `struct tcp_info` as the kernel wrote it; none when it is too short.
pub(crate) fn parse(raw: &[u8]) -> Option<TcpInfo> {
    if raw.len() < NEEDED {
        return None;
    }
    let word = |at: usize| raw.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let long = |at: usize| raw.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let mss = u64::from(word(16)?);
    let (unacked, sacked, lost, retrans) = (word(24)?, word(28)?, word(32)?, word(36)?);
    let in_flight = (u64::from(unacked) + u64::from(retrans))
        .saturating_sub(u64::from(sacked) + u64::from(lost));
    Some(TcpInfo {
        cwnd_bytes: u64::from(word(80)?) * mss,
        rtt_us: u64::from(word(68)?),
        rtt_min_us: Some(word(148)?).filter(|&rtt| rtt != u32::MAX && rtt != 0).map(u64::from),
        retransmissions: u64::from(word(100)?),
        delivery_rate: long(160)?,
        in_flight_bytes: in_flight * mss,
        outstanding_bytes: u64::from(unacked) * mss,
        pacing_rate: Some(long(104)?).filter(|&rate| rate != u64::MAX),
        acknowledged_bytes: long(120)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_that_moved_data_has_a_window_and_a_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        let (mut server, _) = listener.accept().expect("accept");
        client.write_all(&[7; 10_000]).expect("write");
        let mut taken = vec![0; 10_000];
        server.read_exact(&mut taken).expect("read");
        server.write_all(b"k").expect("write");
        client.read_exact(&mut taken[..1]).expect("read");
        let info = read(&client).expect("TCP_INFO");
        assert!(info.cwnd_bytes >= 10_000, "{info:?}");
        assert!(info.rtt_us < 1_000_000 && info.rtt_min_us.is_some(), "{info:?}");
        assert_eq!(info.in_flight_bytes, 0, "{info:?}");
    }

    #[test]
    fn what_has_arrived_behind_a_hole_is_outstanding_and_not_in_flight() {
        let mut raw = [0; NEEDED];
        // The sending MSS; of ten segments sent three have arrived, two are lost, one is sent again.
        for (at, word) in [(16, 1_448u32), (24, 10), (28, 3), (32, 2), (36, 1)] {
            raw[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        let info = parse(&raw).expect("long enough");
        assert_eq!((info.outstanding_bytes, info.in_flight_bytes), (14_480, 6 * 1_448));
    }

    #[test]
    fn another_socket_is_an_error() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
        assert!(read(&socket).is_err());
    }

    #[test]
    fn a_short_answer_is_refused() {
        assert_eq!(parse(&[0; NEEDED - 1]), None);
        assert_eq!(parse(&[0; NEEDED]).map(|info| info.rtt_min_us), Some(None));
    }
}
