//! Changes to the running table that are too slow with `nft`, or that `nft` cannot write: the gate
//! that lets new flows pass by, and the rule that sends SYNs to the daemon.

use super::table::{self, TableSetting};
use super::{assist_queue, still, still_queue};
use midhop_linux::nft::{Load, Original, Table, Unbound};
use midhop_pep::config::Plan;
use nix::libc;
use std::io;

/// The table of a running instance.
#[derive(Debug)]
pub struct Ruleset {
    table: Table,
}

impl Ruleset {
    /// Opens a channel to the table of an instance.
    pub fn open(instance: &str) -> io::Result<Self> {
        Ok(Self { table: table::open_table(instance)? })
    }

    /// Adds a rule.
    pub fn add(&self, rule: &NetlinkRule) -> io::Result<()> {
        match rule {
            NetlinkRule::Queue { chain, queue, unbound } => {
                self.table.add_queue(chain, *queue, *unbound)
            }
            NetlinkRule::Update { chain, set, key, value } => {
                self.table.add_update(chain, set, key, value)
            }
        }
    }

    /// Marks the table as complete, by a chain with this name.
    pub fn mark(&self, mark: &str) -> io::Result<()> {
        self.table.add_chain(mark)
    }

    /// Whether there is a table with this mark.
    pub fn has_mark(&self, mark: &str) -> io::Result<bool> {
        self.table.has_chain(mark)
    }

    /// Shuts or opens the gate: while it is shut, new flows pass by.
    pub fn set_gate(&self, shut: bool) -> io::Result<()> {
        const GATE: &str = "gate";
        let protocol = [u8::try_from(libc::IPPROTO_TCP).unwrap_or(6)];
        if shut {
            return self.table.add_element(GATE, &protocol);
        }
        self.table.delete_element_if_there(GATE, &protocol)
    }
}

/// A rule that `nft` cannot write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetlinkRule {
    /// Sends packets to a queue.
    Queue {
        /// The chain of these packets.
        chain: String,
        /// The number of the queue.
        queue: u16,
        /// What happens to them if no daemon listens.
        unbound: Unbound,
    },
    /// Enters what a packet has in a set or map.
    Update {
        /// The chain of these packets.
        chain: String,
        /// The set or map.
        set: &'static str,
        /// The key.
        key: Vec<Load>,
        /// The value; empty for a set.
        value: Vec<Load>,
    },
}

/// All such rules of a plan's table: each worker's queue, notes of translated flows, and the flows that are assisted.
///
/// # Errors
/// When there are not enough numbers for the queues.
pub fn netlink_rules(
    plan: &Plan,
    queues: u16,
    setting: TableSetting,
) -> io::Result<Vec<NetlinkRule>> {
    let first = plan.intercept.queue;
    let numbered = |chain: String, number: u16| {
        let queue = first.checked_add(number).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(NetlinkRule::Queue { chain, queue, unbound: Unbound::Passes })
    };
    let mut rules = if setting.conntrack { notes() } else { Vec::new() };
    let waiting = (0..queues).map(|number| numbered(table::waiting(number), number));
    rules.extend(waiting.collect::<io::Result<Vec<_>>>()?);
    if !plan.intercept.interfaces.is_empty() {
        let (chain, queue) = (still::WAITS.to_owned(), still_queue(plan, queues));
        rules.push(NetlinkRule::Queue { chain, queue, unbound: Unbound::Drops });
    }
    if plan.assist.is_on() {
        if setting.conntrack {
            rules.extend(answers());
        }
        let queue = assist_queue(plan, queues);
        let chain = table::ASSISTING.to_owned();
        rules.push(NetlinkRule::Queue { chain, queue, unbound: Unbound::Passes });
    }
    Ok(rules)
}

/// Records what connection tracking knows of a held SYN: `nft` up to 1.0.6 has no registers left for keys of this length.
fn notes() -> Vec<NetlinkRule> {
    let v4 =
        [Load::Network(12, 4), Load::Transport(0, 2), Load::Network(16, 4), Load::Transport(2, 2)];
    let v6 =
        [Load::Network(8, 16), Load::Transport(0, 2), Load::Network(24, 16), Load::Transport(2, 2)];
    let note = |chain: &str, set, key: [Load; 4], value: &[Load]| NetlinkRule::Update {
        chain: chain.to_owned(),
        set,
        key: key.to_vec(),
        value: value.to_vec(),
    };
    vec![
        note(
            table::NOTE_V4,
            table::ORIGINS_V4,
            v4,
            &[
                Load::Original(Original::SourceV4),
                Load::Original(Original::SourcePort),
                Load::Original(Original::DestinationV4),
                Load::Original(Original::DestinationPort),
                Load::ConnectionMark,
            ],
        ),
        note(
            table::NOTE_V6,
            table::CLIENTS_V6,
            v6,
            &[
                Load::Original(Original::SourceV6),
                Load::Original(Original::SourcePort),
                Load::ConnectionMark,
            ],
        ),
        note(
            table::NOTE_V6,
            table::SERVERS_V6,
            v6,
            &[Load::Original(Original::DestinationV6), Load::Original(Original::DestinationPort)],
        ),
    ]
}

/// Enters the responses of assisted flows, as they are after the reverse translation.
fn answers() -> impl Iterator<Item = NetlinkRule> {
    let v4 = [
        Load::Original(Original::DestinationV4),
        Load::Original(Original::DestinationPort),
        Load::Original(Original::SourceV4),
        Load::Original(Original::SourcePort),
    ];
    let v6 = [
        Load::Original(Original::DestinationV6),
        Load::Original(Original::DestinationPort),
        Load::Original(Original::SourceV6),
        Load::Original(Original::SourcePort),
    ];
    let both = [(table::ASSISTED_V4, v4), (table::ASSISTED_V6, v6)];
    both.into_iter().map(|(set, key)| NetlinkRule::Update {
        chain: table::answers(set),
        set,
        key: key.to_vec(),
        value: Vec::new(),
    })
}
