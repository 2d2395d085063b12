//! How much a pair with a tunnel has accepted and not delivered, and that holding no more costs no
//! goodput.

use midhop_experiment::Scenario;
use midhop_experiment::record::TransferResult;
use midhop_sim::{Options, run};

/// The sender's own queue is small, so that data which arrives after it has stopped was held by the
/// pair.
const UPLOAD: &str = r#"
title = "An upload through a tunnel"
duration = "120 s"
[nodes]
client = { tcp = { send_buffer = "16 KiB" } }
terminal = { pep = "near" }
gateway = { pep = "far" }
server = {}
[links.lan]
between = ["client", "terminal"]
rate = "1 Gbit/s"
[links.satellite]
between = ["terminal", "gateway"]
rate = "1 Mbit/s"
delay = "340 ms"
[links.internet]
between = ["gateway", "server"]
rate = "1 Gbit/s"
[peps.near]
intercept.accept = "early"
peers.far = { node = "gateway", rate = "0.95 Mbit/s", patience = "10 s" }
rules = [{ tunnel = "far" }]
[peps.far]
[transfers.bulk]
from = "client"
to = "server"
seconds = 20
opens = "from"
"#;

fn uploaded(set: &[&str]) -> TransferResult {
    let mut scenario = Scenario::parse("upload.toml", UPLOAD).expect("a scenario");
    set.iter().for_each(|one| scenario.set(one).expect("a value"));
    let plan = scenario.plans().expect("plans").remove(0);
    let (mut record, _) = run(&plan, &Options::default()).expect("a run");
    assert_eq!(record.validity.faults, Vec::<String>::new(), "{set:?}");
    let transfer = record.transfers.remove(0);
    assert!(transfer.complete, "{set:?}: {transfer:?}");
    transfer
}

/// At any rate, no more than two products and a second of a flow's share is delivered after its
/// sender has stopped, which takes two round trips and a second. Then the last bytes arrive and are
/// acknowledged.
#[test]
fn what_was_accepted_is_delivered_within_two_products_and_a_second() {
    for (rate, configured) in [("1 Mbit/s", "0.95 Mbit/s"), ("8 Mbit/s", "7.6 Mbit/s")] {
        for seed in 1..=2 {
            let set = [
                format!("links.satellite.rate={rate}"),
                format!("peps.near.peers.far.rate={configured}"),
                format!("seed={seed}"),
            ];
            let set: Vec<_> = set.iter().map(String::as_str).collect();
            let after = uploaded(&set).took.as_s_f64() - 20.0;
            let round = 0.68;
            assert!(after <= 2.0 * round + 1.0 + round, "{set:?}: {after} s");
        }
    }
}

#[test]
fn a_short_queue_costs_no_goodput() {
    for (loss, least) in [("0", 0.93), ("0.01", 0.9), ("0.05", 0.85)] {
        for seed in 1..=2 {
            let set = [format!("links.satellite.up.loss={loss}"), format!("seed={seed}")];
            let set: Vec<_> = set.iter().map(String::as_str).collect();
            let bulk = uploaded(&set);
            let part = bulk.limit.as_ref().expect("a limit").efficiency;
            assert!(part >= least, "{set:?}: {part} of the limit, {}", bulk.goodput);
        }
    }
}
