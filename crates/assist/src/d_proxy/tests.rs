//! Segments fed to one of two D-Proxies by hand.

use super::*;
use crate::testing::{Line, Sample};
use crate::{Action, Actions};

fn packet(flow: u32, sequence: u32) -> Sample {
    let segment = Segment { sequence, length: 1000, flags: Flags::ACK, ..Segment::default() };
    Sample { line: Line(flow, true), segment }
}

/// How many packets it wants sent.
fn sent(actions: &mut Actions<Sample>) -> usize {
    actions.drain().filter(|action| matches!(action, Action::Send(_))).count()
}

#[test]
fn gaps_stay_few_when_one_falls_apart() {
    let mut agent = DProxy::new(DProxySettings::default());
    let (mut actions, now) = (Actions::default(), Instant::START);
    let give = |agent: &mut DProxy<Sample>, sequence, actions: &mut _| {
        agent.handle_packet(now, packet(0, sequence), Side::Behind, actions);
        agent.check_invariants();
    };
    // As many gaps of three segments as are waited for.
    (0..65).for_each(|number| give(&mut agent, number * 4000, &mut actions));
    assert_eq!(agent.counts.gaps, 64);
    // The middle of each arrives, the last first.
    (0..64).rev().for_each(|number| give(&mut agent, number * 4000 + 2000, &mut actions));
    // Data missing behind the middles is not waited for, only data before them.
    sent(&mut actions);
    (0..64).for_each(|number| give(&mut agent, number * 4000 + 1000, &mut actions));
    assert_eq!((agent.held, sent(&mut actions)), (0, 64 * 3));
    let DProxyCounts { gaps, filled, given_up, .. } = agent.counts;
    assert_eq!((gaps, filled, given_up), (128, 64, 64));
}

#[test]
fn flows_are_few_and_forgotten() {
    let settings = DProxySettings { flows: 2, ..DProxySettings::default() };
    let idle = settings.idle;
    let mut agent = DProxy::new(settings);
    let (mut actions, now) = (Actions::default(), Instant::START + Duration::from_s(1));
    for flow in 0..3 {
        for side in [Side::Before, Side::Behind] {
            agent.handle_packet(now, packet(flow, 1000), side, &mut actions);
            agent.check_invariants();
        }
    }
    // A gap, so that something is held.
    agent.handle_packet(now, packet(1, 5000), Side::Behind, &mut actions);
    assert_eq!((agent.shelf.len(), agent.watches.len(), agent.held), (2, 2, 1040));
    let mut reset = packet(1, 9000);
    reset.segment.flags = Flags::RST;
    sent(&mut actions);
    agent.handle_packet(now, reset, Side::Behind, &mut actions);
    agent.check_invariants();
    assert_eq!(sent(&mut actions), 2, "what was held, then the reset");
    assert_eq!((agent.shelf.len(), agent.watches.len(), agent.held), (1, 1, 0));
    for _ in 0..4 {
        let Some(at) = agent.poll_timeout() else { break };
        assert!(at <= now + idle);
        agent.handle_timeout(at, &mut actions);
        agent.check_invariants();
    }
    assert_eq!((agent.shelf.len(), agent.watches.len()), (0, 0));
    assert_eq!(agent.poll_timeout(), None);
}

#[test]
fn a_shelf_reports_what_it_has_and_what_not() {
    let mut shelf = Shelf::new(10_000);
    let key = Line(0, true);
    let base = u32::MAX - 1500;
    for number in [0, 1, 3, 4] {
        let packet = packet(0, base.wrapping_add(number * 1000));
        assert!(shelf.put(Instant::START, key, packet, &packet.segment));
    }
    let at = |thousands: u32| base.wrapping_add(thousands * 1000);
    let now = Instant::START;
    let found = shelf.find(now, key, (at(1).wrapping_add(500), at(6)), 2, None);
    assert_eq!((found.resend.len(), found.left.len()), (3, 0));
    assert_eq!(found.resent, [(at(1).wrapping_add(500), at(2)), (at(3), at(5))]);
    assert_eq!(found.missing, [(at(2), at(3)), (at(5), at(6))]);
    let unknown = shelf.find(now, Line(9, true), (5, 9), 2, None);
    assert_eq!((unknown.resend.len(), unknown.missing), (0, vec![(5, 9)]));
    // A segment is retransmitted twice, and not a third time.
    let again = |shelf: &mut Shelf<Sample>| shelf.find(now, key, (at(3), at(4)), 2, None);
    assert_eq!(again(&mut shelf).resend.len(), 1);
    let third = again(&mut shelf);
    assert_eq!((third.resend.len(), third.left), (0, vec![(at(3), at(4))]));
    // It is retransmitted again after its source has retransmitted it.
    let packet = packet(0, at(3));
    assert!(shelf.put(now, key, packet, &packet.segment));
    assert_eq!(again(&mut shelf).resend.len(), 1);
    shelf.check_invariants();
}

/// The reports that an agent sends.
fn reports(actions: &mut Actions<Sample>) -> Vec<Report> {
    let report = |action| if let Action::Report(_, report) = action { Some(report) } else { None };
    actions.drain().filter_map(report).collect()
}

#[test]
fn who_judges_the_queue_holds_nothing_before_the_peer_repairs() {
    let judging = || DProxySettings { judges_queue: true, ..DProxySettings::default() };
    let (mut before, mut behind) = (DProxy::new(judging()), DProxy::new(judging()));
    let (mut actions, way) = (Actions::default(), Line(0, true));
    let at = |number: u32| Instant::START + Duration::from_ms(u64::from(number) * 5);
    let mut held_at = Vec::new();
    // One in ten is lost, and the round trip is always 20 ms: there is no queue.
    for number in 0..100 {
        let one = packet(0, number * 1000);
        before.handle_packet(at(number), one, Side::Before, &mut actions);
        sent(&mut actions);
        if number % 10 == 9 {
            continue;
        }
        behind.handle_packet(at(number + 2), one, Side::Behind, &mut actions);
        behind.check_invariants();
        let passed = actions.0.iter().filter(|it| matches!(it, Action::Send(_))).count();
        if passed == 0 {
            held_at.push(number);
        }
        for report in reports(&mut actions) {
            before.handle_report(at(number + 4), way, report, &mut actions);
            let answer: Vec<_> = actions.drain().collect();
            for action in answer {
                match action {
                    Action::Send(copy) => {
                        behind.handle_packet(at(number + 6), copy, Side::Behind, &mut actions);
                    }
                    Action::Report(_, report) => {
                        behind.handle_report(at(number + 6), way, report, &mut actions);
                    }
                    Action::Drop(..) => unreachable!("nothing is dropped"),
                }
            }
            sent(&mut actions);
        }
    }
    // Three losses show that the link loses; with the third the agent before it starts to repair.
    assert_eq!(held_at, [40, 50, 60, 70, 80, 90]);
    assert_eq!((before.counts.resent, before.counts.refused), (7, 2));
    // The peer is gone: one gap is waited for, for three times the timeout of an answer, and no other.
    let late = at(1000);
    let come = |agent: &mut DProxy<Sample>, sequence: u32, now: Instant| {
        agent.handle_packet(now, packet(0, sequence), Side::Behind, &mut Actions::default());
        agent.check_invariants();
        agent.held
    };
    assert_eq!(come(&mut behind, 102_000, late), 1040);
    let given_up = late + behind.peer.wait() * 3;
    assert!(given_up < late + DProxySettings::default().hold);
    let mut now = late;
    while behind.held > 0 {
        now = behind.poll_timeout().expect("a gap");
        behind.handle_timeout(now, &mut Actions::default());
        behind.check_invariants();
    }
    assert_eq!(now, given_up);
    assert_eq!(come(&mut behind, 105_000, now), 0);
}

/// The source fills gaps before the agent gives them up, each after a retransmission timeout.
#[test]
fn a_peer_in_whose_place_the_source_sends_again_is_not_waited_for() {
    let mut agent = DProxy::new(DProxySettings { judges_queue: true, ..DProxySettings::default() });
    let (mut actions, way) = (Actions::default(), Line(0, true));
    let resent = Report { topic: Topic::Resent, from: 0, to: 0 };
    let mut now = Instant::START + Duration::from_s(1);
    agent.handle_packet(now, packet(0, 0), Side::Behind, &mut actions);
    agent.handle_report(now, way, resent, &mut actions);
    let mut held = Vec::new();
    // The first retransmission is the peer's, and arrives before its report.
    for (number, took) in (1..).step_by(2).zip([20, 250, 250, 250, 250, 250]) {
        agent.handle_packet(now, packet(0, (number + 1) * 1000), Side::Behind, &mut actions);
        held.push(agent.held > 0);
        now = now + Duration::from_ms(took);
        agent.handle_packet(now, packet(0, number * 1000), Side::Behind, &mut actions);
        agent.check_invariants();
    }
    assert_eq!(held, [true, true, true, true, false, false]);
    // Segments are held again once the peer shows that it repairs.
    agent.handle_report(now, way, resent, &mut actions);
    agent.handle_packet(now, packet(0, 14_000), Side::Behind, &mut actions);
    assert_eq!(agent.held, 1040);
}

/// An agent that sees no SYN takes the end of the first flow and the beginning of the second for one stream.
#[test]
fn another_flow_under_the_same_name_waits_for_nothing() {
    let mut agent = DProxy::new(DProxySettings::default());
    let (mut actions, now) = (Actions::default(), Instant::START);
    // Far ahead and far behind, and each followed by its successor: all are forwarded at once.
    for sequence in
        [1000, 1 << 29, (1 << 29) + 1000, (1 << 29) + (3 << 30), (1 << 29) + (3 << 30) + 1000]
    {
        agent.handle_packet(now, packet(0, sequence), Side::Behind, &mut actions);
        agent.check_invariants();
        assert_eq!(sent(&mut actions), 1, "{sequence}");
    }
    agent.handle_packet(now, packet(0, (1 << 29) + (3 << 30) + 3000), Side::Behind, &mut actions);
    assert_eq!((agent.counts.gaps, sent(&mut actions)), (1, 0), "a gap is one as ever");
    // Once a stream has ended, data behind its end belongs to another flow: Linux reuses a port in this way.
    let mut agent = DProxy::new(DProxySettings::default());
    let mut last = packet(1, 1000);
    last.segment.flags = Flags::ACK | Flags::FIN;
    for packet in [last, packet(1, 2001 + 65_537), last, packet(1, 2001 + 66_537)] {
        agent.handle_packet(now, packet, Side::Behind, &mut actions);
        agent.check_invariants();
        assert_eq!((agent.counts.gaps, sent(&mut actions)), (0, 1), "{packet:?}");
    }
}

#[test]
fn what_only_acknowledges_is_not_reported() {
    let mut agent = DProxy::new(DProxySettings { judges_queue: true, ..DProxySettings::default() });
    let (mut actions, now) = (Actions::default(), Instant::START);
    let mut come = |length| {
        let mut one = packet(0, if length == 0 { 2000 } else { 1000 });
        one.segment.length = length;
        agent.handle_packet(now, one, Side::Behind, &mut actions);
        reports(&mut actions).len()
    };
    assert_eq!(come(1000), 1);
    assert_eq!((0..100).map(|_| come(0)).sum::<usize>(), 0);
}

#[test]
fn what_is_held_goes_when_there_are_no_more_calls() {
    let mut agent = DProxy::new(DProxySettings::default());
    let (mut actions, now) = (Actions::default(), Instant::START);
    for sequence in [1000, 3000, 4000] {
        agent.handle_packet(now, packet(0, sequence), Side::Behind, &mut actions);
    }
    assert_eq!(sent(&mut actions), 1);
    agent.let_go(&mut actions);
    agent.check_invariants();
    assert_eq!((sent(&mut actions), agent.poll_timeout()), (2, None));
}
