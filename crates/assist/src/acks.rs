//! What agents that thin or space acknowledgements read from a segment.

use super::Carried;
use crate::sequence::is_after;
use midhop_path::ack::Ack;
use midhop_tcp::{Flags, Segment};

/// The segment of a packet that is a pure acknowledgement: no data, no SYN, FIN or RST.
pub(crate) fn pure<P: Carried>(packet: &P) -> Option<&Segment> {
    packet.is_pure_ack().then(|| packet.segment())
}

/// What a pure acknowledgement acknowledges, in the form that the rule of ACK filters takes.
pub fn acknowledgement(segment: &Segment) -> Option<Ack> {
    if !segment.is_pure_ack() {
        return None;
    }
    let timestamp = segment.timestamps.map(|timestamps| timestamps.value);
    let congestion = (segment.flags.contains(Flags::ECE), segment.flags.contains(Flags::CWR));
    let ack = Ack::new(segment.acknowledgment, timestamp, congestion);
    ack.with_blocks(segment.sack.iter().map(|block| (block.start, block.end)))
}

/// Whether a packet does no more than move the acknowledgment number beyond `last`. Its ECE and CWR must be those of
/// `flags`.
pub(crate) fn advances<P: Carried>(packet: &P, last: u32, flags: Flags) -> bool {
    pure(packet).is_some_and(|ack| {
        ack.flags == flags && ack.sack.is_empty() && is_after(ack.acknowledgment, last)
    })
}

/// The highest acknowledgment number of a flow after `segment`; before it, that was `last`.
pub(crate) fn highest(last: u32, segment: &Segment) -> u32 {
    let newer = segment.flags.contains(Flags::ACK) && is_after(segment.acknowledgment, last);
    if newer { segment.acknowledgment } else { last }
}

/// No segment acknowledges more at once, and no older number is repeated from farther back. Unit: bytes.
const FAR: u32 = 1 << 24;

/// Whether an acknowledgement is so far from `last`, in either direction, that it belongs to another flow with the same
/// addresses and ports, whose SYN was not seen.
pub(crate) fn is_far(last: u32, ack: &Segment) -> bool {
    let ahead = ack.acknowledgment.wrapping_sub(last);
    ahead.min(ahead.wrapping_neg()) > FAR
}

/// Whether its sender sends only acknowledgements after it.
pub(crate) fn ends(segment: &Segment) -> bool {
    [Flags::FIN, Flags::RST].into_iter().any(|flag| segment.flags.contains(flag))
}
