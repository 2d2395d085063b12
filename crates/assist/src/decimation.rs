//! ACK decimation: of a flow's acknowledgements that leave over a link, one in so many is forwarded.
//!
//! Source: RFC 3449 §5.2.2, whose routers drop at random from a short queue. Differs: the choice is not random. Unless
//! `hold` is zero, the latest of the ACKs left out is held. It is sent if none was forwarded for so long since the
//! first of them came. So a flow's last acknowledgement arrives; if a router drops it, the sender waits for its timer.
//!
//! Only an ACK that does nothing but move the acknowledgment number may be left out: no duplicate, no
//! window update, none with SACK blocks, and none whose ECE and CWR are not those
//! of the ACK before it. These are forwarded at once, behind the held one. So a flow's packets keep their
//! order, the first echo of a mark (RFC 3168 §6.1.3) is never late, and the last is never missing.
//!
//! Bound: one packet is held per flow, for at most `hold`, of at most as many flows as `flows` allows.

use crate::flows::Flows;
use crate::{Actions, Carried, Counts, Fault, acks};
use midhop_tcp::Flags;
use midhop_units::{Duration, Instant};

/// The cause under which the acknowledgements left out are counted.
pub const DECIMATED: &str = "ack-decimated";

/// How an ACK decimator works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckDecimationSettings {
    /// One in so many is forwarded.
    pub keep_one_in: u32,
    /// How long after the first was left out the latest is forwarded after all; zero: it is not.
    pub hold: Duration,
}

impl Default for AckDecimationSettings {
    fn default() -> Self {
        Self { keep_one_in: 4, hold: Duration::from_ms(50) }
    }
}

impl AckDecimationSettings {
    /// Checks both.
    ///
    /// # Errors
    /// The first that makes no sense.
    pub fn check(&self) -> Result<(), Fault> {
        Fault::unless_within("keep_one_in", self.keep_one_in, 2..=64)?;
        Fault::unless_short("hold", self.hold)
    }
}

/// An ACK decimator.
#[derive(Debug)]
pub struct AckDecimation<P: Carried> {
    settings: AckDecimationSettings,
    flows: Flows<P::Way, Flow<P>>,
    seen: u64,
    left_out: u64,
    late: u64,
}

#[derive(Debug)]
struct Flow<P> {
    /// The highest acknowledgment number seen.
    last: u32,
    /// The flags of the last pure acknowledgement.
    flags: Flags,
    /// How many have come since one was forwarded.
    since: u32,
    /// The latest of those left out, and when it is forwarded after all. The time counts from the first of them.
    held: Option<(Instant, P)>,
}

impl<P: Carried> AckDecimation<P> {
    /// A decimator that knows no flow yet.
    pub fn new(settings: AckDecimationSettings) -> Self {
        Self { settings, flows: Flows::new(), seen: 0, left_out: 0, late: 0 }
    }

    /// A packet has arrived whose acknowledgements are to be thinned.
    pub fn handle_packet(&mut self, now: Instant, packet: P, actions: &mut Actions<P>) {
        let (segment, key) = (packet.segment(), packet.way());
        self.seen += u64::from(acks::pure(&packet).is_some());
        if let Some(ack) = acks::pure(&packet)
            && let Some(flow) = self.flows.get_mut(key)
            && acks::is_far(flow.last, ack)
        {
            flow.held.take().into_iter().for_each(|(_, held)| actions.send(held));
            self.flows.end(key);
        }
        let Some(flow) = self.flows.get_mut(key) else {
            if let Some(ack) = acks::pure(&packet) {
                let (last, flags) = (ack.acknowledgment, ack.flags);
                self.flows.begin(key, Flow { last, flags, since: 0, held: None });
            }
            return actions.send(packet);
        };
        let before = flow.held.take();
        if !acks::advances(&packet, flow.last, flow.flags) {
            if let Some((_, held)) = before {
                actions.send(held);
            }
            flow.since = 0;
            flow.last = acks::highest(flow.last, segment);
            flow.flags = acks::pure(&packet).map_or(flow.flags, |ack| ack.flags);
            if acks::ends(segment) {
                self.flows.end(key);
            } else {
                self.flows.schedule(key, None);
            }
            return actions.send(packet);
        }
        flow.last = segment.acknowledgment;
        flow.since += 1;
        let mut leave_out = |packet| {
            self.left_out += 1;
            actions.drop(packet, DECIMATED);
        };
        let deadline = before.as_ref().map_or(now + self.settings.hold, |(at, _)| *at);
        if let Some((_, held)) = before {
            leave_out(held);
        }
        if flow.since >= self.settings.keep_one_in {
            flow.since = 0;
            actions.send(packet);
        } else if self.settings.hold.is_zero() {
            leave_out(packet);
        } else {
            flow.held = Some((deadline, packet));
        }
        let due = flow.held.as_ref().map(|(at, _)| *at);
        self.flows.schedule(key, due);
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant, actions: &mut Actions<P>) {
        while let Some((_, flow)) = self.flows.pop_due(now) {
            if let Some((_, held)) = flow.held.take() {
                flow.since = 0;
                self.late += 1;
                actions.send(held);
            }
        }
    }

    /// Sends all held packets.
    pub fn let_go(&mut self, actions: &mut Actions<P>) {
        while let Some((_, flow)) = self.flows.pop_due(Instant::NEVER) {
            flow.held.take().into_iter().for_each(|(_, held)| actions.send(held));
        }
    }

    /// When it must be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.flows.next_due()
    }

    /// The counts of what it did.
    pub fn counts(&self) -> Counts {
        vec![("acks", self.seen), ("acks-left-out", self.left_out), ("acks-after-hold", self.late)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::testing::{Sample, sample};
    use midhop_tcp::SackBlock;

    const HOLD: Duration = Duration::from_ms(40);

    fn decimator(keep_one_in: u32, hold: Duration) -> AckDecimation<Sample> {
        AckDecimation::new(AckDecimationSettings { keep_one_in, hold })
    }

    /// The acknowledgment numbers that are forwarded when a packet arrives.
    fn give(agent: &mut AckDecimation<Sample>, now: Instant, packet: Sample) -> Vec<u32> {
        let mut actions = Actions::default();
        agent.handle_packet(now, packet, &mut actions);
        sent(actions)
    }

    fn sent(mut actions: Actions<Sample>) -> Vec<u32> {
        let numbers = actions.drain().filter_map(|action| match action {
            Action::Send(packet) => Some(packet.segment.acknowledgment),
            _ => None,
        });
        numbers.collect()
    }

    #[test]
    fn one_in_four_goes_on_and_the_last_after_the_hold() {
        let mut agent = decimator(4, HOLD);
        let start = Instant::START;
        let all: Vec<u32> =
            (0..11).flat_map(|n| give(&mut agent, start, sample(1000 * n, 500))).collect();
        assert_eq!(all, [0, 4000, 8000]);
        assert_eq!(agent.poll_timeout(), Some(start + HOLD));
        let mut actions = Actions::default();
        agent.handle_timeout(start + HOLD, &mut actions);
        assert_eq!(sent(actions), [10_000]);
        assert_eq!(agent.poll_timeout(), None);
        assert_eq!(agent.counts(), [("acks", 11), ("acks-left-out", 7), ("acks-after-hold", 1)]);
    }

    #[test]
    fn the_youngest_waits_no_longer_than_the_first_would_have() {
        let mut agent = decimator(4, HOLD);
        let (start, later) = (Instant::START, Instant::START + HOLD / 2);
        give(&mut agent, start, sample(0, 500));
        assert!(give(&mut agent, start, sample(1000, 500)).is_empty());
        assert!(give(&mut agent, later, sample(2000, 500)).is_empty());
        assert_eq!(agent.poll_timeout(), Some(start + HOLD));
    }

    #[test]
    fn without_a_hold_nothing_waits() {
        let mut agent = decimator(4, Duration::ZERO);
        let all: Vec<u32> =
            (0..11).flat_map(|n| give(&mut agent, Instant::START, sample(1000 * n, 500))).collect();
        assert_eq!((all, agent.poll_timeout()), (vec![0, 4000, 8000], None));
    }

    #[test]
    fn what_carries_more_than_a_number_goes_on_at_once_behind_what_was_held() {
        let mut agent = decimator(4, HOLD);
        let start = Instant::START;
        give(&mut agent, start, sample(0, 500));
        assert!(give(&mut agent, start, sample(1000, 500)).is_empty());
        // A duplicate, a window update, SACK blocks, and the end.
        assert_eq!(give(&mut agent, start, sample(1000, 500)), [1000, 1000]);
        assert!(give(&mut agent, start, sample(2000, 500)).is_empty());
        assert_eq!(give(&mut agent, start, sample(2000, 900)), [2000, 2000]);
        for (last, ends) in [(4000, false), (6000, true)] {
            assert!(give(&mut agent, start, sample(last - 1000, 500)).is_empty());
            let mut packet = sample(last, 500);
            if ends {
                packet.segment.flags |= Flags::FIN;
            } else {
                packet.segment.sack.push(SackBlock { start: last + 500, end: last + 900 });
            }
            assert_eq!(give(&mut agent, start, packet), [last - 1000, last]);
        }
        assert_eq!(agent.poll_timeout(), None);
    }

    #[test]
    fn echoes_of_a_mark_thin_each_other_and_nothing_else() {
        let mut agent = decimator(4, HOLD);
        let echo = |number| {
            let mut packet = sample(number, 500);
            packet.segment.flags |= Flags::ECE;
            packet
        };
        let start = Instant::START;
        give(&mut agent, start, sample(0, 500));
        assert!(give(&mut agent, start, sample(1000, 500)).is_empty());
        // The first is forwarded at once, behind the held one; then one in four.
        let left: Vec<u32> =
            (2..=7).flat_map(|n| give(&mut agent, start, echo(1000 * n))).collect();
        assert_eq!(left, [1000, 2000, 6000]);
        // The last one left out with an echo, and the first one without.
        assert_eq!(give(&mut agent, start, sample(8000, 500)), [7000, 8000]);
        assert!(give(&mut agent, start, sample(9000, 500)).is_empty());
    }

    #[test]
    fn a_late_packet_does_not_turn_a_duplicate_into_news() {
        let mut agent = decimator(4, HOLD);
        give(&mut agent, Instant::START, sample(1000, 500));
        assert!(give(&mut agent, Instant::START, sample(5000, 500)).is_empty());
        assert_eq!(give(&mut agent, Instant::START, sample(3000, 500)), [5000, 3000]);
        assert_eq!(give(&mut agent, Instant::START, sample(5000, 500)), [5000]);
    }

    #[test]
    fn another_flow_under_the_same_name_is_thinned_too() {
        let mut agent = AckDecimation::new(AckDecimationSettings::default());
        let mut actions = Actions::default();
        let mut gone_on = |agent: &mut AckDecimation<_>, number: u32| {
            agent.handle_packet(Instant::START, sample(number, 1), &mut actions);
            actions.drain().filter(|action| matches!(action, Action::Send(_))).count()
        };
        for begin in [1 << 30, 1000, 3 << 30] {
            // The first is forwarded, behind the packet held of the flow before it; of the others one in four is.
            assert!(gone_on(&mut agent, begin) >= 1);
            let thinned: usize = (1..=40).map(|n| gone_on(&mut agent, begin + n * 1000)).sum();
            assert_eq!(thinned, 10, "{begin}");
        }
        agent.let_go(&mut actions);
        assert_eq!(agent.poll_timeout(), None);
    }
}
