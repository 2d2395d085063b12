//! Handovers: what happens to the flows of a proxy whose node is left.

use midhop_experiment::handovers::HandoversResult;
use midhop_experiment::record::Record;
use midhop_experiment::{Plan, Scenario};
use midhop_sim::{Options, run};
use midhop_units::{Bytes, Duration};

const EXAMPLE: &str = include_str!("../../../../scenarios/handover.toml");

fn plan(set: &[&str]) -> Plan {
    let scenario = Scenario::parse("handover.toml", EXAMPLE);
    let plans = scenario.and_then(|mut scenario| {
        set.iter().try_for_each(|assignment| scenario.set(assignment))?;
        scenario.plans()
    });
    plans.unwrap_or_else(|error| panic!("{set:?}: {error}")).swap_remove(0)
}

fn record(set: &[&str]) -> Record {
    checked(set, true)
}

/// With invariants checked after every event, where that does not take too long.
fn checked(set: &[&str], checking: bool) -> Record {
    let options = Options { checking, ..Options::default() };
    let (record, _) = run(&plan(set), &options).unwrap_or_else(|error| panic!("{set:?}: {error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new(), "{set:?}");
    record
}

fn handovers(record: &Record) -> &HandoversResult {
    record.handovers.as_ref().expect("there were some")
}

/// One flow of 4 MB, with the handover at 1 s while it runs.
const ONE: [&str; 6] = [
    "transfers.file.flows=1",
    "transfers.file.bytes=4 MB",
    "handovers.0.at=1 s",
    "handovers.0.announced=500 ms",
    "duration=20 s",
    "handovers.1.at=19 s",
];

fn one(more: &[&str]) -> Record {
    record(&[&ONE[..], more].concat())
}

#[test]
fn a_flow_moves_with_all_its_bytes() {
    let record = one(&["setup=moved"]);
    let transfer = &record.transfers[0];
    assert!(transfer.complete, "{transfer:?}");
    assert_eq!(transfer.bytes, Bytes::new(4_000_000));
    assert_eq!(transfer.flows.len(), 1, "nothing began again");
    let result = handovers(&record);
    assert_eq!((result.count, result.flows_moved, result.flows_reset), (1, 1, 0), "{result:?}");
    // The state of one flow arrives after the link's delay and little more.
    assert!(result.freeze.max > Duration::from_us(8500), "{result:?}");
    assert!(result.freeze.max < Duration::from_ms(12), "{result:?}");
    assert!(result.state_frozen_bytes < result.state_bytes, "{result:?}");
    let counts = |node: &str| {
        let node = record.nodes.iter().find(|it| it.node == node).expect("a node");
        node.counts.clone()
    };
    assert_eq!(counts("sat-a")["flows-moved-out"], 1);
    assert_eq!(counts("sat-b")["flows-moved-in"], 1);
}

/// The next of a sequence of pseudo-random numbers.
fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn no_byte_is_lost_or_doubled_whatever_the_moment() {
    let mut state = 7;
    let (mut moved, mut ended_before) = (0, 0);
    for round in 0..60 {
        // Files of 40 kB to 1 MB, so that handovers happen during handshakes, with full buffers,
        // after one direction has ended, and after flows have ended.
        let bytes = 40_000 + draw(&mut state, 960_000);
        let at = 50 + draw(&mut state, 1200);
        let announced = draw(&mut state, 3) * at / 4;
        let over = [
            "\"isl\"",
            "{rate=\"3 Mbit/s\",delay=\"30 ms\"}",
            "{rate=\"2 Mbit/s\",delay=\"1 ms\"}",
        ];
        let over = over[draw(&mut state, 3) as usize];
        let opens = ["from", "to"][draw(&mut state, 2) as usize];
        let ends = [("server", "terminal"), ("terminal", "server")][draw(&mut state, 2) as usize];
        let mut set = vec![
            "setup=moved".to_owned(),
            format!("transfers.file.bytes={bytes} B"),
            format!("transfers.file.flows={}", 1 + draw(&mut state, 4)),
            format!("transfers.file.opens={opens}"),
            format!("transfers.file.from={}", ends.0),
            format!("transfers.file.to={}", ends.1),
            format!("handovers.0.at={at} ms"),
            format!("handovers.0.announced={announced} ms"),
            format!("handovers.0.over={over}"),
            format!("handovers.0.outage={} ms", draw(&mut state, 120)),
            // The handover back follows soon: flows move again, perhaps while they are still in
            // transit.
            format!("handovers.1.at={} ms", at + 100 + draw(&mut state, 2000)),
            "handovers.1.announced=0 s".to_owned(),
            format!("handovers.1.over={over}"),
            format!("seed={round}"),
        ];
        if draw(&mut state, 2) == 0 {
            set.push("peps.a.limits={memory=\"600 kB\"}".to_owned());
            set.push("peps.b.limits={memory=\"530 kB\"}".to_owned());
        }
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let record = record(&set);
        let transfer = &record.transfers[0];
        assert!(transfer.complete, "{set:?}: {transfer:?}");
        let flows = transfer.flows.iter().filter(|flow| flow.error.is_none());
        assert!(flows.clone().count() > 0, "{set:?}: {transfer:?}");
        let result = handovers(&record);
        // Only connections in their handshake were restarted; a client whose SYN waits retransmits
        // it.
        let restarts = u64::from(transfer.restarts.count);
        assert!(restarts <= result.flows_reset, "{set:?}: {restarts} of {result:?}");
        moved += result.flows_moved;
        ended_before += u64::from(result.flows_moved == 0);
    }
    assert!(moved > 50 && ended_before < 30, "{moved} moved, {ended_before} runs without any");
}

#[test]
fn the_same_seed_gives_the_same_record() {
    for setup in ["moved", "reset", "drained", "anchored"] {
        let setup = format!("setup={setup}");
        let text = || one(&[&setup]).to_json().expect("JSON");
        assert_eq!(text(), text(), "{setup}");
    }
}

#[test]
fn flows_that_stay_behind_go_on_there_and_new_ones_begin_at_the_other() {
    let record = one(&["setup=anchored"]);
    let transfer = &record.transfers[0];
    assert!(transfer.complete && transfer.restarts.count == 0, "{transfer:?}");
    let result = handovers(&record);
    assert_eq!((result.flows_chained, result.flows_moved, result.flows_reset), (1, 0, 0));
    let down = record.links.iter().find(|it| it.name == "isl" && it.direction == "up");
    assert!(down.is_some_and(|it| it.bytes_out > 1_000_000), "{down:?}");
    // Connections of a page that begin later begin at the other proxy.
    let page = record_of_page(&["setup=anchored"]);
    let counts = |node: &str| {
        let node = page.nodes.iter().find(|it| it.node == node).expect("a node");
        node.counts["flows"]
    };
    assert!(counts("sat-a") > 1 && counts("sat-b") > 1, "{:?}", page.nodes);
}

/// A page of objects, each over a connection of its own.
fn record_of_page(more: &[&str]) -> Record {
    let plan = {
        let text = EXAMPLE.replace(
            "bytes = \"25 MB\"\nflows = 4",
            &format!("objects = [{}]\nconnections = \"new\"", "\"300 kB\", ".repeat(12)),
        );
        let mut scenario = Scenario::parse("page.toml", &text).expect("a scenario");
        let set = [
            "handovers.0.at=2 s",
            "handovers.0.announced=1 s",
            "duration=30 s",
            "handovers.1.at=29 s",
        ];
        set.iter().chain(more).try_for_each(|it| scenario.set(it)).expect("keys");
        scenario.plans().unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
    };
    let options = Options { checking: true, ..Options::default() };
    let (record, _) = run(&plan, &options).expect("a run");
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    record
}

#[test]
fn a_drained_proxy_takes_no_new_flows_and_resets_old_ones_at_the_end() {
    let page = record_of_page(&["setup=drained"]);
    let counts = |node: &str| {
        let node = page.nodes.iter().find(|it| it.node == node).expect("a node");
        node.counts.clone()
    };
    assert!(counts("sat-a")["flows-bypassed-by-drain"] > 0, "{:?}", page.nodes);
    assert!(counts("sat-b")["flows"] > 0, "{:?}", page.nodes);
    let record = one(&["setup=drained", "handovers.0.drain=200 ms"]);
    let result = handovers(&record);
    assert_eq!((result.flows_chained, result.flows_reset), (1, 1), "{result:?}");
    let transfer = &record.transfers[0];
    assert!(transfer.complete && transfer.restarts.count == 1, "{transfer:?}");
}

#[test]
fn a_reset_asks_for_the_rest_or_for_all() {
    let rest = one(&["setup=reset"]);
    let all = one(&["setup=reset", "transfers.file.restart_from=all"]);
    for (record, discards) in [(&rest, false), (&all, true)] {
        let transfer = &record.transfers[0];
        assert!(transfer.complete && transfer.bytes == Bytes::new(4_000_000), "{transfer:?}");
        assert_eq!(transfer.restarts.count, 1);
        assert_eq!(transfer.restarts.discarded > Bytes::ZERO, discards);
        assert_eq!(handovers(record).flows_reset, 1);
        // A tenth of a second until the restart, and the outage.
        assert!(handovers(record).stall_max > Some(Duration::from_ms(150)));
    }
    assert!(rest.transfers[0].took < all.transfers[0].took);
}

#[test]
fn flows_that_move_are_ahead_of_those_that_are_reset() {
    let goodput = |setup: &str| {
        let record = checked(
            &[setup, "transfers.file.bytes=12 MB", "handovers.0.at=8 s", "handovers.1.at=16 s"],
            false,
        );
        let transfer = &record.transfers[0];
        assert!(transfer.complete, "{setup}: {transfer:?}");
        transfer.goodput.mbit_per_s()
    };
    let [moved, reset] = ["setup=moved", "setup=reset"].map(goodput);
    assert!(moved >= reset, "{moved} Mbit/s moved, {reset} Mbit/s reset");
}

#[test]
fn state_that_was_copied_before_is_not_waited_for() {
    let slow = "handovers.0.over={rate=\"60 Mbit/s\",delay=\"1 ms\"}";
    let freeze = |announced: &str| {
        let record = one(&[
            "setup=moved",
            slow,
            announced,
            "transfers.file.bytes=10 MB",
            "handovers.0.at=3 s",
        ]);
        assert!(record.transfers[0].complete);
        let result = handovers(&record).clone();
        assert_eq!(result.flows_moved, 1);
        result
    };
    let (sudden, known) =
        (freeze("handovers.0.announced=0 s"), freeze("handovers.0.announced=900 ms"));
    assert!(known.freeze.max < sudden.freeze.max, "{known:?} {sudden:?}");
    assert_eq!(sudden.state_bytes, sudden.state_frozen_bytes);
    assert!(known.state_bytes > sudden.state_bytes, "{known:?} {sudden:?}");
}

#[test]
fn a_flow_that_both_split_is_reset_and_the_run_is_not_valid() {
    // The path from one satellite leads over the other.
    let set = ["setup=moved", "links.feeder-a.between=[\"terminal\", \"gateway\"]"];
    let text =
        EXAMPLE.replace("between = [\"sat-a\", \"gateway\"]", "between = [\"sat-b\", \"gateway\"]");
    let mut scenario = Scenario::parse("both.toml", &text).expect("a scenario");
    let set = [&set[..1], &ONE].concat();
    set.iter().try_for_each(|it| scenario.set(it)).expect("keys");
    let plan = scenario.plans().unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    let (record, _) = run(&plan, &Options::default()).expect("a run");
    assert!(record.validity.faults[0].contains("both sat-a and sat-b"), "{:?}", record.validity);
    assert_eq!(handovers(&record).flows_moved, 0);
}

#[test]
fn flows_that_move_again_and_again_end_as_their_ends_ended_them() {
    // Several handovers happen during each of 12 connections: in its handshake, in its data, or
    // between its two FINs.
    let page = record_of_page(&[
        "setup=moved",
        "transfers.file.parallel=2",
        "handovers.0.at=500 ms",
        "handovers.0.every=800 ms",
        "handovers.0.outage=0 s",
        "handovers.0.announced=100 ms",
        "handovers.1.at=900 ms",
        "handovers.1.every=800 ms",
        "handovers.1.outage=0 s",
        "handovers.1.announced=100 ms",
    ]);
    let sum =
        |what: &str| -> u64 { page.nodes.iter().filter_map(|node| node.counts.get(what)).sum() };
    let result = handovers(&page);
    assert!(result.count > 10 && result.flows_moved > 20, "{result:?}");
    assert_eq!(sum("flows-moved-in"), result.flows_moved);
    assert_eq!(sum("flows-moved-out"), result.flows_moved);
    assert_eq!(sum("flows-reset"), result.flows_reset, "only what was shaking hands was reset");
    // The last flows have not ended at the end of the run.
    let ended = sum("flows-ended") + result.flows_reset;
    assert!((10..=sum("flows")).contains(&ended), "{:?} {result:?}", page.nodes);
    assert_eq!(page.transfers[0].bytes, Bytes::new(12 * 300_000));
}
