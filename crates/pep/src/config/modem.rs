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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Plan, ReadError};

    fn read(peer: &str, modem: &str) -> Result<ModemPlan, ReadError> {
        let text = format!(
            "[tunnel]\ncertificate = \"own.pem\"\nkey = \"own.key\"\nauthority = \"ca.pem\"\n\
             [peers.far]\naddress = \"192.0.2.1:443\"\n{peer}modem = {{ {modem} }}\n"
        );
        let plan = Plan::read("test.toml", &text)?;
        Ok(plan.peers[0].modem.clone().expect("a modem"))
    }

    #[test]
    fn a_report_counts_within_the_bounds() {
        let address = "address = \"192.168.100.1:854\"";
        let free = read("rate = \"20 Mbit/s\"\n", address).expect("valid");
        assert_eq!(free.bounded(Rate::ZERO), REPORTED_MIN);
        assert_eq!(free.bounded(Rate::from_bits_per_s(u64::MAX)), REPORTED_MAX);
        let keys = format!(
            "{address}, destination = \"02:00:5e:10:00:01\", least = \"1 Mbit/s\", most = \"9 Mbit/s\""
        );
        let bound = read("rate = \"20 Mbit/s\"\n", &keys).expect("valid");
        let mbit = Rate::from_mbit_per_s;
        let counts = [0, 5, 12].map(|rate| bound.bounded(mbit(rate)));
        assert_eq!(counts, [mbit(1), mbit(5), mbit(9)]);
        assert_eq!(
            bound.destination.map(|mac| mac.to_string()).as_deref(),
            Some("02:00:5e:10:00:01")
        );
    }

    #[test]
    fn what_is_no_modem_is_refused_by_its_key() {
        let (rate, address) = ("rate = \"20 Mbit/s\"\n", "address = \"192.168.100.1:854\"");
        for (peer, modem, key) in [
            ("", address.to_owned(), "peers.far.modem"),
            (
                "rate = \"20 Mbit/s\"\ncongestion = \"cubic\"\n",
                address.to_owned(),
                "peers.far.modem",
            ),
            (rate, "least = \"1 Mbit/s\"".to_owned(), "address"),
            (rate, "address = \"192.168.100.1\"".to_owned(), "peers.far.modem.address"),
            (rate, "address = \"192.168.100.1:0\"".to_owned(), "peers.far.modem.address"),
            (rate, format!("{address}, destination = \"far\""), "peers.far.modem.destination"),
            (rate, format!("{address}, least = \"0 bit/s\""), "peers.far.modem.least"),
            (
                rate,
                format!("{address}, least = \"2 Mbit/s\", most = \"1 Mbit/s\""),
                "peers.far.modem.least",
            ),
            (rate, format!("{address}, port = 854"), "peers.far.modem.port"),
        ] {
            let error = read(peer, &modem).expect_err(key);
            let named = error.to_string().contains(key);
            assert!(named, "{key}: {error}");
        }
    }
}
