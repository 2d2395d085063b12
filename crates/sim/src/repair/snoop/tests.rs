//! Packets given to a snoop agent by hand: what it retransmits, and what it hides from the source.

use super::*;
use crate::agent::Action;
use crate::packet::{End, FlowId, Xcp};
use midhop_experiment::limit::Family;
use midhop_tcp::{Flags, SackBlock, Segment, Timestamps};
use midhop_units::{Bytes, Duration};

const SOURCE: NodeId = NodeId(0);
const RECEIVER: NodeId = NodeId(1);
const LENGTH: u32 = 1000;
/// From the agent to the receiver and back.
const ROUND_TRIP: Duration = Duration::from_ms(20);

/// Segments are numbered from 0, each of [`LENGTH`] bytes.
struct Bench {
    snoop: SnoopNode,
    now: Instant,
    flow: FlowId,
    /// The sequence number of segment 0.
    origin: u32,
    /// Whether segments carry the time as their stamp.
    stamps: bool,
}

impl Bench {
    fn new(settings: agents::Snoop, origin: u32) -> Self {
        Self {
            snoop: SnoopNode::new(&settings, vec![false, true]),
            now: Instant::START + Duration::from_s(1),
            flow: FlowId(0),
            origin,
            stamps: false,
        }
    }

    /// An agent that has seen segments 0 and 1 pass, and their acknowledgements return.
    fn begun(settings: agents::Snoop, origin: u32) -> Self {
        let mut bench = Self::new(settings, origin);
        for number in 0..2 {
            bench.data(number);
            bench.wait(ROUND_TRIP);
            assert_eq!(bench.ack(number + 1, &[]).len(), 1);
        }
        bench
    }

    fn sequence(&self, number: u32) -> u32 {
        self.origin.wrapping_add(number * LENGTH)
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    fn packet(&self, towards: End, segment: Segment) -> Packet {
        let (source, destination) = match towards {
            End::Listener => (SOURCE, RECEIVER),
            End::Opener => (RECEIVER, SOURCE),
        };
        Packet {
            flow: self.flow,
            towards,
            source,
            destination,
            maker: source,
            ports: [1, 2],
            family: Family::Ipv4,
            size: 20 + segment.size(),
            xcp: Xcp::default(),
            body: Body::Segment(segment),
        }
    }

    fn segment(&self, number: u32) -> Segment {
        let stamp = (self.now.as_ns() / 1_000_000) as u32;
        Segment {
            sequence: self.sequence(number),
            acknowledgment: 77,
            length: LENGTH,
            window: 500,
            flags: Flags::ACK,
            timestamps: self.stamps.then_some(Timestamps { value: stamp, echo: 5 }),
            ..Segment::default()
        }
    }

    /// The acknowledgement of everything before segment `next`, and of the segments between the pairs of `blocks`.
    fn acknowledgement(&self, next: u32, blocks: &[(u32, u32)]) -> Segment {
        let mut segment = Segment {
            sequence: 77,
            acknowledgment: self.sequence(next),
            window: 500,
            flags: Flags::ACK,
            ..Segment::default()
        };
        for &(start, end) in blocks {
            let (start, end) = (self.sequence(start), self.sequence(end));
            segment.sack.push(SackBlock { start, end });
        }
        segment
    }

    /// The packets that the agent forwards when it gets a segment.
    fn give(&mut self, towards: End, segment: Segment) -> Vec<Segment> {
        let packet = self.packet(towards, segment);
        let mut actions = Actions::default();
        self.snoop.handle_packet(self.now, packet, &mut actions);
        self.taken(&mut actions)
    }

    fn taken(&mut self, actions: &mut Actions) -> Vec<Segment> {
        self.snoop.check_invariants();
        let segments = actions.take().into_iter().map(|action| match action {
            Action::Send(packet) => {
                let Body::Segment(segment) = packet.body else { panic!("a datagram") };
                assert_eq!(
                    packet.size,
                    20 + segment.size(),
                    "a packet's size is that of its parts"
                );
                segment
            }
            Action::Drop(..) => panic!("nothing is dropped"),
        });
        segments.collect()
    }

    /// Lets segments pass; each must be forwarded unchanged.
    fn data(&mut self, number: u32) {
        let segment = self.segment(number);
        assert_eq!(self.give(End::Listener, segment), [segment]);
    }

    fn ack(&mut self, next: u32, blocks: &[(u32, u32)]) -> Vec<Segment> {
        let segment = self.acknowledgement(next, blocks);
        self.give(End::Opener, segment)
    }

    /// Lets the agent's timer fire until it sends something, and returns the time and the packets;
    /// `None` when that would take longer than flows are remembered.
    fn timer(&mut self) -> (Instant, Vec<Segment>) {
        let idle = self.now + Duration::from_s(100);
        loop {
            if self.snoop.poll_timeout().is_none_or(|at| at > idle) {
                return (self.now, Vec::new());
            }
            let (at, sent) = self.fire();
            if !sent.is_empty() {
                return (at, sent);
            }
        }
    }

    fn fire(&mut self) -> (Instant, Vec<Segment>) {
        self.now = self.now.max(self.snoop.poll_timeout().expect("a timer"));
        let mut actions = Actions::default();
        self.snoop.handle_timeout(self.now, &mut actions);
        (self.now, self.taken(&mut actions))
    }

    fn count(&self, what: &str) -> u64 {
        let counts = self.snoop.counts();
        counts.iter().find(|(name, _)| *name == what).map_or(0, |(_, count)| *count)
    }

    /// The agent's retransmissions at an acknowledgement.
    fn repairs(&mut self, next: u32, blocks: &[(u32, u32)]) -> Vec<u32> {
        let sent = self.ack(next, blocks);
        self.numbers(&sent)
    }

    fn numbers(&self, segments: &[Segment]) -> Vec<u32> {
        let number = |it: &Segment| it.sequence.wrapping_sub(self.origin) / LENGTH;
        segments.iter().filter(|it| it.length > 0).map(number).collect()
    }
}

/// Sequence numbers in the middle, and some that wrap within the test.
const ORIGINS: [u32; 2] = [5000, u32::MAX - 5500];

#[test]
fn a_loss_is_repaired_and_no_duplicate_reaches_the_source() {
    for origin in ORIGINS {
        let mut bench = Bench::begun(agents::Snoop::default(), origin);
        (2..12).for_each(|number| bench.data(number));
        bench.wait(ROUND_TRIP);
        assert_eq!(bench.ack(5, &[]).len(), 1);
        // Segment 5 is lost: six more each cause a duplicate.
        let mut sent = Vec::new();
        (6..12).for_each(|_| sent.extend(bench.ack(5, &[])));
        assert_eq!(bench.numbers(&sent), [5]);
        assert_eq!(sent.len(), 1, "the source gets nothing");
        assert_eq!((bench.count("acks-suppressed"), bench.count("segments-resent")), (6, 1));
        bench.wait(ROUND_TRIP);
        assert_eq!(bench.ack(12, &[]).len(), 1);
    }
}

#[test]
fn a_repair_that_is_lost_too_is_found_by_duplicates_or_by_the_timer() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..8).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    // 2 is lost; 3 to 7 arrive, and 3 more arrive after the repair.
    let sent: Vec<_> = (3..8).flat_map(|_| bench.ack(2, &[])).collect();
    assert_eq!(bench.numbers(&sent), [2]);
    (8..11).for_each(|number| bench.data(number));
    let sent: Vec<_> = (8..11).flat_map(|_| bench.ack(2, &[])).collect();
    assert_eq!(bench.numbers(&sent), [2], "three that were sent after the repair");
    // Nothing more arrives: the timer, then the timer doubled.
    let (resent, (first, sent)) = (bench.now, bench.timer());
    assert_eq!(first - resent, Duration::from_ms(100), "the floor, round trips being 20 ms");
    assert_eq!(bench.numbers(&sent), [2]);
    let (second, sent) = bench.timer();
    assert_eq!(second - first, Duration::from_ms(200));
    assert_eq!(bench.numbers(&sent), [2]);
    assert_eq!(bench.count("segments-resent-by-timer"), 2);
}

#[test]
fn selective_acknowledgements_find_each_loss_and_show_the_source_none() {
    for origin in ORIGINS {
        let mut bench = Bench::begun(agents::Snoop::default(), origin);
        (2..12).for_each(|number| bench.data(number));
        bench.wait(ROUND_TRIP);
        // 2 and 6 are lost.
        assert!(bench.ack(2, &[(3, 4)]).is_empty());
        assert!(bench.ack(2, &[(3, 5)]).is_empty());
        assert_eq!(bench.repairs(2, &[(3, 6)]), [2]);
        assert!(bench.ack(2, &[(7, 8), (3, 6)]).is_empty());
        assert!(bench.ack(2, &[(7, 9), (3, 6)]).is_empty());
        assert_eq!(bench.repairs(2, &[(7, 10), (3, 6)]), [6]);
        // The first repair arrives: the source sees progress, and not the gap above.
        bench.wait(ROUND_TRIP);
        let sent = bench.ack(6, &[(7, 12)]);
        assert_eq!(sent, [bench.acknowledgement(6, &[])]);
        assert_eq!(bench.ack(12, &[]).len(), 1);
        assert_eq!(bench.count("segments-resent"), 2);
    }
}

#[test]
fn a_selectively_reported_loss_of_a_repair_is_repaired_again() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..6).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    assert_eq!(bench.repairs(2, &[(3, 6)]), [2]);
    (6..9).for_each(|number| bench.data(number));
    assert!(bench.ack(2, &[(3, 7)]).is_empty());
    assert!(bench.ack(2, &[(3, 8)]).is_empty());
    assert_eq!(bench.repairs(2, &[(3, 9)]), [2]);
}

#[test]
fn what_was_lost_before_the_agent_is_the_sources() {
    for blocks in [true, false] {
        let mut bench = Bench::begun(agents::Snoop::default(), 5000);
        // 4 never passes.
        [2, 3, 5, 6, 7, 8].into_iter().for_each(|number| bench.data(number));
        bench.wait(ROUND_TRIP);
        assert_eq!(bench.ack(4, &[]).len(), 1);
        for end in 6..10 {
            let report = [(5, end)];
            let blocks = if blocks { &report[..] } else { &[] };
            let expected = bench.acknowledgement(4, blocks);
            assert_eq!(bench.ack(4, blocks), [expected]);
        }
        // The source's retransmission in its place is the source's responsibility.
        bench.data(4);
        assert_eq!(bench.ack(4, &[(5, 9)]).len(), 1);
        assert_eq!((bench.count("acks-suppressed"), bench.count("segments-resent")), (0, 0));
    }
}

#[test]
fn of_two_losses_the_source_s_own_is_reported_to_it() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    // 3 never passes; 6 is lost behind the agent.
    [2, 4, 5, 6, 7, 8, 9].into_iter().for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    let sent = bench.ack(3, &[(7, 10), (4, 6)]);
    assert_eq!(bench.numbers(&sent), [6]);
    assert_eq!(sent[1..], [bench.acknowledgement(3, &[(4, 6)])]);
    // The other way round: nothing until the first is repaired.
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    [2, 3, 4, 6, 7, 8].into_iter().for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    assert_eq!(bench.repairs(2, &[(6, 9), (3, 5)]), [2]);
    bench.wait(ROUND_TRIP);
    let expected = bench.acknowledgement(5, &[(6, 9)]);
    assert_eq!(bench.ack(5, &[(6, 9)]), [expected]);
}

#[test]
fn what_the_source_sends_again_is_not_repaired_by_acknowledgements() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..8).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    bench.data(2);
    assert_eq!(bench.count("segments-resent-by-source"), 1);
    for end in 4..8 {
        let sent = bench.ack(2, &[(3, end)]);
        assert_eq!(sent, [bench.acknowledgement(2, &[(3, end)])]);
    }
    // The timer still stands behind it.
    let (_, sent) = bench.timer();
    assert_eq!(bench.numbers(&sent), [2]);
}

#[test]
fn copies_and_late_segments_are_distinguished_from_what_the_source_sends_again() {
    let mut bench = Bench::new(agents::Snoop::default(), 5000);
    bench.stamps = true;
    let mut stamped = Vec::new();
    for number in 0..5 {
        bench.wait(Duration::from_ms(2));
        stamped.push(bench.segment(number));
    }
    // 3 is overtaken by 4, and 2 arrives twice.
    for number in [0, 1, 2, 4, 2, 3] {
        assert_eq!(bench.give(End::Listener, stamped[number]).len(), 1);
    }
    assert_eq!(bench.count("segments-resent-by-source"), 0);
    assert_eq!(bench.count("segments-cached"), 5);
    bench.wait(ROUND_TRIP);
    assert_eq!(bench.ack(2, &[]).len(), 1);
    assert!(bench.ack(2, &[(3, 4)]).is_empty(), "2 is still the agent's");
    // The same with a later stamp is the source's.
    bench.data(2);
    assert_eq!(bench.count("segments-resent-by-source"), 1);
    assert_eq!(bench.ack(2, &[(3, 5)]).len(), 1);
}

#[test]
fn reordering_within_the_threshold_sends_nothing_again() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..6).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    assert!(bench.ack(2, &[(3, 4)]).is_empty());
    assert!(bench.ack(2, &[(3, 5)]).is_empty());
    assert_eq!(bench.ack(5, &[]), [bench.acknowledgement(5, &[])]);
    assert_eq!(bench.count("segments-resent"), 0);
}

#[test]
fn only_the_agents_own_needless_copies_are_hushed_up() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..8).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    // 2 was only late: it arrives twice.
    assert_eq!(bench.repairs(2, &[(3, 6)]), [2]);
    assert_eq!(bench.ack(6, &[]).len(), 1);
    assert!(bench.ack(6, &[(2, 3)]).is_empty());
    // A copy of 4 is not the agent's.
    let sent = bench.ack(6, &[(4, 5)]);
    assert_eq!(sent, [bench.acknowledgement(6, &[(4, 5)])]);
    // On an acknowledgement with more information it is only left out.
    assert_eq!(bench.ack(7, &[(2, 3)]), [bench.acknowledgement(7, &[])]);
}

#[test]
fn congestion_marks_and_windows_come_through() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..8).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    let echo = |bench: &Bench, end| Segment {
        flags: Flags::ACK | Flags::ECE,
        ..bench.acknowledgement(2, &[(3, end)])
    };
    let first = echo(&bench, 4);
    let sent = bench.give(End::Opener, first);
    assert_eq!(sent, [Segment { sack: Default::default(), ..first }], "the echo, not the loss");
    let second = echo(&bench, 5);
    assert!(bench.give(End::Opener, second).is_empty(), "the source knows");
    // The same acknowledgement with another window is not a duplicate.
    let update = Segment { window: 900, ..bench.acknowledgement(2, &[(3, 5)]) };
    assert_eq!(bench.give(End::Opener, update), [Segment { sack: Default::default(), ..update }]);
}

#[test]
fn data_that_comes_back_is_never_kept() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..8).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    for end in 4..7 {
        let segment = Segment { length: 300, ..bench.acknowledgement(2, &[(3, end)]) };
        let sent = bench.give(End::Opener, segment);
        assert_eq!(sent.last(), Some(&Segment { sack: Default::default(), ..segment }));
        assert_eq!(sent.len(), 1 + usize::from(end == 6), "the third report brings the repair");
    }
    assert_eq!(bench.count("acks-suppressed"), 0);
}

#[test]
fn a_repair_acknowledges_what_the_source_does_by_now() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    bench.stamps = true;
    let cached = Segment { sack: bench.acknowledgement(0, &[(1, 2)]).sack, ..bench.segment(2) };
    let cached = Segment { ecn: midhop_tcp::Ecn::Capable, ..cached };
    bench.give(End::Listener, cached);
    bench.wait(Duration::from_ms(7));
    (3..6).for_each(|number| bench.data(number));
    // Meanwhile the source has acknowledged more.
    let stamps = Some(Timestamps { value: 1047, echo: 60 });
    let news = Segment { length: 0, acknowledgment: 9077, timestamps: stamps, ..bench.segment(6) };
    bench.give(End::Listener, news);
    // The receiver echoes a stamp that is later than the lost segment's.
    bench.wait(ROUND_TRIP);
    let report = Segment {
        timestamps: Some(Timestamps { value: 70, echo: 1044 }),
        ..bench.acknowledgement(2, &[(3, 6)])
    };
    let sent = bench.give(End::Opener, report);
    let value = cached.timestamps.map(|stamps| stamps.value.max(1044)).expect("stamped");
    let expected = Segment {
        acknowledgment: 9077,
        timestamps: Some(Timestamps { value, echo: 60 }),
        sack: Default::default(),
        ..cached
    };
    assert_eq!(sent, [expected]);
    assert_eq!(value, 1044, "older stamps are refused");
}

#[test]
fn what_the_queue_refused_is_reported_to_the_source() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..8).for_each(|number| bench.data(number));
    let refused = bench.packet(End::Listener, bench.segment(3));
    bench.snoop.handle_drop(bench.now, &refused);
    bench.snoop.check_invariants();
    bench.wait(ROUND_TRIP);
    assert_eq!(bench.ack(3, &[]).len(), 1);
    for end in 5..9 {
        // 4 to 7 have arrived.
        let sent = bench.ack(3, &[(4, end)]);
        assert_eq!(sent.len(), 1, "to the source");
    }
    assert_eq!(bench.count("segments-left-to-source"), 1);
    assert_eq!(bench.count("segments-resent"), 0);
}

#[test]
fn without_acknowledgements_or_behind_a_closed_window_no_timer_runs() {
    let mut bench = Bench::new(agents::Snoop::default(), 5000);
    (0..5).for_each(|number| bench.data(number));
    let idle = agents::Snoop::default().idle;
    assert_eq!(bench.snoop.poll_timeout(), Some(bench.now + idle), "only to be forgotten");
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    bench.data(2);
    let closed = Segment { window: 0, ..bench.acknowledgement(2, &[]) };
    assert_eq!(bench.give(End::Opener, closed), [closed]);
    let (_, sent) = bench.timer();
    assert!(sent.is_empty());
    assert_eq!(bench.count("segments-resent"), 0);
}

#[test]
fn a_segment_that_never_gets_through_is_left_to_the_source() {
    let settings = agents::Snoop { resends: 3, ..agents::Snoop::default() };
    let mut bench = Bench::begun(settings, 5000);
    (2..4).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    assert!(bench.ack(2, &[(3, 4)]).is_empty());
    for _ in 0..3 {
        let (_, sent) = bench.timer();
        assert_eq!(bench.numbers(&sent), [2]);
    }
    assert!(bench.timer().1.is_empty());
    assert_eq!(bench.count("segments-given-up"), 1);
    assert_eq!(bench.ack(2, &[(3, 4)]), [bench.acknowledgement(2, &[(3, 4)])]);
}

#[test]
fn a_full_cache_takes_no_more_and_the_largest_flow_gives_way() {
    let size = 20 + 20 + u64::from(LENGTH);
    let settings = agents::Snoop { cache: Bytes::new(4 * size), ..agents::Snoop::default() };
    let mut bench = Bench::begun(settings, 5000);
    (2..10).for_each(|number| bench.data(number));
    assert_eq!(bench.count("segments-uncached"), 4, "6 to 9");
    // Another flow takes from the end of the first, down to an equal share.
    bench.flow = FlowId(1);
    (0..4).for_each(|number| bench.data(number));
    assert_eq!(bench.count("segments-evicted"), 2, "5 and 4 of the first");
    assert_eq!(bench.count("segments-uncached"), 6);
    bench.flow = FlowId(0);
    bench.wait(ROUND_TRIP);
    assert_eq!(bench.repairs(2, &[(3, 4), (5, 10)]), [] as [u32; 0]);
    assert_eq!(bench.count("acks-suppressed"), 1, "2 is cached, and still the agent's");
    assert_eq!(bench.ack(4, &[(5, 10)]).len(), 1, "4 is no more");
}

#[test]
fn flows_are_few_and_forgotten() {
    let settings = agents::Snoop { flows: 2, ..agents::Snoop::default() };
    let idle = settings.idle;
    let mut bench = Bench::new(settings, 5000);
    for flow in 0..3 {
        bench.flow = FlowId(flow);
        (0..3).for_each(|number| bench.data(number));
    }
    assert_eq!((bench.count("flows"), bench.count("segments-untracked")), (2, 3));
    // One is reset.
    bench.flow = FlowId(0);
    let reset = Segment { flags: Flags::RST, ..bench.acknowledgement(0, &[]) };
    assert_eq!(bench.give(End::Opener, reset), [reset]);
    assert_eq!(bench.snoop.agent.flows(), 1);
    // The other ends.
    bench.flow = FlowId(1);
    let fin = Segment { flags: Flags::ACK | Flags::FIN, ..bench.segment(3) };
    bench.give(End::Listener, fin);
    let last = Segment {
        acknowledgment: bench.sequence(4).wrapping_add(1),
        ..bench.acknowledgement(0, &[])
    };
    assert_eq!(bench.give(End::Opener, last), [last]);
    assert_eq!((bench.snoop.agent.flows(), bench.snoop.agent.cached().get()), (0, 0));
    assert_eq!(bench.snoop.poll_timeout(), None);
    // A third becomes silent.
    bench.flow = FlowId(2);
    bench.data(0);
    let (at, sent) = (bench.now, bench.fire());
    assert_eq!((sent.0 - at, sent.1.len()), (idle, 0));
    assert_eq!((bench.snoop.agent.flows(), bench.count("flows-forgotten")), (0, 1));
}

#[test]
fn what_the_timer_has_sent_again_proves_nothing() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..20).for_each(|number| bench.data(number));
    // All wait in a queue that has suddenly grown: the timer is early.
    let (_, sent) = bench.timer();
    assert_eq!(bench.numbers(&sent), [2]);
    bench.wait(ROUND_TRIP * 2);
    assert_eq!(bench.ack(3, &[]), [bench.acknowledgement(3, &[])], "the rest may come as well");
    // If it does not, the timer continues.
    let (_, sent) = bench.timer();
    assert_eq!(bench.numbers(&sent), [3]);
}

#[test]
fn what_was_kept_back_is_reported_later_from_below() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    // 2 and 5 never pass; 4 is lost behind the agent, and 7 and 9 are only late.
    [3, 4, 6, 8, 10, 12].into_iter().for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    let sent = bench.ack(2, &[(3, 4)]);
    assert_eq!(sent, [bench.acknowledgement(2, &[(3, 4)])]);
    for block in [(6, 7), (8, 9), (10, 11), (12, 13)] {
        let sent = bench.ack(2, &[block, (3, 4)]);
        let reports: Vec<&Segment> = sent.iter().filter(|segment| segment.length == 0).collect();
        assert_eq!(reports, [&bench.acknowledgement(2, &[(3, 4)])]);
    }
    // The repair of 4 arrives, and the receiver has room for a few blocks only.
    let sent = bench.ack(2, &[(3, 5), (12, 13), (10, 11)]);
    let lowest = [(10, 11), (8, 9), (6, 7), (3, 5)];
    // Blocks that do not fit in one acknowledgement follow it: it may be the last one, since a source whose window is
    // full sends nothing before it has these reports.
    let rest = [(12, 13)];
    assert_eq!(sent, [bench.acknowledgement(2, &lowest), bench.acknowledgement(2, &rest)]);
    assert_eq!(bench.count("acks-sent"), 1);
    let sent = bench.ack(2, &[(3, 5), (12, 13), (10, 11)]);
    assert_eq!(sent, [bench.acknowledgement(2, &[(3, 5), (12, 13), (10, 11)])]);
}

#[test]
fn who_looks_on_passes_on_what_it_gets() {
    let judging = agents::Snoop { judges_queue: true, ..agents::Snoop::default() };
    let mut bench = Bench::begun(judging, 5000);
    (2..12).filter(|number| number % 2 == 1).for_each(|number| bench.data(number));
    bench.wait(ROUND_TRIP);
    for blocks in [&[(3, 4)][..], &[(5, 6), (3, 4)], &[(9, 10), (3, 4), (5, 6)], &[(3, 4)], &[]] {
        assert_eq!(bench.ack(2, blocks), [bench.acknowledgement(2, blocks)]);
    }
    assert_eq!(bench.ack(2, &[]).len(), 1, "not even duplicates are kept back");
}

#[test]
fn a_needless_copy_of_the_sources_proves_nothing() {
    let mut bench = Bench::begun(agents::Snoop::default(), 5000);
    (2..5).for_each(|number| bench.data(number));
    // The source retransmits 2, behind a queue of others.
    (5..15).for_each(|number| bench.data(number));
    bench.data(2);
    bench.wait(ROUND_TRIP);
    bench.wait(ROUND_TRIP);
    // The first transmission is acknowledged: nothing of the rest is late.
    let sent = bench.ack(3, &[]);
    assert_eq!(sent, [bench.acknowledgement(3, &[])]);
    assert!(bench.ack(3, &[(4, 5)]).is_empty());
    assert_eq!(bench.count("segments-resent"), 0);
}
