//! Two agents around a lossy stretch, and a connection through them.

use super::*;
use crate::repair::rig::{Rig, Stretch};
use midhop_units::{Bytes, Duration};
use std::cell::RefCell;
use std::rc::Rc;

fn pair(settings: &Settings) -> Vec<Box<dyn Agent>> {
    let near = DProxy::new(settings.clone(), NodeId(1), NodeId(2), vec![false, false, true, true]);
    let far = DProxy::new(settings.clone(), NodeId(2), NodeId(1), vec![true, true, false, false]);
    vec![Box::new(near), Box::new(far)]
}

/// 200 kB over 50 ms, 5 ms between the agents, and 1 ms. `fate` gets the stretch, and which of the
/// data segments or messages that the first end's side sends over it this is, repeats included.
fn rig(settings: &Settings, fate: impl Fn(usize, What, u32) -> bool + 'static) -> Rig {
    let stretch = |delay| Stretch { delay: Duration::from_ms(delay), ..Stretch::default() };
    let stretches = vec![stretch(50), stretch(5), stretch(1)];
    let mut rig = Rig::new(pair(settings), stretches, Rig::settings(), [200_000, 0], 7);
    let counts: Rc<RefCell<BTreeMap<(usize, What), u32>>> = Rc::default();
    rig.fate = Box::new(move |stretch, packet| {
        let what = match &packet.body {
            Body::Segment(segment) if segment.length > 0 => What::Data,
            Body::Repair(Repair::Wanted { .. }) => What::Request,
            _ => return false,
        };
        let mut counts = counts.borrow_mut();
        let number = counts.entry((stretch, what)).or_default();
        *number += 1;
        fate(stretch, what, *number)
    });
    rig
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Data,
    Request,
}

#[test]
fn losses_between_the_agents_are_repaired_before_anybody_sees_them() {
    let lost = |stretch, what, number| {
        stretch == 1 && what == What::Data && [20, 21, 60].contains(&number)
    };
    let mut rig = rig(&Settings::default(), lost);
    rig.run();
    assert_eq!(rig.retransmissions(0), 0);
    assert_eq!(rig.count(0, "segments-resent"), 3);
    // Two of the three lie in one gap.
    assert_eq!((rig.count(1, "gaps"), rig.count(1, "requests")), (2, 2));
    assert_eq!((rig.count(1, "gaps-filled"), rig.count(1, "gaps-given-up")), (2, 0));
}

#[test]
fn a_repair_or_a_request_that_is_lost_too_is_asked_for_again() {
    // The 62nd is the repair of the 60th, unless more have passed meanwhile.
    let lost = |stretch, what, number| match what {
        What::Data => stretch == 1 && [20, 60].contains(&number),
        What::Request => stretch == 1 && number == 2,
    };
    let mut rig = rig(&Settings::default(), lost);
    rig.run();
    assert_eq!(rig.retransmissions(0), 0);
    assert_eq!((rig.count(1, "gaps"), rig.count(1, "requests")), (2, 3));
}

#[test]
fn what_was_lost_before_both_is_not_waited_for() {
    let lost = |stretch, what, number| stretch == 0 && what == What::Data && number == 30;
    let mut rig = rig(&Settings::default(), lost);
    rig.run();
    assert_eq!(rig.retransmissions(0), 1);
    assert_eq!(rig.count(0, "requests-unanswerable"), 1);
    assert_eq!((rig.count(0, "segments-resent"), rig.count(1, "gaps-given-up")), (0, 0));
}

#[test]
fn the_last_segment_leaves_no_gap() {
    let lost = |stretch, what, number| {
        // 200 kB are 139 segments of 1448 bytes.
        stretch == 1 && what == What::Data && number == 139
    };
    let mut rig = rig(&Settings::default(), lost);
    rig.run();
    assert!(rig.retransmissions(0) >= 1);
    assert_eq!(rig.count(1, "gaps"), 0);
}

#[test]
fn a_silent_peer_holds_nothing_up_for_longer_than_agreed() {
    let lost = |stretch, what, number| match what {
        What::Data => stretch == 1 && number == 60,
        What::Request => true,
    };
    let settings = Settings { hold: Duration::from_ms(100), ..Settings::default() };
    let mut rig = rig(&settings, lost);
    rig.run();
    assert_eq!(rig.count(1, "gaps-given-up"), 1);
    assert!(rig.retransmissions(0) >= 1);
}

#[test]
fn without_room_nothing_is_held() {
    let lost = |stretch, what, number| stretch == 1 && what == What::Data && number == 60;
    let settings = Settings { held: Bytes::new(3000), ..Settings::default() };
    let mut rig = rig(&settings, lost);
    rig.run();
    assert!(rig.count(1, "holds-overflowed") >= 1);
    assert_eq!(rig.count(1, "segments-held"), 2);
}

#[test]
fn a_shelf_that_is_too_short_has_not_got_what_is_asked_for() {
    let lost = |stretch, what, number| stretch == 1 && what == What::Data && number == 60;
    let settings = Settings { cache: Bytes::new(1600), ..Settings::default() };
    let mut rig = rig(&settings, lost);
    rig.run();
    assert_eq!(rig.count(0, "requests-unanswerable"), 1);
    assert!(rig.count(0, "segments-evicted") >= 100);
    assert!(rig.retransmissions(0) >= 1);
}

fn packet(flow: u32, towards: NodeId, sequence: u32) -> Packet {
    let segment = Segment { sequence, length: 1000, flags: Flags::ACK, ..Segment::default() };
    Packet {
        flow: FlowId(flow),
        towards: End::Listener,
        source: NodeId(if towards == NodeId(3) { 0 } else { 3 }),
        destination: towards,
        maker: NodeId(if towards == NodeId(3) { 0 } else { 3 }),
        ports: [1, 2],
        family: Family::Ipv4,
        size: 20 + segment.size(),
        xcp: Xcp::default(),
        body: Body::Segment(segment),
    }
}

#[test]
fn gaps_stay_few_when_one_falls_apart() {
    let mut agent =
        DProxy::new(Settings::default(), NodeId(1), NodeId(2), vec![false, false, true, true]);
    let (mut actions, now) = (Actions::default(), Instant::START);
    // As many gaps of three segments as are waited for.
    for number in 0..65 {
        agent.handle_packet(now, packet(0, NodeId(0), number * 4000), &mut actions);
        agent.check_invariants();
    }
    assert_eq!(agent.counts.gaps, 64);
    // The middle of each comes, the last first.
    for number in (0..64).rev() {
        agent.handle_packet(now, packet(0, NodeId(0), number * 4000 + 2000), &mut actions);
        agent.check_invariants();
    }
    // What is missing behind the middles is not waited for: what is missing before them is all.
    actions.take();
    for number in 0..64 {
        agent.handle_packet(now, packet(0, NodeId(0), number * 4000 + 1000), &mut actions);
        agent.check_invariants();
    }
    assert_eq!((agent.held, actions.take().len()), (0, 64 * 3));
    let Counts { gaps, filled, given_up, .. } = agent.counts;
    assert_eq!((gaps, filled, given_up), (128, 64, 64));
}

#[test]
fn flows_are_few_and_forgotten() {
    let settings = Settings { flows: 2, ..Settings::default() };
    let idle = settings.idle;
    let mut agent = DProxy::new(settings, NodeId(1), NodeId(2), vec![false, false, true, true]);
    let (mut actions, now) = (Actions::default(), Instant::START + Duration::from_s(1));
    for flow in 0..3 {
        for towards in [NodeId(3), NodeId(0)] {
            agent.handle_packet(now, packet(flow, towards, 1000), &mut actions);
            agent.check_invariants();
        }
    }
    // A gap, so that something is held.
    agent.handle_packet(now, packet(1, NodeId(0), 5000), &mut actions);
    assert_eq!((agent.shelf.len(), agent.watches.len(), agent.held), (2, 2, 1040));
    let reset = match packet(1, NodeId(0), 9000) {
        Packet { body: Body::Segment(segment), .. } => Packet {
            body: Body::Segment(Segment { flags: Flags::RST, ..segment }),
            ..packet(1, NodeId(0), 9000)
        },
        other => other,
    };
    actions.take();
    agent.handle_packet(now, reset, &mut actions);
    agent.check_invariants();
    let sent = actions.take();
    assert_eq!(sent.len(), 2, "what was held, then the reset: {sent:?}");
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
    let key = (FlowId(0), End::Listener);
    let base = u32::MAX - 1500;
    for number in [0, 1, 3, 4] {
        let packet = packet(0, NodeId(3), base.wrapping_add(number * 1000));
        let Body::Segment(segment) = &packet.body else { panic!("a datagram") };
        assert!(shelf.put(Instant::START, key, packet, segment));
    }
    let at = |thousands: u32| base.wrapping_add(thousands * 1000);
    let (found, missing) = shelf.find(key, at(1).wrapping_add(500), at(6));
    assert_eq!(found.len(), 3);
    assert_eq!(missing, [(at(2), at(3)), (at(5), at(6))]);
    let nobody = (FlowId(9), End::Listener);
    assert_eq!(shelf.find(nobody, 5, 9), (Vec::new(), vec![(5, 9)]));
    shelf.check_invariants();
}
