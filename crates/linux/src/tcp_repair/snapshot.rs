//! What a connection consists of.

use crate::stream_position::OpenedBy;
use std::net::SocketAddr;
use std::time::Duration;

/// The state of an established TCP connection, as one end has it. The terms are those of RFC 9293.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSnapshot {
    /// The address of this end. An IPv4 address is one even where the socket was of IPv6.
    pub local: SocketAddr,
    /// The address of the far end, of the same family.
    pub remote: SocketAddr,
    /// Whether this end has closed its direction.
    pub local_end: LocalEnd,
    /// Whether the far end's FIN has arrived.
    pub remote_ended: bool,
    /// What this end has written, and the far end has not acknowledged.
    pub send: SendQueue,
    /// What has arrived, and was not read.
    pub receive: ReceiveQueue,
    /// What the handshake has settled.
    pub negotiated: Negotiated,
    /// Both ends' windows.
    pub window: Window,
    /// The sizes of the kernel's buffers.
    pub buffers: Buffers,
    /// Options that this end has set.
    pub options: SocketOptions,
    /// What the sender has learnt of the path. For information: no kernel restores it.
    pub path: PathState,
}

/// How far this end's FIN has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalEnd {
    /// This end may write.
    Open,
    /// The FIN waits behind bytes that are unsent, or for the window.
    Unsent,
    /// Sent, not acknowledged.
    Sent,
    /// Acknowledged, and with it all that this end has written.
    Acknowledged,
}

/// Bytes on their way to the far end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendQueue {
    /// SND.UNA: the sequence number of the first byte of `sent`, or else of `unsent`. Behind the FIN where that is
    /// acknowledged.
    pub unacknowledged: u32,
    /// Sent, and not acknowledged.
    pub sent: Vec<u8>,
    /// Never sent.
    pub unsent: Vec<u8>,
}

/// Bytes of the far end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// RCV.NXT: the next sequence number expected. Behind the FIN where one has arrived.
    pub next: u32,
    /// Acknowledged, and not read.
    pub unread: Vec<u8>,
}

/// What both ends' SYNs have settled for the life of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Unit: bytes. The most that a segment to the far end may hold: its MSS option (RFC 9293 §3.7.1).
    pub mss: u16,
    /// Whether SACK is permitted (RFC 2018).
    pub selective_acks: bool,
    /// The shifts of the windows; none if they are not scaled (RFC 7323 §2).
    pub window_scales: Option<WindowScales>,
    /// The clock of the timestamps that this end sends; none if they are off (RFC 7323 §3).
    pub timestamps: Option<Timestamps>,
    /// Whether ECN was negotiated (RFC 3168). It ends with the move: no kernel restores it.
    pub ecn: bool,
}

/// Unit: bits. Range: 0 to 14.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowScales {
    /// Snd.Wind.Shift: of the windows that the far end advertises.
    pub send: u8,
    /// Rcv.Wind.Shift: of the windows that this end advertises.
    pub receive: u8,
}

/// The clock of TSval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamps {
    /// Its reading at the time of the dump, not less than any value sent.
    pub value: u32,
    /// Whether a tick is a microsecond (a route's `tcp_usec_ts`, Linux 6.7) instead of a millisecond.
    pub microseconds: bool,
}

/// Both ends' windows (`struct tcp_repair_window`). Unit: bytes and sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// SND.WL1: the sequence number of the segment that has updated `send` last.
    pub send_updated_at: u32,
    /// SND.WND: the window of the far end.
    pub send: u32,
    /// The largest window that the far end has ever advertised.
    pub send_max: u32,
    /// RCV.WND, from `receive_updated_at` on.
    pub receive: u32,
    /// RCV.NXT when this end has last advertised its window.
    pub receive_updated_at: u32,
}

impl Window {
    /// The same windows as `tcp_repair_set_window` accepts them for a connection that expects `next`.
    ///
    /// A kernel whose receive buffer is full breaks these rules itself: it drops a segment, but it has taken the segment for
    /// one that updates the far end's window, and then offers none, so that the segment lies beyond what is offered.
    pub(super) fn acceptable(mut self, next: u32) -> Self {
        self.send_max = self.send_max.max(self.send);
        let right_edge = next.wrapping_add(self.receive);
        if is_after(self.send_updated_at, right_edge) {
            self.send_updated_at = right_edge;
        }
        if is_after(self.receive_updated_at, next) {
            self.receive_updated_at = next;
        }
        self
    }
}

/// The sizes of the kernel's buffers, overhead of segments included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// `SO_RCVBUF`.
    pub receive: Buffer,
    /// `SO_SNDBUF`.
    pub send: Buffer,
}

/// The size of a kernel's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Unit: bytes, as the kernel reports it: twice what was set.
    pub bytes: u32,
    /// Whether the owner has set it, and the kernel does not resize it (`SO_BUF_LOCK`). Taken to be so before Linux 5.14, which
    /// does not report it.
    pub locked: bool,
}

/// Options that survive a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOptions {
    /// `TCP_NODELAY`.
    pub no_delay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `SO_KEEPALIVE` and its times.
    pub keepalive: Keepalive,
    /// Unit: milliseconds. `TCP_USER_TIMEOUT`; 0: the kernel's own.
    pub user_timeout_ms: u32,
    /// The differentiated services field without the bits of ECN (`IP_TOS`, `IPV6_TCLASS`).
    pub traffic_class: u8,
    /// Unit: bytes. `TCP_NOTSENT_LOWAT`; 0: the kernel's own.
    pub unsent_low_water: u32,
    /// Unit: bytes. `TCP_WINDOW_CLAMP`.
    pub window_clamp: u32,
    /// Unit: bytes per second. `SO_MAX_PACING_RATE`; `u64::MAX`: none.
    pub pacing_rate_max: u64,
    /// The name of the congestion control, of 1 to 15 graphic ASCII characters.
    pub congestion_control: String,
}

/// `SO_KEEPALIVE` and its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Whether an idle connection is probed.
    pub on: bool,
    /// Unit: seconds. Idle time before the first probe. Range: 1 to 32767.
    pub idle_s: u16,
    /// Unit: seconds. Between two probes. Range: 1 to 32767.
    pub interval_s: u16,
    /// How many probes may be lost. Range: 1 to 127.
    pub probes: u8,
}

/// What a sender has learnt of the path (`TCP_INFO`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathState {
    /// Unit: bytes. The sending MSS, which the next two are counted in.
    pub mss: u32,
    /// Unit: segments. Congestion window.
    pub cwnd: u32,
    /// Unit: segments. Slow start threshold; 2³¹ − 1 before the first loss.
    pub ssthresh: u32,
    /// Unit: microseconds. Smoothed round-trip time; 0 before the first sample.
    pub rtt_us: u32,
    /// Unit: microseconds. Its mean deviation.
    pub rtt_variation_us: u32,
    /// Unit: microseconds. The smallest round-trip time; `u32::MAX` before the first sample.
    pub rtt_min_us: u32,
    /// Unit: bytes per second. `u64::MAX` if the connection is not paced.
    pub pacing_rate: u64,
    /// Unit: bytes per second. The recent delivery rate; 0 before the first sample.
    pub delivery_rate: u64,
}

/// A segment without data, which acknowledges what has arrived (RFC 9293 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// SEG.SEQ: SND.NXT.
    pub sequence: u32,
    /// SEG.ACK: RCV.NXT.
    pub acknowledgement: u32,
    /// SEG.WND as the header has it, shifted by Rcv.Wind.Shift.
    pub window: u16,
    /// TSval, if there are timestamps.
    pub timestamp: Option<u32>,
}

impl TcpSnapshot {
    /// The acknowledgement that the far end may lack, and that no restored kernel sends: something has arrived since this
    /// end's last segment, or is unread. If a timer has acknowledged what is unread while the packets were dropped, the
    /// kernel does not know that this was lost.
    pub fn owed_acknowledgement(&self) -> Option<Acknowledgement> {
        let (window, next) = (&self.window, self.receive.next);
        if self.receive.unread.is_empty() && !is_after(next, window.receive_updated_at) {
            return None;
        }
        let fin = u32::from(self.local_end == LocalEnd::Sent);
        let sent = self.send.sent.len() as u32;
        let offered = window.receive.saturating_sub(next.wrapping_sub(window.receive_updated_at));
        // Rounded up, as the kernel does, so that the right edge does not shrink.
        let unit = 1 << self.negotiated.window_scales.map_or(0, |scales| scales.receive);
        Some(Acknowledgement {
            sequence: self.send.unacknowledged.wrapping_add(sent).wrapping_add(fin),
            acknowledgement: next,
            window: u16::try_from(offered.div_ceil(unit)).unwrap_or(u16::MAX),
            timestamp: self.negotiated.timestamps.map(|clock| clock.value),
        })
    }

    /// Unit: bytes. What the queues hold.
    pub fn queued_bytes(&self) -> usize {
        self.send.sent.len() + self.send.unsent.len() + self.receive.unread.len()
    }

    /// Who has opened the restored connection, as [`StreamPosition`](crate::stream_position::StreamPosition) has to know: the
    /// octet that it is probed with counts as a SYN does. Positions begin with the snapshot: `written` counts from
    /// SND.UNA on, and `read` from the first unread byte. `ended` does not see the far end's FIN.
    pub fn opened_by(&self) -> OpenedBy {
        if self.local_end.is_probed() { OpenedBy::ThisEnd } else { OpenedBy::FarEnd }
    }

    /// Lets the clock of the timestamps go on for as long as the connection was frozen, so that the far end measures
    /// round-trip times which contain the freeze. Without this, its clock stands still meanwhile, which is allowed.
    pub fn advance_clock(&mut self, frozen: Duration) {
        if let Some(clock) = &mut self.negotiated.timestamps {
            let ticks = if clock.microseconds { frozen.as_micros() } else { frozen.as_millis() };
            // The counter wraps, and so do we.
            clock.value = clock.value.wrapping_add(ticks as u32);
        }
    }
}

impl LocalEnd {
    /// Whether the FIN is in the send queue, sent or not.
    pub fn is_queued(self) -> bool {
        matches!(self, Self::Unsent | Self::Sent)
    }

    /// Whether the kernel probes the window of a restored connection: in ESTABLISHED only, so before its FIN is queued.
    pub(super) fn is_probed(self) -> bool {
        self != Self::Acknowledged
    }
}

/// Whether sequence number `one` is behind `other`, as sequence numbers wrap.
pub(super) fn is_after(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        assert!(is_after(1, 0) && is_after(3, u32::MAX) && is_after(1 << 31, 1));
        assert!(!is_after(0, 0) && !is_after(0, 1) && !is_after(u32::MAX, 3));
    }
}
