//! The modem that reports what the link to a peer carries.

use super::ResolveError;
use super::resolve::{check_link, fault};
use midhop_config::KeyPath;
use midhop_dlep::Mac;
use midhop_units::Rate;
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;

/// The rates that a link of a tunnel may be reported to have.
pub const REPORTED_MIN: Rate = Rate::from_bits_per_s(8_000);
/// See [`REPORTED_MIN`].
pub const REPORTED_MAX: Rate = Rate::from_bits_per_s(100_000_000_000);

/// A modem that speaks DLEP (RFC 8175).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Modem {
    /// Where it takes sessions, over TCP: one hop away. Port 854 is usual.
    #[serde(deserialize_with = "super::written::endpoint")]
    pub address: SocketAddr,
    /// The MAC address of the peer's end of the link, of a modem that reaches several; unset: the only one there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// What less is reported counts as; unset: 8 kbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<Rate>,
    /// What more is reported counts as; unset: 100 Gbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<Rate>,
}

/// A modem, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModemPlan {
    /// Where it takes sessions.
    pub address: SocketAddr,
    /// The destination that is the peer's link; none: the only one there is.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub destination: Option<Mac>,
    /// What less is reported counts as.
    pub least: Rate,
    /// What more is reported counts as.
    pub most: Rate,
}

fn as_text<S: Serializer>(mac: &Option<Mac>, serializer: S) -> Result<S::Ok, S::Error> {
    mac.map(|mac| mac.to_string()).serialize(serializer)
}

impl ModemPlan {
    /// What a report of `rate` counts as.
    pub fn bounded(&self, rate: Rate) -> Rate {
        rate.clamp(self.least, self.most)
    }
}

impl Modem {
    /// Checks every value. `goes_by_its_rate`: whether the tunnel goes by what is reported.
    pub(super) fn resolve(
        &self,
        key: &KeyPath,
        goes_by_its_rate: bool,
    ) -> Result<ModemPlan, ResolveError> {
        if !goes_by_its_rate {
            return fault(
                key,
                "the tunnel goes by no rate",
                "set `rate` to what the link carries in fair weather, and leave `congestion` out",
            );
        }
        if self.address.port() == 0 {
            return fault(
                &key.join("address"),
                "nobody listens on port 0",
                "854 is usual for DLEP",
            );
        }
        let hint = "leave it out, and every report counts as it is";
        check_link(key, &[("least", self.least), ("most", self.most)], hint, &[])?;
        let least = self.least.unwrap_or(REPORTED_MIN).max(REPORTED_MIN);
        let most = self.most.unwrap_or(REPORTED_MAX).min(REPORTED_MAX);
        if least > most {
            return fault(&key.join("least"), format!("more than the most, {most}"), hint);
        }
        let destination = match &self.destination {
            None => None,
            Some(text) => match text.parse::<Mac>() {
                Ok(mac) => Some(mac),
                Err(error) => {
                    let hint = "the modem's own status page or log names its destinations";
                    return fault(&key.join("destination"), error.to_string(), hint);
                }
            },
        };
        Ok(ModemPlan { address: self.address, destination, least, most })
    }
}
