//! Each metric is documented, and their number is bounded.

use super::*;
use crate::snapshot::{Carrier, PrefixSnapshot};
use midhop_units::{Bytes, Rate};

/// A daemon that is well, with this many workers.
fn daemon(workers: usize) -> DaemonState {
    let once = BTreeMap::from([("x".to_owned(), 1)]);
    DaemonState {
        uptime: Duration::from_ms(1500),
        draining: false,
        health: Health::new(workers),
        reloads: once.clone(),
        log_messages: once,
    }
}

/// A snapshot in which nothing is left out.
fn full() -> String {
    let millisecond = Some(Duration::from_ms(1));
    let leg = LegSnapshot {
        rtt: millisecond,
        rtt_min: millisecond,
        senders: Some(1),
        share: Some(Rate::from_mbit_per_s(1)),
        rate_bit_per_s: Some(1),
        rate_in_bit_per_s: Some(1),
        waiting: BTreeMap::from([("window", 1)]),
        ..LegSnapshot::default()
    };
    let peer = PeerSnapshot {
        rtt: millisecond,
        rate: Some(Rate::from_mbit_per_s(1)),
        carried: Some(Rate::from_mbit_per_s(1)),
        reported: Some(Rate::from_mbit_per_s(1)),
        retry_pause: millisecond,
        carrier: Some(Carrier::Quic),
        protected_total: Bytes::new(1),
        loss: Some(0.0),
        certificate_expires_unix_s: Some(1),
        conditions: BTreeMap::from([(
            "far-idle",
            ConditionSnapshot { flows: 1, bandwidth_ratio: Some(0.5) },
        )]),
        ..PeerSnapshot::default()
    };
    let once = BTreeMap::from([("x".to_owned(), 1)]);
    let snapshot = Snapshot {
        firewall_passed_total: once.clone(),
        refused_total: once.clone(),
        assist_total: once.clone(),
        orphaned_flows_total: once.clone(),
        moved_flows_total: once.clone(),
        peers_denied_total: once.clone(),
        handshakes_refused_total: once.clone(),
        resumptions_total: once.clone(),
        handshakes_limited_total: once.clone(),
        claims_ignored_total: 1,
        limits_reached_total: once.clone(),
        waiting: once.clone(),
        source_prefixes: BTreeMap::from([("x".to_owned(), PrefixSnapshot::default())]),
        certificates_expire_unix_s: BTreeMap::from([("own".to_owned(), 1)]),
        ended_total: once,
        workers: vec![WorkerSnapshot::default()],
        legs: BTreeMap::from([("x".to_owned(), leg)]),
        peers: BTreeMap::from([("x".to_owned(), peer)]),
        ..Snapshot::default()
    };
    render(snapshot, daemon(1)).expect("rendered")
}

/// A table row per metric, no more and no fewer.
#[test]
fn the_documentation_lists_every_metric() {
    let documented: std::collections::BTreeSet<&str> = include_str!("../../../../docs/midhopd.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `midhop_")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    let rendered = full();
    let names: std::collections::BTreeSet<&str> = rendered
        .lines()
        .filter_map(|line| line.strip_prefix("midhop_")?.split([' ', '{']).next())
        .collect();
    assert_eq!(names, documented);
}

#[test]
fn the_book_has_every_metric() {
    let (rendered, mut page) = (full(), String::from("# Metrics\n\n"));
    page += "`admin.listen` serves them at `/metrics`, in OpenMetrics' text form.\n\n";
    page += "| metric | kind | labels | meaning |\n|---|---|---|---|\n";
    let mut help = ("", "");
    let mut kind = "";
    let mut seen = std::collections::BTreeSet::new();
    for line in rendered.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').expect("a name and what it means");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            kind = rest.split_once(' ').expect("a name and its kind").1;
        } else if let Some((sample, _)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) {
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let labels = labels.split(',').filter_map(|label| label.split_once('='));
            let labels: Vec<_> = labels.map(|(label, _)| format!("`{label}`")).collect();
            if seen.insert(name.to_owned()) {
                let meaning = help.1.trim_end_matches('.');
                page += &format!("| `{name}` | {kind} | {} | {meaning} |\n", labels.join(", "));
            }
        }
    }
    midhop_testkit::pages::assert_page("metrics.md", &page);
}

/// However many legs, peers and workers there are: the labels of one family stay bounded.
#[test]
fn the_number_of_series_is_bounded() {
    fn many<S: Clone>(one: S) -> BTreeMap<String, S> {
        (0..3 * NAMES_MAX).map(|number| (format!("name{number}"), one.clone())).collect()
    }
    let snapshot = Snapshot {
        workers: vec![WorkerSnapshot::default(); 3 * NAMES_MAX],
        legs: many(LegSnapshot::default()),
        peers: many(PeerSnapshot { carrier: Some(Carrier::Quic), ..PeerSnapshot::default() }),
        ..Snapshot::default()
    };
    let rendered = render(snapshot, daemon(2 * NAMES_MAX)).expect("rendered");
    let mut series: BTreeMap<&str, usize> = BTreeMap::new();
    for line in rendered.lines().filter(|line| !line.starts_with('#')) {
        *series.entry(line.split(['{', ' ']).next().expect("a name")).or_default() += 1;
    }
    let buckets = series.remove("midhop_worker_delay_seconds_bucket").expect("buckets");
    assert!(buckets <= NAMES_MAX * 32, "{buckets}");
    for (name, count) in series {
        let bound = match name {
            "midhop_peer_carrier" => Carrier::ALL.len(),
            "midhop_peer_tunnels_opened_total" => 2,
            _ => 1,
        };
        assert!(count <= NAMES_MAX * bound, "{name}: {count}");
    }
    let unnamed = format!("midhop_unnamed{{label=\"leg\"}} {}", 2 * NAMES_MAX);
    assert!(rendered.lines().any(|line| line == unnamed), "what is left out is counted");
}

#[test]
fn a_snapshot_is_rendered_whole() {
    let leg = LegSnapshot {
        connections: 3,
        sent_total: Bytes::new(5),
        retransmissions_total: 2,
        rtt: Some(Duration::from_ms(600)),
        ..LegSnapshot::default()
    };
    let snapshot = Snapshot {
        flows: 7,
        split_total: 9,
        bypassed_by_limit_total: 1,
        ended_total: BTreeMap::from([("fin".to_owned(), 2)]),
        down_total: Bytes::new(1 << 40),
        legs: BTreeMap::from([("sat\"0".to_owned(), leg)]),
        ..Snapshot::default()
    };
    let rendered = render(snapshot, daemon(0)).expect("rendered");
    for line in [
        "midhop_flows 7.0",
        "midhop_uptime_seconds 1.5",
        "midhop_flows_started_total{action=\"split\"} 9",
        "midhop_flows_started_total{action=\"bypass_limit\"} 1",
        "midhop_flows_ended_total{end=\"fin\"} 2",
        "midhop_relayed_bytes_total{direction=\"down\"} 1099511627776",
        "midhop_leg_connections{leg=\"sat\\\"0\"} 3",
        "midhop_leg_sent_bytes_total{leg=\"sat\\\"0\"} 5",
        "midhop_leg_retransmissions_total{leg=\"sat\\\"0\"} 2",
        "midhop_leg_rtt_seconds{leg=\"sat\\\"0\"} 0.6",
        "# TYPE midhop_leg_retransmissions counter",
        "# UNIT midhop_relayed_bytes bytes",
    ] {
        assert!(rendered.lines().any(|own| own == line), "no \"{line}\" in:\n{rendered}");
    }
    assert!(rendered.ends_with("# EOF\n"));
    assert!(!rendered.contains("leg_rtt_min") && !rendered.contains("flows_refused"));
}
