//! What is done for flows that are not split, as written.

use super::{Action, OneOrMany, ResolveError};
use crate::config::resolve::{check_interfaces, fault};
use midhop_assist::{
    AckDecimationSettings, AckSpacingSettings, DProxySettings, Fault, SnoopSettings,
};
use midhop_config::KeyPath;
use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// How flows are helped that a rule assists: both ends keep their single connection, and this host
/// detects and retransmits what is lost beyond it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Assist {
    /// Interfaces beyond which segments are lost: what leaves through them is cached. None: no rule
    /// may assist.
    pub interfaces: OneOrMany<String>,
    /// Which daemons repair losses.
    pub repair: Repairer,
    /// The memory for cached segments of all flows together.
    pub cache: Bytes,
    /// How many later segments or duplicate acknowledgements must arrive before a segment counts as
    /// lost.
    pub threshold: u64,
    /// The minimum of this host's own timer.
    pub timer_min: Duration,
    /// How often a segment is retransmitted from here before it is left to its source.
    pub resends: u32,
    /// The most directions of flows for which state is kept.
    pub flows: usize,
    /// How long the state of a flow is kept after its last packet.
    pub idle: Duration,
    /// For `repair = "d-proxy"`: the other daemon, at the far end of the link.
    pub peer: Option<AssistPeer>,
    /// Thinning of acknowledgements that leave through the interfaces.
    pub ack_decimation: Option<AckDecimation>,
    /// Spacing of acknowledgements that arrive through the interfaces.
    pub ack_spacing: Option<AckSpacing>,
}

/// Which daemons repair what assisted flows lose beyond the interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Repairer {
    /// This daemon alone, from the acknowledgements that return.
    #[default]
    Snoop,
    /// This daemon and its `peer` at the far end of the link together.
    DProxy,
    /// None: losses are left to the source.
    None,
}

/// The daemon at the far end of a link, which helps to repair losses between the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AssistPeer {
    /// This daemon's own address and UDP port for the reports that the two exchange.
    #[serde(deserialize_with = "super::written::endpoint")]
    pub listen: SocketAddr,
    /// The peer's address and UDP port.
    #[serde(deserialize_with = "super::written::endpoint")]
    pub address: SocketAddr,
    /// A file with the secret that both share, of at least 16 bytes. It authenticates the reports.
    pub key: PathBuf,
    /// Packets that may be held behind gaps, of all flows together. Unit: bytes.
    #[serde(default = "held")]
    pub held: Bytes,
    /// How long to wait until a gap is filled; longer than the round trip between the two.
    #[serde(default = "hold")]
    pub hold: Duration,
    /// How often the same segment is requested from the peer.
    #[serde(default = "requests")]
    pub requests: u32,
}

fn held() -> Bytes {
    CACHE
}

fn hold() -> Duration {
    DProxySettings::default().hold
}

fn requests() -> u32 {
    DProxySettings::default().requests
}

/// ACK decimation (RFC 3449 §5.2.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AckDecimation {
    /// Of this many acknowledgements, one is forwarded.
    pub keep_one_in: u32,
    /// How long after the first suppressed acknowledgement the latest one is forwarded after all;
    /// zero: never.
    pub hold: Duration,
}

impl Default for AckDecimation {
    fn default() -> Self {
        let AckDecimationSettings { keep_one_in, hold } = AckDecimationSettings::default();
        Self { keep_one_in, hold }
    }
}

impl From<&AckDecimation> for AckDecimationSettings {
    fn from(written: &AckDecimation) -> Self {
        let AckDecimation { keep_one_in, hold } = *written;
        Self { keep_one_in, hold }
    }
}

/// ACK spacing and reconstruction (RFC 3449 §5.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AckSpacing {
    /// The rate at which released data leave. An acknowledgement waits until the data that earlier
    /// ones released have left. Unset: it does not wait for them.
    pub rate: Option<Rate>,
    /// Bytes from one reconstructed acknowledgement to the next; unset: none are reconstructed.
    pub rebuild: Option<Bytes>,
    /// The longest time for which an acknowledgement is held back.
    pub delay_max: Duration,
    /// The most acknowledgements of a flow that are held back.
    pub waiting_max: u32,
}

impl Default for AckSpacing {
    fn default() -> Self {
        let AckSpacingSettings { rate, rebuild, delay_max, waiting_max } =
            AckSpacingSettings::default();
        Self { rate, rebuild, delay_max, waiting_max }
    }
}

impl From<&AckSpacing> for AckSpacingSettings {
    fn from(written: &AckSpacing) -> Self {
        let AckSpacing { rate, rebuild, delay_max, waiting_max } = *written;
        Self { rate, rebuild, delay_max, waiting_max }
    }
}

/// The initial timeout of a source is no longer than this, whatever its round trip.
const HOLD_MAX: Duration = Duration::from_s(10);
const REQUESTS_MAX: u32 = 100;
/// The default size of the cache, and of the packets held.
const CACHE: Bytes = Bytes::new(16_000_000);

impl Default for Assist {
    fn default() -> Self {
        let agent = SnoopSettings::default();
        Self {
            interfaces: OneOrMany::default(),
            repair: Repairer::default(),
            cache: CACHE,
            threshold: agent.threshold,
            timer_min: agent.timer_min,
            resends: agent.resends,
            flows: agent.flows,
            idle: agent.idle,
            peer: None,
            ack_decimation: None,
            ack_spacing: None,
        }
    }
}

impl Assist {
    /// Whether flows may be assisted.
    pub fn is_on(&self) -> bool {
        !self.interfaces.is_empty()
    }

    /// Checks every number.
    pub(super) fn check(&self) -> Result<(), ResolveError> {
        let key = KeyPath::of(["assist"]);
        check_interfaces(&key.join("interfaces"), &self.interfaces)?;
        let zeros = [
            ("cache", self.cache == Bytes::ZERO),
            ("threshold", self.threshold == 0),
            ("flows", self.flows == 0),
            ("idle", self.idle.is_zero()),
        ];
        if let Some((name, _)) = zeros.into_iter().find(|(_, zero)| *zero) {
            return fault(
                &key.join(name),
                "nothing could be repaired with that",
                "leave it out for its default, or leave `interfaces` out to assist no flow",
            );
        }
        self.check_peer(&key)?;
        let acks: [(&str, Option<Result<(), Fault>>); 2] = [
            (
                "ack_decimation",
                self.ack_decimation.as_ref().map(|it| AckDecimationSettings::from(it).check()),
            ),
            (
                "ack_spacing",
                self.ack_spacing.as_ref().map(|it| AckSpacingSettings::from(it).check()),
            ),
        ];
        for (table, outcome) in acks {
            if let Some(Err(Fault { key: of, what, hint })) = outcome {
                return fault(&key.join(table).join(of), what, hint);
            }
        }
        if self.repair == Repairer::None
            && self.ack_decimation.is_none()
            && self.ack_spacing.is_none()
        {
            return fault(
                &key.join("repair"),
                "no agent would assist flows",
                "add [assist.ack_decimation] or [assist.ack_spacing], or take this out",
            );
        }
        Ok(())
    }

    fn check_peer(&self, key: &KeyPath) -> Result<(), ResolveError> {
        let peer = match (&self.peer, self.repair) {
            (Some(peer), Repairer::DProxy) => peer,
            (None, Repairer::DProxy) => {
                return fault(
                    &key.join("repair"),
                    "a D-Proxy works with another at the far end of the link",
                    "add [assist.peer] with listen, address and key",
                );
            }
            (Some(_), _) => {
                return fault(
                    &key.join("peer"),
                    "nothing is repaired with a peer",
                    "add repair = \"d-proxy\" to [assist], or take the table out",
                );
            }
            (None, _) => return Ok(()),
        };
        let key = key.join("peer");
        for (name, address) in [("listen", peer.listen), ("address", peer.address)] {
            let ip = address.ip();
            if ip.is_unspecified() || ip.is_multicast() || address.port() == 0 {
                return fault(
                    &key.join(name),
                    format!("{address} is no host's address and port"),
                    "write an address of one host, and a port: both ends name both of them",
                );
            }
        }
        if peer.listen == peer.address || peer.listen.is_ipv4() != peer.address.is_ipv4() {
            return fault(
                &key.join("address"),
                format!("{} cannot be the far end for {}", peer.address, peer.listen),
                "write the address at which the other daemon listens, of the same family",
            );
        }
        if peer.hold > HOLD_MAX || peer.requests > REQUESTS_MAX {
            let name = if peer.hold > HOLD_MAX { "hold" } else { "requests" };
            return fault(
                &key.join(name),
                "the source sends again long before",
                format!("hold is at most {HOLD_MAX}, and requests are at most {REQUESTS_MAX}"),
            );
        }
        let zeros = [
            ("held", peer.held == Bytes::ZERO),
            ("hold", peer.hold.is_zero()),
            ("requests", peer.requests == 0),
        ];
        match zeros.into_iter().find(|(_, zero)| *zero) {
            Some((name, _)) => fault(
                &key.join(name),
                "nothing could be repaired with that",
                "leave it out for its default",
            ),
            None => Ok(()),
        }
    }

    /// Checks that agents are configured if a rule needs them.
    pub(super) fn check_rule(&self, key: &KeyPath, action: Action) -> Result<(), ResolveError> {
        if action == Action::Assist && !self.is_on() {
            return fault(
                &key.join("action"),
                "no interface is set beyond which flows are to be repaired",
                "add [assist] with interfaces = \"NAME\", the one towards the link that loses packets",
            );
        }
        Ok(())
    }
}
