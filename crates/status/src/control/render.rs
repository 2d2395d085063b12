//! Converts the internal snapshot into the control socket's answers.

use super::answer::{
    DaemonStatus, FlowSide, FlowSource, LegStatus, LiveFlow, PeerFailure, PeerStatus, SourcePrefix,
    VERSION,
};
use crate::snapshot::{
    Carrier, FlowSnapshot, LegSnapshot, PeerSnapshot, PrefixSnapshot, SideSnapshot, Snapshot,
};
use midhop_pep::config::Plan;
use midhop_pki::trouble::PeerTrouble;
use midhop_process::logging;
use midhop_units::{Bytes, Duration, Rate};
use std::collections::BTreeMap;

/// The status, except for what only the process knows.
pub(super) fn status(snapshot: Snapshot, plan: &Plan) -> DaemonStatus {
    let mut bypassed = snapshot.firewall_passed_total;
    for (reason, count) in [
        ("rule", snapshot.bypassed_by_rule_total),
        ("limit", snapshot.bypassed_by_limit_total),
        ("watchdog", snapshot.bypassed_by_watchdog_total),
        ("assist", snapshot.assisted_total),
    ] {
        *bypassed.entry(reason.to_owned()).or_default() += count;
    }
    DaemonStatus {
        format: VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: plan.intercept.instance.clone(),
        pid: std::process::id(),
        interfaces: plan.intercept.interfaces.0.clone(),
        uptime_s: 0.0,
        draining: false,
        illness: None,
        passing: None,
        reload: None,
        reloads_total: BTreeMap::new(),
        failures_total: 0,
        log_messages_total: logging::counts(),
        flows: snapshot.flows,
        flows_max: snapshot.flows_max,
        held_syns: snapshot.held_syns,
        buffered_bytes: snapshot.buffered.get(),
        buffered_max_bytes: snapshot.buffered_max.get(),
        split_total: snapshot.split_total,
        bypassed_total: bypassed,
        rejected_total: snapshot.rejected_total,
        data_planes_killed_total: snapshot.data_planes_killed_total,
        upgrades_total: snapshot.upgrades_total,
        orphaned_flows_total: snapshot.orphaned_flows_total,
        moved_flows_total: snapshot.moved_flows_total,
        refused_total: snapshot.refused_total,
        ended_total: snapshot.ended_total,
        up_bytes_total: snapshot.up_total.get(),
        down_bytes_total: snapshot.down_total.get(),
        memory_waits_total: snapshot.memory_waits_total,
        waiting: snapshot.waiting,
        limits_reached_total: snapshot.limits_reached_total,
        sources: snapshot
            .source_prefixes
            .into_iter()
            .map(|(name, it)| (name, source(it)))
            .collect(),
        certificates_expire_unix_s: snapshot.certificates_expire_unix_s,
        handshakes_refused_total: snapshot.handshakes_refused_total,
        handshakes_limited_total: snapshot.handshakes_limited_total,
        last_refusal: snapshot.last_refusal.as_ref().map(failure),
        legs: snapshot.legs.into_iter().map(|(name, it)| (name, leg(it))).collect(),
        peers: snapshot.peers.into_iter().map(|(name, it)| (name, peer(&it))).collect(),
    }
}

fn source(prefix: PrefixSnapshot) -> SourcePrefix {
    let PrefixSnapshot { flows, started_total, up_bytes_total, down_bytes_total } = prefix;
    SourcePrefix { flows, started_total, up_bytes_total, down_bytes_total }
}

fn side(side: SideSnapshot) -> FlowSide {
    FlowSide {
        rtt_s: side.rtt_s,
        queued_bytes: side.queued_bytes,
        in_flight_bytes: side.in_flight_bytes,
        sent_segments: side.sent_segments,
        retransmitted_segments: side.retransmitted_segments,
    }
}

fn leg(leg: LegSnapshot) -> LegStatus {
    LegStatus {
        congestion: leg.congestion,
        connections: leg.connections,
        rate_bit_per_s: leg.rate_bit_per_s,
        rate_in_bit_per_s: leg.rate_in_bit_per_s,
        sent_bytes_total: leg.sent_total.get(),
        received_bytes_total: leg.received_total.get(),
        sent_segments_total: leg.sent_segments_total,
        retransmissions_total: leg.retransmissions_total,
        received_segments_total: leg.received_segments_total,
        out_of_order_segments_total: leg.out_of_order_segments_total,
        queued_bytes: leg.queued_bytes,
        rtt_s: leg.rtt.map(Duration::as_s_f64),
        rtt_min_s: leg.rtt_min.map(Duration::as_s_f64),
        senders: leg.senders,
        share_bit_per_s: leg.share.map(Rate::bits_per_s),
    }
}

fn failure(trouble: &PeerTrouble) -> PeerFailure {
    PeerFailure {
        reason: trouble.reason.to_owned(),
        certificate: trouble.certificate.map(str::to_owned),
        message: trouble.message.clone(),
        hint: trouble.hint.map(str::to_owned),
        address: trouble.address,
        at_unix_s: trouble.at_unix_s,
    }
}

fn peer(peer: &PeerSnapshot) -> PeerStatus {
    PeerStatus {
        tunnels: peer.tunnels,
        tcp_tunnels: peer.tcp_tunnels,
        closing_tunnels: peer.closing_tunnels,
        opened_total: peer.opened_total,
        tcp_opened_total: peer.tcp_opened_total,
        open_failures_total: peer.open_failures_total,
        retry_pause_s: peer.retry_pause.map(Duration::as_s_f64),
        carrier: peer.carrier.map(Carrier::name).map(str::to_owned),
        carrier_changes_total: peer.carrier_changes_total,
        tcp_trials_total: peer.tcp_trials_total,
        vain_tcp_trials_total: peer.vain_tcp_trials_total,
        flows: peer.streams,
        rtt_s: peer.rtt.map(Duration::as_s_f64),
        rtt_min_s: peer.rtt_min.map(Duration::as_s_f64),
        window_bytes: peer.window.get(),
        in_flight_bytes: peer.in_flight.get(),
        rate_bit_per_s: peer.rate.map(Rate::bits_per_s),
        carried_bit_per_s: peer.carried.map(Rate::bits_per_s),
        reported_bit_per_s: peer.reported.map(Rate::bits_per_s),
        loss_ratio: peer.loss,
        repair_overhead_ratio: peer.repair_overhead(),
        sent_packets_total: peer.sent_packets_total,
        lost_packets_total: peer.lost_packets_total,
        violations_total: peer.violations_total,
        failure: peer.failure.as_ref().map(failure),
        conditions: peer
            .conditions
            .iter()
            .map(|(name, it)| ((*name).to_owned(), it.flows))
            .collect(),
    }
}

/// One live flow.
pub fn flow(flow: FlowSnapshot) -> LiveFlow {
    let tunnel = flow.tunnel;
    LiveFlow {
        client: flow.client,
        server: flow.server,
        client_leg: flow.client_leg,
        server_leg: flow.server_leg,
        tunnel,
        rule: flow.rule.map(|number| number as u64),
        interface: flow.interface,
        age_s: flow.age.as_s_f64(),
        up_bytes: Bytes::get(flow.up),
        down_bytes: Bytes::get(flow.down),
        up_bit_per_s: flow.up_bit_per_s,
        down_bit_per_s: flow.down_bit_per_s,
        limit_bit_per_s: flow.limit_bit_per_s,
        up_waits_for: flow.up_waits_for.map(str::to_owned),
        down_waits_for: flow.down_waits_for.map(str::to_owned),
        up_undelivered_bytes: flow.up_undelivered_bytes,
        down_undelivered_bytes: flow.down_undelivered_bytes,
        to_client: flow.to_client.map(side),
        to_server: flow.to_server.map(side),
        source: flow.source.map(|source| FlowSource {
            rtt_s: source.rtt.as_s_f64(),
            loss_ratio: source.loss,
            rate_bit_per_s: source.rate.bits_per_s(),
            condition: source.condition.name().to_owned(),
            bandwidth_ratio: source.bandwidth_ratio,
        }),
    }
}
