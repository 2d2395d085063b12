//! Transparent interception, as written: which flows are taken, and which numbers of the host's
//! firewall and routing policy are the daemon's own.

use super::{OneOrMany, ResolveError};
use crate::config::resolve::{check_interfaces, fault};
use midhop_config::KeyPath;
use midhop_units::Duration;
use serde::{Deserialize, Serialize};

/// How many bits of `mark` the data plane needs.
pub const MARK_BITS: u32 = 5;
/// How many routing rules stand from `preference` on.
const RULES: u32 = 4;
/// The preference of the kernel's rule for its main table.
const MAIN_PREFERENCE: u32 = 32_766;

/// Transparent interception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Intercept {
    /// Interfaces whose arriving flows are intercepted; none: nothing is intercepted. An interface
    /// that does not exist yet is used as soon as it appears.
    pub interfaces: OneOrMany<String>,
    /// When a client's SYN is answered, unless a rule sets it.
    pub accept: Accept,
    /// How long `accept = "learned"` remembers that a target accepted.
    pub remember: Duration,
    /// Names this daemon among others on the host: its nftable is `midhop_<instance>`.
    pub instance: String,
    /// Bits of the firewall mark that nothing else on this host uses: five, and if routing rules
    /// match interfaces, as many more as are needed to number these.
    pub mark: u32,
    /// Routing table that delivers packets to this host's sockets.
    pub table: u32,
    /// Preference of the first of four routing rules; they have to come before every other rule that
    /// matches the flows.
    pub preference: u32,
    /// Conntrack zone of the clients' legs; the next one is that of the servers' legs.
    pub zone: u16,
    /// Whether connections are entered into connection tracking.
    pub conntrack: Conntrack,
    /// Priorities of the table's chains in netfilter's hooks.
    pub hooks: Hooks,
    /// The first NFQUEUE on which SYNs wait for the far side; each worker uses one of its own, and the
    /// two after these are for assisted flows and for flows that move here.
    pub queue: u16,
    /// Loopback port of the first leg's listener; the next legs use the ports above it. No packet
    /// on the wire ever carries them.
    pub port: u16,
}

impl Default for Intercept {
    fn default() -> Self {
        Self {
            interfaces: OneOrMany::default(),
            accept: Accept::default(),
            remember: Duration::from_s(300),
            instance: "main".to_owned(),
            mark: 0xff00_0000,
            table: 28008,
            preference: 10,
            zone: 28008,
            conntrack: Conntrack::default(),
            hooks: Hooks::default(),
            queue: 28008,
            port: 28008,
        }
    }
}

/// When the client's SYN is answered.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Accept {
    /// Once the far side has accepted: a refusal stays a refusal.
    #[default]
    AfterConnect,
    /// At once: this saves one round trip, but a refusal becomes a reset.
    Early,
    /// At once for targets that have accepted a connection within `remember`, otherwise once the
    /// far side has accepted.
    Learned,
}

impl Accept {
    /// Whether a client is answered before its far side is. `lately`: whether the target has accepted a connection within
    /// `remember`.
    pub fn is_early(self, lately: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Early => true,
            Self::AfterConnect => false,
            Self::Learned => lately(),
        }
    }
}

/// Whether the flows' connections are entered into the kernel's connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Conntrack {
    /// If the host's own firewall rules use it.
    #[default]
    Auto,
    /// Always, which turns it on for the whole host.
    On,
    /// Never: for hosts without stateful rules and without NAT.
    Off,
}

/// Priorities of the chains in netfilter's hooks: a smaller number comes earlier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Hooks {
    /// In prerouting and output, before connection tracking (-200): chooses the zone.
    pub raw: i32,
    /// In prerouting, after every rule that reads marks or looks up routes: delivers to sockets.
    pub delivery: i32,
    /// In input, before every filter: clears the marks.
    pub input: i32,
    /// In postrouting, after source NAT (100): holds SYNs.
    pub hold: i32,
}

impl Default for Hooks {
    fn default() -> Self {
        Self { raw: -310, delivery: 1000, input: -1000, hold: 110 }
    }
}

impl Intercept {
    /// Checks every number.
    pub(super) fn check(&self) -> Result<(), ResolveError> {
        let key = KeyPath::of(["intercept"]);
        check_interfaces(&key.join("interfaces"), &self.interfaces)?;
        self.check_instance(&key)?;
        self.check_marks(&key)?;
        self.check_routing(&key)?;
        self.hooks.check(&key.join("hooks"))
    }

    fn check_instance(&self, key: &KeyPath) -> Result<(), ResolveError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let name = &self.instance;
        if name.is_empty() || name.len() > 32 || !name.chars().all(plain) {
            return fault(
                &key.join("instance"),
                format!("\"{name}\" cannot name an nftables table"),
                "take 1 to 32 of the characters a-z, 0-9 and _",
            );
        }
        Ok(())
    }

    fn check_marks(&self, key: &KeyPath) -> Result<(), ResolveError> {
        if self.mark.count_ones() < MARK_BITS {
            return fault(
                &key.join("mark"),
                format!("{:#x} has fewer than {MARK_BITS} bits", self.mark),
                "name five bits that no other firewall rule of this host uses, such as 0xff000000",
            );
        }
        if self.zone == 0 || self.zone == u16::MAX {
            return fault(
                &key.join("zone"),
                format!("{} and the next number cannot both be zones of our own", self.zone),
                "take a number from 1 to 65534; 0 is everybody's zone",
            );
        }
        Ok(())
    }

    fn check_routing(&self, key: &KeyPath) -> Result<(), ResolveError> {
        // 253 to 255 are the kernel's own tables.
        if self.table == 0 || (253..=255).contains(&self.table) {
            return fault(
                &key.join("table"),
                format!("{} cannot be a routing table of our own", self.table),
                "take a number above 0, unused on this host, and none of 253 to 255",
            );
        }
        if self.preference == 0 || self.preference > MAIN_PREFERENCE - RULES {
            return fault(
                &key.join("preference"),
                format!(
                    "{} and the next three do not all stand before the main table",
                    self.preference
                ),
                format!("take a number from 1 to {}", MAIN_PREFERENCE - RULES),
            );
        }
        Ok(())
    }
}

impl Hooks {
    fn check(&self, key: &KeyPath) -> Result<(), ResolveError> {
        // Netfilter's own places: defragmentation, connection tracking, NAT of the destination and of
        // the source.
        let faults = [
            ("raw", self.raw, -399, -201, "after defragmentation and before connection tracking"),
            ("delivery", self.delivery, -99, i32::MAX, "after NAT of the destination"),
            ("hold", self.hold, 101, i32::MAX - 1, "after NAT of the source"),
        ];
        for (name, value, least, most, place) in faults {
            if !(least..=most).contains(&value) {
                return fault(
                    &key.join(name),
                    format!("{value} does not stand {place}"),
                    format!("take a number from {least} to {most}"),
                );
            }
        }
        Ok(())
    }
}
