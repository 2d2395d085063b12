//! A snapshot in the text form that Prometheus scrapes (OpenMetrics 1.0).

mod watched;

use crate::health::Health;
use crate::ledger::Carrier;
use crate::snapshot::{ConditionSnapshot, LegSnapshot, PeerSnapshot, Snapshot, WorkerSnapshot};
use midhop_units::Duration;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::{Registry, Unit},
};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The media type of what [`render`] gives.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Legs, peers and workers that have series of their own, the first by name. Every other label has values that the
/// code lists, or a bound of its own ([`crate::prefixes::PREFIXES_MAX`]), so the number of series is bounded, whoever
/// connects and however often the configuration changes.
pub const NAMES_MAX: usize = 1000;

/// Renders a snapshot, and the delays of the workers' loops.
///
/// # Errors
/// Only where text cannot be put together at all.
pub fn render(
    mut snapshot: Snapshot,
    uptime: Duration,
    draining: bool,
    health: Arc<Health>,
) -> Result<String, fmt::Error> {
    let unnamed = bound_names(&mut snapshot);
    let mut registry = Registry::with_prefix("midhop");
    let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The program that runs", build);
    registry.register_collector(Box::new(Source { snapshot, uptime, draining, unnamed, health }));
    let mut rendered = String::new();
    text::encode(&mut rendered, &registry)?;
    Ok(rendered)
}

#[derive(Debug)]
struct Source {
    snapshot: Snapshot,
    uptime: Duration,
    draining: bool,
    /// Legs, peers and workers without series.
    unnamed: [(&'static str, u64); 3],
    health: Arc<Health>,
}

/// Removes names beyond [`NAMES_MAX`]. Returns how many were removed, by label.
fn bound_names(snapshot: &mut Snapshot) -> [(&'static str, u64); 3] {
    fn bound<S>(named: &mut BTreeMap<String, S>) -> u64 {
        let first = named.keys().nth(NAMES_MAX).cloned();
        first.map_or(0, |first| named.split_off(&first).len() as u64)
    }
    let workers = snapshot.workers.len().saturating_sub(NAMES_MAX) as u64;
    snapshot.workers.truncate(NAMES_MAX);
    [("leg", bound(&mut snapshot.legs)), ("peer", bound(&mut snapshot.peers)), ("worker", workers)]
}

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let at = &self.snapshot;
        let mut gauge = |name, help, unit: Option<Unit>, value: f64| {
            let gauge = ConstGauge::new(value);
            let encoder =
                encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?;
            gauge.encode(encoder)
        };
        gauge("uptime", "Since the start", Some(Unit::Seconds), self.uptime.as_s_f64())?;
        let is_healthy = self.health.illness().is_none();
        let help = "Whether nothing is lost, stuck or failed, as /healthz reports";
        gauge("healthy", help, None, f64::from(u8::from(is_healthy)))?;
        let draining = f64::from(u8::from(self.draining));
        gauge("draining", "Whether no new flows are taken", None, draining)?;
        gauge("flows", "Live flows", None, at.flows as f64)?;
        gauge("flows_max", "Flows that may live at a time", None, at.flows_max as f64)?;
        gauge("held_syns", "Clients waiting for the far side", None, at.held_syns as f64)?;
        let bytes = Some(Unit::Bytes);
        gauge("buffer", "Data held for all flows", bytes.clone(), at.buffered.get() as f64)?;
        gauge("buffer_max", "Data that may be held", bytes.clone(), at.buffered_max.get() as f64)?;
        let states = at.assist_flows as f64;
        gauge("assist_flows", "Directions of assisted flows that are known", None, states)?;
        let cached = at.assist_cached.get() as f64;
        gauge("assist_cache", "Segments cached to be sent again", bytes, cached)?;

        let actions = [
            ("split", at.split_total),
            ("bypass_rule", at.bypassed_by_rule_total),
            ("assist", at.assisted_total),
            ("bypass_limit", at.bypassed_by_limit_total),
            ("bypass_watchdog", at.bypassed_by_watchdog_total),
            ("reject", at.rejected_total),
        ];
        family(
            &mut encoder,
            ("flows_started", "New flows by what became of them", None),
            actions.map(|(action, count)| ([("action", action)], ConstCounter::new(count))),
        )?;
        family(
            &mut encoder,
            ("assist", "What was done for assisted flows", None),
            labelled("what", &at.assist_total),
        )?;
        family(
            &mut encoder,
            ("firewall_passed_syns", "SYNs that the firewall let pass on its own, by why", None),
            labelled("reason", &at.firewall_passed_total),
        )?;
        family(
            &mut encoder,
            ("flows_refused", "Flows whose far side did not accept, by why", None),
            labelled("reason", &at.refused_total),
        )?;
        family(
            &mut encoder,
            ("peers_denied", "Flows and connections that peers were denied, by why", None),
            labelled("reason", &at.peers_denied_total),
        )?;
        family(
            &mut encoder,
            ("handshakes_refused", "Handshakes of peers that were refused, by why", None),
            labelled("reason", &at.handshakes_refused_total),
        )?;
        family(
            &mut encoder,
            ("claims_ignored", "Flows in the name of clients that are not the peer's", None),
            [([("of", "client")], ConstCounter::new(at.claims_ignored_total))],
        )?;
        family(
            &mut encoder,
            ("flows_ended", "Flows that ended, by how", None),
            labelled("end", &at.ended_total),
        )?;
        family(
            &mut encoder,
            ("relayed", "Bytes relayed, by direction", Some(Unit::Bytes)),
            [("up", at.up_total), ("down", at.down_total)]
                .map(|(way, bytes)| ([("direction", way)], ConstCounter::new(bytes.get()))),
        )?;
        family(
            &mut encoder,
            ("memory_waits", "Waits because all flows together held the limit", None),
            [([("scope", "all")], ConstCounter::new(at.memory_waits_total))],
        )?;
        self.encode_watched(&mut encoder)?;
        let delays = self.health.delays().enumerate().take(NAMES_MAX);
        family(
            &mut encoder,
            (
                "worker_delay",
                "By how much a worker's loop was late, by worker",
                Some(Unit::Seconds),
            ),
            delays.map(|(number, delays)| ([("worker", number.to_string())], delays)),
        )?;
        self.encode_workers(&mut encoder)?;
        self.encode_legs(&mut encoder)?;
        self.encode_peers(&mut encoder)
    }
}

impl Source {
    fn encode_workers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.worker_family(encoder, ("worker_tunnels", "Open tunnels of a worker", None), |it| {
            ConstGauge::new(it.tunnels)
        })?;
        self.worker_family(
            encoder,
            ("worker_datagrams", "Datagrams of tunnels that a worker received", None),
            |it| ConstCounter::new(it.datagrams_total),
        )?;
        self.worker_family(
            encoder,
            ("worker_handed_datagrams", "Those of them that it handed to other workers", None),
            |it| ConstCounter::new(it.handed_datagrams_total),
        )
    }

    fn worker_family<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family_is: FamilyIs,
        value: impl Fn(&WorkerSnapshot) -> M,
    ) -> Result<(), fmt::Error> {
        let workers = self.snapshot.workers.iter().enumerate();
        let members = workers.map(|(number, it)| ([("worker", number.to_string())], value(it)));
        family(encoder, family_is, members)
    }

    fn encode_legs(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.leg_family(encoder, ("leg_connections", "Live connections of a leg", None), |leg| {
            Some(ConstGauge::new(leg.connections))
        })?;
        let bytes = Some(Unit::Bytes);
        self.leg_family(encoder, ("leg_sent", "Bytes sent into a leg", bytes.clone()), |leg| {
            Some(ConstCounter::new(leg.sent_total.get()))
        })?;
        self.leg_family(encoder, ("leg_received", "Bytes received from a leg", bytes), |leg| {
            Some(ConstCounter::new(leg.received_total.get()))
        })?;
        self.leg_family(
            encoder,
            ("leg_retransmissions", "Segments sent again into a leg", None),
            |leg| Some(ConstCounter::new(leg.retransmissions_total)),
        )?;
        self.leg_family(
            encoder,
            ("leg_rtt_samples", "Round-trip times sampled on a leg", None),
            |leg| Some(ConstCounter::new(leg.rtt_samples_total)),
        )?;
        let seconds = Some(Unit::Seconds);
        self.leg_family(
            encoder,
            ("leg_rtt", "Smoothed round-trip time of a leg's connections", seconds.clone()),
            |leg| Some(ConstGauge::new(leg.rtt?.as_s_f64())),
        )?;
        self.leg_family(
            encoder,
            ("leg_rtt_min", "Shortest round-trip time seen on a leg", seconds),
            |leg| Some(ConstGauge::new(leg.rtt_min?.as_s_f64())),
        )?;
        self.leg_family(
            encoder,
            ("leg_senders", "Flows that divide a leg's rate now", None),
            |leg| Some(ConstGauge::new(leg.senders?)),
        )?;
        self.leg_family(
            encoder,
            ("leg_share_bits_per_second", "What each of them may send at most", None),
            |leg| Some(ConstGauge::new(leg.share?.bits_per_s())),
        )?;
        self.encode_leg_rates(encoder)
    }

    fn encode_peers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (bytes, seconds) = (Some(Unit::Bytes), Some(Unit::Seconds));
        self.peer_family(encoder, ("peer_tunnels", "Open tunnels to a peer", None), |peer| {
            Some(ConstGauge::new(peer.tunnels))
        })?;
        self.peer_family(
            encoder,
            ("peer_tcp_tunnels", "Those of them that are over TCP", None),
            |peer| Some(ConstGauge::new(peer.tcp_tunnels)),
        )?;
        let carriers = self.snapshot.peers.iter().flat_map(|(peer, at)| {
            let all = at.carrier.into_iter().flat_map(|own| Carrier::ALL.map(|it| (it, own)));
            all.map(|(carrier, own)| {
                let labels = [("peer", peer.as_str()), ("carrier", carrier.name())];
                (labels, ConstGauge::new(u64::from(carrier == own)))
            })
        });
        family(
            encoder,
            ("peer_carrier", "What new flows to a peer go by, and why", None),
            carriers,
        )?;
        self.peer_family(encoder, ("peer_streams", "Flows in them", None), |peer| {
            Some(ConstGauge::new(peer.streams))
        })?;
        self.peer_family(
            encoder,
            ("peer_rtt", "Smoothed round-trip time of a tunnel", seconds),
            |peer| Some(ConstGauge::new(peer.rtt?.as_s_f64())),
        )?;
        self.peer_family(
            encoder,
            ("peer_window", "What may be in flight to a peer", bytes.clone()),
            |peer| Some(ConstGauge::new(peer.window.get())),
        )?;
        self.peer_family(
            encoder,
            ("peer_in_flight", "What is in flight to a peer", bytes),
            |peer| Some(ConstGauge::new(peer.in_flight.get())),
        )?;
        self.peer_family(
            encoder,
            ("peer_rate_bits_per_second", "How fast a tunnel may send", None),
            |peer| Some(ConstGauge::new(peer.rate?.bits_per_s())),
        )?;
        self.condition_family(
            encoder,
            ("peer_condition_flows", "Flows of a peer, by how far and how free", None),
            |at| Some(ConstGauge::new(at.flows)),
        )?;
        self.condition_family(
            encoder,
            ("peer_condition_bandwidth_ratio", "What one of them gets of the link's rate", None),
            |at| Some(ConstGauge::new(at.bandwidth_ratio?)),
        )?;
        self.peer_family(
            encoder,
            ("peer_violations", "Tunnels closed because the peer broke a rule", None),
            |peer| Some(ConstCounter::new(peer.violations_total)),
        )?;
        self.peer_family(encoder, ("peer_sent_packets", "Packets sent to a peer", None), |peer| {
            Some(ConstCounter::new(peer.sent_packets_total))
        })?;
        self.peer_family(
            encoder,
            ("peer_lost_packets", "Packets of these that were lost", None),
            |peer| Some(ConstCounter::new(peer.lost_packets_total)),
        )?;
        self.encode_repairs(encoder)
    }

    fn encode_repairs(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let bytes = Some(Unit::Bytes);
        self.peer_family(encoder, ("peer_repairs_sent", "Repairs sent to a peer", None), |peer| {
            Some(ConstCounter::new(peer.repairs_sent_total))
        })?;
        self.peer_family(
            encoder,
            ("peer_repaired", "Datagrams from a peer that repairs gave back", None),
            |peer| Some(ConstCounter::new(peer.repaired_total)),
        )?;
        self.peer_family(
            encoder,
            ("peer_protected", "Sent to a peer so that it can be repaired", bytes.clone()),
            |peer| Some(ConstCounter::new(peer.protected_total.get())),
        )?;
        self.peer_family(
            encoder,
            ("peer_repair", "Repairs and reports of losses sent to a peer", bytes),
            |peer| Some(ConstCounter::new(peer.repair_total.get())),
        )?;
        self.peer_family(
            encoder,
            ("peer_repair_overhead_ratio", "What these add to what they repair", None),
            |peer| Some(ConstGauge::new(peer.repair_overhead()?)),
        )?;
        self.peer_family(
            encoder,
            ("peer_loss_ratio", "Datagrams lost on the way to a peer, before repairs", None),
            |peer| Some(ConstGauge::new(peer.loss?)),
        )
    }

    fn condition_family<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family_is: FamilyIs,
        value: impl Fn(&ConditionSnapshot) -> Option<M>,
    ) -> Result<(), fmt::Error> {
        let members = self.snapshot.peers.iter().flat_map(|(peer, at)| {
            at.conditions.iter().filter_map(|(condition, at)| {
                Some(([("peer", peer.as_str()), ("condition", *condition)], value(at)?))
            })
        });
        family(encoder, family_is, members)
    }

    fn leg_family<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family_is: FamilyIs,
        value: impl Fn(&LegSnapshot) -> Option<M>,
    ) -> Result<(), fmt::Error> {
        each(encoder, family_is, "leg", &self.snapshot.legs, value)
    }

    fn peer_family<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family_is: FamilyIs,
        value: impl Fn(&PeerSnapshot) -> Option<M>,
    ) -> Result<(), fmt::Error> {
        each(encoder, family_is, "peer", &self.snapshot.peers, value)
    }
}

/// Encodes a value of each of several things that have names.
fn each<S, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    family_is: FamilyIs,
    label: &'static str,
    snapshots: &BTreeMap<String, S>,
    value: impl Fn(&S) -> Option<M>,
) -> Result<(), fmt::Error> {
    let values =
        snapshots.iter().filter_map(|(name, at)| Some(([(label, name.as_str())], value(at)?)));
    family(encoder, family_is, values)
}

/// Name, help and unit of a family.
type FamilyIs = (&'static str, &'static str, Option<Unit>);

fn labelled<'a>(
    label: &'static str,
    counts: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = ([(&'static str, &'a str); 1], ConstCounter<u64>)> {
    counts.iter().map(move |(value, count)| ([(label, value.as_str())], ConstCounter::new(*count)))
}

/// Encodes a family; one without members is left out.
fn family<L: EncodeLabelSet, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): FamilyIs,
    members: impl IntoIterator<Item = (L, M)>,
) -> Result<(), fmt::Error> {
    let mut members = members.into_iter().peekable();
    let Some((_, first)) = members.peek() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), first.metric_type())?;
    for (labels, member) in members {
        member.encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::PrefixSnapshot;
    use midhop_units::{Bytes, Rate};

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
            peers_denied_total: once.clone(),
            handshakes_refused_total: once.clone(),
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
        render(snapshot, Duration::ZERO, false, Health::new(1)).expect("rendered")
    }

    /// A table row per metric, no more and no fewer.
    #[test]
    fn the_documentation_lists_every_metric() {
        let documented: std::collections::BTreeSet<&str> = include_str!("../../../docs/midhopd.md")
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
            } else if let Some((sample, _)) =
                line.rsplit_once(' ').filter(|_| !line.starts_with('#'))
            {
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
        let rendered =
            render(snapshot, Duration::ZERO, false, Health::new(2 * NAMES_MAX)).expect("rendered");
        let mut series: BTreeMap<&str, usize> = BTreeMap::new();
        for line in rendered.lines().filter(|line| !line.starts_with('#')) {
            *series.entry(line.split(['{', ' ']).next().expect("a name")).or_default() += 1;
        }
        let buckets = series.remove("midhop_worker_delay_seconds_bucket").expect("buckets");
        assert!(buckets <= NAMES_MAX * 32, "{buckets}");
        for (name, count) in series {
            let bound = if name == "midhop_peer_carrier" { Carrier::ALL.len() } else { 1 };
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
        let rendered =
            render(snapshot, Duration::from_ms(1500), false, Health::new(0)).expect("rendered");
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
}
