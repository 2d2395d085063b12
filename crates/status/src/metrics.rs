//! A snapshot in the text form that Prometheus scrapes (OpenMetrics 1.0).

mod watched;

use crate::health::Health;
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
/// code lists, or a bound of its own (source prefixes), so the number of series is bounded, whoever
/// connects and however often the configuration changes.
pub const NAMES_MAX: usize = 1000;

/// What is known of a daemon besides its data plane.
#[derive(Debug)]
pub struct DaemonState {
    /// Time since its start.
    pub uptime: Duration,
    /// Whether it takes no new flows.
    pub draining: bool,
    /// Whether all is well.
    pub health: Arc<Health>,
    /// How often its configuration was read again, by result.
    pub reloads: BTreeMap<String, u64>,
    /// Messages that it has logged, by level.
    pub log_messages: BTreeMap<String, u64>,
}

/// Renders a snapshot, and the state of the daemon around it.
///
/// # Errors
/// Only where text cannot be put together at all.
pub fn render(mut snapshot: Snapshot, daemon: DaemonState) -> Result<String, fmt::Error> {
    let unnamed = bound_names(&mut snapshot);
    let mut registry = Registry::with_prefix("midhop");
    let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The running program", build);
    registry.register_collector(Box::new(Source { snapshot, daemon, unnamed }));
    let mut rendered = String::new();
    text::encode(&mut rendered, &registry)?;
    Ok(rendered)
}

#[derive(Debug)]
struct Source {
    snapshot: Snapshot,
    daemon: DaemonState,
    /// Legs, peers and workers without series.
    unnamed: [(&'static str, u64); 3],
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
        gauge(
            "uptime",
            "Time since the daemon's start",
            Some(Unit::Seconds),
            self.daemon.uptime.as_s_f64(),
        )?;
        let is_healthy = self.daemon.health.illness().is_none();
        let help = "Whether nothing is lost, stuck or failed, as /healthz reports";
        gauge("healthy", help, None, f64::from(u8::from(is_healthy)))?;
        let draining = f64::from(u8::from(self.daemon.draining));
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
            ("flows_started", "New flows, by outcome", None),
            actions.map(|(action, count)| ([("action", action)], ConstCounter::new(count))),
        )?;
        family(
            &mut encoder,
            (
                "data_planes_killed",
                "Data planes of this daemon that were killed before this one",
                None,
            ),
            [([("scope", "all")], ConstCounter::new(at.data_planes_killed_total))],
        )?;
        family(
            &mut encoder,
            ("upgrades", "Programs that have replaced a running one", None),
            [([("scope", "all")], ConstCounter::new(at.upgrades_total))],
        )?;
        family(
            &mut encoder,
            ("orphaned_flows", "Flows of the data plane that was killed last, by outcome", None),
            labelled("outcome", &at.orphaned_flows_total),
        )?;
        family(
            &mut encoder,
            ("moved_flows", "Live flows that moved to or from another machine, by outcome", None),
            labelled("where", &at.moved_flows_total),
        )?;
        family(
            &mut encoder,
            ("assist", "Actions for assisted flows", None),
            labelled("what", &at.assist_total),
        )?;
        family(
            &mut encoder,
            ("firewall_passed_syns", "SYNs that the firewall let pass by itself, by reason", None),
            labelled("reason", &at.firewall_passed_total),
        )?;
        family(
            &mut encoder,
            ("flows_refused", "Flows whose far side did not accept, by reason", None),
            labelled("reason", &at.refused_total),
        )?;
        family(
            &mut encoder,
            ("peers_denied", "Flows and connections that peers were denied, by reason", None),
            labelled("reason", &at.peers_denied_total),
        )?;
        family(
            &mut encoder,
            ("resumptions", "Flows whose tunnel was gone or changed its carrier, by outcome", None),
            labelled("outcome", &at.resumptions_total),
        )?;
        family(
            &mut encoder,
            ("flows_without_tunnel", "Flows that wait for another tunnel", None),
            [([("scope", "all")], ConstGauge::new(at.flows_without_tunnel))],
        )?;
        family(
            &mut encoder,
            ("handshakes_refused", "Handshakes of peers that were refused, by reason", None),
            labelled("reason", &at.handshakes_refused_total),
        )?;
        family(
            &mut encoder,
            (
                "handshakes_limited",
                "Handshakes beyond the number served at once, by response",
                None,
            ),
            labelled("response", &at.handshakes_limited_total),
        )?;
        family(
            &mut encoder,
            ("claims_ignored", "Flows requested for clients that are not the peer's", None),
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
            ("memory_waits", "Waits because all flows together held limits.memory", None),
            [([("scope", "all")], ConstCounter::new(at.memory_waits_total))],
        )?;
        family(
            &mut encoder,
            ("windows_bounded", "Receive buffers set because memory was short", None),
            [([("scope", "all")], ConstCounter::new(at.windows_bounded_total))],
        )?;
        self.encode_watched(&mut encoder)?;
        let delays = self.daemon.health.delays().enumerate().take(NAMES_MAX);
        family(
            &mut encoder,
            ("worker_delay", "Delay of a worker's event loop, by worker", Some(Unit::Seconds)),
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
            ("worker_handed_datagrams", "Datagrams that a worker handed to other workers", None),
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
            ("leg_retransmissions", "Segments retransmitted into a leg", None),
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
            ("leg_senders", "Flows among which a leg's rate is divided now", None),
            |leg| Some(ConstGauge::new(leg.senders?)),
        )?;
        self.leg_family(
            encoder,
            (
                "leg_share_bits_per_second",
                "Share of a leg's rate for each flow among which it is divided",
                None,
            ),
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
            ("peer_tcp_tunnels", "Open tunnels to a peer over TCP", None),
            |peer| Some(ConstGauge::new(peer.tcp_tunnels)),
        )?;
        self.encode_carriers(encoder)?;
        self.peer_family(
            encoder,
            ("peer_streams", "Flows in the tunnels to a peer", None),
            |peer| Some(ConstGauge::new(peer.streams)),
        )?;
        self.peer_family(
            encoder,
            ("peer_rtt", "Smoothed round-trip time of a tunnel", seconds),
            |peer| Some(ConstGauge::new(peer.rtt?.as_s_f64())),
        )?;
        self.peer_family(
            encoder,
            ("peer_window", "Data that may be in flight to a peer", bytes.clone()),
            |peer| Some(ConstGauge::new(peer.window.get())),
        )?;
        self.peer_family(encoder, ("peer_in_flight", "Data in flight to a peer", bytes), |peer| {
            Some(ConstGauge::new(peer.in_flight.get()))
        })?;
        self.peer_family(
            encoder,
            ("peer_rate_bits_per_second", "Rate at which a tunnel may send", None),
            |peer| Some(ConstGauge::new(peer.rate?.bits_per_s())),
        )?;
        self.peer_family(
            encoder,
            (
                "peer_carried_bits_per_second",
                "Measured rate of a peer's link, if it is not the configured or reported rate",
                None,
            ),
            |peer| Some(ConstGauge::new(peer.carried?.bits_per_s())),
        )?;
        self.peer_family(
            encoder,
            ("peer_reported_bits_per_second", "Reported rate of a peer's link", None),
            |peer| Some(ConstGauge::new(peer.reported?.bits_per_s())),
        )?;
        self.condition_family(
            encoder,
            (
                "peer_condition_flows",
                "Live flows of a peer, by the condition of their source",
                None,
            ),
            |at| Some(ConstGauge::new(at.flows)),
        )?;
        self.condition_family(
            encoder,
            (
                "peer_condition_bandwidth_ratio",
                "Mean share of a flow in the rate of a peer's link, by condition",
                None,
            ),
            |at| Some(ConstGauge::new(at.bandwidth_ratio?)),
        )?;
        self.peer_family(
            encoder,
            ("peer_violations", "Tunnels closed because the peer violated the protocol", None),
            |peer| Some(ConstCounter::new(peer.violations_total)),
        )?;
        self.peer_family(encoder, ("peer_sent_packets", "Packets sent to a peer", None), |peer| {
            Some(ConstCounter::new(peer.sent_packets_total))
        })?;
        self.peer_family(
            encoder,
            ("peer_lost_packets", "Packets sent to a peer that were lost and not repaired", None),
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
            ("peer_repaired", "Lost datagrams from a peer that repairs recovered", None),
            |peer| Some(ConstCounter::new(peer.repaired_total)),
        )?;
        self.peer_family(
            encoder,
            ("peer_protected", "Data sent to a peer that repairs may cover", bytes.clone()),
            |peer| Some(ConstCounter::new(peer.protected_total.get())),
        )?;
        self.peer_family(
            encoder,
            ("peer_repair", "Repairs and reports of losses sent to a peer", bytes),
            |peer| Some(ConstCounter::new(peer.repair_total.get())),
        )?;
        self.peer_family(
            encoder,
            ("peer_repair_overhead_ratio", "Ratio of repair bytes to protected bytes", None),
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
mod tests;
