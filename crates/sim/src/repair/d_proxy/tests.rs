//! Two agents around a lossy stretch, and a connection through them.

use super::*;
use crate::repair::rig::{Rig, Stretch};
use midhop_assist::Topic;
use midhop_units::{Bytes, Duration};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

fn pair(settings: &agents::DProxy) -> Vec<Box<dyn Agent>> {
    let near = DProxyNode::new(settings, NodeId(1), NodeId(2), vec![false, false, true, true]);
    let far = DProxyNode::new(settings, NodeId(2), NodeId(1), vec![true, true, false, false]);
    vec![Box::new(near), Box::new(far)]
}

/// 200 kB over 50 ms, 5 ms between the agents, and 1 ms. `fate` gets the stretch, and the number of the
/// data segment or message among those that the first end's side sends over it, repeats included.
fn rig(settings: &agents::DProxy, fate: impl Fn(usize, What, u32) -> bool + 'static) -> Rig {
    let stretch = |delay| Stretch { delay: Duration::from_ms(delay), ..Stretch::default() };
    let stretches = vec![stretch(50), stretch(5), stretch(1)];
    let mut rig = Rig::new(pair(settings), stretches, Rig::settings(), [200_000, 0], 7);
    let counts: Rc<RefCell<BTreeMap<(usize, What), u32>>> = Rc::default();
    rig.fate = Box::new(move |stretch, packet| {
        let what = match &packet.body {
            Body::Segment(segment) if segment.length > 0 => What::Data,
            Body::Report(Report { topic: Topic::Wanted, .. }) => What::Request,
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
    let mut rig = rig(&agents::DProxy::default(), lost);
    rig.run();
    assert_eq!(rig.retransmissions(0), 0);
    assert_eq!(rig.count(0, "segments-resent"), 3);
    // Two of the three losses are in one gap.
    assert_eq!((rig.count(1, "gaps"), rig.count(1, "requests")), (2, 2));
    assert_eq!((rig.count(1, "gaps-filled"), rig.count(1, "gaps-given-up")), (2, 0));
}

#[test]
fn a_repair_or_a_request_that_is_lost_too_is_asked_for_again() {
    // The 62nd is the retransmission of the 60th, unless more segments have passed meanwhile.
    let lost = |stretch, what, number| match what {
        What::Data => stretch == 1 && [20, 60].contains(&number),
        What::Request => stretch == 1 && number == 2,
    };
    let mut rig = rig(&agents::DProxy::default(), lost);
    rig.run();
    assert_eq!(rig.retransmissions(0), 0);
    assert_eq!((rig.count(1, "gaps"), rig.count(1, "requests")), (2, 3));
}

#[test]
fn what_was_lost_before_both_is_not_waited_for() {
    let lost = |stretch, what, number| stretch == 0 && what == What::Data && number == 30;
    let mut rig = rig(&agents::DProxy::default(), lost);
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
    let mut rig = rig(&agents::DProxy::default(), lost);
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
    let settings = agents::DProxy { hold: Duration::from_ms(100), ..agents::DProxy::default() };
    let mut rig = rig(&settings, lost);
    rig.run();
    assert_eq!(rig.count(1, "gaps-given-up"), 1);
    assert!(rig.retransmissions(0) >= 1);
}

#[test]
fn without_room_nothing_is_held() {
    let lost = |stretch, what, number| stretch == 1 && what == What::Data && number == 60;
    let settings = agents::DProxy { held: Bytes::new(3000), ..agents::DProxy::default() };
    let mut rig = rig(&settings, lost);
    rig.run();
    assert!(rig.count(1, "holds-overflowed") >= 1);
    assert_eq!(rig.count(1, "segments-held"), 2);
}

#[test]
fn a_shelf_that_is_too_short_has_not_got_what_is_asked_for() {
    let lost = |stretch, what, number| stretch == 1 && what == What::Data && number == 60;
    let settings = agents::DProxy { cache: Bytes::new(1600), ..agents::DProxy::default() };
    let mut rig = rig(&settings, lost);
    rig.run();
    assert_eq!(rig.count(0, "requests-unanswerable"), 1);
    assert!(rig.count(0, "segments-evicted") >= 100);
    assert!(rig.retransmissions(0) >= 1);
}
