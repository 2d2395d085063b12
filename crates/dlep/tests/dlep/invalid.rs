//! Invalid input ends a session with the status that the RFC defines for it.

use super::{Pair, mac, mbit};
use midhop_dlep::{Item, Kind, Message, Router, SessionError, Status};
use midhop_units::{Duration, Instant, Rate};
use proptest::prelude::*;

/// The last message of a router whose modem sent `bytes` in an open session.
fn answer_to(bytes: &[u8]) -> (SessionError, Vec<u8>) {
    let mut pair = Pair::new(mbit(20), &[mac(1)]);
    pair.exchange();
    let error = pair.router.on_received(pair.now, bytes).expect_err("invalid");
    assert_eq!(pair.router.rate(None), None, "a session that is over says nothing");
    (error, pair.router.to_send())
}

fn termination(status: Status, words: &str) -> Vec<u8> {
    let items = vec![Item::Status(status, words.to_owned())];
    Message::new(Kind::SessionTermination, items).bytes()
}

#[test]
fn what_is_not_valid_is_answered_with_its_status_and_why() {
    let update = |items: &[u8]| [&[0, 3, 0, items.len() as u8], items].concat();
    let cases: [(Vec<u8>, Status, &str); 11] = [
        (vec![0, 99, 0, 0], Status::UNKNOWN_MESSAGE, "a message of type 99"),
        (
            vec![0, 2, 0, 0],
            Status::UNEXPECTED_MESSAGE,
            "SessionInitializationResponse has no place there",
        ),
        (
            vec![0, 14, 0, 0],
            Status::UNEXPECTED_MESSAGE,
            "LinkCharacteristicsRequest has no place there",
        ),
        (update(&[0, 15, 0]), Status::INVALID_DATA, "a message ends within a data item"),
        (update(&[0, 15, 0, 8, 0]), Status::INVALID_DATA, "a message ends within data item 15"),
        (update(&[0, 15, 0, 4, 0, 0, 0, 1]), Status::INVALID_DATA, "data item 15 of 4 bytes"),
        (update(&[0, 19, 0, 1, 101]), Status::INVALID_DATA, "data item 19 of more than 100 %"),
        (update(&[0, 8, 0, 4, 1, 2, 3, 4]), Status::INVALID_DATA, "data item 8 of 4 bytes"),
        (
            update(&[0, 21, 0, 2, 0, 1]),
            Status::INVALID_DATA,
            "data item 21, which was not negotiated",
        ),
        (
            update(&[0, 17, 0, 1, 1, 0, 17, 0, 1, 1]),
            Status::INVALID_DATA,
            "data item 17 twice in SessionUpdate",
        ),
        (vec![0, 7, 0, 0], Status::INVALID_DATA, "DestinationUp names no destination"),
    ];
    for (bytes, status, what) in cases {
        let (error, sent) = answer_to(&bytes);
        assert_eq!(error.to_string(), format!("the modem sent what is not valid: {what}"));
        assert_eq!(sent, termination(status, what), "{what}");
    }
}

#[test]
fn a_destination_that_is_not_up_has_no_metrics_and_cannot_go() {
    for kind in [Kind::DestinationUpdate, Kind::DestinationDown] {
        let (error, sent) = answer_to(&Message::new(kind, vec![Item::Mac(mac(7))]).bytes());
        assert_eq!(
            error.to_string(),
            "the modem sent what is not valid: 02:00:5e:10:00:07 is not up"
        );
        assert_eq!(sent, termination(Status::INVALID_DESTINATION, "02:00:5e:10:00:07 is not up"));
    }
}

#[test]
fn a_first_answer_that_refuses_or_lacks_its_interval_opens_nothing() {
    let begun = || {
        let mut router = Router::new(Instant::START, "midhopd");
        router.to_send();
        router
    };
    let refused = [Item::Status(Status::REQUEST_DENIED, "one router is enough".to_owned())];
    let message = Message::new(Kind::SessionInitializationResponse, refused.to_vec());
    let error = begun().on_received(Instant::START, &message.bytes()).expect_err("refused");
    let words = "the modem has ended the session with status 2: one router is enough";
    assert_eq!(error.to_string(), words);

    let message = Message::new(Kind::SessionInitializationResponse, Vec::new());
    let error = begun().on_received(Instant::START, &message.bytes()).expect_err("incomplete");
    assert!(error.to_string().contains("no heartbeat interval"), "{error}");

    let early = Message::new(Kind::Heartbeat, Vec::new()).bytes();
    assert!(begun().on_received(Instant::START, &early).is_err());
}

#[test]
fn no_more_destinations_are_kept_than_any_modem_reaches() {
    let mut pair = Pair::new(mbit(20), &[]);
    pair.exchange();
    for number in 0_u16..5_000 {
        let [high, low] = number.to_be_bytes();
        let mac = midhop_dlep::Mac::new(&[2, 0, 0, 0, high, low]).expect("six bytes");
        let up = Message::new(Kind::DestinationUp, vec![Item::Mac(mac)]).bytes();
        pair.router.on_received(pair.now, &up).expect("valid");
        pair.exchange();
    }
    assert_eq!(pair.router.destinations(), 4096);
    let statuses = pair.modem.answers().iter().map(|(_, status)| *status);
    let refused = statuses.filter(|status| *status == Some(Status::NOT_INTERESTED)).count();
    assert_eq!(refused, 5_000 - 4096, "of whom nothing more shall be sent");
}

fn items() -> impl Strategy<Value = Item> {
    let rate = || any::<u64>().prop_map(Rate::from_bits_per_s);
    prop_oneof![
        (any::<u8>(), "[a-z ]{0,20}")
            .prop_map(|(code, it)| Item::Status(Status::from_code(code), it)),
        any::<u32>().prop_map(|ms| Item::HeartbeatInterval(Duration::from_ms(u64::from(ms)))),
        prop::collection::vec(any::<u16>(), 0..5).prop_map(Item::ExtensionsSupported),
        any::<u8>().prop_map(|last| Item::Mac(mac(last))),
        rate().prop_map(Item::MaximumRateReceive),
        rate().prop_map(Item::CurrentRateTransmit),
        (0_u8..=100).prop_map(Item::Resources),
        any::<u16>().prop_map(Item::Mtu),
        any::<[u8; 5]>().prop_map(|bytes| Item::Address(8, bytes.to_vec())),
    ]
}

proptest! {
    #[test]
    fn a_message_is_read_as_it_is_written(item in items()) {
        let message = Message::new(Kind::SessionUpdate, vec![item]);
        let mut inbox = midhop_dlep::Inbox::default();
        inbox.put(&message.bytes());
        prop_assert_eq!(inbox.take(), Ok(Some(message)));
        prop_assert_eq!(inbox.take(), Ok(None));
    }

    #[test]
    fn any_bytes_end_a_session_or_are_followed(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut pair = Pair::new(mbit(20), &[]);
        pair.exchange();
        let result = pair.router.on_received(pair.now, &bytes);
        prop_assert_eq!(result.is_ok(), pair.router.is_open());
    }
}
