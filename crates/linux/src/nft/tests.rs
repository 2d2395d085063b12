//! What `nft` and the kernel respond to, in a namespace of their own.

use super::*;
use crate::netns::NetNamespace;
use proptest::prelude::*;

fn object(table: &str, packets: &[u8]) -> Vec<u8> {
    Message::netfilter(NEW_OBJECT, 0, INET, 0)
        .with_name(OBJECT_TABLE, table)
        .with_name(OBJECT_NAME, "passed_rule")
        .with(OBJECT_TYPE, &TYPE_COUNTER.to_be_bytes())
        .with_nested(OBJECT_DATA, |data| {
            data.with(1, &600u64.to_be_bytes()).with(COUNTER_PACKETS, packets)
        })
        .finish()
}

fn read(bytes: &[u8]) -> Option<(String, u64)> {
    counter(messages(bytes).next()?.body, "midhop_main")
}

#[test]
fn a_counter_is_read_and_others_are_not() {
    let ours = object("midhop_main", &10u64.to_be_bytes());
    assert_eq!(read(&ours), Some(("passed_rule".to_owned(), 10)));
    assert_eq!(read(&object("midhop_other", &10u64.to_be_bytes())), None);
    assert_eq!(read(&object("midhop_main", &[0, 1])), None, "no number of 64 bits");
}

#[test]
fn a_table_is_changed_and_read() {
    let place = match NetNamespace::new() {
        Ok(place) => place,
        Err(error) => {
            return midhop_testkit::skipped(format!("this takes CAP_SYS_ADMIN: {error}"));
        }
    };
    let text = "table inet one { counter seen { packets 3 bytes 7 }; \
                set gate { type inet_proto; }; \
                map names { type inet_service : mark; elements = { 80 : 5 }; }; \
                set far { type ipv4_addr; flags dynamic; }; \
                set still { type ipv4_addr . inet_service; flags timeout; }; chain waiting { }; }\n\
                table inet other { counter theirs { }; }";
    let refused = place.run(|| run("table inet { }")).expect("entered");
    match refused {
        Err(NftError::Start(error)) => {
            return midhop_testkit::skipped(format!("there is no nft: {error}"));
        }
        Err(refused @ NftError::Refused(_)) => assert!(!refused.first_line().is_empty()),
        other => panic!("{other:?}"),
    }
    place.run(|| run(text)).expect("entered").expect("carried out");
    let table = place.run(|| Table::open("one")).expect("entered").expect("a channel");
    assert_eq!(table.counters().expect("counters"), [("seen".to_owned(), 3)].into());
    let code = |outcome: io::Result<()>| outcome.expect_err("refused").raw_os_error();
    assert_eq!(code(table.delete_element("gate", &[6])), Some(libc::ENOENT));
    table.add_element("gate", &[6]).expect("entered");
    assert!(table.has_element("gate", &[6]).expect("an answer"));
    for _ in 0..2 {
        table.delete_element_if_there("gate", &[6]).expect("it is not there");
        assert!(!table.has_element("gate", &[6]).expect("an answer"));
    }
    assert!(!table.has_element("no_such_set", &[6]).expect("an answer"));
    let value = table.element("names", &80u16.to_be_bytes()).expect("it is there");
    assert_eq!(value, 5u32.to_ne_bytes());
    let nothing = table.element("names", &81u16.to_be_bytes()).expect_err("it is not");
    assert_eq!(nothing.raw_os_error(), Some(libc::ENOENT));
    let key = [10, 0, 0, 1, 0, 80, 0, 0];
    let other = [10, 0, 0, 2, 0, 80, 0, 0];
    let minute = Duration::from_secs(60);
    // An element of a set has no value, which is another error.
    let is_there = |key: &[u8]| {
        let asked = table.element("still", key).expect_err("a set has no values");
        asked.raw_os_error() != Some(libc::ENOENT)
    };
    let [add, delete] =
        [ElementChange::Add("still", &key, minute), ElementChange::Delete("still", &key)];
    for _ in 0..2 {
        let both = [add, ElementChange::Add("still", &other, minute)];
        table.change_elements(&both).expect("entered");
    }
    table.change_elements(&[delete]).expect("deleted");
    // All or nothing, and what was refused confuses no later change.
    let neither = [ElementChange::Delete("still", &other), delete];
    assert_eq!(code(table.change_elements(&neither)), Some(libc::ENOENT));
    assert!(is_there(&other));
    // What may be there or not is deleted so.
    for _ in 0..2 {
        table.change_elements(&[add, delete]).expect("deleted");
        assert!(!is_there(&key));
    }
    table.change_elements(&[add]).expect("entered");
    table.change_elements(&[add, delete]).expect("deleted");
    assert!(!is_there(&key));
    let soon = ElementChange::Add("still", &key, Duration::from_millis(1));
    table.change_elements(&[soon]).expect("entered");
    let begun = std::time::Instant::now();
    while is_there(&key) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it has a time");
    }
    let (v4, text) = (
        TableFamily::V4,
        "table ip one { map ways { type ipv4_addr : ipv4_addr; flags timeout; }; }",
    );
    place.run(|| run(text)).expect("entered").expect("carried out");
    let ways = place.run(|| Table::open_in(v4, "one")).expect("entered").expect("a channel");
    assert!(!ways.has_chain("mark").expect("an answer"));
    ways.add_chain("mark").expect("a chain");
    assert!(ways.has_chain("mark").expect("an answer"));
    let way = ElementChange::AddValue("ways", &[10, 0, 0, 1], &[10, 0, 7, 2], minute);
    ways.change_elements(&[way]).expect("entered");
    assert_eq!(ways.element("ways", &[10, 0, 0, 1]).expect("it is there"), [10, 0, 7, 2]);
    let subscribe = || Channel::subscribe(SockProtocol::NetlinkNetFilter, CHANGES);
    let announced = place.run(subscribe).expect("entered").expect("a channel");
    // Whether something other than elements is announced.
    let has_changed = || {
        let (mut kinds, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        while let Ok(received) = announced.receive(&mut buffer, false) {
            kinds.extend(messages(received).map(|message| message.kind));
        }
        assert!(!kinds.is_empty(), "each change is announced");
        kinds.into_iter().any(|kind| !is_about_elements(kind))
    };
    table.change_elements(&[add]).expect("entered");
    table.change_elements(&[delete]).expect("deleted");
    assert!(!has_changed());
    table.add_update("waiting", "far", &[Load::Network(12, 4)], &[]).expect("a rule");
    assert!(has_changed());
    table.add_queue("waiting", 9, Unbound::Passes).expect("a rule");
    assert_eq!(code(table.add_queue("nowhere", 9, Unbound::Drops)), Some(libc::ENOENT));
    assert!(!table.has_chain("mark").expect("an answer"));
    table.add_chain("mark").expect("a chain");
    assert!(table.has_chain("mark").expect("an answer"));
    let other = place.run(|| Table::open("no_table")).expect("entered").expect("a channel");
    assert!(!other.has_chain("mark").expect("an answer"));
}

proptest! {
    #[test]
    fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = (counter(&bytes, "midhop_main"), value(&bytes));
    }
}
