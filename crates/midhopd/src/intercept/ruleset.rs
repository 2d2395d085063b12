//! Changes to the running table that are too slow with `nft`, or that `nft` cannot write: the gate
//! that lets new flows pass by, and the rule that sends SYNs to the daemon.

use super::table;
use midhop_linux::nft::{Load, Original, Table};
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

    /// Sends the packets of each chain of [`table::waiting`] to its queue. The `count` queues are
    /// numbered from `first` on. Packets pass if no daemon listens.
    pub fn queue(&self, first: u16, count: u16) -> io::Result<()> {
        (0..count).try_for_each(|number| {
            let queue = first.checked_add(number).ok_or(io::ErrorKind::InvalidInput)?;
            self.table.add_queue(&table::waiting(number), queue)
        })
    }

    /// Sends packets of assisted flows to a queue. They pass if no daemon listens.
    pub fn assist(&self, queue: u16) -> io::Result<()> {
        self.table.add_queue(table::ASSISTING, queue)
    }

    /// Shuts or opens the gate: while it is shut, new flows pass by.
    pub fn set_gate(&self, shut: bool) -> io::Result<()> {
        const GATE: &str = "gate";
        let protocol = [u8::try_from(libc::IPPROTO_TCP).unwrap_or(6)];
        if shut {
            return self.table.add_element(GATE, &protocol);
        }
        match self.table.delete_element(GATE, &protocol) {
            // The gate was open already.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }

    /// Fills the chains that record what connection tracking knows of a held SYN: `nft` up to 1.0.6 has no registers
    /// left for keys of this length.
    pub fn note(&self) -> io::Result<()> {
        let v4 = [
            Load::Network(12, 4),
            Load::Transport(0, 2),
            Load::Network(16, 4),
            Load::Transport(2, 2),
        ];
        let v6 = [
            Load::Network(8, 16),
            Load::Transport(0, 2),
            Load::Network(24, 16),
            Load::Transport(2, 2),
        ];
        self.table.add_update(
            table::NOTE_V4,
            table::ORIGINS_V4,
            &v4,
            &[
                Load::Original(Original::SourceV4),
                Load::Original(Original::SourcePort),
                Load::Original(Original::DestinationV4),
                Load::Original(Original::DestinationPort),
                Load::ConnectionMark,
            ],
        )?;
        self.table.add_update(
            table::NOTE_V6,
            table::CLIENTS_V6,
            &v6,
            &[
                Load::Original(Original::SourceV6),
                Load::Original(Original::SourcePort),
                Load::ConnectionMark,
            ],
        )?;
        self.table.add_update(
            table::NOTE_V6,
            table::SERVERS_V6,
            &v6,
            &[Load::Original(Original::DestinationV6), Load::Original(Original::DestinationPort)],
        )
    }

    /// Fills the chains that enter the responses of assisted flows, as they are after the reverse translation.
    pub fn answers(&self) -> io::Result<()> {
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
        for (set, key) in [(table::ASSISTED_V4, v4), (table::ASSISTED_V6, v6)] {
            self.table.add_update(&table::answers(set), set, &key, &[])?;
        }
        Ok(())
    }
}
