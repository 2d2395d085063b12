//! Source prefixes: clients that are counted, and limited, as one.

use super::resolve::fault;
use super::{OneOrMany, ResolveError};
use ipnet::IpNet;
use midhop_config::KeyPath;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The most prefixes that may be listed: each has metrics of its own.
pub const PREFIXES_MAX: usize = 64;

/// Which clients are one source, such as those behind one terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Sources {
    /// Prefixes that are one source each; the longest prefix that contains the client's address
    /// applies.
    #[serde(deserialize_with = "super::written::networks")]
    pub prefixes: OneOrMany<IpNet>,
    /// Prefix length of the sources of all other IPv4 addresses.
    pub ipv4_bits: u8,
    /// Prefix length of the sources of all other IPv6 addresses.
    pub ipv6_bits: u8,
}

impl Default for Sources {
    fn default() -> Self {
        Self { prefixes: OneOrMany::default(), ipv4_bits: 24, ipv6_bits: 56 }
    }
}

impl Sources {
    /// The source that a client's address belongs to.
    pub fn of(&self, client: IpAddr) -> IpNet {
        let client = client.to_canonical();
        let listed = self.prefixes.iter().filter(|prefix| prefix.contains(&client));
        if let Some(longest) = listed.max_by_key(|prefix| prefix.prefix_len()) {
            return longest.trunc();
        }
        let bits = if client.is_ipv4() { self.ipv4_bits } else { self.ipv6_bits };
        // The lengths were checked; a whole address is a source of its own.
        IpNet::new(client, bits).unwrap_or_else(|_| IpNet::from(client)).trunc()
    }

    pub(super) fn check(&self) -> Result<(), ResolveError> {
        let key = KeyPath::of(["sources"]);
        if self.prefixes.len() > PREFIXES_MAX {
            return fault(
                &key.join("prefixes"),
                format!("{} prefixes are more than {PREFIXES_MAX}", self.prefixes.len()),
                "each has metrics of its own; list the ones to watch, others are grouped by ipv4_bits and ipv6_bits",
            );
        }
        for (field, bits, most) in
            [("ipv4_bits", self.ipv4_bits, 32), ("ipv6_bits", self.ipv6_bits, 128)]
        {
            if bits > most {
                return fault(
                    &key.join(field),
                    format!("{bits} bits are more than an address has"),
                    "24 of IPv4 and 56 of IPv6 are usual; 32 and 128 make each client a source",
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sources: &Sources, client: &str) -> String {
        sources.of(client.parse().expect("an address")).to_string()
    }

    #[test]
    fn a_client_belongs_to_the_longest_prefix_that_is_listed_or_to_its_network() {
        let listed = ["10.0.0.0/8", "10.1.2.0/28", "2001:db8:7::/48"];
        let prefixes = listed.map(|prefix| prefix.parse().expect("a prefix")).to_vec();
        let sources = Sources { prefixes: OneOrMany(prefixes), ..Sources::default() };
        for (client, source) in [
            ("10.1.2.3", "10.1.2.0/28"),
            ("10.1.2.99", "10.0.0.0/8"),
            ("::ffff:10.1.2.3", "10.1.2.0/28"),
            ("192.0.2.77", "192.0.2.0/24"),
            ("2001:db8:7:8::9", "2001:db8:7::/48"),
            ("2001:db8:1:234::9", "2001:db8:1:200::/56"),
        ] {
            assert_eq!(of(&sources, client), source, "{client}");
        }
        let each = Sources { ipv4_bits: 32, ipv6_bits: 128, ..Sources::default() };
        assert_eq!(of(&each, "192.0.2.77"), "192.0.2.77/32");
        let all = Sources { ipv4_bits: 0, ..Sources::default() };
        assert_eq!(of(&all, "192.0.2.77"), "0.0.0.0/0");
    }
}
