//! Naive proxies on real kernels: overflows, restarts, and complete transfers.
//!
//! Which flow is reset follows from rates that differ by a factor of ten, never from this machine's
//! speed.

use midhop_experiment::record::{Record, TransferResult};
use midhop_units::{Bytes, Duration};
use std::fs;
use std::process::Command;

const NETWORK: &str = "title = \"a test\"\nduration = \"60 s\"\n\
    [nodes]\nclient = {}\ngateway = { pep = \"box\" }\nserver = {}\n\
    [links.satellite]\nbetween = [\"client\", \"gateway\"]\nrate = \"10 Mbit/s\"\ndelay = \"20 ms\"\n\
    [links.internet]\nbetween = [\"gateway\", \"server\"]\nrate = \"100 Mbit/s\"\ndelay = \"2 ms\"\n";

/// The output of `midhop lab run`, and its record.
fn run(more: &str) -> (String, Option<Record>) {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("test.toml");
    fs::write(&file, format!("{NETWORK}{more}")).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_midhop"))
        // On a busy machine packets are late; these tests also hold for late packets.
        .args(["lab", "run", "--json", "--lateness", "10 s"])
        .arg(&file)
        .env("MIDHOP_STATE_DIR", place.path().join("state"))
        .output()
        .expect("midhop runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8_lossy(&output.stdout);
    (errors, text.lines().next().map(|line| serde_json::from_str(line).expect("a record")))
}

fn record(more: &str) -> Record {
    let (errors, record) = run(more);
    let record = record.unwrap_or_else(|| panic!("{errors}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

fn count(record: &Record, name: &str) -> u64 {
    let node = record.nodes.iter().find(|node| node.node == "gateway").expect("a proxy is there");
    node.counts.get(name).copied().unwrap_or_default()
}

fn transfer<'r>(record: &'r Record, name: &str) -> &'r TransferResult {
    record.transfers.iter().find(|transfer| transfer.name == name).expect(name)
}

fn check_whole(transfer: &TransferResult, bytes: u64) {
    assert!(transfer.complete, "{transfer:?}");
    assert_eq!(transfer.bytes, Bytes::new(bytes));
    for flow in transfer.flows.iter().filter(|flow| flow.error.is_none()) {
        assert!(flow.hash_sent.is_some() && flow.hash_sent == flow.hash_received, "{flow:?}");
    }
}

const FILE: &str = "[transfers.file]\nfrom = \"server\"\nto = \"client\"\n";

#[test]
fn who_holds_the_most_is_reset_and_nobody_else() {
    // Small objects leave the store as fast as they arrive; the file arrives ten times as fast as
    // it leaves.
    let record = record(&format!(
        "[naive.box]\nbuffer = \"500 kB\"\n\
         {FILE}bytes = \"20 MB\"\n\
         [transfers.page]\nfrom = \"server\"\nto = \"client\"\nobjects = [\"50 kB\", \"50 kB\"]\n"
    ));
    assert_eq!(count(&record, "flows-reset-store-full"), 1, "{:?}", record.nodes);
    let file = transfer(&record, "file");
    assert!(!file.complete && file.bytes < Bytes::new(20_000_000), "{file:?}");
    assert!(file.flows[0].error.is_some() && file.restarts.is_none(), "{file:?}");
    check_whole(transfer(&record, "page"), 100_000);
}

#[test]
fn where_there_is_room_all_arrives_as_it_was_sent() {
    for (family, ends) in [("ipv4", ["server", "client"]), ("ipv6", ["client", "server"])] {
        let [from, to] = ends;
        let record = record(&format!(
            "[naive.box]\nbuffer = \"20 MB\"\nlegs.satellite = {{ congestion = \"cubic\" }}\n\
             [transfers.file]\nfrom = \"{from}\"\nto = \"{to}\"\nfamily = \"{family}\"\n\
             bytes = \"700 kB\"\nflows = 3\n"
        ));
        check_whole(transfer(&record, "file"), 2_100_000);
        assert_eq!(count(&record, "flows-reset-store-full"), 0, "{:?}", record.nodes);
        assert!(count(&record, "flows") >= 3, "{:?}", record.nodes);
        let link = |name: &str| record.legs.iter().find(|leg| leg.link == name).expect(name);
        assert!(link("satellite").connections >= 3 && link("internet").connections >= 3);
    }
}

#[test]
fn what_was_reset_begins_again_and_arrives_whole() {
    // Two at a time are too many; one after the other works.
    let record = record(&format!(
        "[naive.box]\nbuffer = \"1.2 MB\"\n\
         {FILE}bytes = \"1 MB\"\nflows = 2\nrestarts = 3\nrestart_after = \"3 s\"\n"
    ));
    let file = transfer(&record, "file");
    check_whole(file, 2_000_000);
    assert_eq!((file.restarts.count, count(&record, "flows-reset-store-full")), (1, 1));
    let ids: Vec<u32> = file.flows.iter().map(|flow| flow.id).collect();
    assert_eq!(ids, [0, 1, 2]);
    let broken = file.flows.iter().position(|flow| flow.error.is_some()).expect("one broke");
    assert_eq!(file.flows[broken].bytes, Bytes::ZERO, "what arrived of it does not count");
    assert!(file.flows[2].start - file.flows[broken].end >= Duration::from_s(3));
}

#[test]
fn an_object_of_a_page_begins_again_without_those_before_it() {
    let record = record(
        "[naive.box]\nbuffer = \"700 kB\"\n\
         [transfers.page]\nfrom = \"server\"\nto = \"client\"\n\
         objects = [\"200 kB\", \"4 MB\", \"100 kB\"]\nrestarts = 2\nrestart_after = \"100 ms\"\n",
    );
    let page = transfer(&record, "page");
    // The second never fits: it is tried three times.
    assert_eq!((page.restarts.count, count(&record, "flows-reset-store-full")), (2, 3));
    assert!(!page.complete);
    let done: Vec<u32> = page.objects.iter().map(|object| object.id).collect();
    assert_eq!(done, [0]);
    assert_eq!(page.flows[0].bytes, Bytes::new(200_000), "the first counts");
}

#[test]
fn what_no_kernel_can_do_is_refused() {
    for (leg, why) in [
        ("timer = \"1 s\"", "no kernel repairs by a timer alone (naive.box.legs.satellite)"),
        ("congestion = \"dvegas\"", "naive.box.legs.satellite, or its parameters: dvegas"),
    ] {
        let (errors, record) = run(&format!(
            "[naive.box]\nbuffer = \"1 MB\"\nlegs.satellite = {{ {leg} }}\n{FILE}bytes = \"1 kB\"\n"
        ));
        assert!(record.is_none() && errors.contains(why), "{errors}");
    }
}
