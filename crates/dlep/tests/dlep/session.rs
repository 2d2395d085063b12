//! What a router knows during a session.

use super::{Pair, mac, mbit};
use midhop_dlep::{Kind, Mac, Modem, Router, SessionError, Status};
use midhop_units::{Duration, Instant, Rate};
use proptest::prelude::*;

#[test]
fn a_router_knows_the_rate_from_the_first_answer_on_and_each_change() {
    let mut pair = Pair::new(mbit(20), &[]);
    assert_eq!(pair.router.rate(None), None);
    pair.exchange();
    assert!(pair.router.is_open() && pair.modem.is_open());
    assert_eq!(pair.router.modem(), Some("midhop's laboratory modem"));
    assert_eq!(pair.router.rate(None), Some(mbit(20)));
    pair.modem.change(pair.now, mbit(5));
    pair.exchange();
    assert_eq!(pair.router.rate(None), Some(mbit(5)));
    // A modem that does not know its rate reports zero.
    pair.modem.change(pair.now, Rate::ZERO);
    pair.exchange();
    assert_eq!(pair.router.rate(None), None);
    let success = Some(Status::Success);
    assert_eq!(pair.modem.answers(), [(Kind::SessionUpdateResponse, success); 2]);
}

#[test]
fn a_destination_has_its_own_rate_or_that_of_all_until_it_is_lost() {
    let mut pair = Pair::new(mbit(20), &[mac(1)]);
    pair.exchange();
    assert_eq!(pair.router.rate(Some(mac(1))), Some(mbit(20)));
    assert_eq!(pair.router.rate(Some(mac(2))), None, "not up");
    pair.modem.change_to(pair.now, mac(1), mbit(3));
    pair.exchange();
    assert_eq!(pair.router.rate(Some(mac(1))), Some(mbit(3)));
    assert_eq!(pair.router.rate(None), Some(mbit(3)), "the only one");
    pair.modem.lose(pair.now, mac(1));
    pair.exchange();
    assert_eq!(pair.router.rate(Some(mac(1))), None);
    assert_eq!(pair.router.rate(None), Some(mbit(20)));
    let answered = [Kind::DestinationUpResponse, Kind::DestinationDownResponse];
    assert_eq!(pair.modem.answers(), answered.map(|kind| (kind, Some(Status::Success))));
}

#[test]
fn of_two_destinations_neither_speaks_for_a_router_that_names_none() {
    let mut pair = Pair::new(mbit(20), &[mac(1), mac(2)]);
    pair.exchange();
    pair.modem.change_to(pair.now, mac(1), mbit(3));
    pair.exchange();
    assert_eq!(pair.router.destinations(), 2);
    assert_eq!(pair.router.rate(None), Some(mbit(20)));
    assert_eq!(pair.router.rate(Some(mac(1))), Some(mbit(3)));
    assert_eq!(pair.router.rate(Some(mac(2))), Some(mbit(20)));
}

#[test]
fn heartbeats_keep_a_session_for_as_long_as_both_ends_live() {
    let mut pair = Pair::new(mbit(20), &[]);
    pair.exchange();
    pair.pass(Duration::from_s(3_600));
    assert!(pair.router.is_open() && pair.modem.is_open());
    // The modem is gone without a message: two of its intervals.
    let error = pair.router.on_time(pair.now + Duration::from_s(2));
    assert_eq!(error, Err(SessionError::Silent(Duration::from_s(2))));
    assert_eq!(pair.router.rate(None), None);
    pair.modem.on_received(pair.now, &pair.router.to_send()).expect("valid");
    assert_eq!(pair.modem.answers(), [(Kind::SessionTermination, Some(Status::TIMED_OUT))]);
}

#[test]
fn a_modem_that_never_answers_is_given_up_after_ten_seconds() {
    let mut router = Router::new(Instant::START, "midhopd");
    assert_eq!(router.next_time(), Instant::START + Duration::from_s(10));
    let error = router.on_time(router.next_time());
    assert_eq!(error, Err(SessionError::Silent(Duration::from_s(10))));
    assert_eq!(router.next_time(), Instant::NEVER);
}

#[test]
fn either_end_may_stop() {
    let mut pair = Pair::new(mbit(20), &[]);
    pair.exchange();
    pair.router.stop(pair.now);
    assert_eq!(pair.router.rate(None), None);
    let last = pair.router.to_send();
    pair.modem.on_received(pair.now, &last).expect("valid");
    assert!(pair.modem.is_over());

    let mut pair = Pair::new(mbit(20), &[]);
    pair.exchange();
    let over = [0, 5, 0, 8, 0, 1, 0, 4, 255, b'b', b'y', b'e'];
    let error = pair.router.on_received(pair.now, &over).expect_err("over");
    assert_eq!(error.to_string(), "the modem has ended the session with status 255: bye");
    assert_eq!(pair.router.to_send(), [0, 6, 0, 0]);
}

proptest! {
    #[test]
    fn how_a_stream_is_cut_changes_nothing(
        rates in prop::collection::vec(1_u64..1_000, 1..20),
        cuts in prop::collection::vec(1_usize..40, 1..40),
    ) {
        let now = Instant::START;
        let mut router = Router::new(now, "midhopd");
        let mut modem = Modem::new(now, mbit(1), vec![mac(1)]);
        modem.on_received(now, &router.to_send()).expect("valid");
        for rate in &rates {
            modem.change_to(now, mac(1), mbit(*rate));
        }
        let bytes = modem.to_send();
        let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, following) = rest.split_at(rest.len().min(*cuts.next().expect("endless")));
            router.on_received(now, piece).expect("valid");
            rest = following;
        }
        prop_assert_eq!(router.rate(Some(mac(1))), rates.last().map(|rate| mbit(*rate)));
    }

    #[test]
    fn a_mac_address_is_read_as_it_is_written(bytes: [u8; 8], is_long: bool) {
        let mac = Mac::new(if is_long { &bytes } else { &bytes[..6] }).expect("a length");
        prop_assert_eq!(mac.to_string().parse(), Ok(mac));
    }
}
