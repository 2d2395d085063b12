//! ACK spacing and reconstruction: acknowledgements that came in bursts, or one for many segments, leave evenly.
//!
//! Source: RFC 3449 §5.3.1 (reconstruction) and §5.3.3 (bursts from infrequent acknowledgements). The agent
//! stands behind the narrow link, between it and the sender. With `rate`, an acknowledgement of n bytes
//! delays the next one for as long as n bytes take at that rate. With `rebuild`, one that advances by
//! more than so many bytes is preceded by made-up ones, so many bytes apart. Without a rate, they are spread
//! over the time in which so many bytes were acknowledged, as in the RFC.
//!
//! Differs from the RFC: intervals are not smoothed. The faster of the last two counts. If the sender had nothing to
//! send before one, or waited for its window, that interval shows nothing of the path; used for spacing it would add
//! itself to each round trip. And nothing waits longer than the bytes that it acknowledges took to come, nor longer
//! than `delay_max`, so that no delay outlives its cause.
//!
//! A made-up acknowledgement is the original with a smaller number, and has its window. So if the window has become
//! smaller, none is made: the sender would see its right edge move back. None is made behind a duplicate or SACK
//! blocks either: the bytes of the next advance had arrived before, and nothing was left out. A sender would take
//! the numbers between for further holes (RFC 6582 §3.2) or for a receiver that drops data that it had
//! (RFC 2018 §8).
//!
//! Duplicates, window updates, SACK blocks, ECE, CWR and everything else than a pure ACK is forwarded at once,
//! behind all packets that waited before it. A flow's packets keep their order.
//!
//! Bound: `waiting_max` packets per flow, none for longer than `delay_max`, of at most as many flows as
//! `flows` allows.

use crate::flows::Flows;
use crate::{Actions, Carried, Counts, Fault, acks};
use midhop_tcp::{Flags, Segment};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::VecDeque;

/// How a spacer works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckSpacingSettings {
    /// The rate of the data that ACKs release; none: no ACK is delayed for the data that earlier ones release.
    pub rate: Option<Rate>,
    /// Bytes from one made-up ACK to the next; none: no ACKs are made.
    pub rebuild: Option<Bytes>,
    /// The longest that an ACK is held back.
    pub delay_max: Duration,
    /// The most ACKs of a flow that are held back.
    pub waiting_max: u32,
}

impl Default for AckSpacingSettings {
    fn default() -> Self {
        Self { rate: None, rebuild: None, delay_max: Duration::from_ms(100), waiting_max: 256 }
    }
}

impl AckSpacingSettings {
    /// Checks all of them.
    ///
    /// # Errors
    /// The first that makes no sense.
    pub fn check(&self) -> Result<(), Fault> {
        let fault = |key, what: &str, hint: &str| {
            Err(Fault { key, what: what.to_owned(), hint: hint.to_owned() })
        };
        if self.rate.is_none() && self.rebuild.is_none() {
            let hint = "rate = \"10 Mbit/s\" spaces, rebuild = \"2896 B\" makes up what is missing";
            return fault("rate", "without `rate` and `rebuild` it would do nothing", hint);
        }
        if self.rate == Some(Rate::ZERO) {
            return fault("rate", "nothing would be acknowledged", "more than zero");
        }
        if let Some(step) = self.rebuild.filter(|step| !(536..=1 << 20).contains(&step.get())) {
            let what = format!("acknowledgements {step} apart are impossible");
            return fault("rebuild", &what, "536 B, a small segment, to 1 MiB");
        }
        if self.delay_max.is_zero() && self.rebuild.is_none() {
            return fault("delay_max", "nothing would be held back", "more than zero");
        }
        Fault::unless_short("delay_max", self.delay_max)?;
        Fault::unless_within("waiting_max", self.waiting_max, 2..=4096)
    }
}

/// A spacer of acknowledgements.
#[derive(Debug)]
pub struct AckSpacing<P: Carried> {
    settings: AckSpacingSettings,
    /// A flow is due when its first waiting packet leaves.
    flows: Flows<P::Way, Flow<P>>,
    seen: u64,
    made: u64,
    spaced: u64,
}

#[derive(Debug)]
struct Flow<P> {
    /// The highest acknowledgment number, the latest window, and when that came.
    last: u32,
    window: u16,
    came: Instant,
    /// Whether the last packet was other than a plain ACK, so that data beyond a hole may have arrived.
    repairing: bool,
    /// How fast bytes were acknowledged by the last ACK that advanced.
    pace: Pace,
    /// When the next packet may leave.
    free: Instant,
    waiting: VecDeque<(Instant, P)>,
}

impl<P> Flow<P> {
    fn new(now: Instant, ack: &Segment) -> Self {
        let (last, window) = (ack.acknowledgment, ack.window);
        let pace = Pace::UNKNOWN;
        let waiting = VecDeque::new();
        Self { last, window, came: now, repairing: false, pace, free: now, waiting }
    }

    fn note(&mut self, now: Instant, segment: &Segment, plain: bool) {
        self.repairing = !plain;
        self.last = acks::highest(self.last, segment);
        if segment.flags.contains(Flags::ACK) {
            self.window = segment.window;
            self.came = now;
        }
    }

    /// Makes all waiting packets leave by `latest`.
    fn hasten(&mut self, latest: Instant) {
        // The times ascend: if one leaves early enough, so do all before it.
        let late = self.waiting.iter_mut().rev().take_while(|(at, _)| *at > latest);
        late.for_each(|(at, _)| *at = latest);
    }

    fn first_due(&self) -> Option<Instant> {
        self.waiting.front().map(|(at, _)| *at)
    }
}

/// How an acknowledgement is divided and spread.
#[derive(Debug, Clone, Copy)]
struct Score {
    /// The number of acknowledgements, including the original.
    pieces: u32,
    /// Bytes from one to the next; the original takes the remainder.
    step: u32,
    /// Time from one to the next.
    pause: Duration,
    /// The longest that any of them may wait.
    patience: Duration,
}

impl Score {
    fn of<P>(settings: &AckSpacingSettings, pace: Pace, flow: &Flow<P>, ack: &Segment) -> Self {
        let advance = ack.acknowledgment.wrapping_sub(flow.last);
        let pieces = match settings.rebuild {
            Some(step) if ack.window >= flow.window && !flow.repairing => {
                let step = u32::try_from(step.get()).unwrap_or(u32::MAX).max(1);
                advance.div_ceil(step).clamp(1, settings.waiting_max)
            }
            _ => 1,
        };
        let (span, patience) = match settings.rate {
            Some(rate) => (
                rate.time_for(Bytes::new(advance.into())).min(settings.delay_max),
                settings.delay_max,
            ),
            None => {
                let span = pace.faster(flow.pace).time_for(advance).min(settings.delay_max);
                (span, span)
            }
        };
        Self { pieces, step: advance / pieces, pause: span / u64::from(pieces), patience }
    }
}

/// How fast bytes are acknowledged: how many in which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    bytes: u32,
    time: Duration,
}

impl Pace {
    /// Faster than any other.
    const UNKNOWN: Self = Self { bytes: 1, time: Duration::ZERO };

    fn faster(self, other: Self) -> Self {
        let crosswise = |time: Duration, bytes: u32| u128::from(time.as_ns()) * u128::from(bytes);
        let is_slower = crosswise(self.time, other.bytes) > crosswise(other.time, self.bytes);
        if is_slower { other } else { self }
    }

    fn time_for(self, bytes: u32) -> Duration {
        let ns = u128::from(self.time.as_ns()) * u128::from(bytes) / u128::from(self.bytes.max(1));
        Duration::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

impl<P: Carried> AckSpacing<P> {
    /// A spacer that knows no flow yet.
    pub fn new(settings: AckSpacingSettings) -> Self {
        Self { settings, flows: Flows::new(), seen: 0, made: 0, spaced: 0 }
    }

    /// A packet has arrived whose acknowledgements are to be spaced.
    pub fn handle_packet(&mut self, now: Instant, packet: P, actions: &mut Actions<P>) {
        let (segment, key) = (*packet.segment(), packet.way());
        self.seen += u64::from(acks::pure(&packet).is_some());
        if let Some(ack) = acks::pure(&packet)
            && let Some(flow) = self.flows.get_mut(key)
            && acks::is_far(flow.last, ack)
        {
            flow.waiting.drain(..).for_each(|(_, waiting)| actions.send(waiting));
            self.flows.end(key);
        }
        let Some(flow) = self.flows.get_mut(key) else {
            if let Some(ack) = acks::pure(&packet) {
                self.flows.begin(key, Flow::new(now, ack));
            }
            return actions.send(packet);
        };
        if !acks::advances(&packet, flow.last, Flags::ACK) {
            flow.waiting.drain(..).for_each(|(_, waiting)| actions.send(waiting));
            flow.note(now, &segment, false);
            if acks::ends(&segment) {
                self.flows.end(key);
            } else {
                self.flows.schedule(key, None);
            }
            return actions.send(packet);
        }
        let bytes = segment.acknowledgment.wrapping_sub(flow.last);
        let pace = Pace { bytes, time: now.saturating_since(flow.came) };
        let score = Score::of(&self.settings, pace, flow, &segment);
        let room = (self.settings.waiting_max - score.pieces) as usize;
        let surplus = flow.waiting.len().saturating_sub(room);
        flow.waiting.drain(..surplus).for_each(|(_, waiting)| actions.send(waiting));
        let latest = now + score.patience;
        flow.hasten(latest);
        for piece in 1..=score.pieces {
            let mut part = packet.clone();
            if piece < score.pieces {
                let acknowledgment = flow.last.wrapping_add(score.step * piece);
                part = part.with(Segment { acknowledgment, ..segment });
                self.made += 1;
            }
            let at = flow.free.max(now).min(latest);
            flow.free = at + score.pause;
            if at <= now && flow.waiting.is_empty() {
                actions.send(part);
            } else {
                self.spaced += 1;
                flow.waiting.push_back((at, part));
            }
        }
        if !flow.repairing {
            flow.pace = pace;
        }
        flow.note(now, &segment, true);
        let due = flow.first_due();
        self.flows.schedule(key, due);
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant, actions: &mut Actions<P>) {
        while let Some((key, flow)) = self.flows.pop_due(now) {
            let due = flow.waiting.partition_point(|(at, _)| *at <= now);
            flow.waiting.drain(..due).for_each(|(_, packet)| actions.send(packet));
            let due = flow.first_due();
            self.flows.schedule(key, due);
        }
    }

    /// Sends all held packets.
    pub fn let_go(&mut self, actions: &mut Actions<P>) {
        while let Some((_, flow)) = self.flows.pop_due(Instant::NEVER) {
            flow.waiting.drain(..).for_each(|(_, waiting)| actions.send(waiting));
        }
    }

    /// When it must be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.flows.next_due()
    }

    /// The counts of what it did.
    pub fn counts(&self) -> Counts {
        vec![("acks-come", self.seen), ("acks-made", self.made), ("acks-spaced", self.spaced)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::testing::{Sample, sample};

    fn spacer(rate: Option<Rate>, rebuild: Option<u64>, waiting_max: u32) -> AckSpacing<Sample> {
        AckSpacing::new(AckSpacingSettings {
            rate,
            rebuild: rebuild.map(Bytes::new),
            delay_max: Duration::from_ms(100),
            waiting_max,
        })
    }

    fn at(ms: u64) -> Instant {
        Instant::START + Duration::from_ms(ms)
    }

    /// When each acknowledgment number leaves, in ms, if these acknowledgements arrive.
    fn play(agent: &mut AckSpacing<Sample>, acks: &[(u64, Sample)]) -> Vec<(u64, u32)> {
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
            all.extend(actions.drain().filter_map(|action| match action {
                Action::Send(packet) => Some((ms, packet.segment.acknowledgment)),
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

    /// Plain acknowledgements with these numbers at these moments.
    fn plain(acks: &[(u64, u32)]) -> Vec<(u64, Sample)> {
        acks.iter().map(|(ms, ack)| (*ms, sample(*ack, 500))).collect()
    }

    #[test]
    fn what_was_left_out_is_made_up_over_the_time_it_took() {
        let mut agent = spacer(None, Some(2_000), 64);
        let left = play(&mut agent, &plain(&[(0, 0), (40, 2_000), (80, 10_000), (120, 12_000)]));
        // Four pieces over 40 ms.
        let made = [(80, 4_000), (90, 6_000), (100, 8_000), (110, 10_000)];
        assert_eq!(left, [&[(0, 0), (40, 2_000)][..], &made, &[(120, 12_000)]].concat());
        assert_eq!(agent.counts(), [("acks-come", 4), ("acks-made", 3), ("acks-spaced", 3)]);
    }

    #[test]
    fn time_without_data_is_not_taken_for_the_time_that_data_took() {
        // 4000 bytes each 8 ms, but for the 72 ms in which the sender waited for its window.
        let mut agent = spacer(None, Some(2_000), 64);
        let acks = [(0, 0), (8, 4_000), (16, 8_000), (88, 12_000), (96, 16_000), (104, 20_000)];
        let left = play(&mut agent, &plain(&acks));
        // At the first nothing is known: its pieces leave at once.
        let before = [(0, 0), (8, 2_000), (8, 4_000), (16, 6_000), (20, 8_000)];
        let after = [(88, 10_000), (92, 12_000), (96, 14_000), (100, 16_000), (104, 18_000)];
        assert_eq!(left, [&before[..], &after, &[(108, 20_000)]].concat());
    }

    #[test]
    fn what_waits_for_those_before_it_waits_no_longer_than_one_interval() {
        // The intervals shrink by 2 ms each. An ACK that is spread over more time than is left until the next must not
        // delay all later ones.
        let mut agent = spacer(None, Some(2_000), 64);
        let mut acks = vec![(0, 0)];
        let mut now = 0;
        for (number, interval) in (1..).zip((1..=20).rev().map(|n| 2 * n)) {
            now += interval;
            acks.push((now, 4_000 * number));
        }
        let left = play(&mut agent, &plain(&acks));
        for ((came, ack), before) in acks.iter().skip(1).zip(&acks) {
            let (ms, _) = left.iter().find(|(_, number)| number == ack).expect("it leaves");
            assert!(ms - came <= came - before.0, "{ack} came at {came} and left at {ms}");
        }
    }

    #[test]
    fn an_acknowledgement_that_ends_a_repair_stays_one() {
        // The bytes of its advance had arrived before: nothing was left out, and a sender would take the numbers
        // between for holes.
        let mut agent = spacer(None, Some(2_000), 64);
        let acks = [(0, 0), (10, 2_000), (20, 2_000), (30, 2_000), (40, 20_000), (50, 24_000)];
        let left = play(&mut agent, &plain(&acks));
        assert_eq!(left[..5], acks[..5]);
        assert_eq!(left[5..], [(50, 22_000), (55, 24_000)]);
    }

    #[test]
    fn an_acknowledgement_that_comes_late_makes_up_nothing_twice() {
        let mut agent = spacer(None, Some(2_000), 64);
        let acks = [(0, 0), (10, 2_000), (20, 4_000), (21, 2_000), (30, 6_000), (40, 8_000)];
        assert_eq!(play(&mut agent, &plain(&acks)), acks);
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
        let acks: Vec<(u64, Sample)> = (0..50).map(|n| (0, sample(n * 1_000, 500))).collect();
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

    #[test]
    fn nothing_is_made_up_between_two_flows_under_the_same_name() {
        let mut agent = spacer(None, Some(2000), 64);
        let mut actions = Actions::default();
        for number in [1000, 1 << 30, 5000] {
            agent.handle_packet(at(0), sample(number, 1), &mut actions);
            assert_eq!(actions.drain().count(), 1, "{number}");
        }
        agent.handle_packet(at(50), sample(25_000, 1), &mut actions);
        agent.let_go(&mut actions);
        assert_eq!((actions.drain().count(), agent.poll_timeout()), (10, None));
    }
}
