//! Flows that stand still while they move to another machine: their packets are dropped, and their ends send them again.
//!
//! The sets and chains are in the table from the start: a chain that is added would lose packets that wait in queues.

use super::origin;
use super::table::base_chain;
use crate::ends::Ends;
use crate::keeper::order::{STILL_TIME, Stillness};
use midhop_linux::nft::Table;
use nix::libc;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;

/// Where packets are dropped: a set for each family, with the hook.
const ARRIVING: ([&str; 2], &str) = (["still_in4", "still_in6"], "prerouting");
const LEAVING: ([&str; 2], &str) = (["still_out4", "still_out6"], "output");

/// Adds the sets, and the chains that drop the packets of the flows in them; `raw` is the priority before connection
/// tracking.
pub(super) fn drop_packets(text: &mut String, raw: i32) {
    for (sets, hook) in [ARRIVING, LEAVING] {
        let families = [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")];
        let mut rules = Vec::new();
        for (set, (family, address)) in sets.into_iter().zip(families) {
            let _ = writeln!(
                text,
                "  set {set} {{ type {address} . inet_service . {address} . inet_service; \
                 flags timeout; size 65535; }}"
            );
            rules.push(format!(
                "{family} saddr . tcp sport . {family} daddr . tcp dport @{set} drop"
            ));
        }
        base_chain(text, &format!("still_{hook}"), hook, raw - 3, &rules);
    }
}

/// Has the packets of a flow dropped, or no longer.
///
/// # Errors
/// When the kernel refuses.
pub fn set_still(table: &Table, ends: Ends, stillness: Stillness) -> io::Result<()> {
    let family = match (ends.client, ends.server) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => 0,
        (SocketAddr::V6(_), SocketAddr::V6(_)) => 1,
        _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    let both = [ends, Ends { client: ends.server, server: ends.client }].map(origin::key);
    let (arriving, leaving) = (ARRIVING.0[family], LEAVING.0[family]);
    let sets: &[&str] = match stillness {
        Stillness::Arriving => &[arriving],
        Stillness::Both | Stillness::None => &[arriving, leaving],
    };
    for (set, key) in sets.iter().flat_map(|set| both.iter().map(move |key| (set, key))) {
        if stillness != Stillness::None {
            table.add_element_for(set, key, STILL_TIME)?;
            continue;
        }
        // To ask for one that is not there takes the kernel 10 ms: it gives up a whole transaction.
        match table.delete_element(set, key) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
