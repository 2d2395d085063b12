//! What an observer may read from an endpoint, and where a caller that moves contents places them.

use midhop_congestion::{Controller, xcp};
use midhop_units::{Bytes, Duration, Instant, Rate};

use super::{Endpoint, Life, Quiet, State};
use crate::{
    ranges::Span,
    segment::{Flags, Segment},
    send::{Counters, PhaseTimes, SenderPhase},
};

impl Endpoint {
    /// The state of the connection.
    pub fn state(&self) -> State {
        let ours = self.sender.stream.is_closed();
        let known = ours && self.sender.is_drained();
        match self.life {
            Life::Listening => State::Listen,
            Life::SynSent => State::SynSent,
            Life::SynReceived => State::SynReceived,
            Life::TimeWait(_) => State::TimeWait,
            Life::Closed => State::Closed,
            Life::Open => match (self.receiver.is_finished(), ours) {
                (false, false) => State::Established,
                (false, true) if known => State::FinWait2,
                (false, true) => State::FinWait1,
                (true, false) => State::CloseWait,
                (true, true) if self.closed_first => State::Closing,
                (true, true) => State::LastAck,
            },
        }
    }

    /// The sender's counters.
    pub fn counters(&self) -> Counters {
        self.sender.counters
    }

    /// The limit of data in flight.
    pub fn window(&self) -> Bytes {
        Bytes::new(self.sender.window())
    }

    /// Payload of a full segment that it sends.
    pub fn segment_payload(&self) -> Bytes {
        Bytes::new(u64::from(self.sender.mss))
    }

    /// The window at which slow start ends, and whether slow start has ended; `None` before the first reduction.
    pub fn slow_start_threshold(&self) -> Option<(Bytes, bool)> {
        let control = &self.sender.control;
        Some((control.slow_start_threshold()?, !control.is_in_slow_start()))
    }

    /// Data in flight, as far as known.
    pub fn in_flight(&self) -> Bytes {
        Bytes::new(self.sender.pipe())
    }

    /// What was sent and is not acknowledged in sequence, lost or not: `SND.NXT` − `SND.UNA`.
    pub fn outstanding(&self) -> Bytes {
        Bytes::new(self.sender.nxt.saturating_sub(self.sender.una))
    }

    /// How far the peer's window reaches beyond what it has acknowledged.
    pub fn peer_window(&self) -> Bytes {
        Bytes::new(self.sender.edge.saturating_sub(self.sender.una))
    }

    /// The smoothed round-trip time.
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.sender.rtt.smoothed
    }

    /// The smallest recent round-trip time, over the same period as in Linux.
    pub fn minimum_rtt(&self) -> Option<Duration> {
        self.sender.rtt.minimum()
    }

    /// The current retransmission timeout.
    pub fn retransmission_timeout(&self) -> Duration {
        self.sender.rtt.backed_off(self.settings.rto)
    }

    /// The rate at which segments leave, where they are paced.
    pub fn pacing_rate(&self) -> Option<Rate> {
        self.sender.control.pacing_rate().filter(|_| self.settings.pacing)
    }

    /// The recent delivery rate; a low one of a sender that had too little data does not count.
    pub fn delivery_rate(&self) -> Option<Rate> {
        self.sender.sampler.latest
    }

    /// What the sender does about its window; `None` while nothing is in flight.
    pub fn phase(&self) -> Option<SenderPhase> {
        self.sender.phases.phase()
    }

    /// How long the sender was in each phase until `now`.
    pub fn phase_times(&self, now: Instant) -> PhaseTimes {
        match self.life {
            // It may have been cut off with data in flight, without a record of the time.
            Life::Closed => self.sender.phases.last_times(),
            _ => self.sender.phases.times(now),
        }
    }

    /// How many bytes of the stream the peer has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.sender.una.min(self.sender.stream.end()).saturating_sub(1)
    }

    /// How many bytes of the stream were never sent.
    pub fn unsent(&self) -> u64 {
        self.sender.stream.end().saturating_sub(self.sender.nxt.max(1))
    }

    /// How many bytes of the peer's stream have arrived in order, read or not.
    pub fn received(&self) -> u64 {
        self.receiver.stream_end().saturating_sub(1)
    }

    /// How far what has arrived reaches beyond its first gap. Unit: bytes.
    pub fn out_of_order(&self) -> u64 {
        self.receiver.reassembly.end().saturating_sub(self.receiver.nxt())
    }

    /// Memory of the endpoint, its parts on the heap included. Unit: bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.sender.memory() + self.receiver.reassembly.memory()
    }

    /// What the congestion control would write into the next segment's congestion header.
    pub fn xcp_header(&self) -> Option<xcp::Header> {
        self.sender.control.xcp_header()
    }

    /// The congestion control, for events that no segment carries.
    pub fn congestion_control(&mut self) -> &mut Controller {
        self.quiet = Quiet::No;
        &mut self.sender.control
    }

    /// Where a segment's payload belongs in the peer's stream, as far as there is room for it:
    /// its offset there, how much of the payload to skip, and how much to keep.
    ///
    /// To be called before [`Endpoint::handle_segment`], by a caller that moves contents.
    pub fn placement(&self, segment: &Segment) -> Option<Placement> {
        if !matches!(self.life, Life::Open | Life::SynReceived) || segment.length == 0 {
            return None;
        }
        // Before the end of the handshake only the peer's SYN has arrived.
        let nxt = self.receiver.nxt().max(1);
        let first = segment.flags.contains(Flags::SYN);
        let start = self.remote.position(segment.sequence, nxt)? + u64::from(first);
        let span = Span { start, end: start + u64::from(segment.length) };
        let room = self.receiver.within(span);
        let skip = nxt.saturating_sub(start);
        let keep = room.end.saturating_sub(start + skip);
        (keep > 0).then_some(Placement { offset: start + skip - 1, skip, length: keep })
    }
}

/// Where a payload belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The offset in the peer's byte stream.
    pub offset: u64,
    /// How many bytes of the payload come before it.
    pub skip: u64,
    /// How many to keep.
    pub length: u64,
}
