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
    let mut agent = DProxy::new(Settings::default());
    let (mut actions, now) = (Actions::default(), Instant::START);
    let give = |agent: &mut DProxy<Sample>, sequence, actions: &mut _| {
        agent.handle_packet(now, packet(0, sequence), Side::Behind, actions);
        agent.check_invariants();
    };
    // As many gaps of three segments as are waited for.
    (0..65).for_each(|number| give(&mut agent, number * 4000, &mut actions));
    assert_eq!(agent.counts.gaps, 64);
    // The middle of each comes, the last first.
    (0..64).rev().for_each(|number| give(&mut agent, number * 4000 + 2000, &mut actions));
    // What is missing behind the middles is not waited for: what is missing before them is all.
    sent(&mut actions);
    (0..64).for_each(|number| give(&mut agent, number * 4000 + 1000, &mut actions));
    assert_eq!((agent.held, sent(&mut actions)), (0, 64 * 3));
    let Counts { gaps, filled, given_up, .. } = agent.counts;
    assert_eq!((gaps, filled, given_up), (128, 64, 64));
}

#[test]
fn flows_are_few_and_forgotten() {
    let settings = Settings { flows: 2, ..Settings::default() };
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
fn a_shelf_tells_what_it_has_and_what_not() {
    let mut shelf = Shelf::new(10_000);
    let key = Line(0, true);
    let base = u32::MAX - 1500;
    for number in [0, 1, 3, 4] {
        let packet = packet(0, base.wrapping_add(number * 1000));
        assert!(shelf.put(Instant::START, key, packet, &packet.segment));
    }
    let at = |thousands: u32| base.wrapping_add(thousands * 1000);
    let (found, missing) = shelf.find(key, at(1).wrapping_add(500), at(6));
    assert_eq!(found.len(), 3);
    assert_eq!(missing, [(at(2), at(3)), (at(5), at(6))]);
    assert_eq!(shelf.find(Line(9, true), 5, 9), (Vec::new(), vec![(5, 9)]));
    shelf.check_invariants();
}
