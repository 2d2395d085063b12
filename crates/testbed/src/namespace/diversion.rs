//! Flows whose proxy is on another node: their segments leave the route to their destination.
//!
//! A rule for each direction of a flow leads to a table whose only route is over the link to the proxy. What the proxy
//! itself sends must not come back to it, whatever path it takes: its node gives it a DSCP by which other nodes know it.

use super::{Namespace, NamespaceError, link};
use midhop_linux::nft;
use midhop_linux::route_table::{Family, RouteEntry};
use midhop_linux::rule::{Rule, RuleAction, RulePart};
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// The preference of the rules for diverted segments: before the rules of proxies.
const PREFERENCE: u32 = 77;

/// The tables for a node's links. The kernel's own follow.
const TABLES: RangeInclusive<u8> = 77..=252;

/// The DSCP of segments that a proxy sends itself. It is one for local use (RFC 2474 section 6, pool 2). Its bits
/// are also bits of the former type of service (RFC 1349), which is all that older kernels compare.
const OWN: u8 = 0b00_0011;

/// A way out of a node.
#[derive(Debug, Clone, Copy)]
pub struct Exit<'a> {
    /// The number of the link among those of the node.
    pub number: usize,
    /// The link's device on the node.
    pub device: &'a str,
    /// The addresses of the next node on the link: that of IPv4, and that of IPv6.
    pub routers: [IpAddr; 2],
}

/// See [`Namespace::divert`].
pub(super) fn divert(
    namespace: &Namespace,
    ways: &[(SocketAddr, SocketAddr)],
    devices: &[&str],
    exit: Exit<'_>,
) -> Result<(), NamespaceError> {
    link::netlink(
        namespace,
        || "divert flows".to_owned(),
        |channel| {
            let Some(table) = TABLES.clone().nth(exit.number) else {
                return Err(io::Error::other("there is no table for a node's 177th link"));
            };
            for family in Family::BOTH {
                for rule in passing(family) {
                    match rule.add(channel) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                        done => done?,
                    }
                }
            }
            for router in exit.routers {
                let anywhere: IpAddr = match router {
                    IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                if let Some(route) = RouteEntry::over(anywhere, 0, router) {
                    route.in_table(table).replace(channel)?;
                }
            }
            // What was underway when the proxy's node began to mark it comes by this link.
            let devices = || devices.iter().filter(|device| **device != exit.device);
            for (source, destination) in ways {
                for device in devices() {
                    let mut rule = Rule::of_connection(*source, *destination, table.into());
                    let device = RulePart::InputDevice((*device).to_owned());
                    rule.parts.extend([device, RulePart::Preference(PREFERENCE)]);
                    rule.add(channel)?;
                }
            }
            Ok(())
        },
    )
}

/// The rules by which a proxy's own segments pass those of its flows.
fn passing(family: Family) -> [Rule; 2] {
    let [before, after] = [PREFERENCE - 1, PREFERENCE + 1];
    let end = Rule::new(family, RuleAction::Nop, vec![RulePart::Preference(after)]);
    let jump = vec![RulePart::Preference(before), RulePart::Goto(after)];
    let jump = Rule { tos: OWN << 2, ..Rule::new(family, RuleAction::Goto, jump) };
    [end, jump]
}

/// See [`Namespace::mark_own`].
pub(super) fn mark_own(
    namespace: &Namespace,
    ways: &[(SocketAddr, SocketAddr)],
) -> Result<(), NamespaceError> {
    if ways.is_empty() {
        return Ok(());
    }
    let done = namespace.run(|| nft::run(&marking(ways)))?;
    done.map_err(|error| NamespaceError::Device {
        name: namespace.name().to_owned(),
        action: "mark segments of a proxy".to_owned(),
        source: io::Error::other(error),
    })
}

/// Adds to the sets of a table, and makes it if it is not there.
fn marking(ways: &[(SocketAddr, SocketAddr)]) -> String {
    const TABLE: &str = "midhop-own";
    let mut text = format!(
        "add table inet {TABLE}\n\
         add chain inet {TABLE} sent {{ type filter hook output priority mangle; policy accept; }}\n\
         flush chain inet {TABLE} sent\n"
    );
    for (set, family, address) in [("v4", "ip", "ipv4_addr"), ("v6", "ip6", "ipv6_addr")] {
        let _ = writeln!(
            text,
            "add set inet {TABLE} {set} {{ type {address} . inet_service . {address} . inet_service; }}\n\
             add rule inet {TABLE} sent \
             {family} saddr . tcp sport . {family} daddr . tcp dport @{set} {family} dscp set {OWN}"
        );
    }
    for (source, destination) in ways {
        let set = if source.is_ipv4() { "v4" } else { "v6" };
        let [from, to] = [source, destination].map(|end| format!("{} . {}", end.ip(), end.port()));
        let _ = writeln!(text, "add element inet {TABLE} {set} {{ {from} . {to} }}");
    }
    text
}
