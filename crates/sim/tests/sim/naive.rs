//! Proxies that are naive on purpose, and transfers that restart what such proxies break.

use crate::scenes::{FILE, plan};
use midhop_experiment::record::{NodeResult, Record, TransferResult};
use midhop_sim::{Options, run};
use midhop_units::{Bytes, Duration};

const BOX: &str = "[naive.box]\nbuffer = \"800 kB\"\n";

fn record(more: &str, set: &[&str]) -> Record {
    let set = [&["nodes.gateway.pep=box"], set].concat();
    // Every check after every event, but only in short runs.
    let checking = set.contains(&"transfers.file.restarts=3");
    let options = Options { checking, ..Options::default() };
    let result = run(&plan(&format!("{FILE}{BOX}{more}"), &set), &options);
    let (record, _) = result.unwrap_or_else(|error| panic!("{set:?}: {error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new(), "{set:?}");
    record
}

fn overflows(record: &Record) -> u64 {
    let gateway = |node: &&NodeResult| node.node == "gateway";
    let node = record.nodes.iter().find(gateway).expect("a proxy is there");
    node.counts.get("flows-reset-store-full").copied().unwrap_or_default()
}

fn transfer<'r>(record: &'r Record, name: &str) -> &'r TransferResult {
    record.transfers.iter().find(|transfer| transfer.name == name).expect(name)
}

#[test]
fn who_holds_the_most_is_reset_and_nobody_else() {
    let page =
        "[transfers.page]\nfrom = \"server\"\nto = \"client\"\nobjects = [\"90 kB\", \"90 kB\"]\n";
    // 65535 bytes in 20 ms are 26 Mbit/s, into a link of 20 Mbit/s: the store fills.
    let broken = record(page, &["transfers.file.bytes=20 MB"]);
    assert_eq!(overflows(&broken), 1);
    let file = transfer(&broken, "file");
    assert!(!file.complete && file.bytes < Bytes::new(20_000_000), "{file:?}");
    assert!(file.flows[0].error.as_ref().is_some_and(|why| why.contains("reset")), "{file:?}");
    assert!(transfer(&broken, "page").complete);
    let room = record(page, &["transfers.file.bytes=20 MB", "naive.box.buffer=20.2 MB"]);
    assert_eq!(overflows(&room), 0);
    assert!(room.transfers.iter().all(|transfer| transfer.complete), "{:?}", room.transfers);
}

#[test]
fn a_small_window_keeps_a_far_source_from_filling_the_store() {
    // 1.6 Mbit/s: less than the link carries, at any size of the store.
    let set = ["naive.box.legs.internet.window=20000 B", "links.internet.delay=50 ms"];
    let far = record("", &[&set[..], &["naive.box.buffer=150 kB"]].concat());
    assert_eq!(overflows(&far), 0);
    // Whole segments, of which up to two are acknowledged together and not yet read.
    let law_s = |window: f64| 2e6 / window * 0.1;
    let took = transfer(&far, "file").took.as_s_f64();
    assert!(took > law_s(20_000.0) && took < law_s(20_000.0 - 3.0 * 1448.0) + 0.5, "{took} s");
}

#[test]
fn what_was_reset_begins_again_and_arrives_whole() {
    // Two at a time are too many; one after the other works.
    let set = [
        "transfers.file.bytes=1 MB",
        "transfers.file.flows=2",
        "transfers.file.restarts=3",
        "transfers.file.restart_after=2 s",
    ];
    let record = record("", &set);
    let file = transfer(&record, "file");
    assert!(file.complete, "{file:?}");
    assert_eq!(
        (file.bytes, file.restarts.count, overflows(&record)),
        (Bytes::new(2_000_000), 1, 1)
    );
    let errors: Vec<bool> = file.flows.iter().map(|flow| flow.error.is_some()).collect();
    assert_eq!(errors.iter().filter(|it| **it).count(), 1, "{file:?}");
    let ids: Vec<u32> = file.flows.iter().map(|flow| flow.id).collect();
    assert_eq!(ids, [0, 1, 2]);
    let [broken, again] = [errors.iter().position(|it| *it).expect("one broke"), 2];
    assert_eq!(file.flows[broken].bytes, Bytes::ZERO, "what arrived of it does not count");
    assert!(file.restarts.discarded > Bytes::ZERO);
    let pause = file.flows[again].start - file.flows[broken].end;
    assert!(pause >= Duration::from_s(2) && pause < Duration::from_ms(2500), "{pause}");
    // The discarded data had crossed the link.
    let down = record.links.iter().find(|it| it.name == "satellite" && it.direction == "down");
    let carried = down.expect("the link").bytes_out;
    assert!(carried > file.bytes.get() + file.restarts.discarded.get());
}

#[test]
fn an_object_of_a_page_begins_again_without_those_before_it() {
    let page = "[transfers.page]\nfrom = \"server\"\nto = \"client\"\n\
                objects = [\"200 kB\", \"3 MB\", \"100 kB\"]\nrestarts = 2\n";
    let both = record(page, &["run=[\"page\"]"]);
    let result = transfer(&both, "page");
    // The second never fits: it is tried three times.
    assert_eq!((result.restarts.count, overflows(&both)), (2, 3));
    assert!(!result.complete);
    let done: Vec<u32> = result.objects.iter().map(|object| object.id).collect();
    assert_eq!(done, [0]);
    assert_eq!(result.flows[0].bytes, Bytes::new(200_000), "the first counts");
    let whole = record(page, &["run=[\"page\"]", "naive.box.buffer=3.1 MB"]);
    assert!(transfer(&whole, "page").complete);
    assert!(transfer(&whole, "page").restarts.is_none());
}

#[test]
fn a_timer_without_acknowledgements_of_parts_sends_again_what_was_not_lost() {
    let resent = |timer: &[&str]| {
        let set = [&["links.satellite.down.loss=0.01", "naive.box.buffer=4 MB"], timer].concat();
        let record = record("", &set);
        assert!(transfer(&record, "file").complete);
        let leg = record.legs.iter().find(|leg| leg.link == "satellite").expect("a leg");
        leg.retransmissions
    };
    let (as_linux, by_timer) = (resent(&[]), resent(&["naive.box.legs.satellite.timer=500 ms"]));
    // 1382 segments, 14 of them lost.
    assert!((8..=40).contains(&as_linux), "{as_linux}");
    assert!(by_timer > 3 * as_linux, "{by_timer} against {as_linux}");
}

/// How long a page of two objects over one connection takes, with a proxy that holds little of each
/// flow.
fn page_s(set: &[&str]) -> f64 {
    let page = "holds = \"each\"\n[transfers.page]\nfrom = \"server\"\nto = \"client\"\n\
                objects = [\"20 kB\", \"200 kB\"]\n";
    let each = ["run=[\"page\"]", "naive.box.buffer=8 KiB", "naive.box.accept=after-connect"];
    let record = record(page, &[&each[..], set].concat());
    let page = transfer(&record, "page");
    assert!(page.complete && overflows(&record) == 0, "{set:?}: {page:?}");
    page.took.as_s_f64()
}

#[test]
fn who_holds_little_of_each_flow_stops_reading_and_resets_nobody() {
    // 20 MB from a link of 1 Gbit/s into one of 20 Mbit/s: 8 s, with two pages of memory between
    // both.
    let set = ["naive.box.holds=each", "naive.box.buffer=8 KiB", "transfers.file.bytes=20 MB"];
    let record = record("", &set);
    let file = transfer(&record, "file");
    assert!(file.complete && overflows(&record) == 0, "{file:?}");
    let legs: Vec<u64> = record.legs.iter().map(|leg| leg.retransmissions).collect();
    assert_eq!(legs.len(), 2, "{:?}", record.legs);
}

#[test]
fn an_early_answer_saves_nothing_and_a_cork_costs_200_ms_a_request() {
    let plain = page_s(&[]);
    let early = page_s(&["naive.box.accept=early"]);
    // The proxy connects after it has accepted: the two handshakes follow each other in either
    // order.
    assert!((plain - early).abs() < 0.002, "{plain} and {early} s");
    let corked = page_s(&["naive.box.cork=true"]);
    // Two requests that do not fill a segment. The responses leave over an accepted connection,
    // which has no cork.
    assert!((corked - plain - 0.4).abs() < 0.02, "{plain} and {corked} s");
}

#[test]
fn what_is_stored_and_forwarded_crosses_one_leg_after_the_other() {
    // Both legs carry 20 Mbit/s: 5 MB take 2 s over each, and one after the other if they are stored.
    let file = |more: &[&str]| {
        let equal = ["naive.box.holds=each", "links.internet.rate=20 Mbit/s"];
        let file = [
            "transfers.file.bytes=5 MB",
            "links.satellite.queue=1 MB",
            "links.internet.queue=1 MB",
        ];
        let record = record("", &[&equal[..], &file, more].concat());
        let file = transfer(&record, "file");
        assert!(file.complete && overflows(&record) == 0, "{more:?}: {file:?}");
        file.took.as_s_f64()
    };
    let streamed = file(&["naive.box.buffer=8 MB"]);
    let stored = file(&["naive.box.buffer=8 MB", "naive.box.forwards=bundles"]);
    // And the second leg begins in slow start.
    assert!((2.0..2.7).contains(&(stored - streamed)), "{streamed} and {stored} s");
    // Bundles of 1 MB: the second leg sends one bundle while the first leg receives the next.
    let small = file(&["naive.box.buffer=1 MB", "naive.box.forwards=bundles"]);
    assert!((0.3..0.7).contains(&(small - streamed)), "{streamed} and {small} s");
    // Neither end closes its direction after a request: silence completes a bundle, for the two
    // requests and for the first response.
    let page = page_s(&["naive.box.buffer=1 MB", "naive.box.forwards=bundles"]);
    let plain = page_s(&["naive.box.buffer=1 MB"]);
    assert!((0.6..1.2).contains(&(page - plain)), "{plain} and {page} s");
}

#[test]
fn a_congestion_control_of_what_is_dialled_does_not_send_a_download() {
    let lossy = ["links.satellite.down.loss=0.01", "naive.box.holds=each"];
    let hybla = ["naive.box.legs.satellite.congestion=hybla"];
    let of = |more: &[&str]| {
        let record = record("", &[&lossy[..], &hybla, more].concat());
        transfer(&record, "file").took.as_s_f64()
    };
    let (all, dialled) = (of(&[]), of(&["naive.box.dialled=true"]));
    // Hybla treats 25 ms as 50 ms: with a loss of one in a hundred it is faster than CUBIC.
    assert!(dialled > 1.1 * all, "{all} and {dialled} s");
}

#[test]
fn the_same_seed_gives_the_same_record() {
    let set = ["transfers.file.flows=4", "transfers.file.restarts=20", "links.satellite.loss=0.01"];
    let text = || record("", &set).to_json().expect("JSON");
    assert_eq!(text(), text());
}
