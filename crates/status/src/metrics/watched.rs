//! Metrics for alerts: health, limits, waiting clients, sources, certificates, and the rates of legs.

use super::{FamilyIs, Source, family, labelled};
use crate::snapshot::{Carrier, PrefixSnapshot};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use std::{collections::BTreeMap, fmt};

impl Source {
    pub(super) fn encode_watched(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let at = &self.snapshot;
        family(
            encoder,
            ("limits_reached", "Flows that passed by because of a limit, by limit", None),
            labelled("limit", &at.limits_reached_total),
        )?;
        let waiting = at.waiting.iter();
        family(
            encoder,
            ("waiting", "Clients and connections that wait now, by reason", None),
            waiting.map(|(what, count)| ([("for", what.as_str())], ConstGauge::new(*count))),
        )?;
        self.encode_sources(encoder)?;
        family(
            encoder,
            ("reloads", "Reloads of the configuration, by result", None),
            labelled("result", &self.daemon.reloads),
        )?;
        let failures = [([], ConstCounter::new(self.daemon.health.failures()))];
        family::<[(&str, &str); 0], _>(
            encoder,
            ("failures", "Failures of parts that the daemon replaces, such as sockets", None),
            failures,
        )?;
        family(
            encoder,
            ("log_messages", "Errors and warnings that were logged", None),
            labelled("level", &self.daemon.log_messages),
        )?;
        let certificates = at.certificates_expire_unix_s.iter();
        family(
            encoder,
            (
                "certificate_expires_timestamp",
                "End of the validity of this daemon's certificate, and of its authority's",
                Some(Unit::Seconds),
            ),
            certificates
                .map(|(name, until)| ([("certificate", name.as_str())], ConstGauge::new(*until))),
        )?;
        self.peer_family(
            encoder,
            (
                "peer_certificate_expires_timestamp",
                "End of the validity of a peer's last certificate",
                Some(Unit::Seconds),
            ),
            |peer| Some(ConstGauge::new(peer.certificate_expires_unix_s?)),
        )?;
        family(
            encoder,
            ("unnamed", "Legs, peers and workers that have no series of their own", None),
            self.unnamed
                .iter()
                .map(|(label, count)| ([("label", *label)], ConstGauge::new(*count))),
        )
    }

    fn encode_sources(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let sources = &self.snapshot.source_prefixes;
        by_source(
            encoder,
            ("source_flows", "Live flows of a source prefix", None),
            sources,
            |it| ConstGauge::new(it.flows),
        )?;
        by_source(
            encoder,
            ("source_flows_started", "Flows of a source prefix that began", None),
            sources,
            |it| ConstCounter::new(it.started_total),
        )?;
        let ways = sources.iter().flat_map(|(source, at)| {
            [("up", at.up_bytes_total), ("down", at.down_bytes_total)].map(|(way, bytes)| {
                ([("source", source.as_str()), ("direction", way)], ConstCounter::new(bytes))
            })
        });
        let help = "Bytes relayed for a source prefix, by direction";
        family(encoder, ("source_relayed", help, Some(Unit::Bytes)), ways)
    }

    /// Tunnels that were opened and closed, and what carries new flows.
    pub(super) fn encode_carriers(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        self.peer_family(
            encoder,
            ("peer_closing_tunnels", "Open tunnels to a peer that take no new flows", None),
            |peer| Some(ConstGauge::new(peer.closing_tunnels)),
        )?;
        let opened = self.snapshot.peers.iter().flat_map(|(peer, at)| {
            [("quic", at.opened_total - at.tcp_opened_total), ("tcp", at.tcp_opened_total)].map(
                |(over, count)| {
                    ([("peer", peer.as_str()), ("over", over)], ConstCounter::new(count))
                },
            )
        });
        let help = "Tunnels to a peer that were opened, by transport";
        family(encoder, ("peer_tunnels_opened", help, None), opened)?;
        let help = "Failed attempts to open a tunnel to a peer";
        self.peer_family(encoder, ("peer_open_failures", help, None), |peer| {
            Some(ConstCounter::new(peer.open_failures_total))
        })?;
        let help = "Pause before the next attempt to open a tunnel, after one that failed";
        self.peer_family(encoder, ("peer_retry_pause", help, Some(Unit::Seconds)), |peer| {
            Some(ConstGauge::new(peer.retry_pause?.as_s_f64()))
        })?;
        let carriers = self.snapshot.peers.iter().flat_map(|(peer, at)| {
            let all = at.carrier.into_iter().flat_map(|own| Carrier::ALL.map(|it| (it, own)));
            all.map(|(carrier, own)| {
                let labels = [("peer", peer.as_str()), ("carrier", carrier.name())];
                (labels, ConstGauge::new(u64::from(carrier == own)))
            })
        });
        family(
            encoder,
            ("peer_carrier", "Carrier of new flows to a peer, and why", None),
            carriers,
        )?;
        let help = "Changes of the carrier of new flows to a peer";
        self.peer_family(encoder, ("peer_carrier_changes", help, None), |peer| {
            Some(ConstCounter::new(peer.carrier_changes_total))
        })?;
        let help = "Trials of TCP because UDP may be throttled";
        self.peer_family(encoder, ("peer_tcp_trials", help, None), |peer| {
            Some(ConstCounter::new(peer.tcp_trials_total))
        })?;
        let help = "Trials of TCP in which TCP carried no more";
        self.peer_family(encoder, ("peer_vain_tcp_trials", help, None), |peer| {
            Some(ConstCounter::new(peer.vain_tcp_trials_total))
        })
    }

    pub(super) fn encode_leg_rates(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        self.leg_family(
            encoder,
            ("leg_rate_bits_per_second", "The configured rate of a leg, away from here", None),
            |leg| Some(ConstGauge::new(leg.rate_bit_per_s?)),
        )?;
        self.leg_family(
            encoder,
            ("leg_rate_in_bits_per_second", "The configured rate of a leg, towards here", None),
            |leg| Some(ConstGauge::new(leg.rate_in_bit_per_s?)),
        )?;
        self.leg_family(
            encoder,
            (
                "leg_sent_segments",
                "Segments with data sent into a leg, including retransmissions",
                None,
            ),
            |leg| Some(ConstCounter::new(leg.sent_segments_total)),
        )?;
        self.leg_family(
            encoder,
            ("leg_received_segments", "Segments with data received from a leg", None),
            |leg| Some(ConstCounter::new(leg.received_segments_total)),
        )?;
        self.leg_family(
            encoder,
            (
                "leg_out_of_order_segments",
                "Segments with data received out of order from a leg",
                None,
            ),
            |leg| Some(ConstCounter::new(leg.out_of_order_segments_total)),
        )?;
        let help = "Data in this host's sockets that waits to be sent into a leg";
        self.leg_family(encoder, ("leg_queue", help, Some(Unit::Bytes)), |leg| {
            Some(ConstGauge::new(leg.queued_bytes))
        })?;
        let waiting = self.snapshot.legs.iter().flat_map(|(leg, at)| {
            at.waiting.iter().map(|(what, count)| {
                ([("leg", leg.as_str()), ("for", *what)], ConstGauge::new(*count))
            })
        });
        let help = "Connections of a leg with waiting data, by reason";
        family(encoder, ("leg_waiting", help, None), waiting)
    }
}

fn by_source<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    family_is: FamilyIs,
    sources: &BTreeMap<String, PrefixSnapshot>,
    value: impl Fn(&PrefixSnapshot) -> M,
) -> Result<(), fmt::Error> {
    let members = sources.iter().map(|(source, at)| ([("source", source.as_str())], value(at)));
    family(encoder, family_is, members)
}
