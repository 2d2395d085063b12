//! Statistics of a connection that the daemon reads from the kernel.

use midhop_linux::sockopt;
use midhop_linux::tcp_info::TcpInfo;
use midhop_linux::tcp_state::FIN_WAIT_2;
use std::os::fd::AsFd;

/// Some of `TCP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Unit: microseconds. Smoothed round-trip time.
    pub rtt_us: u32,
    /// Unit: microseconds. The shortest round-trip time.
    pub rtt_min_us: u32,
    /// Unit: segments. Retransmitted.
    pub retransmissions: u32,
    /// Unit: bytes. Acknowledged by the far end.
    pub sent: u64,
    /// Unit: bytes. Received in order.
    pub received: u64,
    /// Unit: bytes. Written and not sent yet.
    pub unsent: u32,
    /// Unit: segments. Received with data.
    pub segments: u32,
    /// Unit: segments. Of these, those received out of order: after a loss, or overtaken.
    pub out_of_order: u32,
    /// Unit: segments. Sent, again or for the first time.
    pub sent_segments: u32,
    /// Unit: segments. Of these, those with data, of which `retransmissions` is a part.
    pub sent_data_segments: u32,
    /// Unit: microseconds. How long the far end's window has kept data from being sent.
    pub window_limited_us: u64,
    /// Unit: bytes. What may be in flight.
    pub window: u64,
    /// Unit: bytes. Sent and not acknowledged, lost or not.
    pub in_flight: u64,
    /// Whether both ends have ended and all is acknowledged.
    pub closed: bool,
}

impl Sample {
    /// Queries the kernel; `None` where there is no answer.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let info = TcpInfo::of(&socket).ok()?;
        // A connection that has moved here after its far end's FIN is over in a state in which others wait for one.
        let closed = match info.state {
            FIN_WAIT_2 => sockopt::is_read_side_shut(socket).unwrap_or(false),
            _ => info.is_closed(),
        };
        Some(Self {
            rtt_us: info.rtt_us,
            rtt_min_us: info.rtt_min_us,
            retransmissions: info.retransmissions,
            sent: info.acknowledged_bytes,
            received: info.received_bytes,
            unsent: info.unsent_bytes,
            segments: info.data_segments_received,
            out_of_order: info.out_of_order,
            sent_segments: info.segments_sent,
            sent_data_segments: info.data_segments_sent,
            window_limited_us: info.window_limited_us,
            window: info.cwnd_bytes(),
            in_flight: info.flight_bytes(),
            closed,
        })
    }

    /// Whether a round trip was ever measured.
    pub fn is_measured(&self) -> bool {
        self.rtt_us > 0
    }
}

/// What a connection still has to send, and what it has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendBacklog {
    /// Unit: bytes. Written and not sent yet.
    pub unsent: u32,
    /// Unit: bytes. Sent, again or for the first time.
    pub sent: u64,
}

impl SendBacklog {
    /// Queries the kernel; `None` where there is no answer.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let info = TcpInfo::of(socket).ok()?;
        Some(Self { unsent: info.unsent_bytes, sent: info.sent_bytes? })
    }
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
        // The far end does not read: the window closes, and what is written then waits.
        near.set_nonblocking(true)?;
        while near.write(&[1; 64 << 10]).is_ok() {}
        let after = SendBacklog::of(&near).expect("an answer");
        assert!(after.sent > before.sent && after.unsent > 0, "{after:?}");
        Ok(())
    }
}
