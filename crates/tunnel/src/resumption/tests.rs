//! Tests of what is kept of a flow and of its fields.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::VecDeque;

fn id() -> FlowId {
    FlowId::new(*b"sixteen octets!!")
}

#[test]
fn an_identity_is_its_digits() {
    let text = id().to_string();
    assert_eq!(text, "7369787465656e206f63746574732121");
    assert_eq!(text.parse(), Ok(id()));
    assert_eq!(FlowId::new([0; 16]).to_string(), "0".repeat(32));
    let upper = text.to_uppercase();
    let long = format!("{text}0");
    for wrong in ["", &upper, &text[1..], &long, "+369787465656e206f63746574732121"] {
        assert_eq!(wrong.parse::<FlowId>(), Err(InvalidId), "{wrong}");
    }
    assert!(!format!("{:?}", id()).contains(&text[8..]), "a log shows all of it");
}

#[test]
fn the_fields_of_a_request_are_decoded() {
    for resumption in [
        Resumption::Offered(id()),
        Resumption::Requested { id: id(), received: 0 },
        Resumption::Requested { id: id(), received: u64::MAX },
    ] {
        assert_eq!(Resumption::decode(&resumption.fields()), Ok(Some(resumption)));
    }
    assert_eq!(Resumption::decode(&[]), Ok(None));
    // A flow that cannot be resumed is still a flow. A request to resume a flow without its identity is invalid.
    assert_eq!(Resumption::decode(&[Field::new(FLOW, "x")]), Ok(None));
    assert_eq!(Resumption::decode(&[resumed(5)]), Err(InvalidId));
    for wrong in ["", "-1", "5 ", "18446744073709551616"] {
        let fields = [granted(id()), Field::new(RECEIVED, wrong)];
        assert_eq!(Resumption::decode(&fields), Err(InvalidId), "{wrong}");
    }
}

#[test]
fn the_fields_of_a_response_are_decoded() {
    assert!(grants(&[granted(id())], id()));
    assert!(!grants(&[granted(FlowId::new([7; 16]))], id()) && !grants(&[], id()));
    assert_eq!(resumed_at(&[resumed(9)]), Some(9));
    assert_eq!(resumed_at(&[granted(id())]), None);
    assert_eq!(announcement(&[announced(300)]), Some(300));
    assert_eq!(announcement(&[]), None);
}

#[test]
fn what_is_confirmed_is_forgotten() {
    let mut sent = SentBytes::default();
    sent.enqueue(Bytes::from_static(b"four"), 100);
    sent.enqueue(Bytes::from_static(b"score"), 100);
    assert_eq!((sent.confirm(6), sent.kept()), (Ok(()), 3));
    assert_eq!(sent.after(5), Err(NotResumable::Forgotten));
    let rest = (VecDeque::from([Bytes::from_static(b"re")]), false);
    assert_eq!(sent.after(7), Ok(rest));
    assert_eq!(
        sent.confirm(10),
        Err(NotResumable::NeverSent),
        "nothing is confirmed before it was sent"
    );
    assert_eq!(sent.after(10), Err(NotResumable::NeverSent));
    sent.enqueue_end();
    assert_eq!(sent.after(9), Ok((VecDeque::new(), true)));
    assert_eq!(sent.after(10), Ok((VecDeque::new(), false)));
    assert!(sent.confirm(9).is_ok() && !sent.is_confirmed());
    assert!(sent.confirm(10).is_ok() && sent.is_confirmed());
    // A confirmation that was overtaken changes nothing.
    assert!(sent.confirm(3).is_ok() && sent.is_confirmed());
}

#[test]
fn no_more_is_kept_than_may_be() {
    let mut sent = SentBytes::default();
    for _ in 0..100 {
        sent.enqueue(Bytes::from_static(b"seven b"), 10);
        assert!(sent.kept() <= 10);
    }
    assert_eq!(sent.after(689), Err(NotResumable::Forgotten));
    let (rest, _) = sent.after(690).expect("the last ten bytes");
    assert_eq!(rest.iter().map(Bytes::len).sum::<usize>(), 10);
}

/// What happens to a flow.
#[derive(Debug, Clone)]
enum Event {
    /// The sender sends some.
    Send(usize),
    /// Some of the bytes in flight arrive.
    Arrive(usize),
    /// The receiver passes on some of what it has received, and confirms that.
    PassOn(usize),
    /// A confirmation arrives.
    Confirm,
    /// The carrier is gone with all bytes in flight, and another one takes its place.
    Break,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (1..50_usize).prop_map(Event::Send),
        4 => (1..80_usize).prop_map(Event::Arrive),
        2 => (1..80_usize).prop_map(Event::PassOn),
        2 => Just(Event::Confirm),
        1 => Just(Event::Break),
    ];
    prop::collection::vec(event, 0..80)
}

proptest! {
    /// However often the carrier breaks, the receiver gets each byte once and in order, and the end behind them.
    #[test]
    fn no_byte_is_lost_or_doubled_when_carriers_break(events in events()) {
        let (mut sent, mut received) = (SentBytes::default(), ReceivedBytes::of(0, 1 << 20));
        let mut under_way: VecDeque<u8> = VecDeque::new();
        let (mut got, mut passed_on, mut under_way_back) = (Vec::<u8>::new(), 0, VecDeque::new());
        let mut next = 0_u8;
        let mut all: Vec<u8> = Vec::new();
        let arrive = |under_way: &mut VecDeque<u8>, received: &mut ReceivedBytes, got: &mut Vec<u8>, count: usize| {
            let some: Vec<u8> = under_way.drain(..count.min(under_way.len())).collect();
            received.count(some.len() as u64);
            got.extend(some);
        };
        for event in events {
            match event {
                Event::Send(count) => {
                    let bytes: Vec<u8> = (0..count).map(|_| { next = next.wrapping_add(1); next }).collect();
                    all.extend(&bytes);
                    under_way.extend(&bytes);
                    sent.enqueue(Bytes::from(bytes), u64::MAX);
                }
                Event::Arrive(count) => arrive(&mut under_way, &mut received, &mut got, count),
                Event::PassOn(count) => {
                    passed_on = got.len().min(passed_on + count);
                    if received.is_unconfirmed(passed_on as u64) {
                        received.confirm(passed_on as u64);
                        under_way_back.push_back(passed_on as u64);
                    }
                }
                Event::Confirm => if let Some(offset) = under_way_back.pop_front() {
                    prop_assert_eq!(sent.confirm(offset), Ok(()));
                },
                Event::Break => {
                    under_way_back.clear();
                    received.confirm_again();
                    let (pieces, end) = sent.after(received.offset()).expect("all is kept");
                    prop_assert!(!end);
                    under_way = pieces.into_iter().flatten().collect();
                }
            }
            prop_assert!(sent.kept() >= (all.len() - got.len()) as u64);
        }
        sent.enqueue_end();
        let (pieces, end) = sent.after(received.offset()).expect("all is kept");
        prop_assert!(end);
        under_way = pieces.into_iter().flatten().collect();
        arrive(&mut under_way, &mut received, &mut got, usize::MAX);
        received.end();
        prop_assert_eq!(&got, &all);
        prop_assert!(received.is_due(received.offset(), true));
        prop_assert!(!received.is_due(received.offset(), false), "bytes of the other direction may follow");
        sent.confirm(received.offset()).expect("it was sent");
        prop_assert!(sent.is_confirmed());
    }
}
