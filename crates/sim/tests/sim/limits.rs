//! The limit of a link whose rate varies is the rate at which a flood of datagrams passes it.

use crate::scenes::plan;
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_sim::{Options, run};
use midhop_units::Duration;

/// Datagrams at three times the rate from the start on, and a transfer that keeps the run going for
/// 40 s.
const FLOOD: &str = "[traffic.flood]\nkind = \"constant\"\nfrom = \"server\"\nto = \"client\"\nrate = \"80 Mbit/s\"\n\
     [transfers.last]\nfrom = \"server\"\nto = \"client\"\nbytes = \"1 B\"\nopens = \"from\"\nstart = \"40 s\"\n";
/// Payload of TCP over packet.
const SHARE: f64 = 1448.0 / 1500.0;

fn simulated(plan: &Plan) -> Record {
    let (record, _) = run(plan, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

/// The part of the path's limit that reached the client, counted as TCP counts payload.
fn flooded(set: &[&str]) -> f64 {
    let plan = plan(FLOOD, set);
    let record = simulated(&plan);
    let last = record.links.iter().find(|link| link.name == "lan" && link.direction == "down");
    let last = last.expect("the client has a link");
    let path = plan.drawn_path(&plan.transfers[0]).expect("a link varies");
    let carried = path.carries(Duration::ZERO, last.span).get() as f64;
    last.bytes_out as f64 * SHARE / carried
}

#[test]
fn a_flood_reaches_the_limit_and_never_passes_it() {
    let trace: String = (0..6000).map(|at| format!("{}\\n", at + at * at / 6000)).collect();
    let trace = format!("links.satellite.rate={{ mahimahi = \"{trace}\" }}");
    for (kind, set) in [
        (
            "rates drawn anew",
            "links.satellite.reconfiguration={ every = \"1 s\", rate_sigma = 0.5, rate_factor_min = 0.28, rate_factor_max = 1.7 }",
        ),
        (
            "breaks",
            "links.satellite.reconfiguration={ every = \"5 s\", interruption_min = \"20 ms\", interruption_max = \"150 ms\", added_delay_max = \"5 ms\" }",
        ),
        (
            "outages",
            "links.satellite.outages=[{ start = \"3 s\", length = \"700 ms\", every = \"11 s\" }]",
        ),
        (
            "steps",
            "links.satellite.rate={ trace = [[\"0 s\", \"20 Mbit/s\"], [\"7 s\", \"8 Mbit/s\"], [\"9 s\", \"14 Mbit/s\"], [\"30 s\", \"5 Mbit/s\"]] }",
        ),
        ("a delivery trace", &trace),
        (
            "fading",
            "links.satellite.acm={ symbol_rate_baud = 5e6, es_n0_db = { trace = [[\"0 s\", 12], [\"10 s\", 9], [\"13 s\", 6], [\"16 s\", 4], [\"19 s\", 8]], repeat = \"25 s\" } }",
        ),
        (
            "grants by rate",
            "links.satellite.dama={ cra = \"1 Mbit/s\", rbdc_max = \"5 Mbit/s\", vbdc = false }",
        ),
    ] {
        let share = flooded(&[set]);
        assert!((0.998..=1.0).contains(&share), "{kind}: {share}");
    }
}

#[test]
fn two_links_that_vary_carry_what_both_together_do() {
    let share = flooded(&[
        "links.satellite.reconfiguration={ every = \"1 s\", rate_sigma = 0.5 }",
        "links.internet.rate={ trace = [[\"0 s\", \"15 Mbit/s\"], [\"2 s\", \"40 Mbit/s\"]], repeat = \"4 s\" }",
        // The queue before the second link drops nothing: in a fluid model, data waits as long as
        // it must.
        "links.satellite.queue=64 MB",
        "links.internet.queue=64 MB",
    ]);
    assert!((0.995..=1.0).contains(&share), "{share}");
}

#[test]
fn the_preset_is_flooded_to_its_limit_but_for_chance() {
    for seed in ["seed=1", "seed=2", "seed=3"] {
        let share =
            flooded(&["links.satellite.preset=starlink", "links.satellite.delay=13 ms", seed]);
        assert!((0.997..1.0015).contains(&share), "{seed}: {share}");
    }
}

#[test]
fn a_transfer_stands_beside_what_its_own_run_drew() {
    let timed = "[transfers.t]\nfrom = \"server\"\nto = \"client\"\nseconds = 30\ncongestion = \"bbr\"\n\
                 [transfers.page]\nfrom = \"server\"\nto = \"client\"\nobjects = [\"50 kB\", \"400 kB\"]\nstart = \"2 s\"\n";
    let drawn = "links.satellite.reconfiguration={ every = \"2 s\", rate_sigma = 0.8, interruption_max = \"80 ms\" }";
    let mut limits = Vec::new();
    for seed in ["seed=1", "seed=2"] {
        let plan = plan(timed, &[drawn, seed]);
        let record = simulated(&plan);
        for transfer in &record.transfers {
            let limit = transfer.limit.as_ref().expect("the satellite is narrow");
            assert!(transfer.complete && limit.efficiency <= 1.0, "{transfer:?}");
            assert!(limit.drawn.is_some_and(|drawn| drawn >= transfer.bytes), "{limit:?}");
            assert!(transfer.goodput <= limit.goodput, "{limit:?}");
        }
        let limit =
            record.transfers.iter().find(|it| it.name == "t").and_then(|it| it.limit.clone());
        limits.push(limit.expect("a limit").goodput);
        let satellite = record.links.iter().filter(|link| link.name == "satellite");
        for link in satellite {
            assert!(
                link.capacity_bytes.is_some_and(|most| most + 1500 >= link.bytes_sent),
                "{link:?}"
            );
        }
        assert!(
            record.links.iter().filter(|it| it.name == "lan").all(|it| it.capacity_bytes.is_none())
        );
    }
    assert_ne!(limits[0], limits[1], "each seed has draws of its own");
    // Where nothing varies, the record does not mention it.
    let constant = simulated(&plan(timed, &[])).to_json().expect("a record has a form");
    assert!(!constant.contains("drawn_bytes") && !constant.contains("capacity_bytes"));
}
