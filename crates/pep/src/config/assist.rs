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

/// How flows are helped that a rule assists: both ends keep their one connection, and what is lost beyond this host is
/// sent again from here, where it is seen to be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Assist {
    /// Interfaces beyond which segments get lost: what leaves by them is cached. None: no rule may assist.
    pub interfaces: OneOrMany<String>,
    /// Who repairs what is lost.
    pub repair: Repairer,
    /// What may be cached of all flows together, in bytes of memory.
    pub cache: Bytes,
    /// How many later segments must have arrived, or duplicate acknowledgements come, until a segment counts as lost.
    pub threshold: u64,
    /// The least that its own timer waits.
    pub timer_min: Duration,
    /// How often a segment is sent again before its source is left to it.
    pub resends: u32,
    /// Of how many directions of flows there may be a state.
    pub flows: usize,
    /// A flow of which nothing has passed for so long is forgotten.
    pub idle: Duration,
    /// The other daemon, at the far end of the link, of `repair = "d-proxy"`.
    pub peer: Option<AssistPeer>,
    /// Acknowledgements that leave by the interfaces are thinned.
    pub ack_decimation: Option<AckDecimation>,
    /// Acknowledgements that come from there are spaced.
    pub ack_spacing: Option<AckSpacing>,
}

/// Who repairs what assisted flows lose beyond the interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Repairer {
    /// This daemon alone, by the acknowledgements that come back.
    #[default]
    Snoop,
    /// This one and its `peer` at the far end of the link, between themselves.
    DProxy,
    /// Nobody.
    None,
}

/// A daemon at the far end of a link, for losses between the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AssistPeer {
    /// This daemon's own address and UDP port for what the two report to each other.
    #[serde(deserialize_with = "super::written::endpoint")]
    pub listen: SocketAddr,
    /// The peer's.
    #[serde(deserialize_with = "super::written::endpoint")]
    pub address: SocketAddr,
    /// A file with the secret of both, of at least 16 bytes, by which each knows that a report is the other's.
    pub key: PathBuf,
    /// What may be held behind gaps, of all flows together, in packets' bytes.
    #[serde(default = "held")]
    pub held: Bytes,
    /// How long a gap is waited for; longer than the round trip between the two.
    #[serde(default = "hold")]
    pub hold: Duration,
    /// How often the peer is asked for the same.
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
    /// Of how many one goes on.
    pub keep_one_in: u32,
    /// How long after the first that was left out the youngest goes on after all; zero for never.
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
    /// How fast the data leave that acknowledgements ask for; none holds none back for what those before it ask for.
    pub rate: Option<Rate>,
    /// Bytes from one made-up acknowledgement to the next; none makes none.
    pub rebuild: Option<Bytes>,
    /// The longest that one is held back.
    pub delay_max: Duration,
    /// The most of a flow that are held back.
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
                "flows would be assisted by nobody",
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
                "it is not said beyond which interface flows are to be repaired",
                "add [assist] with interfaces = \"NAME\", the one towards the link that loses packets",
            );
        }
        Ok(())
    }
}
