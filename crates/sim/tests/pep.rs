//! Proxies on the path: every byte arrives, windows bound what is held, and the satellite leg gains.

mod scenes;

use midhop_experiment::record::Record;
use midhop_sim::{Options, run};
use midhop_units::Bytes;
use scenes::{FILE, plan};

fn record(more: &str, set: &[&str], checking: bool) -> Record {
    let options = Options { checking, ..Options::default() };
    let result = run(&plan(more, set), &options);
    let (record, _) = result.unwrap_or_else(|error| panic!("{set:?}: {error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

const PEPS: &str = "[peps.gw]\nlegs.satellite = { congestion = \"hybla\", rate = \"20 Mbit/s\", \
    rtt = \"50 ms\" }\nlegs.internet.congestion = \"cubic\"\n[peps.plain]\n[peps.early]\nintercept.accept = \"early\"\n";

#[test]
fn chains_of_proxies_deliver_every_byte_over_lossy_links() {
    for seed in 1..=6 {
        let set = [
            "nodes.terminal.pep=plain",
            "nodes.gateway.pep=gw",
            "links.satellite.loss=0.03",
            "links.internet.loss=0.01",
            "links.lan.loss=0.005",
            "transfers.file.flows=3",
            "transfers.file.bytes=400 kB",
            "links.satellite.down.duplicate=0.01",
            &format!("seed={seed}"),
        ];
        let record = record(&format!("{FILE}{PEPS}"), &set, seed == 1);
        let transfer = &record.transfers[0];
        assert!(transfer.complete, "seed {seed}: {transfer:?}");
        assert_eq!(transfer.bytes, Bytes::new(1_200_000), "seed {seed}");
        assert_eq!(record.nodes.len(), 2, "{:?}", record.nodes);
        for node in &record.nodes {
            assert_eq!(node.counts["flows"], 3, "{node:?}");
            assert!(!node.counts.contains_key("flows-reset"), "{node:?}");
            assert!(node.counts["bytes-down"] >= 1_200_000, "{node:?}");
        }
        // Each proxy has two legs.
        assert_eq!(record.legs.len(), 4, "{:?}", record.legs);
        let satellite = |node: &str| {
            record.legs.iter().find(|leg| leg.node == node && leg.link == "satellite").expect(node)
        };
        assert!(satellite("gateway").retransmissions > 0);
        // The run ends before the last acknowledgements are back.
        assert!(satellite("gateway").bytes >= Bytes::new(600_000));
    }
}

#[test]
fn the_same_seed_gives_the_same_record_through_proxies() {
    let set = [
        "nodes.terminal.pep=early",
        "nodes.gateway.pep=gw",
        "links.satellite.loss=0.01",
        "transfers.file.flows=4",
    ];
    let text = || record(&format!("{FILE}{PEPS}"), &set, false).to_json().expect("JSON");
    assert_eq!(text(), text());
}

#[test]
fn a_proxy_at_the_gateway_beats_end_to_end_over_a_lossy_geostationary_link() {
    let geo = [
        "links.satellite.down.loss=0.01",
        "links.satellite.delay=295 ms",
        "links.internet.delay=5 ms",
    ];
    let took = |set: &[&str]| {
        let set = [&geo[..], set].concat();
        let record = record(&format!("{FILE}{PEPS}"), &set, false);
        assert!(record.transfers[0].complete, "{set:?}: {:?}", record.transfers[0]);
        record.transfers[0].took.as_s_f64()
    };
    let long = "peps.gw.legs.satellite.rtt=590 ms";
    let split = took(&["nodes.gateway.pep=gw", long]);
    let end_to_end = took(&[]);
    assert!(split * 2.0 < end_to_end, "{split} s against {end_to_end} s");
}

#[test]
fn a_far_source_gets_a_window_per_round_trip() {
    // The buffer on the leg of the server bounds what it may have in flight: half of it is offered.
    for (rtt_ms, buffer) in [(200.0, 256_u64 << 10), (300.0, 512 << 10), (100.0, 128 << 10)] {
        let set = [
            "nodes.gateway.pep=gw",
            "links.satellite.delay=1 ms",
            "links.satellite.rate=200 Mbit/s",
            "peps.gw.legs.satellite.rate=200 Mbit/s",
            &format!("links.internet.delay={} ms", rtt_ms / 2.0),
            &format!("peps.gw.legs.internet.buffer={buffer} B"),
            "transfers.file.bytes=40 MB",
            "duration=120 s",
        ];
        let record = record(&format!("{FILE}{PEPS}"), &set, false);
        let transfer = &record.transfers[0];
        assert!(transfer.complete, "{transfer:?}");
        // Whole segments; and five round trips for handshake, request and slow start.
        let window = (buffer / 2 / 1448 * 1448) as f64;
        let law_s = transfer.bytes.get() as f64 / window * (rtt_ms / 1e3) + 5.0 * rtt_ms / 1e3;
        let ratio = law_s / transfer.took.as_s_f64();
        assert!((ratio - 1.0).abs() < 0.03, "{rtt_ms} ms, {buffer} B: {ratio} of the law");
    }
}

#[test]
fn flows_divide_the_rate_of_their_leg() {
    let set = [
        "nodes.gateway.pep=gw",
        "transfers.file.flows=4",
        "transfers.file.bytes=4 MB",
        "links.satellite.down.loss=0.01",
    ];
    let record = record(&format!("{FILE}{PEPS}"), &set, false);
    let transfer = &record.transfers[0];
    assert!(transfer.complete, "{transfer:?}");
    let ends: Vec<f64> = transfer.flows.iter().map(|flow| flow.end.as_s_f64()).collect();
    let (first, last) = (ends.iter().copied().fold(f64::MAX, f64::min), transfer.took.as_s_f64());
    assert!(last / first < 1.1, "{ends:?}");
    assert!(transfer.goodput.mbit_per_s() > 15.0, "{}", transfer.goodput);
}
