//! Acknowledgements over a narrow return link, and agents that thin them.

use crate::scenes::{FILE, plan};
use midhop_experiment::record::Record;
use midhop_sim::{Options, run};
use midhop_units::{Bytes, Duration};
use proptest::prelude::*;

/// A return link of 60 kbit/s, with queues that are large enough to fill.
const NARROW: [&str; 4] = [
    "links.satellite.up.rate=60 kbit/s",
    "links.satellite.down.rate=10 Mbit/s",
    "links.satellite.up.queue=100 packets",
    "transfers.file.bytes=4 MB",
];

const THIN: &str = "[agents.thin]\nkind = \"ack-filter\"\nlinks = [\"satellite\"]\n";

fn record(more: &str, set: &[&str], checking: bool) -> Record {
    let options = Options { checking, ..Options::default() };
    let result = run(&plan(&format!("{FILE}{more}"), set), &options);
    let (record, _) = result.unwrap_or_else(|error| panic!("{set:?}: {error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

fn superseded(record: &Record, link: &str, way: &str) -> u64 {
    let link = record.links.iter().find(|it| it.name == link && it.direction == way);
    link.expect("it is there").drops.get("superseded").copied().unwrap_or(0)
}

/// Goodput in Mbit/s of 4 MB over the wide link of 10 Mbit/s without losses. Its round trip of 77
/// ms holds 66 segments, which is three doublings from ten. With the handshake and the end there
/// are five rounds, and in each of them the agents add this delay.
fn law_of_five_rounds(waits_s: f64) -> f64 {
    let (bits, wide) = (4e6 * 8.0, 10e6 * 1448.0 / 1500.0);
    bits / (bits / wide + 5.0 * (0.077 + waits_s)) / 1e6
}

/// Goodput in Mbit/s of a file that is complete.
fn goodput(record: &Record) -> f64 {
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    record.transfers[0].goodput.mbit_per_s()
}

#[test]
fn without_a_filter_the_return_link_sets_the_pace() {
    // An ACK of 52 bytes for two segments of 1448 bytes.
    let law = 60e3 / (52.0 * 8.0) * 2.0 * 1448.0 * 8.0 / 1e6;
    let plain = goodput(&record("", &NARROW, false));
    // 9.6 s by the law. Before that, slow start takes five rounds of 77 ms, 4 %, and the first 16
    // segments are acknowledged one by one.
    assert!((plain / law - 1.0).abs() < 0.1, "{plain} Mbit/s, {law} by the law");
}

#[test]
fn a_filter_before_the_narrow_link_frees_the_wide_one() {
    let set = [&NARROW[..], &[ROOMY, "nodes.terminal.agents=[\"thin\"]"]].concat();
    let record = record(THIN, &set, true);
    let law = law_of_five_rounds(52.0 * 8.0 / 60e3);
    assert!(goodput(&record) > law, "{} Mbit/s, {law} by the law", goodput(&record));
    let node = &record.nodes[0];
    let gone = node.counts["thin.acks-superseded"];
    assert_eq!((node.node.as_str(), gone), ("terminal", superseded(&record, "satellite", "up")));
    // The wide link causes 417 acknowledgements a second, of which the narrow one carries 144: two
    // in three are dropped, except in slow start.
    assert!(gone * 2 > node.counts["thin.acks"], "{node:?}");
    assert_eq!(superseded(&record, "satellite", "down"), 0);
    // Dropped acknowledgements add no delay to the others: 70.4 ms of cables, 1.2 ms for a segment,
    // and on the narrow link 6.9 ms each for the acknowledgement and for the one that is being sent
    // before it.
    let rtt = record.transfers[0].flows[0].rtt_min.expect("measured");
    assert!(rtt < Duration::from_us(85_600), "{rtt}");
}

#[test]
fn a_hosts_own_acknowledgements_are_filtered_too() {
    let narrow = [
        "links.lan.up.rate=60 kbit/s",
        "links.lan.up.queue=100 packets",
        "links.satellite.down.rate=10 Mbit/s",
        "transfers.file.bytes=4 MB",
    ];
    let plain = goodput(&record(THIN, &narrow, false));
    let set =
        [&narrow[..], &["agents.thin.links=[\"lan\"]", "nodes.client.agents=[\"thin\"]"]].concat();
    let thin = goodput(&record(THIN, &set, true));
    // 3.3 Mbit/s by the law above, against 8.6 Mbit/s, which is 9.65 less the time of slow start.
    assert!(thin > 2.0 * plain, "{thin} against {plain} Mbit/s");
}

#[test]
fn nothing_is_lost_over_lossy_links_in_either_family() {
    for (number, family) in (1..=6).zip(["ipv4", "ipv6"].into_iter().cycle()) {
        let (family, seed) = (format!("transfers.file.family={family}"), format!("seed={number}"));
        let set = [
            &NARROW[..],
            &[
                "nodes.terminal.agents=[\"thin\"]",
                "links.satellite.loss=0.02",
                "transfers.file.flows=3",
                "transfers.file.bytes=500 kB",
                &family,
                &seed,
            ],
        ]
        .concat();
        let record = record(THIN, &set, true);
        let transfer = &record.transfers[0];
        assert!(transfer.complete, "seed {seed}: {transfer:?}");
        assert_eq!(transfer.bytes, Bytes::new(1_500_000));
        assert!(superseded(&record, "satellite", "up") > 0);
    }
}

const ALL: &str = r#"
[agents.thin]
kind = "ack-filter"
[agents.few]
kind = "ack-decimation"
keep_one_in = 8
[agents.even]
kind = "ack-spacing"
rebuild = "2896 B"
[agents.paced]
kind = "ack-spacing"
rate = "10 Mbit/s"
[peps.plain]
"#;

/// A queue of the wide link that is large enough for slow start without losses.
const ROOMY: &str = "links.satellite.down.queue=1000 packets";

const DECIMATED: [&str; 2] =
    ["agents.few.links=[\"satellite\"]", "nodes.terminal.agents=[\"few\"]"];

#[test]
fn decimation_frees_the_wide_link_and_counts_what_it_leaves_out() {
    let record = record(ALL, &[&NARROW[..], &DECIMATED, &[ROOMY]].concat(), true);
    // One ACK releases 16 segments, 26 Mbit/s: the wide link is the limit, and each of the first
    // rounds waits for the hold of 50 ms.
    let law = law_of_five_rounds(0.05);
    assert!(goodput(&record) > law, "{} Mbit/s, {law} by the law", goodput(&record));
    let node = &record.nodes[0];
    assert_eq!(node.drops["ack-decimated"], node.counts["few.acks-left-out"]);
    let share = node.counts["few.acks-left-out"] as f64 / node.counts["few.acks"] as f64;
    // Seven in eight, less one for each hold: at most two in each of the five rounds, of 1381 in
    // all.
    let held = 10.0 / 1381.0;
    assert!((0.875 - held - 0.001..=0.875).contains(&share), "{share} left out: {node:?}");
}

#[test]
fn decimation_leaves_the_acknowledgements_of_a_repair_to_the_narrow_link() {
    // Acknowledgements with SACK blocks are all forwarded, one for each segment, and at most 144 a
    // second pass. The wide link's window and queue hold 108 segments. Slow start sends up to twice
    // as many, and half of them again: 320, which take more than two seconds. A queue of 100 before
    // them takes another seven tenths. The file takes 3.3 s. Where the way back is wide, three
    // rounds of 120 ms suffice. Half and three tenths are bounds in between.
    let repair = |more: &[&str]| {
        let record = record(ALL, &[&NARROW[..], &DECIMATED, more].concat(), true);
        let flow = &record.transfers[0].flows[0];
        assert!(flow.retransmissions > 0, "{flow:?}");
        let recovery = flow.phases.as_ref().expect("known").recovery;
        (recovery.as_ns() as f64, (flow.end.saturating_sub(flow.start)).as_ns() as f64)
    };
    let (narrow, all) = repair(&[]);
    assert!(narrow > 0.5 * all, "{narrow} of {all} ns");
    let (wide, all) = repair(&["links.satellite.up.rate=10 Mbit/s"]);
    assert!(wide < 0.3 * all, "{wide} of {all} ns");
}

#[test]
fn rebuilt_acknowledgements_cost_no_more_than_the_time_between_those_that_came() {
    let set = [
        &NARROW[..],
        &[
            ROOMY,
            "agents.thin.links=[\"satellite\"]",
            "agents.even.links=[\"satellite\"]",
            "nodes.terminal.agents=[\"thin\"]",
            "nodes.gateway.agents=[\"even\"]",
        ],
    ]
    .concat();
    let record = record(ALL, &set, true);
    // A round waits for the interval between two acknowledgements of 52 bytes on the narrow link.
    let law = law_of_five_rounds(52.0 * 8.0 / 60e3);
    assert!(goodput(&record) > law, "{} Mbit/s, {law} by the law", goodput(&record));
    let node = record.nodes.iter().find(|node| node.node == "gateway").expect("it counted");
    // With the generated ones there is one for each two segments, except for those that end
    // repairs.
    let (acks, made) = (node.counts["even.acks-come"], node.counts["even.acks-made"]);
    let all = 4_000_000 / 2896;
    assert!(made > acks && (acks + made).abs_diff(all) < all / 10, "{acks} and {made} of {all}");
}

#[test]
fn the_same_seed_gives_the_same_record_through_agents_and_a_proxy() {
    let set = [
        &NARROW[..],
        &[
            "nodes.terminal.agents=[\"few\", \"thin\"]",
            "nodes.gateway.agents=[\"even\"]",
            "nodes.gateway.pep=plain",
            "links.satellite.loss=0.01",
            "transfers.file.flows=2",
            "transfers.file.bytes=500 kB",
        ],
    ]
    .concat();
    let first = record(ALL, &set, true);
    assert!(first.transfers[0].complete, "{:?}", first.transfers[0]);
    let node = first.nodes.iter().find(|node| node.node == "gateway").expect("it counted");
    // The proxy accepted both flows, and the acknowledgements of its legs passed the agents before
    // it.
    assert_eq!(node.counts["flows"], 2, "{node:?}");
    assert!(node.counts["even.acks-come"] > 0, "{node:?}");
    let text = |record: &Record| record.to_json().expect("JSON");
    assert_eq!(text(&first), text(&record(ALL, &set, false)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn bytes_arrive_whole_through_any_chain_of_agents(
        chains in proptest::collection::vec(
            proptest::sample::subsequence(vec!["thin", "few", "even", "paced"], 0..=4).prop_shuffle(),
            4,
        ),
        pep in proptest::option::of(0..2usize),
        loss in 0..4u32,
        ipv6: bool,
        upload: bool,
        flows in 1..4u32,
        seed in 1..1000u32,
    ) {
        let mut set: Vec<String> = NARROW[..3].iter().map(|set| (*set).to_owned()).collect();
        for (node, chain) in ["client", "terminal", "gateway", "server"].iter().zip(&chains) {
            set.push(format!("nodes.{node}.agents={chain:?}"));
        }
        if let Some(at) = pep {
            set.push(format!("nodes.{}.pep=plain", ["terminal", "gateway"][at]));
        }
        set.push(format!("links.satellite.loss={}", f64::from(loss) / 100.0));
        set.push(format!("transfers.file.family={}", if ipv6 { "ipv6" } else { "ipv4" }));
        set.push(format!("transfers.file.flows={flows}"));
        // The way up is as narrow as before, so less is sent there.
        let bytes = if upload { 20_000 } else { 150_000 };
        set.push(format!("transfers.file.bytes={bytes} B"));
        if upload {
            set.push("transfers.file.from=client".to_owned());
            set.push("transfers.file.to=server".to_owned());
        }
        set.push(format!("seed={seed}"));
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let record = record(ALL, &set, true);
        let transfer = &record.transfers[0];
        prop_assert!(transfer.complete, "{set:?}: {transfer:?}");
        prop_assert_eq!(transfer.bytes, Bytes::new(bytes * u64::from(flows)));
    }
}
