//! A received segment: whether it is ours, what it acknowledges, what it carries.
//!
//! Source: RFC 9293 §3.10.7.4, RFC 7323 §5 (PAWS), RFC 5961 (resets and SYNs out of place),
//! RFC 2883 §4 (duplicates), RFC 3168 §6.1.3.

use midhop_units::{Duration, Instant};

use super::{Cause, Endpoint, Life, Quiet, stamp};
use crate::{
    ranges::Span,
    segment::{Ecn, Flags, SackBlocks, Segment},
    send::Acknowledgment,
};

impl Endpoint {
    pub(super) fn on_segment(&mut self, now: Instant, segment: &Segment) {
        let nxt = self.receiver.nxt();
        let Some(start) = self.remote.position(segment.sequence, nxt) else { return };
        let end = start + u64::from(segment.sequence_length());
        let reset = segment.flags.contains(Flags::RST);
        if !reset && self.is_from_the_past(segment) {
            self.receiver.owed.at_once();
            return;
        }
        // As lenient as Linux: every segment that touches unacknowledged data or the window.
        let edge = self.receiver.room.edge.max(nxt);
        if end < self.receiver.owed.acknowledged() || start > edge {
            if !reset {
                self.receiver.note_outside(Span { start, end });
            }
            return;
        }
        if reset {
            if start == nxt && matches!(self.life, Life::TimeWait(_)) {
                // Both ends have everything: an end that resets now has already forgotten the connection.
                self.finish();
            } else if start == nxt {
                self.die(Cause::Peer);
            } else {
                // RFC 5961 §3.2: a genuine sender answers the challenge.
                self.receiver.owed.at_once();
            }
            return;
        }
        if segment.flags.contains(Flags::SYN) {
            self.receiver.owed.at_once();
            return;
        }
        self.take(now, segment, start);
    }

    /// PAWS (RFC 7323 §5.3): an older timestamp than the last one belongs to an old segment.
    fn is_from_the_past(&self, segment: &Segment) -> bool {
        self.agreed.timestamps
            && segment
                .timestamps
                .is_some_and(|stamps| (stamps.value.wrapping_sub(self.agreed.recent) as i32) < 0)
    }

    /// Processes an acceptable segment: what it acknowledges, then what it carries.
    pub(crate) fn take(&mut self, now: Instant, segment: &Segment, start: u64) {
        if !segment.flags.contains(Flags::ACK) {
            return;
        }
        if let Some(stamps) = segment.timestamps.filter(|_| self.agreed.timestamps)
            && start <= self.receiver.owed.acknowledged()
        {
            self.agreed.recent = stamps.value;
        }
        let una = self.local.position(segment.acknowledgment, self.sender.una);
        match una {
            Some(una) if una > self.sender.nxt => {
                // It acknowledges data that was never sent (RFC 9293 §3.10.7.4).
                self.receiver.owed.at_once();
                return;
            }
            Some(una) if una >= self.sender.una.max(1) => self.acknowledge(now, segment, una),
            _ => {}
        }
        if self.agreed.ecn {
            self.echo(segment);
        }
        if segment.length > 0 || segment.flags.contains(Flags::FIN) {
            let span = Span { start, end: start + u64::from(segment.length) };
            if let Some(stamps) = segment.timestamps.filter(|_| self.agreed.timestamps) {
                let age = stamp(now).wrapping_sub(stamps.echo);
                self.receiver.on_echo(stamps.echo, age, u64::from(segment.length));
            }
            let (rule, fin) = (&self.settings.delayed_ack, segment.flags.contains(Flags::FIN));
            let taken = self.receiver.on_data(now, rule, span, fin);
            self.events.readable |= taken.readable;
            self.events.peer_closed |= taken.closed;
        }
        self.close_when_done(now);
    }

    fn acknowledge(&mut self, now: Instant, segment: &Segment, una: u64) {
        let edge = una + (u64::from(segment.window) << self.agreed.peer_shift);
        let known = (una, edge) == (self.sender.una, self.sender.edge);
        let plain = segment.sack.is_empty() && !segment.flags.contains(Flags::ECE);
        if self.quiet == Quiet::AtRest && known && plain {
            return;
        }
        self.quiet = Quiet::No;
        let mut blocks = [Span { start: 0, end: 0 }; SackBlocks::MAX];
        let mut count = 0;
        let mut duplicate = None;
        for (nth, block) in segment.sack.iter().enumerate() {
            let (Some(start), Some(end)) =
                (self.local.position(block.start, una), self.local.position(block.end, una))
            else {
                continue;
            };
            let span = Span { start, end };
            if start >= end || end > self.sender.nxt {
                continue;
            }
            // The first block may report a duplicate (RFC 2883 §4).
            let within = segment.sack.as_slice().get(1).filter(|_| nth == 0).is_some_and(|next| {
                self.local.position(next.start, una).is_some_and(|from| from <= start)
                    && self.local.position(next.end, una).is_some_and(|to| end <= to)
            });
            if nth == 0 && (end <= una || within) {
                duplicate = Some(span);
            } else if start >= una {
                blocks[count] = span;
                count += 1;
            }
        }
        let blocks = &mut blocks[..count];
        blocks.sort_by_key(|block| block.start);
        let echo = segment.timestamps.filter(|_| self.agreed.timestamps).and_then(|stamps| {
            let age = stamp(now).wrapping_sub(stamps.echo);
            // A stamp from the future was never ours; less than a tick counts as one, as in Linux.
            let age = (age as i32 >= 0).then(|| Duration::from_ms(u64::from(age.max(1))))?;
            Some((stamps.echo, age))
        });
        self.sender.on_ack(
            now,
            &Acknowledgment {
                una,
                blocks,
                duplicate,
                edge,
                echo,
                marked: self.agreed.ecn && segment.flags.contains(Flags::ECE),
                carries_data: segment.sequence_length() > 0,
            },
            &self.settings,
        );
        self.paced_until = Instant::NEVER;
        if self.sender.stream.has_room_again(self.sender.una) {
            self.sender.stream.starved = false;
            self.events.writable = true;
        }
    }

    /// RFC 3168 §6.1.3: congestion is echoed until the sender confirms that it has slowed down.
    fn echo(&mut self, segment: &Segment) {
        if segment.flags.contains(Flags::CWR) {
            self.echo_congestion = false;
        }
        if segment.ecn == Ecn::Congested && segment.length > 0 {
            self.echo_congestion = true;
            self.receiver.owed.at_once();
        }
    }
}
