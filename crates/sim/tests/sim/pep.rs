//! Proxies on the path: every byte arrives, windows bound what is held, and the satellite leg gains.

use crate::scenes::{CHAIN, FILE, plan};
use midhop_experiment::Scenario;
use midhop_experiment::record::{LinkResult, Record};
use midhop_sim::{Options, run};
use midhop_units::{Bytes, Duration};

fn record(more: &str, set: &[&str], checking: bool) -> Record {
    let options = Options { checking, ..Options::default() };
    let result = run(&plan(more, set), &options);
    let (record, _) = result.unwrap_or_else(|error| panic!("{set:?}: {error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

const PEPS: &str = "[peps.gw]\nlegs.satellite = { congestion = \"hybla-plus\", rate = \"20 Mbit/s\", \
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
    // The buffer on the server's leg limits its data in flight: half of it is offered.
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

/// A pair of proxies around a geostationary link of 20 Mbit/s, and the congestion control of the nearer one.
fn between_proxies(congestion: &str, set: &[&str]) -> Record {
    let peps = "[peps.gw]\nlegs.satellite = { rate = \"20 Mbit/s\", rtt = \"580.4 ms\" }\n\
                [peps.far]\nlegs.satellite = { rate = \"20 Mbit/s\", rtt = \"580.4 ms\" }\n";
    let congestion = format!("peps.gw.legs.satellite.congestion={congestion}");
    let all = [
        "nodes.gateway.pep=gw",
        "nodes.terminal.pep=far",
        "links.satellite.delay=290 ms",
        congestion.as_str(),
    ];
    let record = record(&format!("{FILE}{peps}"), &[&all[..], set].concat(), false);
    assert!(record.transfers[0].complete, "{congestion}: {:?}", record.transfers[0]);
    record
}

fn satellite(record: &Record) -> &LinkResult {
    let down = record.links.iter().find(|it| it.name == "satellite" && it.direction == "down");
    down.expect("the link")
}

/// Time to the first byte: the SYN and its answer, the request, and the delay of the data.
const FIRST_BYTE_S: f64 = 2.0 * 0.6004;

#[test]
fn a_leg_of_known_rate_is_filled_through_losses_and_never_overbooked() {
    // In its last round, a flow has 260 segments. At 1 %, 2.6 of them are lost, and a
    // retransmission is lost in one flow of forty. At 5 %, 13 are lost, and a retransmission in
    // every second flow.
    for (congestion, loss, repairs) in [
        ("known-rate", 0.0, 1.0),
        ("known-rate", 0.01, 1.0),
        ("{ algorithm = \"known-rate\", window = 3, loss_max = 0.3 }", 0.05, 2.0),
    ] {
        let set = [
            "transfers.file.flows=4",
            "transfers.file.bytes=6 MB",
            &format!("links.satellite.down.loss={loss}"),
        ];
        let record = between_proxies(congestion, &set);
        // 1448 of 1500 bytes are payload.
        let ideal_s = 24e6 * 8.0 / (20e6 * 1448.0 / 1500.0 * (1.0 - loss)) + FIRST_BYTE_S;
        let mut ends: Vec<_> = record.transfers[0].flows.iter().map(|flow| flow.end).collect();
        ends.sort_unstable();
        // One flow may lose its last segment and wait for a tail loss probe; the others end
        // together.
        let end_s = ends[2].as_s_f64();
        // A repair takes a round trip, and the quarter of one for which RACK waits for reordered
        // segments.
        let late_s = (0.25 + 1.25 * repairs) * 0.6;
        assert!(end_s < ideal_s + late_s, "{congestion}, {loss}: {ends:?} of {ideal_s} s");
        // The first ten segments of each flow leave at once, as in Linux' fq.
        let queue = satellite(&record).queue_bytes_max;
        assert!(queue <= 4 * 10 * 1500, "{congestion}, {loss}: a queue of {queue} bytes");
    }
}

#[test]
fn an_open_loop_fills_what_carries_less_than_was_configured_and_loses_the_rest() {
    let congestion = "{ algorithm = \"known-rate\", open_loop = true }";
    // Only buffers limit the rate: here they hold the whole file.
    let set = [
        "transfers.file.bytes=10 MB",
        "links.satellite.rate=10 Mbit/s",
        "peps.gw.legs.satellite.buffer=32 MB",
        "peps.far.legs.satellite.buffer=32 MB",
    ];
    let record = between_proxies(congestion, &set);
    let leg = record.legs.iter().find(|leg| leg.node == "gateway" && leg.link == "satellite");
    let resent = leg.expect("the leg").retransmissions;
    // Half of the leg's 20 Mbit/s do not fit, of 6,907 segments and their retransmissions. A closed
    // loop detects that within a few round trips.
    assert!(resent > 4_000, "{resent} sent again");
    let closed = between_proxies("known-rate", &set);
    let leg = closed.legs.iter().find(|leg| leg.node == "gateway" && leg.link == "satellite");
    assert!(leg.expect("the leg").retransmissions < resent / 2, "{leg:?} for {resent}");
}

#[test]
fn a_table_at_a_leg_reaches_its_connections() {
    let lossless = |congestion: &str| between_proxies(congestion, &["transfers.file.bytes=1 MB"]);
    let took = |congestion: &str| lossless(congestion).transfers[0].took;
    let burst = took("cubic");
    let resumed = took(
        "{ algorithm = \"cubic\", opening = \"careful-resume\", saved_window = \"1.5 MB\", \
         saved_rtt = \"580.4 ms\" }",
    );
    let jumped = took("{ algorithm = \"cubic\", opening = \"jump\", rate = \"18 Mbit/s\" }");
    // 691 segments are seven flights starting from ten; or three flights: ten, half of the saved
    // window, and the rest; or one. Spreading a flight takes up to a round trip more.
    let rtt = Duration::from_ms(580);
    assert!(resumed + rtt * 2 < burst, "{resumed} to {burst}");
    assert!(jumped + rtt * 4 < burst, "{jumped} to {burst}");
}

#[test]
fn xcp_runs_between_two_proxies_where_the_link_answers_it() {
    let set = ["links.satellite.down.aqm=xcp", "transfers.file.bytes=12 MB"];
    let record = between_proxies("xcp", &set);
    assert_eq!(satellite(&record).drops.values().sum::<u64>(), 0);
    let took = record.transfers[0].took.as_s_f64();
    // 5 s at full rate. The missing part of the rate shrinks by a factor of 0.4 per round trip, one
    // round trip late: 1 / 0.4 and 1 round trips are lost, from any first window.
    assert!(took < 5.0 + FIRST_BYTE_S + 3.5 * 0.6, "{took} s");
}

#[test]
fn a_table_that_means_nothing_is_refused_on_its_line() {
    let refused = |leg: &str| {
        let text = format!("{CHAIN}{FILE}[peps.gw]\nlegs.satellite = {leg}\n");
        let scenario = Scenario::parse("chain.toml", &text).and_then(|mut scenario| {
            scenario.set("nodes.gateway.pep=gw")?;
            scenario.plans()
        });
        let error = scenario.err().unwrap_or_else(|| panic!("{leg} is taken"));
        assert_eq!(error.line as usize, text.lines().count(), "{error}");
        error.message
    };
    for (leg, message) in [
        ("{ congestion = { algorithm = \"known-rate\" } }", "the leg has no rate"),
        (
            "{ rate = \"1 Mbit/s\", congestion = { algorithm = \"known-rate\", link = \"lan\" } }",
            "use the leg's link",
        ),
        (
            "{ rate = \"1 Mbit/s\", congestion = { algorithm = \"known-rate\", rate = \"2 Mbit/s\" } }",
            "takes the rate of the leg",
        ),
        ("{ congestion = { algorithm = \"xcp\" } }", "no router on the path"),
        ("{ congestion = { algorithm = \"cubic\", slow = \"search\" } }", "unknown key"),
        ("{ congestion = { algorithm = \"cubik\" } }", "no algorithm of ours"),
    ] {
        let refusal = refused(leg);
        assert!(refusal.contains(message), "{leg}: {refusal}");
    }
}
