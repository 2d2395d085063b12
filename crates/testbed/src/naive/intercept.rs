//! Intercepts the connections that pass through a node of the laboratory, in that node's network
//! namespace.

use midhop_linux::netlink::Channel;
use midhop_linux::nft;
use midhop_linux::route_table::Family;
use midhop_linux::rule::{Rule, RuleAction, RulePart};
use midhop_linux::tproxy::local_routes;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;

/// The mark of packets that go to sockets of this node, and the number of the routing table that
/// delivers them.
const HERE: u32 = 0x6e61;

/// The listener for connections that arrive over a link.
#[derive(Debug)]
pub(super) struct Entrance {
    pub(super) link: String,
    pub(super) address: SocketAddr,
}

/// An interception. It is not removed: it ends with the node's namespace.
#[derive(Debug)]
pub(super) struct Interception;

impl Interception {
    /// Delivers passing connections to `entrances` from now on.
    pub(super) fn install(entrances: &[Entrance]) -> io::Result<Self> {
        deliver()?;
        nft::run(&table(entrances)).map_err(io::Error::other)?;
        Ok(Self)
    }
}

/// Routes marked packets to this node's own sockets.
fn deliver() -> io::Result<()> {
    let channel = Channel::routing()?;
    for route in local_routes(HERE) {
        route.add(&channel)?;
    }
    for family in Family::BOTH {
        let parts = vec![RulePart::Mark(HERE), RulePart::Table(HERE)];
        Rule::new(family, RuleAction::ToTable, parts).add(&channel)?;
    }
    Ok(())
}

/// The table matches only SYNs that pass through, and packets of the node's own sockets.
fn table(entrances: &[Entrance]) -> String {
    let own = format!("socket transparent 1 meta mark set {HERE} accept");
    let mut text = format!(
        "table inet naive {{\n  chain prerouting {{\n\
         type filter hook prerouting priority mangle; policy accept;\n\
         meta l4proto {{ icmp, icmpv6 }} {own}\n\
         meta l4proto != tcp accept\n\
         tcp flags & (fin|syn|rst|ack) != syn {own}\n\
         tcp flags & (fin|syn|rst|ack) != syn accept\n\
         fib daddr type != unicast accept\n"
    );
    for Entrance { link, address } in entrances {
        let (family, protocol) = if address.is_ipv4() { ("ipv4", "ip") } else { ("ipv6", "ip6") };
        let _ = writeln!(
            text,
            "iifname \"{link}\" meta nfproto {family} meta l4proto tcp \
             tproxy {protocol} to {address} meta mark set {HERE} accept"
        );
    }
    text + "}\n}\n"
}
