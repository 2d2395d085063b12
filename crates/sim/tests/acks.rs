//! Acknowledgements over a narrow return link, and those who thin them.

mod scenes;

use midhop_experiment::record::Record;
use midhop_sim::{Options, run};
use midhop_units::{Bytes, Duration};
use scenes::{FILE, plan};

/// A return link of 60 kbit/s, as wide queues as it takes for them to fill.
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
    assert!((plain / law - 1.0).abs() < 0.1, "{plain} Mbit/s, {law} by the law");
}

#[test]
fn a_filter_before_the_narrow_link_frees_the_wide_one() {
    let set = [&NARROW[..], &["nodes.terminal.agents=[\"thin\"]"]].concat();
    let record = record(THIN, &set, true);
    assert!(goodput(&record) > 7.5, "{}", goodput(&record));
    let node = &record.nodes[0];
    let gone = node.counts["thin.acks-superseded"];
    assert_eq!((node.node.as_str(), gone), ("terminal", superseded(&record, "satellite", "up")));
    assert!(gone * 2 > node.counts["thin.acks"], "{node:?}");
    assert_eq!(superseded(&record, "satellite", "down"), 0);
    // What is not sent does not wait: the round trip stays near that of the cables.
    let rtt = record.transfers[0].flows[0].rtt_min.expect("measured");
    assert!(rtt < Duration::from_ms(90), "{rtt}");
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
