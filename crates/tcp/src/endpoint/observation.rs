//! What an observer may ask of an endpoint, and a caller that moves contents.

use midhop_congestion::{Controller, xcp};
use midhop_units::{Bytes, Duration, Instant, Rate};

use super::{Endpoint, Life, Quiet, State};
use crate::{
    ranges::Span,
    segment::{Flags, Segment},
    send::{Counters, PhaseTimes, SenderPhase},
};

impl Endpoint {
    /// Where the connection is.
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

    /// What the sender has counted.
    pub fn counters(&self) -> Counters {
        self.sender.counters
    }

    /// How much may be in flight.
    pub fn window(&self) -> Bytes {
        Bytes::new(self.sender.window())
    }

    /// Payload of a full segment that it sends.
    pub fn segment_payload(&self) -> Bytes {
        Bytes::new(u64::from(self.sender.mss))
    }

    /// The window at which slow start ends, and whether it is there yet; none while nothing has ended the first one.
    pub fn slow_start_threshold(&self) -> Option<(Bytes, bool)> {
        let control = &self.sender.control;
        Some((control.slow_start_threshold()?, !control.is_in_slow_start()))
    }

    /// What is in flight, as far as is known.
    pub fn in_flight(&self) -> Bytes {
        Bytes::new(self.sender.pipe())
    }

    /// What has been sent and not acknowledged in sequence, lost or not: `SND.NXT` − `SND.UNA`.
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

    /// The smallest round-trip time of late, as far back as Linux looks.
    pub fn minimum_rtt(&self) -> Option<Duration> {
        self.sender.rtt.minimum()
    }

    /// The retransmission timeout as it is now.
    pub fn retransmission_timeout(&self) -> Duration {
        self.sender.rtt.backed_off(self.settings.rto)
    }

    /// The rate at which segments leave, where they are paced.
    pub fn pacing_rate(&self) -> Option<Rate> {
        self.sender.control.pacing_rate().filter(|_| self.settings.pacing)
    }

    /// The rate at which data was delivered lately; one that is small for want of data does not count.
    pub fn delivery_rate(&self) -> Option<Rate> {
        self.sender.sampler.latest
    }

    /// What the sender is doing about its window; none while nothing is on its way.
    pub fn phase(&self) -> Option<SenderPhase> {
        self.sender.phases.phase()
    }

    /// How long the sender was in which phase by `now`.
    pub fn phase_times(&self, now: Instant) -> PhaseTimes {
        match self.life {
            // It may have been cut off with data on its way, and nobody has said when.
            Life::Closed => self.sender.phases.last_times(),
            _ => self.sender.phases.times(now),
        }
    }

    /// How many bytes of the stream the peer has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.sender.una.min(self.sender.stream.end()).saturating_sub(1)
    }

    /// How many bytes of the stream have never left.
    pub fn unsent(&self) -> u64 {
        self.sender.stream.end().saturating_sub(self.sender.nxt.max(1))
    }

    /// How many bytes of the peer's stream are there in order, read or not.
    pub fn received(&self) -> u64 {
        self.receiver.stream_end().saturating_sub(1)
    }

    /// What the endpoint takes in memory, its parts on the heap included. Unit: bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.sender.memory() + self.receiver.reassembly.memory()
    }

    /// What the congestion control would have written into the next segment's congestion header.
    pub fn xcp_header(&self) -> Option<xcp::Header> {
        self.sender.control.xcp_header()
    }

    /// The congestion control, to tell it of things that no segment tells.
    pub fn congestion_control(&mut self) -> &mut Controller {
        self.quiet = Quiet::No;
        &mut self.sender.control
    }

    /// Where a segment's payload belongs in the peer's stream, as far as there is room for it:
    /// its offset there, how much of the payload to skip, and how much to keep.
    ///
    /// Asked before [`Endpoint::handle_segment`], by a caller that moves contents.
    pub fn placement(&self, segment: &Segment) -> Option<Placement> {
        if !matches!(self.life, Life::Open | Life::SynReceived) || segment.length == 0 {
            return None;
        }
        // Before the handshake is over, nothing but the peer's SYN has come.
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
