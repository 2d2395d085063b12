//! Makes outgoing segments: data if the sender has some, else an acknowledgement if one is due.

use midhop_units::Instant;

use super::{Endpoint, Quiet, stamp};
use crate::{
    segment::{Ecn, Flags, SackBlock, SackBlocks, Segment, SynOptions, Timestamps},
    send::{Departure, Idle},
};

/// A segment's content and flags, in positions of the sequence space.
struct Content {
    start: u64,
    /// Payload. Unit: bytes.
    length: u32,
    flags: Flags,
    ecn: Ecn,
}

impl Endpoint {
    /// Whether no data is to leave, known without looking.
    pub(super) fn is_quiet(&self) -> bool {
        match self.quiet {
            Quiet::No => false,
            Quiet::Yes | Quiet::AtRest => true,
            Quiet::While(window) => self.sender.window() == window,
        }
    }

    pub(super) fn data_segment(&mut self, now: Instant) -> Option<Segment> {
        if self.paced_until != Instant::NEVER && self.paced_until > now {
            return None;
        }
        let stamp = self.agreed.timestamps.then(|| stamp(now));
        let room = if self.receiver.reassembly.has_report() && self.sender.sack {
            4 + 8 * self.sack_limit().min(self.receiver.reassembly.reports()) as u32
        } else {
            0
        };
        match self.sender.depart(now, &self.settings, room, stamp) {
            Ok(departure) => {
                self.paced_until = Instant::NEVER;
                Some(self.compose(now, departure))
            }
            Err(idle) => {
                self.quiet = match idle {
                    Idle::Paced(at) => {
                        self.paced_until = at;
                        Quiet::No
                    }
                    Idle::Nothing if self.sender.is_at_rest() => Quiet::AtRest,
                    Idle::Nothing if self.sender.sampler.is_app_limited() => Quiet::Yes,
                    Idle::PeerWindow => Quiet::Yes,
                    Idle::Nothing | Idle::Window => Quiet::While(self.sender.window()),
                };
                None
            }
        }
    }

    fn compose(&mut self, now: Instant, departure: Departure) -> Segment {
        let mut flags = Flags::ACK;
        if departure.push {
            flags |= Flags::PSH;
        }
        if departure.fin {
            flags |= Flags::FIN;
            self.closed_first |= !self.receiver.is_finished();
        }
        let takes_marks = self.agreed.ecn && departure.length > 0 && !departure.retransmission;
        if takes_marks && departure.reduced {
            flags |= Flags::CWR;
        }
        let ecn = if takes_marks { Ecn::Capable } else { Ecn::NotCapable };
        self.segment(now, Content { start: departure.start, length: departure.length, flags, ecn })
    }

    pub(super) fn acknowledgment(&mut self, now: Instant) -> Option<Segment> {
        let start = self.sender.nxt;
        let nothing = Content { start, length: 0, flags: Flags::ACK, ecn: Ecn::NotCapable };
        self.receiver.owed.is_due(now).then(|| self.segment(now, nothing))
    }

    /// A segment with this content, which acknowledges everything received.
    fn segment(&mut self, now: Instant, content: Content) -> Segment {
        let nxt = self.receiver.nxt();
        let edge = self.receiver.offer();
        let mut sack = SackBlocks::default();
        if self.report(content.length, &mut sack) {
            self.receiver.owed.on_sent(nxt);
        }
        let echo = if self.echo_congestion { Flags::ECE } else { Flags::default() };
        // Written in one expression: a segment built in steps is copied in steps.
        Segment {
            offset: if content.length > 0 { content.start.saturating_sub(1) } else { 0 },
            sequence: self.local.wire(content.start),
            acknowledgment: self.remote.wire(nxt),
            length: content.length,
            window: u16::try_from((edge - nxt) >> self.receiver.shift).unwrap_or(u16::MAX),
            flags: content.flags | echo,
            ecn: content.ecn,
            timestamps: self
                .agreed
                .timestamps
                .then(|| Timestamps { value: stamp(now), echo: self.agreed.recent }),
            sack,
            syn: SynOptions::default(),
        }
    }

    /// Reports data received out of order, as far as there is room beside so many bytes of payload;
    /// returns whether there was room for any.
    fn report(&mut self, payload: u32, sack: &mut SackBlocks) -> bool {
        if !self.sender.sack || !self.receiver.reassembly.has_report() {
            return true;
        }
        let room = self.sender.mss.saturating_sub(payload + 4) as usize / 8;
        let limit = self.sack_limit().min(room);
        let remote = self.remote;
        self.receiver.reassembly.report(limit, |span| {
            sack.push(SackBlock { start: remote.wire(span.start), end: remote.wire(span.end) });
        });
        // A retransmission that fills the segment: the report follows alone.
        limit > 0
    }

    /// How many SACK blocks the options have room for.
    fn sack_limit(&self) -> usize {
        if self.agreed.timestamps { 3 } else { 4 }
    }
}
