//! Forwards what still arrives here for flows that have moved to a peer: their ends wait for no change of routes.
//!
//! The kernel sends a copy of such a packet to the peer as a router, unchanged but for its time to live, and the rules of
//! [`super::still`] drop the packet itself. So this takes a peer that is a neighbour: on a link of this host, with an
//! address of the flow's family. Only tables of one family can copy packets, hence two more tables. Where the
//! kernel lacks this (`NFT_DUP_IPV4`, `NFT_DUP_IPV6`), packets are dropped, and the ends send them again.

use super::table;
use crate::keeper::order::STILL_TIME;
use midhop_linux::nft::{self, ElementChange, Table, TableFamily};
use midhop_linux::{netlink::Channel, route};
use midhop_pep::config::Plan;
use nix::sys::socket::SockProtocol;
use std::fmt::Write;
use std::io;
use std::net::IpAddr;

/// The map from flows to the neighbour to which their packets go.
const MAP: &str = "forwarded";

/// Adds the tables, if there is a peer to which flows can move. What they forward already, they go on forwarding.
pub(super) fn install(plan: &Plan) {
    if neighbours(plan).is_empty() {
        return;
    }
    let table = table::name(&plan.intercept.instance);
    // Before the rules that drop the packet.
    let priority = plan.intercept.hooks.raw - 4;
    let mut text = String::new();
    for (family, address, limit) in [("ip", "ipv4_addr", "ttl"), ("ip6", "ipv6_addr", "hoplimit")] {
        let key = format!("{family} saddr . tcp sport . {family} daddr . tcp dport");
        let _ = writeln!(
            text,
            "add table {family} {table}\n\
             add map {family} {table} {MAP} {{ type {address} . inet_service . {address} . inet_service : {address}; \
             flags timeout; size 65535; }}\n\
             add chain {family} {table} {MAP} {{ type filter hook prerouting priority {priority}; policy accept; }}\n\
             flush chain {family} {table} {MAP}\n\
             add rule {family} {table} {MAP} {family} {limit} > 1 dup to {key} map @{MAP}"
        );
    }
    if let Err(error) = nft::run(&text) {
        tracing::info!(%error, "packets of flows that move to a peer cannot be forwarded: their ends send them again");
    }
}

/// Deletes the tables if they are there.
pub(super) fn removal(instance: &str) -> String {
    let table = table::name(instance);
    ["ip", "ip6"]
        .map(|family| format!("add table {family} {table}\ndelete table {family} {table}\n"))
        .concat()
}

/// The peers to which flows can move: packets may be forwarded to these addresses, and to no other.
pub fn neighbours(plan: &Plan) -> Vec<IpAddr> {
    plan.peers.iter().filter_map(|peer| Some(peer.address?.ip())).collect()
}

/// Whether an address is a neighbour's: packets to it leave to no router.
pub fn is_neighbour(address: IpAddr) -> bool {
    let found = Channel::open(SockProtocol::NetlinkRoute)
        .and_then(|channel| route::lookup(&channel, address));
    found.is_ok_and(|route| !route.is_own && route.gateway.is_none() && route.interface.is_some())
}

/// Channels to the tables, of IPv4 and IPv6.
#[derive(Debug)]
pub(super) struct Forward([Table; 2]);

impl Forward {
    pub fn open(instance: &str) -> io::Result<Self> {
        let open = |family| Table::open_in(family, table::name(instance));
        Ok(Self([open(TableFamily::V4)?, open(TableFamily::V6)?]))
    }

    /// The changes by which what arrives under these keys of a family (0 or 1) is forwarded to a neighbour for some time.
    /// `address` is the neighbour's as the kernel has it ([`octets`]). None for a neighbour of the other family.
    pub fn begin<'a>(
        &'a self,
        keys: &'a [Vec<u8>; 2],
        family: usize,
        address: &'a [u8],
    ) -> impl Iterator<Item = (&'a Table, ElementChange<'a>)> {
        let keys = keys.iter().filter(move |_| address.len() == [4, 16][family]);
        keys.map(move |key| {
            (&self.0[family], ElementChange::AddValue(MAP, key, address, STILL_TIME))
        })
    }

    /// Whether the kernel can forward packets of a family: a transaction that fails takes 10 ms.
    pub fn can(&self, family: usize) -> bool {
        self.0[family].has_chain(MAP).unwrap_or(false)
    }

    /// The changes that end this.
    pub fn end<'a>(
        &'a self,
        keys: &'a [Vec<u8>; 2],
        family: usize,
    ) -> impl Iterator<Item = (&'a Table, ElementChange<'a>)> {
        let table = &self.0[family];
        // Deleting what is not there would take the kernel 10 ms.
        let there = keys.iter().filter(|key| table.element(MAP, key).is_ok());
        there.map(move |key| (table, ElementChange::Delete(MAP, key)))
    }
}

/// The octets of an address.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
