//! The fields of a TCP connection that the meter and the proxies' probe sample.

use midhop_linux::tcp_info::TcpInfo;
use std::io;
use std::os::fd::AsFd;

/// A part of the kernel's `TCP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TcpSample {
    /// Congestion window. Unit: bytes (segments × the sending MSS).
    pub(crate) cwnd_bytes: u64,
    /// Smoothed round trip. Unit: microseconds.
    pub(crate) rtt_us: u64,
    /// Smallest round trip seen; none before the first sample. Unit: microseconds.
    pub(crate) rtt_min_us: Option<u64>,
    /// Segments retransmitted since the connection began.
    pub(crate) retransmissions: u64,
    /// Recent delivery rate. Unit: bytes per second.
    pub(crate) delivery_rate: u64,
    /// Sent, neither acknowledged nor considered lost. Unit: bytes.
    pub(crate) in_flight_bytes: u64,
    /// Sent and not cumulatively acknowledged, lost or not, in whole segments. Unit: bytes.
    pub(crate) outstanding_bytes: u64,
    /// Pacing rate; none where the connection is not paced. Unit: bytes per second.
    pub(crate) pacing_rate: Option<u64>,
    /// Payload that the other end has acknowledged. Unit: bytes.
    pub(crate) acknowledged_bytes: u64,
}

impl TcpSample {
    /// Reads the kernel's `TCP_INFO` of `socket`.
    ///
    /// # Errors
    /// When `socket` is no TCP socket, or the kernel is older than 4.9.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        TcpInfo::of(socket).map(Self::from)
    }
}

impl From<TcpInfo> for TcpSample {
    fn from(info: TcpInfo) -> Self {
        Self {
            cwnd_bytes: info.cwnd_bytes(),
            rtt_us: u64::from(info.rtt_us),
            rtt_min_us: Some(info.rtt_min_us)
                .filter(|&rtt| rtt != u32::MAX && rtt != 0)
                .map(u64::from),
            retransmissions: u64::from(info.retransmissions),
            delivery_rate: info.delivery_rate,
            in_flight_bytes: info.in_flight_bytes(),
            outstanding_bytes: info.outstanding_bytes(),
            pacing_rate: Some(info.pacing_rate).filter(|&rate| rate != u64::MAX),
            acknowledged_bytes: info.acknowledged_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_measured_is_none() {
        let info = TcpInfo { rtt_min_us: u32::MAX, pacing_rate: u64::MAX, ..TcpInfo::default() };
        let sample = TcpSample::from(info);
        assert_eq!((sample.rtt_min_us, sample.pacing_rate), (None, None));
        assert_eq!(TcpSample::from(TcpInfo::default()).rtt_min_us, None);
    }
}
