//! The modem that reports what the link to a peer carries: by DLEP, or in a file that a script writes.

use super::ResolveError;
use super::resolve::{check_link, fault};
use midhop_config::KeyPath;
use midhop_dlep::{Mac, ParseMacError};
use midhop_units::{Duration, Rate};
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The lowest rate that may be reported for a tunnel's link. The highest is [`REPORTED_MAX`].
pub const REPORTED_MIN: Rate = Rate::from_bits_per_s(8_000);
/// See [`REPORTED_MIN`].
pub const REPORTED_MAX: Rate = Rate::from_bits_per_s(100_000_000_000);
/// The default time for which the content of a file is valid.
const VALID: Duration = Duration::from_s(30);
const VALID_MAX: Duration = Duration::from_s(3600);

/// A modem that speaks DLEP (RFC 8175), or a file with what it reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Modem {
    /// Where it accepts sessions over TCP, one hop away. Port 854 is usual.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::written::endpoint_if_any"
    )]
    pub address: Option<SocketAddr>,
    /// The MAC address of the peer's end of the link, if the modem reaches several destinations;
    /// unset: the only one that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Instead of an address: a file on this host whose first line is the rate, such as `12.5 Mbit/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// How long the content of the file is valid after it was written; unset: 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid: Option<Duration>,
    /// A lower report counts as this rate; unset: 8 kbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<Rate>,
    /// A higher report counts as this rate; unset: 100 Gbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<Rate>,
}

/// Where reports come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportSource {
    /// A modem, by DLEP.
    Dlep {
        /// Where it accepts sessions.
        address: SocketAddr,
        /// The destination that is the peer's link; none: the only one there is.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
        destination: Option<Mac>,
    },
    /// A file whose first line is the rate.
    File {
        /// Its path.
        path: PathBuf,
        /// How long it is valid after it was written.
        valid: Duration,
    },
}

/// A modem, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModemPlan {
    /// Where its reports come from.
    pub source: ReportSource,
    /// A lower report counts as this rate.
    pub least: Rate,
    /// A higher report counts as this rate.
    pub most: Rate,
}

fn as_text<S: Serializer>(mac: &Option<Mac>, serializer: S) -> Result<S::Ok, S::Error> {
    mac.map(|mac| mac.to_string()).serialize(serializer)
}

impl ModemPlan {
    /// The rate that counts when `rate` is reported.
    pub fn bounded(&self, rate: Rate) -> Rate {
        rate.clamp(self.least, self.most)
    }
}

impl Modem {
    /// Checks every value. `goes_by_its_rate`: whether the tunnel uses the reported rate.
    pub(super) fn resolve(
        &self,
        key: &KeyPath,
        goes_by_its_rate: bool,
    ) -> Result<ModemPlan, ResolveError> {
        if !goes_by_its_rate {
            return fault(
                key,
                "the tunnel uses no rate",
                "set `rate` to what the link carries in fair weather, and leave `congestion` out",
            );
        }
        let source = self.source(key)?;
        let hint = "leave it out, and every report counts as it is";
        check_link(key, &[("least", self.least), ("most", self.most)], hint, &[])?;
        let least = self.least.unwrap_or(REPORTED_MIN).max(REPORTED_MIN);
        let most = self.most.unwrap_or(REPORTED_MAX).min(REPORTED_MAX);
        if least > most {
            return fault(&key.join("least"), format!("more than the most, {most}"), hint);
        }
        Ok(ModemPlan { source, least, most })
    }

    fn source(&self, key: &KeyPath) -> Result<ReportSource, ResolveError> {
        match (self.address, &self.file) {
            (Some(address), None) => {
                if self.valid.is_some() {
                    let hint = "leave it out: what a modem reports counts while its session lasts";
                    return fault(&key.join("valid"), "this is for a file", hint);
                }
                if address.port() == 0 {
                    let hint = "854 is usual for DLEP";
                    return fault(&key.join("address"), "port 0 is not a port to connect to", hint);
                }
                Ok(ReportSource::Dlep { address, destination: self.destination(key)? })
            }
            (None, Some(path)) => {
                if self.destination.is_some() {
                    let hint = "leave it out: a file is of one link";
                    return fault(&key.join("destination"), "this is for a modem by DLEP", hint);
                }
                if !path.is_absolute() {
                    let hint = "write where it is from the root on, such as /run/modem/rate";
                    return fault(&key.join("file"), "this is not an absolute path", hint);
                }
                let valid = self.valid.unwrap_or(VALID);
                if valid < Duration::from_s(1) || valid > VALID_MAX {
                    let hint = "some times as long as until the file is written again";
                    return fault(&key.join("valid"), "between 1 s and 1 h", hint);
                }
                Ok(ReportSource::File { path: path.clone(), valid })
            }
            (Some(_), Some(_)) => {
                fault(key, "it has an address and a file", "leave one of them out")
            }
            (None, None) => fault(
                key,
                "it has neither an address nor a file",
                "set `address` to where it speaks DLEP, or `file` to one that a script writes",
            ),
        }
    }

    fn destination(&self, key: &KeyPath) -> Result<Option<Mac>, ResolveError> {
        let parsed = self.destination.as_ref().map(|text| text.parse()).transpose();
        parsed.or_else(|error: ParseMacError| {
            let hint = "the modem's own status page or log names its destinations";
            fault(&key.join("destination"), error.to_string(), hint)
        })
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
        let destination = "02:00:5e:10:00:01".parse().ok();
        let address = "192.168.100.1:854".parse().expect("an address");
        assert_eq!(bound.source, ReportSource::Dlep { address, destination });
        let from_file =
            read("rate = \"20 Mbit/s\"\n", "file = \"/run/modem/rate\"").expect("valid");
        let (path, valid) = (PathBuf::from("/run/modem/rate"), Duration::from_s(30));
        assert_eq!(from_file.source, ReportSource::File { path, valid });
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
            (rate, "least = \"1 Mbit/s\"".to_owned(), "peers.far.modem"),
            (rate, format!("{address}, file = \"/run/modem/rate\""), "peers.far.modem"),
            (rate, format!("{address}, valid = \"9 s\""), "peers.far.modem.valid"),
            (rate, "file = \"modem/rate\"".to_owned(), "peers.far.modem.file"),
            (
                rate,
                "file = \"/run/rate\", destination = \"02:00:5e:10:00:01\"".to_owned(),
                "peers.far.modem.destination",
            ),
            (rate, "file = \"/run/rate\", valid = \"0 s\"".to_owned(), "peers.far.modem.valid"),
            (rate, "file = \"/run/rate\", valid = \"2 h\"".to_owned(), "peers.far.modem.valid"),
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
