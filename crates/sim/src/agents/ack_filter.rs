//! ACK filtering: in the queue before a narrow link, an acknowledgement takes the place of an earlier
//! one that it makes superfluous.
//!
//! Source: RFC 3449 §5.2.1; [`midhop_path::ack`], which the laboratory's emulator also uses, decides which ones
//! may go. Differs from CAKE's: the new packet takes the place of the old one instead of the last place, so that a
//! queue that never empties delays no flow's acknowledgements for good. And only the youngest packet
//! of the flow is examined, so that the flow's order does not change. An ACK with feedback of
//! XCP's routers stays.

use super::acks::pure;
use crate::hop::{Hop, HopId};
use crate::packet::{Handle, Packet, Packets};
use midhop_assist::acknowledgement;
use midhop_experiment::agents;
use midhop_experiment::agents::SackRule;
use midhop_tcp::Segment;
use midhop_units::Instant;

/// The filter of a node.
#[derive(Debug)]
pub struct AckFilter {
    /// The hops whose queues it examines.
    hops: Vec<HopId>,
    sack: SackRule,
    /// Pure ACKs received for these hops, and those of them that took the place of another.
    seen: u64,
    replaced: u64,
}

impl AckFilter {
    /// A filter before these hops.
    pub fn new(plan: &agents::AckFilter, hops: Vec<HopId>) -> Self {
        Self { hops, sack: plan.sack, seen: 0, replaced: 0 }
    }

    /// Whether it has to examine a packet that is about to join the queue of `hop`.
    pub fn minds(&self, hop: HopId, packet: &Packet) -> bool {
        pure(packet).is_some() && self.hops.contains(&hop)
    }

    /// Lets an acknowledgement take the place of a waiting one, which the link counts as superseded;
    /// returns it when none may go.
    pub(crate) fn thin(
        &mut self,
        now: Instant,
        hop: &mut Hop,
        packets: &Packets,
        newcomer: Handle,
    ) -> Option<Handle> {
        let packet = packets.look(&newcomer);
        let Some(segment) = pure(&packet) else { return Some(newcomer) };
        self.seen += 1;
        let sack = self.sack;
        let kept = hop.supersede(now, packet.size, newcomer, |waiting| {
            let waiting = packets.look(waiting);
            let same_flow = waiting.flow == packet.flow && waiting.towards == packet.towards;
            same_flow
                .then(|| pure(&waiting).is_some_and(|old| makes_superfluous(segment, old, sack)))
        });
        self.replaced += u64::from(kept.is_ok());
        kept.err()
    }

    /// Its counters, for the record.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("acks", self.seen), ("acks-superseded", self.replaced)]
    }
}

/// Whether `older` may go when `newer` follows it.
fn makes_superfluous(newer: &Segment, older: &Segment, sack: SackRule) -> bool {
    acknowledgement(newer)
        .zip(acknowledgement(older))
        .is_some_and(|(newer, older)| newer.makes_superfluous(&older, sack == SackRule::Keep))
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_tcp::{Flags, SackBlock, Timestamps};

    fn ack(acknowledgment: u32) -> Segment {
        Segment {
            acknowledgment,
            window: 500,
            flags: Flags::ACK,
            timestamps: Some(Timestamps { value: 7, echo: 3 }),
            ..Segment::default()
        }
    }

    fn with_sack(acknowledgment: u32, blocks: &[(u32, u32)]) -> Segment {
        let mut segment = ack(acknowledgment);
        blocks.iter().for_each(|&(start, end)| segment.sack.push(SackBlock { start, end }));
        segment
    }

    fn goes(newer: &Segment, older: &Segment) -> bool {
        makes_superfluous(newer, older, SackRule::Covered)
    }

    #[test]
    fn a_later_number_makes_an_earlier_one_superfluous_also_past_the_wrap() {
        assert!(goes(&ack(2000), &ack(1000)));
        assert!(goes(&ack(500), &ack(u32::MAX - 500)));
        assert!(!goes(&ack(1000), &ack(2000)));
    }

    #[test]
    fn duplicates_and_window_updates_stay_until_the_number_moves_on() {
        assert!(!goes(&ack(1000), &ack(1000)));
        let update = Segment { window: 900, ..ack(1000) };
        assert!(!goes(&update, &ack(1000)) && !goes(&ack(1000), &update));
        assert!(goes(&ack(2000), &update));
    }

    #[test]
    fn what_reports_congestion_goes_only_for_what_reports_the_same() {
        let all = [Flags::default(), Flags::ECE, Flags::CWR, Flags::ECE | Flags::CWR];
        let flagged = |flags, number| Segment { flags: Flags::ACK | flags, ..ack(number) };
        for older in all {
            for newer in all {
                let may_go = older == Flags::default() || older == newer;
                assert_eq!(goes(&flagged(newer, 2000), &flagged(older, 1000)), may_go);
            }
        }
    }

    #[test]
    fn sack_blocks_go_only_when_all_of_them_are_reported_again() {
        let older = with_sack(1000, &[(3000, 4000), (6000, 7000)]);
        assert!(goes(&with_sack(1000, &[(8000, 9000), (3000, 4500), (6000, 7000)]), &older));
        assert!(!goes(&with_sack(1000, &[(8000, 9000), (3000, 4500)]), &older));
        assert!(goes(&with_sack(4000, &[(5000, 9000)]), &older));
        assert!(goes(&ack(7000), &older));
        assert!(!goes(&ack(6500), &older));
        assert!(!makes_superfluous(&ack(7000), &older, SackRule::Keep));
        assert!(makes_superfluous(&ack(7000), &ack(1000), SackRule::Keep));
    }

    #[test]
    fn a_report_of_a_duplicate_stays() {
        let below = with_sack(5000, &[(2000, 3000), (6000, 7000)]);
        let inside = with_sack(5000, &[(6200, 6400), (6000, 7000)]);
        assert!(!goes(&ack(9000), &below) && !goes(&ack(9000), &inside));
    }

    #[test]
    fn time_does_not_go_backwards() {
        let older = Segment { timestamps: Some(Timestamps { value: 9, echo: 3 }), ..ack(1000) };
        assert!(!goes(&ack(2000), &older));
        assert!(!goes(&ack(2000), &Segment { timestamps: None, ..ack(1000) }));
    }
}
