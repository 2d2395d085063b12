//! What those who thin or space acknowledgements must know of one.

use crate::packet::{Body, Packet};
use midhop_tcp::{Flags, SackBlock, Segment};

/// The segment of a packet that does nothing but acknowledge: no data, no SYN, FIN or RST. One that
/// carries what XCP's routers say is none of them: it would be lost with it.
pub(super) fn pure(packet: &Packet) -> Option<&Segment> {
    match &packet.body {
        Body::Segment(segment) if segment.is_pure_ack() && packet.xcp.reverse_q16 == 0 => {
            Some(segment)
        }
        _ => None,
    }
}

/// Whether it says nothing of explicit congestion notification (RFC 3168 §6.1).
pub(super) fn is_without_ecn(segment: &Segment) -> bool {
    segment.flags == Flags::ACK
}

/// Whether the acknowledgment number of `later` lies beyond that of `earlier` (RFC 9293 §3.4).
pub(super) fn is_beyond(later: u32, earlier: u32) -> bool {
    (later.wrapping_sub(earlier) as i32) > 0
}

/// Whether its first block reports data that came twice (RFC 2883 §4): nobody says that again.
pub(super) fn reports_duplicate(segment: &Segment) -> bool {
    let mut blocks = segment.sack.iter();
    let Some(first) = blocks.next() else { return false };
    !is_beyond(first.end, segment.acknowledgment)
        || blocks.next().is_some_and(|second| is_within(first, second))
}

/// Whether all that the selective acknowledgements of `earlier` say is said by `later` too.
pub(super) fn covers(later: &Segment, earlier: &Segment) -> bool {
    earlier.sack.iter().all(|block| {
        !is_beyond(block.end, later.acknowledgment)
            || later.sack.iter().any(|known| is_within(block, known))
    })
}

fn is_within(block: SackBlock, other: SackBlock) -> bool {
    !is_beyond(other.start, block.start) && !is_beyond(block.end, other.end)
}
