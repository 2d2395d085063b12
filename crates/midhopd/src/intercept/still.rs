//! Flows that stand still while they move to another machine: their packets are dropped, and their ends send them again.
//!
//! The sets and chains are in the table from the start: a chain that is added would lose packets that wait in queues.

use super::forward::{Forward, octets};
use super::marks::Marks;
use super::origin;
use super::table::{self, base_chain};
use crate::ends::Ends;
use crate::keeper::order::{STILL_TIME, Stillness};
use midhop_linux::nft::{self, ElementChange, Table};
use nix::libc;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held while flows are added or removed, and while the table is replaced: nothing must happen to them between the
/// old table and the new one.
static CHANGES: Mutex<()> = Mutex::new(());

/// Where packets are dropped: a set for each family, with the hook.
const ARRIVING: ([&str; 2], &str) = (["still_in4", "still_in6"], "prerouting");
const LEAVING: ([&str; 2], &str) = (["still_out4", "still_out6"], "output");
/// The flows whose sockets here receive what arrives. Without a socket it is dropped: as a router, this host would send it
/// on, to an end that has another connection.
const RECEIVING: [&str; 2] = ["still_receiving4", "still_receiving6"];
/// The flows for which what arrives waits in the queue of [`WAITS`].
const WAITING: [&str; 2] = ["still_waiting4", "still_waiting6"];
/// The chain whose rule sends packets to the queue of flows that move here. `nft` cannot write this rule: see
/// [`super::Ruleset`].
pub(super) const WAITS: &str = "still_waits";

/// Adds the sets, and the chains that drop the packets of the flows in them; `raw` is the priority before connection
/// tracking. Of what leaves, only packets of own sockets are dropped: others are copies that are forwarded.
pub(super) fn drop_packets(text: &mut String, raw: i32, marks: Marks) {
    let own = marks.client | marks.server;
    let families = [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")];
    let key = |family: &str| format!("{family} saddr . tcp sport . {family} daddr . tcp dport");
    for sets in [ARRIVING.0, LEAVING.0, RECEIVING, WAITING] {
        for (set, (_, address)) in sets.into_iter().zip(families) {
            let _ = writeln!(
                text,
                "  set {set} {{ type {address} . inet_service . {address} . inet_service; \
                 flags timeout; size 65535; }}"
            );
        }
    }
    table::chain(text, WAITS, &[]);
    let mut rules = Vec::new();
    for ((at, (family, _)), receiving) in families.into_iter().enumerate().zip(RECEIVING) {
        let (arriving, key) = (ARRIVING.0[at], key(family));
        let stopped = format!("still_{family}");
        let received = format!("{key} @{receiving} socket mark & {own:#x} != 0 accept");
        let waits = format!("{key} @{} goto {WAITS}", WAITING[at]);
        table::chain(text, &stopped, &[received, waits, "drop".to_owned()]);
        rules.push(format!("{key} @{arriving} goto {stopped}"));
    }
    base_chain(text, "still_prerouting", ARRIVING.1, raw - 3, &rules);
    let rules: Vec<String> = LEAVING
        .0
        .into_iter()
        .zip(families)
        .map(|(set, (family, _))| format!("meta mark & {own:#x} != 0 {} @{set} drop", key(family)))
        .collect();
    base_chain(text, "still_output", LEAVING.1, raw - 3, &rules);
}

fn changes() -> MutexGuard<'static, ()> {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the table of an instance by `run`, and keeps the flows that stand still. Otherwise what arrives for one of
/// them would be acknowledged by a kernel whose connection has moved, or is about to. Their time begins again.
///
/// # Errors
/// The error of `run`.
pub(super) fn across<E>(
    instance: &str,
    text: &mut String,
    run: impl FnOnce(&str) -> Result<(), E>,
) -> Result<(), E> {
    let _changes = changes();
    let table = table::name(instance);
    for (arriving, leaving) in ARRIVING.0.into_iter().zip(LEAVING.0) {
        // If there is no table, nothing stands still.
        let listed = nft::ask(&["-n", "list", "set", "inet", &table, arriving]).unwrap_or_default();
        let keys: Vec<&str> = keys(&listed).collect();
        if keys.is_empty() {
            continue;
        }
        let seconds = STILL_TIME.as_secs();
        let elements: Vec<String> =
            keys.iter().map(|key| format!("{key} timeout {seconds}s")).collect();
        for set in [arriving, leaving] {
            let elements = elements.join(", ");
            let _ = writeln!(text, "add element inet {table} {set} {{ {elements} }}");
        }
    }
    run(text)
}

/// The keys of a set that `nft` lists.
fn keys(listed: &str) -> impl Iterator<Item = &str> {
    let elements = listed.split_once("elements = {").and_then(|(_, rest)| rest.split_once('}'));
    let elements = elements.map_or("", |(elements, _)| elements).split(',');
    elements.filter_map(|element| element.split_once(" timeout ")).map(|(key, _)| key.trim())
}

/// Channels to the tables in which flows stand still. Kept open: to close one takes the kernel 10 ms while it has not
/// freed deleted elements yet.
#[derive(Debug)]
pub struct StillTables {
    table: Table,
    forward: Forward,
}

impl StillTables {
    /// Those of an instance, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel gives no channel.
    pub fn open(instance: &str) -> io::Result<Self> {
        Ok(Self { table: table::open_table(instance)?, forward: Forward::open(instance)? })
    }

    /// Determines what happens to the packets of flows.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set(&self, flows: &[Ends], stillness: Stillness) -> io::Result<()> {
        let mut keys = Vec::with_capacity(flows.len());
        for ends in flows {
            let both = [*ends, Ends { client: ends.server, server: ends.client }];
            keys.push((both.map(origin::key), family(ends)?));
        }
        let mut own = Vec::with_capacity(16 * flows.len());
        for (both, family) in &keys {
            let mut put = |set: &'static str, is_in_it: bool| {
                // To delete one that is not there takes the kernel 10 ms: it gives up a whole transaction.
                own.extend(both.iter().map(|key| ElementChange::Add(set, key, STILL_TIME)));
                if !is_in_it {
                    own.extend(both.iter().map(|key| ElementChange::Delete(set, key)));
                }
            };
            let is_any = stillness != Stillness::None;
            if stillness != Stillness::Leaving {
                put(ARRIVING.0[*family], is_any);
            }
            if !matches!(stillness, Stillness::Arriving(_)) {
                put(LEAVING.0[*family], is_any);
            }
            if !matches!(stillness, Stillness::Arriving(_) | Stillness::Leaving) {
                put(RECEIVING[*family], stillness == Stillness::Receiving);
                put(WAITING[*family], stillness == Stillness::Waiting);
            }
        }
        let address = stillness.neighbour().map(octets).unwrap_or_default();
        let _changes = changes();
        let each = keys.iter();
        let forwarding: Vec<_> = match stillness {
            Stillness::Arriving(_) => each
                .filter(|(_, family)| !address.is_empty() && self.forward.can(*family))
                .flat_map(|(both, family)| self.forward.begin(both, *family, &address))
                .collect(),
            Stillness::Both | Stillness::Waiting | Stillness::None => {
                each.flat_map(|(both, family)| self.forward.end(both, *family)).collect()
            }
            Stillness::Leaving | Stillness::Receiving => Vec::new(),
        };
        if forwarding.is_empty() {
            return self.table.change_elements(&own);
        }
        let all: Vec<_> =
            own.iter().map(|change| (&self.table, *change)).chain(forwarding).collect();
        let Err(error) = self.table.change_tables(&all) else { return Ok(()) };
        self.table.change_elements(&own)?;
        if stillness.neighbour().is_none() {
            return Err(error);
        }
        // The ends send again what is dropped.
        tracing::debug!(?flows, %error, "packets of flows that move are not forwarded");
        Ok(())
    }
}

/// The family of a flow, as an index of sets and tables.
fn family(ends: &Ends) -> io::Result<usize> {
    match (ends.client, ends.server) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => Ok(0),
        (SocketAddr::V6(_), SocketAddr::V6(_)) => Ok(1),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_read_from_a_list() {
        let listed = "table inet midhop_main {
\tset still_in4 {
\t\ttype ipv4_addr . inet_service . ipv4_addr . inet_service
\t\tsize 65535
\t\tflags timeout
\t\telements = { 10.0.1.2 . 5000 . 10.0.2.2 . 80 timeout 2m expires 1m40s452ms,
\t\t\t     10.0.2.2 . 80 . 10.0.1.2 . 5000 timeout 2m expires 1m40s452ms }
\t}
}";
        let found: Vec<_> = keys(listed).collect();
        assert_eq!(found, ["10.0.1.2 . 5000 . 10.0.2.2 . 80", "10.0.2.2 . 80 . 10.0.1.2 . 5000"]);
        assert_eq!(keys(&listed.replace("elements", "comment")).count(), 0);
    }
}
