//! What alerts ask for: health, limits, who waits, sources, certificates, and the rates of legs.

use super::{FamilyIs, Source, family, labelled};
use crate::snapshot::PrefixSnapshot;
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
            ("limits_reached", "Flows that a limit let pass by, by which", None),
            labelled("limit", &at.limits_reached_total),
        )?;
        let waiting = at.waiting.iter();
        family(
            encoder,
            ("waiting", "Who waits now, by what for", None),
            waiting.map(|(what, count)| ([("for", what.as_str())], ConstGauge::new(*count))),
        )?;
        self.encode_sources(encoder)?;
        let certificates = at.certificates_expire_unix_s.iter();
        family(
            encoder,
            (
                "certificate_expires_timestamp",
                "Until when this daemon's certificate is valid, and its authority's",
                Some(Unit::Seconds),
            ),
            certificates
                .map(|(name, until)| ([("certificate", name.as_str())], ConstGauge::new(*until))),
        )?;
        self.peer_family(
            encoder,
            (
                "peer_certificate_expires_timestamp",
                "Until when the certificate is valid that a peer showed last",
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
            ("leg_sent_segments", "Segments with data sent into a leg, again or anew", None),
            |leg| Some(ConstCounter::new(leg.sent_segments_total)),
        )?;
        self.leg_family(
            encoder,
            ("leg_received_segments", "Segments with data received from a leg", None),
            |leg| Some(ConstCounter::new(leg.received_segments_total)),
        )?;
        self.leg_family(
            encoder,
            ("leg_out_of_order_segments", "Those of them that came out of order", None),
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
        let help = "Connections of a leg with data that waits, by what for";
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
