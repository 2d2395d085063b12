//! What leaves: data where the sender has some, else an acknowledgement where one is owed.

use midhop_units::Instant;

use super::{Endpoint, stamp};
use crate::{
    segment::{Ecn, Flags, SackBlock, Segment, Timestamps},
    send::{Departure, Idle},
};

impl Endpoint {
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
                if let Idle::Paced(at) = idle {
                    self.paced_until = at;
                }
                None
            }
        }
    }

    fn compose(&mut self, now: Instant, departure: Departure) -> Segment {
        let mut segment = self.header(now, departure.start, departure.length);
        segment.offset = departure.start.saturating_sub(1);
        segment.length = departure.length;
        if departure.push {
            segment.flags |= Flags::PSH;
        }
        if departure.fin {
            segment.flags |= Flags::FIN;
            self.closed_first |= !self.receiver.is_finished();
        }
        if self.agreed.ecn && departure.length > 0 && !departure.retransmission {
            segment.ecn = Ecn::Capable;
            if departure.reduced {
                segment.flags |= Flags::CWR;
            }
        }
        segment
    }

    pub(super) fn acknowledgment(&mut self, now: Instant) -> Option<Segment> {
        let due = self.receiver.owed.is_due(now);
        due.then(|| self.header(now, self.sender.nxt, 0))
    }

    /// A segment that acknowledges, and has room for so many bytes of payload.
    fn header(&mut self, now: Instant, start: u64, payload: u32) -> Segment {
        let nxt = self.receiver.nxt();
        let edge = self.receiver.offer();
        let mut flags = Flags::ACK;
        if self.echo_congestion {
            flags |= Flags::ECE;
        }
        let mut segment = Segment {
            sequence: self.local.wire(start),
            acknowledgment: self.remote.wire(nxt),
            window: u16::try_from((edge - nxt) >> self.receiver.shift).unwrap_or(u16::MAX),
            flags,
            timestamps: self
                .agreed
                .timestamps
                .then(|| Timestamps { value: stamp(now), echo: self.agreed.recent }),
            ..Segment::default()
        };
        if self.sender.sack && self.receiver.reassembly.has_report() {
            let room = self.sender.mss.saturating_sub(payload + 4) as usize / 8;
            let limit = self.sack_limit().min(room);
            let remote = self.remote;
            self.receiver.reassembly.report(limit, |span| {
                segment
                    .sack
                    .push(SackBlock { start: remote.wire(span.start), end: remote.wire(span.end) });
            });
            if limit == 0 {
                // A retransmission that fills the segment: the report follows alone.
                return segment;
            }
        }
        self.receiver.owed.on_sent(nxt);
        segment
    }

    /// How many SACK blocks the options have room for.
    fn sack_limit(&self) -> usize {
        if self.agreed.timestamps { 3 } else { 4 }
    }
}
