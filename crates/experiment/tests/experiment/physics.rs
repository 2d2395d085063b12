//! Violations of physics in a record are detected in every place.

use midhop_experiment::record::{
    Environment, LegResult, LinkResult, Record, SCHEMA, TrafficResult, TransferResult, Validity,
};
use midhop_experiment::{Plan, Scenario};
use midhop_units::{Bytes, Duration, Rate};
use std::collections::BTreeMap;

const SCENARIO: &str = "title = \"a test\"\nduration = \"10 s\"\n\
    [nodes]\nclient = {}\ngateway = { pep = \"gw\" }\nserver = {}\n\
    [links.satellite]\nbetween = [\"client\", \"gateway\"]\nrate = \"8 Mbit/s\"\n\
    [links.internet]\nbetween = [\"gateway\", \"server\"]\n\
    [peps.gw]\n\
    [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"1 MB\"\n\
    [traffic.noise]\nkind = \"constant\"\nfrom = \"server\"\nto = \"client\"\nrate = \"1 Mbit/s\"\n";

/// A run of ten seconds in which 9 MB crossed the satellite link towards the client, 1 MB of them in
/// the transfer.
fn record() -> Record {
    let scenario = Scenario::parse("test.toml", SCENARIO).expect("a scenario");
    let plan: Plan = scenario.plans().expect("plans").swap_remove(0);
    let (bytes, took) = (Bytes::new(1_000_000), Duration::from_s(8));
    let link = |name: &str, direction: &str, bytes: u64| LinkResult {
        name: name.to_owned(),
        direction: direction.to_owned(),
        bytes_out: bytes,
        bytes_sent: bytes,
        span: Duration::from_s(10),
        ..LinkResult::default()
    };
    Record {
        schema: SCHEMA,
        title: plan.title.clone(),
        cell: BTreeMap::new(),
        seed: plan.seed,
        plan: plan.to_json().expect("a plan is JSON"),
        environment: Environment::default(),
        validity: Validity::default(),
        transfers: vec![TransferResult {
            name: "file".to_owned(),
            complete: true,
            took,
            bytes,
            goodput: Rate::of(bytes, took),
            limit: plan.transfers[0].limit_result(true, bytes, took),
            restarts: Default::default(),
            flows: Vec::new(),
            objects: Vec::new(),
        }],
        links: vec![
            link("internet", "down", 9_000_000),
            link("internet", "up", 100_000),
            link("satellite", "down", 9_000_000),
            link("satellite", "up", 100_000),
        ],
        legs: vec![LegResult {
            node: "gateway".to_owned(),
            link: "satellite".to_owned(),
            connections: 1,
            bytes: Bytes::new(1_000_002),
            ..LegResult::default()
        }],
        traffic: vec![TrafficResult {
            name: "noise".to_owned(),
            bytes: Bytes::new(7_000_000),
            ..TrafficResult::default()
        }],
        nodes: Vec::new(),
        handovers: None,
        series: Vec::new(),
    }
}

fn fault(change: impl FnOnce(&mut Record)) -> String {
    let mut record = record();
    change(&mut record);
    let faults = record.check_limit();
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults[0].clone()
}

#[test]
fn a_run_within_its_limits_has_no_fault() {
    assert_eq!(record().check_limit(), Vec::<String>::new());
    // To the last packet: 10 MB in ten seconds, and one that had begun.
    let mut full = record();
    full.links[2].bytes_sent = 10_000_000 + 1500;
    assert_eq!(full.check_limit(), Vec::<String>::new());
    // A record from before these counts existed.
    full.links[2] = LinkResult { span: Duration::ZERO, bytes_sent: 0, ..full.links[2].clone() };
    assert_eq!(full.check_limit(), Vec::<String>::new());
}

#[test]
fn a_link_that_sent_more_than_its_rate_allows_is_a_fault() {
    let found = fault(|record| record.links[2].bytes_sent = 10_000_000 + 1501);
    assert!(found.contains("link satellite (down)") && found.contains("8 Mbit/s"), "{found}");
    // The other direction is counted separately.
    let found = fault(|record| record.links[3].bytes_sent = 20_000_000);
    assert!(found.contains("link satellite (up)"), "{found}");
}

#[test]
fn payload_that_no_link_brought_is_a_fault() {
    // Transfer and cross traffic together.
    let found = fault(|record| record.traffic[0].bytes = Bytes::new(8_000_001));
    assert!(found.contains("node client"), "{found}");
    let found = fault(|record| record.legs[0].bytes = Bytes::new(9_000_003));
    assert!(found.contains("leg gateway.satellite"), "{found}");
}

#[test]
fn a_transfer_above_its_path_is_a_fault() {
    let found = fault(|record| {
        record.transfers[0].took = Duration::from_ms(900);
        record.transfers[0].goodput = Rate::of(Bytes::new(1_000_000), Duration::from_ms(900));
    });
    assert!(found.contains("transfer file") && found.contains("more than the path"), "{found}");
}
