//! Pairs and chains of proxies with tunnels between them, in virtual time: every byte arrives,
//! results repeat exactly, and a lossy link is filled.

use crate::scenes::{FILE, plan};
use midhop_experiment::Scenario;
use midhop_experiment::record::{LegResult, Record};
use midhop_sim::{Options, RunError, run};
use midhop_units::Bytes;

const PAIR: &str = "[peps.near]\nintercept.accept = \"early\"\npeers.far = { node = \"gateway\" }\n\
    rules = [{ tunnel = \"far\" }]\n[peps.far]\n[peps.after]\npeers.far = { node = \"gateway\" }\n\
    rules = [{ tunnel = \"far\" }]\n";
const BOTH: [&str; 2] = ["nodes.terminal.pep=near", "nodes.gateway.pep=far"];

fn record(more: &str, set: &[&str], checking: bool) -> Record {
    let options = Options { checking, ..Options::default() };
    let result = run(&plan(more, set), &options);
    let (record, _) = result.unwrap_or_else(|error| panic!("{set:?}: {error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new(), "{set:?}");
    record
}

fn tunnel<'r>(record: &'r Record, node: &str) -> &'r LegResult {
    let own = |leg: &&LegResult| leg.node == node && leg.tunnel.is_some();
    record.legs.iter().find(own).unwrap_or_else(|| panic!("{:?}", record.legs))
}

#[test]
fn a_pair_delivers_every_byte_over_links_that_lose_and_deliver_twice() {
    for seed in 1..=4 {
        let seed = format!("seed={seed}");
        let set = [
            "links.satellite.loss=0.03",
            "links.satellite.down.duplicate=0.01",
            "links.internet.loss=0.01",
            "links.lan.loss=0.005",
            "transfers.file.flows=3",
            "transfers.file.bytes=400 kB",
            &seed,
        ];
        let set = [&set[..], &BOTH].concat();
        let record = record(&format!("{FILE}{PAIR}"), &set, seed == "seed=1");
        let transfer = &record.transfers[0];
        assert!(transfer.complete, "{seed}: {transfer:?}");
        assert_eq!(transfer.bytes, Bytes::new(1_200_000), "{seed}");
        let down = tunnel(&record, "gateway");
        assert_eq!((down.connections, down.tunnel.as_deref()), (1, Some("terminal")));
        assert!(down.bytes >= Bytes::new(1_200_000), "{down:?}");
        for node in &record.nodes {
            assert_eq!(node.counts["flows"], 3, "{node:?}");
            assert!(!node.counts.contains_key("flows-reset"), "{node:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_record_through_a_tunnel() {
    let set = [&["links.satellite.loss=0.02", "transfers.file.flows=4"][..], &BOTH].concat();
    let text = |seed: &str| {
        let set = [&set[..], &[seed]].concat();
        record(&format!("{FILE}{PAIR}"), &set, false).to_json().expect("JSON")
    };
    assert_eq!(text("seed=3"), text("seed=3"));
    assert_ne!(text("seed=3"), text("seed=4"));
}

#[test]
fn a_tunnel_fills_a_lossy_geostationary_link_that_split_connections_do_not() {
    let scenario = include_str!("../../../../scenarios/tunnel.toml");
    let plans =
        Scenario::parse("tunnel.toml", scenario).expect("a scenario").plans().expect("plans");
    let goodput = |setup: &str| {
        let plan = plans.iter().find(|plan| plan.axes.iter().any(|axis| axis.label == setup));
        let (record, _) = run(plan.expect(setup), &Options::default()).expect("a run");
        assert_eq!(record.validity.faults, Vec::<String>::new());
        record.transfers[0].goodput.mbit_per_s()
    };
    let (split, tunnel) = (goodput("split"), goodput("tunnel"));
    assert!(tunnel >= 17.5, "{tunnel} Mbit/s of 19.1");
    assert!(tunnel > 10.0 * split, "{tunnel} and {split} Mbit/s");
}

#[test]
fn a_client_that_waits_for_its_server_waits_a_round_trip_more() {
    let first = |near: &str| {
        let near = format!("nodes.terminal.pep={near}");
        let set = ["transfers.file.bytes=1 kB", &near, BOTH[1]];
        let record = record(&format!("{FILE}{PAIR}"), &set, true);
        assert!(record.transfers[0].complete);
        record.transfers[0].took.as_s_f64()
    };
    let (early, after) = (first("near"), first("after"));
    // The client that waits is answered one round trip of the link later.
    assert!((after - early - 0.05).abs() < 0.005, "{early} and {after} s");
}

#[test]
fn uploads_and_ipv6_go_by_a_tunnel_as_well() {
    let upload = "[transfers.file]\nfrom = \"client\"\nto = \"server\"\nbytes = \"2 MB\"\nopens = \"from\"\nfamily = \"ipv6\"\n";
    let record = record(&format!("{upload}{PAIR}"), &BOTH, true);
    assert!(record.transfers[0].complete, "{:?}", record.transfers);
    assert!(tunnel(&record, "terminal").bytes >= Bytes::new(2_000_000));
}

#[test]
fn a_chain_of_three_delivers_every_byte() {
    let scenario = include_str!("../../../../scenarios/chain.toml");
    let plans =
        Scenario::parse("chain.toml", scenario).expect("a scenario").plans().expect("plans");
    let mut chains = 0;
    for plan in &plans {
        let record = match run(plan, &Options { checking: plan.number == 0, ..Options::default() })
        {
            Ok((record, _)) => record,
            Err(error) => panic!("{:?}: {error}", plan.axes),
        };
        assert_eq!(record.validity.faults, Vec::<String>::new(), "{:?}", plan.axes);
        assert!(record.transfers.iter().all(|it| it.bytes > Bytes::ZERO), "{:?}", plan.axes);
        let tunnels = record.legs.iter().filter(|leg| leg.tunnel.is_some()).count();
        chains += usize::from(tunnels == 4);
    }
    assert!(chains > 0, "no chain of two tunnels");
}

#[test]
fn a_peer_that_is_elsewhere_is_refused_by_its_key() {
    let elsewhere = "[peps.alone]\ntunnel = { certificate = \"/c\", key = \"/k\", authority = \"/a\" }\n\
        peers.far = { address = \"192.0.2.1:443\" }\n";
    let plan = plan(&format!("{FILE}{elsewhere}"), &["nodes.terminal.pep=alone"]);
    let error = run(&plan, &Options::default()).expect_err("a peer elsewhere");
    assert!(matches!(error, RunError::Tunnel { .. }), "{error}");
    assert_eq!(error.key().expect("a key").to_string(), "peps.alone.peers.far");
}
