//! A match in the syntax of nftables.

use super::FlowKey;
use crate::config::{Match, OneOrMany};
use ipnet::IpNet;

/// One address family's part of a [`Match`]. [`NftMatch::text`] is the match half of an nft rule, such as `iifname
/// { "lan0" } ip daddr { 10.0.0.0/8 } tcp dport { 22, 8000-8999 }`; it is empty if everything matches. The
/// configuration has checked the names, so none of them can close its quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftMatch {
    /// The family; none: both, because neither an address nor a DSCP is given.
    pub family: Option<Family>,
    matches: Match,
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl NftMatch {
    /// The match as at most two: one per family if it has addresses or a DSCP.
    pub(super) fn of(rule: &Match) -> Vec<Self> {
        if rule.source.is_empty() && rule.destination.is_empty() && rule.dscp.is_empty() {
            return vec![Self { family: None, matches: rule.clone() }];
        }
        [Family::V4, Family::V6]
            .into_iter()
            .filter_map(|family| {
                let own = |prefixes: &OneOrMany<IpNet>| -> Option<Vec<IpNet>> {
                    let own: Vec<IpNet> =
                        prefixes.iter().copied().filter(|prefix| family.has(prefix)).collect();
                    (prefixes.is_empty() || !own.is_empty()).then_some(own)
                };
                let source = OneOrMany(own(&rule.source)?);
                let destination = OneOrMany(own(&rule.destination)?);
                let matches = Match { source, destination, ..rule.clone() };
                Some(Self { family: Some(family), matches })
            })
            .collect()
    }
}

impl NftMatch {
    /// Whether nft would match the packets of this flow.
    pub fn covers(&self, flow: &FlowKey<'_>) -> bool {
        let v4 = flow.source.ip().to_canonical().is_ipv4();
        let own_family = self.family.is_none_or(|family| (family == Family::V4) == v4);
        own_family && self.matches.covers(flow)
    }
}

impl Family {
    fn has(self, prefix: &IpNet) -> bool {
        matches!((self, prefix), (Self::V4, IpNet::V4(_)) | (Self::V6, IpNet::V6(_)))
    }

    const fn protocol(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }
}

/// Where a rule finds the client's address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientTuple {
    /// In the packet's own headers: they were not translated.
    Packet,
    /// In connection tracking, which keeps the address from before source NAT.
    Original,
}

impl NftMatch {
    /// The match in the syntax of nft, for outgoing SYNs; `client` selects where the client's address and port are
    /// found.
    pub fn text(&self, client: ClientTuple) -> String {
        let mut parts = Vec::new();
        let mut part = |head: String, values: Vec<String>| {
            if !values.is_empty() {
                parts.push(format!("{head} {{ {} }}", values.join(", ")));
            }
        };
        let matches = &self.matches;
        part(
            "iifname".into(),
            matches.interface.iter().map(|name| format!("\"{name}\"")).collect(),
        );
        let (address, port) = match client {
            ClientTuple::Packet => ("", "tcp sport"),
            ClientTuple::Original => ("ct original ", "ct original proto-src"),
        };
        if let Some(family) = self.family {
            let protocol = family.protocol();
            part(format!("{address}{protocol} saddr"), aggregated(&matches.source));
            part(format!("{protocol} daddr"), aggregated(&matches.destination));
            part(
                format!("{protocol} dscp"),
                matches.dscp.iter().map(|dscp| dscp.value().to_string()).collect(),
            );
        }
        part(port.into(), merged(&matches.source_port));
        part("tcp dport".into(), merged(&matches.destination_port));
        parts.join(" ")
    }
}

/// Removes prefixes that lie in others: nft refuses overlapping intervals in a set.
fn aggregated(prefixes: &[IpNet]) -> Vec<String> {
    let prefixes: Vec<IpNet> = prefixes.iter().map(IpNet::trunc).collect();
    IpNet::aggregate(&prefixes).iter().map(ToString::to_string).collect()
}

/// Merges port ranges that overlap.
fn merged(ports: &[crate::config::Ports]) -> Vec<String> {
    let mut ranges: Vec<(u16, u16)> = ports.iter().map(|p| (p.first(), p.last())).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    let show = |(first, last): (u16, u16)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    merged.into_iter().map(show).collect()
}
