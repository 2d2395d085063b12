//! ACK spacing and reconstruction: acknowledgements that came in a bunch, or few for many, leave evenly.
//!
//! Source: RFC 3449 §5.3.1 (reconstruction) and §5.3.3 (bursts from infrequent acknowledgements). It
//! stands behind the narrow link, between it and the sender. With `rate`, an acknowledgement of n bytes
//! keeps the next one back for as long as n bytes take at that rate. With `rebuild`, one that moves on by
//! more than so many bytes is preceded by made-up ones, that far apart; without a rate, they are spread
//! over the time that it took the original to come after the one before it, as the RFC has it.
//!
//! Differs from the RFC: intervals are not smoothed, and no acknowledgement is kept longer than
//! `delay_max`. A made-up one is the original with a smaller acknowledgment number: its window is that
//! of the original, so where the window has become smaller, none is made, lest the sender see its right
//! edge move back.
//!
//! Duplicates, window updates, SACK blocks, ECE, CWR and everything else than a pure ACK goes on at once,
//! behind all that waited before it. Nothing of a flow changes its order.
//!
//! Bound: `waiting_max` packets per flow, none for longer than `delay_max`; flows beyond [`FLOWS_MAX`]
//! are let pass.

use super::acks::{self, Crossing, FlowKey};
use super::decimation::FLOWS_MAX;
use crate::agent::{Actions, Agent};
use crate::packet::{Body, Packet};
use midhop_experiment::agents;
use midhop_tcp::{Flags, Segment};
use midhop_units::{Bytes, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A spacer of acknowledgements.
#[derive(Debug)]
pub struct AckSpacing {
    plan: agents::AckSpacing,
    crossing: Crossing,
    flows: BTreeMap<FlowKey, Flow>,
    /// When the first that waits of a flow leaves.
    due: BTreeSet<(Instant, FlowKey)>,
    seen: u64,
    made: u64,
    spaced: u64,
}

#[derive(Debug)]
struct Flow {
    /// The acknowledgment number and window that came last, and when.
    last: u32,
    window: u16,
    came: Instant,
    /// When the next may leave.
    free: Instant,
    waiting: VecDeque<(Instant, Packet)>,
}

impl Flow {
    fn note(&mut self, now: Instant, ack: &Segment) {
        self.last = ack.acknowledgment;
        self.window = ack.window;
        self.came = now;
    }
}

impl AckSpacing {
    /// A spacer of what comes as `crossing` says.
    pub(crate) fn new(plan: &agents::AckSpacing, crossing: Crossing) -> Self {
        Self {
            plan: plan.clone(),
            crossing,
            flows: BTreeMap::new(),
            due: BTreeSet::new(),
            seen: 0,
            made: 0,
            spaced: 0,
        }
    }

    /// A packet of a flow that is not known.
    fn begin(&mut self, now: Instant, key: FlowKey, packet: &Packet) {
        let Some(ack) = acks::pure(packet) else { return };
        if self.flows.len() >= FLOWS_MAX {
            self.flows.retain(|_, flow| !flow.waiting.is_empty());
        }
        if self.flows.len() < FLOWS_MAX {
            let (last, window) = (ack.acknowledgment, ack.window);
            let flow = Flow { last, window, came: now, free: now, waiting: VecDeque::new() };
            self.flows.insert(key, flow);
        }
    }
}

/// How an acknowledgement is to be played out.
#[derive(Debug, Clone, Copy)]
struct Score {
    /// Acknowledgements, the original among them.
    pieces: u32,
    /// Bytes from one to the next; the original takes the rest.
    step: u32,
    /// Time from one to the next.
    pause: Duration,
}

impl Score {
    fn of(plan: &agents::AckSpacing, now: Instant, flow: &Flow, ack: &Segment) -> Self {
        let advance = ack.acknowledgment.wrapping_sub(flow.last);
        let pieces = match plan.rebuild {
            Some(step) if ack.window >= flow.window => {
                let step = u32::try_from(step.get()).unwrap_or(u32::MAX).max(1);
                advance.div_ceil(step).clamp(1, plan.waiting_max)
            }
            _ => 1,
        };
        let span = match plan.rate {
            Some(rate) => rate.time_for(Bytes::new(advance.into())),
            None => now.saturating_since(flow.came),
        };
        let pause = span.min(plan.delay_max) / u64::from(pieces);
        Self { pieces, step: advance / pieces, pause }
    }
}

impl Agent for AckSpacing {
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        let Body::Segment(segment) = &packet.body else { return actions.send(packet) };
        if !self.crossing.came(&packet) {
            return actions.send(packet);
        }
        let key = (packet.flow, packet.towards);
        self.seen += u64::from(acks::pure(&packet).is_some());
        let Some(flow) = self.flows.get_mut(&key) else {
            self.begin(now, key, &packet);
            return actions.send(packet);
        };
        if let Some((at, _)) = flow.waiting.front() {
            self.due.remove(&(*at, key));
        }
        if !acks::advances(&packet, flow.last) {
            flow.waiting.drain(..).for_each(|(_, waiting)| actions.send(waiting));
            if let Some(ack) = acks::pure(&packet) {
                flow.note(now, ack);
            }
            if [Flags::FIN, Flags::RST].into_iter().any(|flag| segment.flags.contains(flag)) {
                self.flows.remove(&key);
            }
            return actions.send(packet);
        }
        let score = Score::of(&self.plan, now, flow, segment);
        let room = (self.plan.waiting_max - score.pieces) as usize;
        let surplus = flow.waiting.len().saturating_sub(room);
        flow.waiting.drain(..surplus).for_each(|(_, waiting)| actions.send(waiting));
        for piece in 1..=score.pieces {
            let mut part = packet;
            if piece < score.pieces
                && let Body::Segment(made) = &mut part.body
            {
                made.acknowledgment = flow.last.wrapping_add(score.step * piece);
                self.made += 1;
            }
            let at = flow.free.max(now).min(now + self.plan.delay_max);
            flow.free = at + score.pause;
            if at <= now && flow.waiting.is_empty() {
                actions.send(part);
            } else {
                self.spaced += 1;
                flow.waiting.push_back((at, part));
            }
        }
        flow.note(now, segment);
        if let Some((at, _)) = flow.waiting.front() {
            self.due.insert((*at, key));
        }
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        while let Some(&(at, key)) = self.due.first() {
            if at > now {
                return;
            }
            self.due.pop_first();
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let due = flow.waiting.partition_point(|(at, _)| *at <= now);
            flow.waiting.drain(..due).for_each(|(_, packet)| actions.send(packet));
            if let Some((at, _)) = flow.waiting.front() {
                self.due.insert((*at, key));
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("acks", self.seen), ("acks-made", self.made), ("acks-spaced", self.spaced)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::acks::sample;
    use super::*;
    use crate::agent::Action;
    use midhop_units::Rate;

    fn spacer(rate: Option<Rate>, rebuild: Option<u64>, waiting_max: u32) -> AckSpacing {
        let plan = agents::AckSpacing {
            links: Vec::new(),
            rate,
            rebuild: rebuild.map(Bytes::new),
            delay_max: Duration::from_ms(100),
            waiting_max,
        };
        AckSpacing::new(&plan, Crossing::everything(3))
    }

    fn at(ms: u64) -> Instant {
        Instant::START + Duration::from_ms(ms)
    }

    /// When which acknowledgment number leaves, in ms, when these come.
    fn play(agent: &mut AckSpacing, acks: &[(u64, Packet)]) -> Vec<(u64, u32)> {
        let (mut all, mut coming) = (Vec::new(), acks.iter().peekable());
        loop {
            let next = coming.peek().map(|(ms, _)| at(*ms));
            let due = agent.poll_timeout();
            let mut actions = Actions::default();
            let now = match (next, due) {
                (None, None) => return all,
                (Some(next), due) if due.is_none_or(|due| next <= due) => {
                    let packet = coming.next().map(|(_, packet)| *packet).expect("peeked");
                    agent.handle_packet(next, packet, &mut actions);
                    next
                }
                (_, due) => {
                    let due = due.expect("one of both");
                    agent.handle_timeout(due, &mut actions);
                    due
                }
            };
            let ms = now.saturating_since(Instant::START).as_ns() / 1_000_000;
            all.extend(actions.take().into_iter().filter_map(|action| match action {
                Action::Send(Packet { body: Body::Segment(segment), .. }) => {
                    Some((ms, segment.acknowledgment))
                }
                _ => None,
            }));
        }
    }

    #[test]
    fn at_a_rate_each_leaves_when_the_bytes_before_it_have_had_their_time() {
        // 10,000 bytes take 10 ms.
        let mut agent = spacer(Some(Rate::from_mbit_per_s(8)), None, 64);
        let acks = [(0, 0), (5, 10_000), (5, 20_000), (5, 40_000), (90, 50_000)];
        let acks = acks.map(|(ms, ack)| (ms, sample(ack, 500)));
        let expected = [(0, 0), (5, 10_000), (15, 20_000), (25, 40_000), (90, 50_000)];
        assert_eq!(play(&mut agent, &acks), expected);
    }

    #[test]
    fn what_was_left_out_is_made_up_over_the_time_it_took() {
        let mut agent = spacer(None, Some(2_000), 64);
        let acks = [(0, 0), (40, 8_000), (80, 10_000)].map(|(ms, ack)| (ms, sample(ack, 500)));
        let expected = [(0, 0), (40, 2_000), (50, 4_000), (60, 6_000), (70, 8_000), (80, 10_000)];
        assert_eq!(play(&mut agent, &acks), expected);
        assert_eq!(agent.counts(), [("acks", 3), ("acks-made", 3), ("acks-spaced", 3)]);
    }

    #[test]
    fn nothing_is_made_up_where_the_window_has_become_smaller() {
        let mut agent = spacer(None, Some(2_000), 64);
        let acks = [(0, sample(0, 500)), (40, sample(8_000, 499))];
        assert_eq!(play(&mut agent, &acks), [(0, 0), (40, 8_000)]);
    }

    #[test]
    fn nothing_waits_longer_or_in_greater_number_than_is_allowed() {
        // At this rate each would take a second.
        let mut agent = spacer(Some(Rate::from_bits_per_s(8_000)), None, 64);
        let acks: Vec<(u64, Packet)> = (0..50).map(|n| (0, sample(n * 1_000, 500))).collect();
        let left = play(&mut agent, &acks);
        assert_eq!(left.len(), 50);
        assert!(left.is_sorted() && left.last() == Some(&(100, 49_000)), "{left:?}");
        let mut few = spacer(Some(Rate::from_bits_per_s(8_000)), None, 4);
        let left = play(&mut few, &acks);
        assert_eq!(left.iter().filter(|(ms, _)| *ms > 0).count(), 4);
        assert!(left.is_sorted());
    }

    #[test]
    fn a_duplicate_goes_on_at_once_behind_all_that_waits() {
        let mut agent = spacer(Some(Rate::from_bits_per_s(80_000)), None, 64);
        let acks = [(0, 0), (1, 1_000), (2, 2_000), (3, 2_000)];
        let acks = acks.map(|(ms, ack)| (ms, sample(ack, 500)));
        assert_eq!(play(&mut agent, &acks), [(0, 0), (1, 1_000), (3, 2_000), (3, 2_000)]);
    }
}
