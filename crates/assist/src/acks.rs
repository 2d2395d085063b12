//! What those who thin or space acknowledgements must know of one.

use super::Carried;
use crate::sequence::is_after;
use midhop_path::ack::Ack;
use midhop_tcp::{Flags, Segment};

/// The segment of a packet that does nothing but acknowledge: no data, no SYN, FIN or RST.
pub(crate) fn pure<P: Carried>(packet: &P) -> Option<&Segment> {
    packet.is_pure_ack().then(|| packet.segment())
}

/// What a segment acknowledges that does nothing else, for the rule by which ACK filters go.
pub fn acknowledgement(segment: &Segment) -> Option<Ack> {
    if !segment.is_pure_ack() {
        return None;
    }
    let timestamp = segment.timestamps.map(|timestamps| timestamps.value);
    let congestion = (segment.flags.contains(Flags::ECE), segment.flags.contains(Flags::CWR));
    let ack = Ack::new(segment.acknowledgment, timestamp, congestion);
    ack.with_blocks(segment.sack.iter().map(|block| (block.start, block.end)))
}

/// Whether all that a packet does is to move the acknowledgment number beyond `last`; of congestion it says
/// what `flags` do.
pub(crate) fn advances<P: Carried>(packet: &P, last: u32, flags: Flags) -> bool {
    pure(packet).is_some_and(|ack| {
        ack.flags == flags && ack.sack.is_empty() && is_after(ack.acknowledgment, last)
    })
}

/// The highest acknowledgment number of a flow when `segment` comes behind `last`.
pub(crate) fn highest(last: u32, segment: &Segment) -> u32 {
    let newer = segment.flags.contains(Flags::ACK) && is_after(segment.acknowledgment, last);
    if newer { segment.acknowledgment } else { last }
}

/// More is not acknowledged at once, nor reported again. Unit: bytes.
const FAR: u32 = 1 << 24;

/// Whether an acknowledgement is of another flow under the same name, whose SYN was not seen: so far from `last`, either way.
pub(crate) fn is_far(last: u32, ack: &Segment) -> bool {
    let ahead = ack.acknowledgment.wrapping_sub(last);
    ahead.min(ahead.wrapping_neg()) > FAR
}

/// Whether its sender sends no more behind it than acknowledgements.
pub(crate) fn ends(segment: &Segment) -> bool {
    [Flags::FIN, Flags::RST].into_iter().any(|flag| segment.flags.contains(flag))
}
