//! Derives the settings of a connection from a peer's plan: its leg, its congestion control, QUIC's limits.

use crate::control::Steering;
use crate::fec::FecSettings;
use crate::transport::{self, LegSettings};
use midhop_congestion::{BuildError, Law, Settings, committed};
use midhop_pep::config::{PeerPlan, Repair};
use quinn_proto::{TransportConfig, VarInt};
use std::sync::Arc;

/// Unidirectional streams that a peer may open: its control stream, two for QPACK, and some for extensions.
const CONTROL_STREAMS: u32 = 8;
/// Flows that a peer may have open at first. QUIC keeps some hundred bytes for each, open or not; [`Places`] makes
/// room for more.
const PLACES: u32 = 128;
/// The factor by which that grows. It grows once this part of it is used.
const PLACES_GROW: u32 = 4;

/// The leg to a peer, as this end sees it.
pub fn leg(peer: &PeerPlan, ipv6: bool) -> LegSettings {
    LegSettings {
        rtt: peer.rtt,
        rate: peer.rate,
        return_rate: peer.rate_in,
        ipv6,
        streams_max: Places::new(peer.flows).now(),
        idle_timeout: peer.timeout,
        keep_alive: peer.keepalive,
        send_window: peer.send_window,
        stream_window: peer.flow_window,
        receive_window: peer.receive_window,
        ..LegSettings::default()
    }
}

/// How losses towards a peer are repaired below QUIC, if they may be.
pub fn repairs(peer: &PeerPlan, ipv6: bool) -> Option<FecSettings> {
    let despite_congestion = match peer.repair {
        Repair::Off => return None,
        Repair::Auto => false,
        Repair::Always => true,
    };
    Some(FecSettings { despite_congestion, ..leg(peer, ipv6).fec() })
}

/// The settings of a peer's congestion control.
pub fn congestion(peer: &PeerPlan) -> Settings {
    // None for `known-rate` without a rate, which the configuration has reported.
    let mut law = Law::usual(peer.congestion, peer.rate).unwrap_or(Law::BbrV3);
    if let Law::KnownRate(known) = &mut law {
        known.bounds.hint = peer.hint;
    }
    if let Some(rtt0) = peer.rtt0 {
        match &mut law {
            Law::Hybla(imitated) | Law::HyblaLinux(imitated) => imitated.rtt0 = rtt0,
            Law::HyblaPlus(own) => own.rtt0 = rtt0,
            _ => {}
        }
    }
    let committed = peer.committed.map(committed::CommittedSettings::new);
    Settings { committed, ..Settings::of(law) }
}

/// QUIC's settings for a connection to a peer, and its congestion control. `settings` are as a rule those of
/// [`congestion`]; `repaired` if losses may be repaired below QUIC.
///
/// # Errors
/// When the congestion control cannot be built.
pub fn transport(
    peer: &PeerPlan,
    ipv6: bool,
    repaired: bool,
    settings: Settings,
) -> Result<(TransportConfig, Arc<Steering>), BuildError> {
    let leg = leg(peer, ipv6);
    let leg = if repaired { leg.repaired() } else { leg };
    let steering = leg.steering(settings)?;
    let mut config = transport::transport(&leg, steering.clone());
    config
        .max_concurrent_uni_streams(VarInt::from_u32(CONTROL_STREAMS))
        // Streams take turns; QUIC's datagrams are not used.
        .send_fairness(true)
        .datagram_receive_buffer_size(None);
    Ok((config, steering))
}

/// How many flows a peer may have open at a time. The number grows with the flows that it has.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    now: u32,
    most: u32,
}

impl Places {
    /// For a peer that may have up to `most` in the end.
    pub fn new(most: u32) -> Self {
        Self { now: most.min(PLACES), most }
    }

    /// How many it may have now.
    pub fn now(self) -> u32 {
        self.now
    }

    /// Grows the limit before a peer with so many `flows` reaches it. Returns the new limit, if it has changed.
    pub fn grow(&mut self, flows: u64) -> Option<u32> {
        let few = flows.saturating_mul(PLACES_GROW.into()) < u64::from(self.now);
        if few || self.now >= self.most {
            return None;
        }
        self.now = self.now.saturating_mul(PLACES_GROW).min(self.most);
        Some(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_pep::config::Plan;

    fn peer(more: &str) -> PeerPlan {
        let text = format!(
            "[tunnel]\ncertificate = \"/c\"\nkey = \"/k\"\nauthority = \"/a\"\nlisten = \"127.0.0.1:443\"\n\
             [peers.far]\n{more}"
        );
        Plan::read("test.toml", &text).expect("a plan").peers.remove(0)
    }

    #[test]
    fn quic_holds_what_the_plan_has_and_no_more() {
        let peer = peer("rate = \"140 Mbit/s\"\nrate_in = \"5 Mbit/s\"\nrtt = \"600 ms\"");
        let (config, _) =
            transport(&peer, false, false, congestion(&peer)).expect("QUIC's settings");
        let written = format!("{config:?}");
        for (key, value) in [
            ("send_window", peer.send_window),
            ("stream_receive_window", peer.flow_window),
            (" receive_window", peer.receive_window),
        ] {
            assert!(written.contains(&format!("{key}: {}", value.get())), "{key}: {written}");
        }
        assert!(written.contains("initial_rtt: 600ms"), "{written}");
    }

    #[test]
    fn a_peer_with_many_flows_may_have_more_and_one_with_few_may_not() {
        let mut places = Places::new(1000);
        assert_eq!((places.now(), places.grow(31)), (128, None));
        assert_eq!(places.grow(32), Some(512));
        assert_eq!(places.grow(127), None);
        assert_eq!((places.grow(128), places.grow(1000)), (Some(1000), None));
        assert_eq!(Places::new(5).now(), 5);
    }
}
