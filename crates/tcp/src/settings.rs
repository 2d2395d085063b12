//! Settings of an endpoint: the knobs of a TCP, with Linux' values as the default.

use midhop_units::{Bytes, Duration};

/// The knobs of one endpoint.
///
/// The default is that of a Linux host that serves bulk data; studies of older stacks turn parts
/// off. The initial window is not here: it belongs to the congestion control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The MSS option of this end: the largest payload of a segment without options.
    ///
    /// Unit: bytes. Range: ≥ 88, else raised to it (RFC 9293 §3.7.1 leaves no smaller one that can
    /// carry the options).
    pub mss: u16,
    /// How much unread data the receiver may hold.
    pub receive_buffer: Bytes,
    /// Whether the offered window begins small and follows the application's reads.
    pub receive_autotuning: Option<Autotuning>,
    /// How much unacknowledged data the sender may hold, sent or not.
    pub send_buffer: Bytes,
    /// Selective acknowledgements (RFC 2018), where the peer supports them too.
    pub sack: bool,
    /// Timestamps (RFC 7323), where the peer supports them too.
    pub timestamps: bool,
    /// Window scaling (RFC 7323), where the peer supports it too.
    pub window_scaling: bool,
    /// Explicit congestion notification (RFC 3168), where the peer supports it too.
    pub ecn: bool,
    /// How acknowledgements are delayed.
    pub delayed_ack: DelayedAck,
    /// How losses are found where selective acknowledgements are in use.
    pub loss_detection: LossDetection,
    /// Without selective acknowledgements: whether a recovery continues at a partial acknowledgement
    /// (RFC 6582, NewReno), or ends there and a new one begins for the next hole (RFC 5681 alone, Reno).
    pub newreno: bool,
    /// Without selective acknowledgements: whether the third duplicate reports a loss (RFC 5681 §3.2).
    /// Otherwise only the retransmission timeout does.
    pub fast_retransmit: bool,
    /// Whether the first two duplicate acknowledgements release new data (RFC 3042).
    pub limited_transmit: bool,
    /// Whether a reduction of the window is spread over its round trip (RFC 9937).
    pub prr: bool,
    /// How long the retransmission timeout is.
    pub rto: RtoRule,
    /// Whether timeouts and recoveries found to be spurious are undone (RFC 5682, 3522, 3708).
    pub undo: bool,
    /// Whether segments are paced at the rate of the congestion control.
    pub pacing: bool,
    /// Whether a small segment waits while another is unacknowledged (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Whether an idle retransmission timeout resets the window to its start (RFC 5681 §4.1).
    pub slow_start_after_idle: bool,
    /// How many retransmissions without a response end the connection.
    pub retries: u32,
    /// How many retransmissions of a SYN or SYN-ACK end the connection.
    pub syn_retries: u32,
    /// How long a closed connection responds to segments still in flight.
    pub time_wait: Duration,
}

/// The receive window follows the application's reads, like Linux' dynamic right-sizing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Autotuning {
    /// The window that is offered first. [`Settings::receive_buffer`] is the largest.
    pub initial: Bytes,
}

/// How acknowledgements are delayed (RFC 9293 §3.8.6.3, RFC 5681 §4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayedAck {
    /// An acknowledgement leaves at the latest after so many full segments. 1: after each. More than 2 are
    /// stretch acknowledgements.
    pub segments: u32,
    /// How long an acknowledgement waits for more data.
    pub timeout: Duration,
    /// How many segments are acknowledged at once at the start of a connection, for the sender's slow
    /// start; Linux' quick acknowledgements.
    pub quick: u32,
}

impl DelayedAck {
    /// Each segment is acknowledged at once.
    pub const NONE: Self = Self { segments: 1, timeout: Duration::ZERO, quick: 0 };
}

impl Default for DelayedAck {
    fn default() -> Self {
        Self { segments: 2, timeout: Duration::from_ms(40), quick: 16 }
    }
}

/// How losses are found where selective acknowledgements are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LossDetection {
    /// By time: RACK-TLP (RFC 8985).
    #[default]
    Rack,
    /// By time, without tail loss probes.
    RackWithoutProbe,
    /// By count: three segments above (RFC 6675).
    DupThresh,
}

impl LossDetection {
    /// Whether losses are found by time.
    pub fn is_rack(self) -> bool {
        self != Self::DupThresh
    }
}

/// How long the retransmission timeout is, before any doubling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RtoRule {
    /// `SRTT + max(200 ms, 4·RTTVAR)`, at most 120 s (net/ipv4/tcp_input.c).
    #[default]
    Linux,
    /// `max(1 s, SRTT + 4·RTTVAR)`, at most 60 s (RFC 6298).
    Rfc6298,
    /// This long, whatever the path's round trip is; at most 60 s.
    Fixed(Duration),
}

impl Settings {
    /// The payload of a full segment towards a peer that takes the same options.
    ///
    /// What a congestion control that serves this endpoint should count as its segment.
    pub fn segment_payload(&self) -> Bytes {
        let options = if self.timestamps { crate::segment::TIMESTAMPS_SIZE } else { 0 };
        Bytes::new(u64::from(self.mss.max(MSS_MIN) - options))
    }
}

/// The smallest MSS: RFC 791's smallest datagram after IP and TCP headers, with room for the options.
pub(crate) const MSS_MIN: u16 = 88;

impl Default for Settings {
    fn default() -> Self {
        Self {
            mss: 1460,
            receive_buffer: Bytes::new(6 << 20),
            receive_autotuning: None,
            send_buffer: Bytes::new(4 << 20),
            sack: true,
            timestamps: true,
            window_scaling: true,
            ecn: false,
            delayed_ack: DelayedAck::default(),
            loss_detection: LossDetection::default(),
            newreno: true,
            fast_retransmit: true,
            limited_transmit: true,
            prr: true,
            rto: RtoRule::default(),
            undo: true,
            pacing: false,
            nagle: true,
            slow_start_after_idle: true,
            retries: 15,
            syn_retries: 6,
            time_wait: Duration::from_s(60),
        }
    }
}
