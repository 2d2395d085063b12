//! Changes to the running table for which starting `nft` would be too slow, or which it cannot
//! write: the gate that lets new flows pass by, and the rule that hands SYNs to the daemon.

use super::table;
use crate::netlink::{Channel, Message};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::io;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const NEW_ELEMENT: u16 = SUBSYSTEM << 8 | 12;
const DELETE_ELEMENT: u16 = SUBSYSTEM << 8 | 14;
const INET: i32 = 1;
const LIST_ELEMENT: u16 = 1;

/// The table of a running instance.
#[derive(Debug)]
pub struct Ruleset {
    channel: Channel,
    table: String,
}

impl Ruleset {
    /// Opens a channel to the table of an instance.
    pub fn open(instance: &str) -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkNetFilter)?;
        Ok(Self { channel, table: table::name(instance) })
    }

    /// Hands what comes to the chain `waiting` to queues from `first` on, one of `count` by address;
    /// where no daemon listens, it passes.
    ///
    /// A kernel without nftables' own expression has the older one of iptables, which does the same.
    pub fn queue(&self, first: u16, count: u16) -> io::Result<()> {
        let own = |data: Message| {
            data.with(1, &first.to_be_bytes())
                .with(2, &count.to_be_bytes())
                .with(3, &1u16.to_be_bytes())
        };
        let older = |data: Message| {
            let mut info = Vec::with_capacity(8);
            for field in [first, count, 1, 0] {
                info.extend_from_slice(&field.to_ne_bytes());
            }
            data.with_name(1, "NFQUEUE").with(2, &3u32.to_be_bytes()).with(3, &info)
        };
        match self.add_rule("waiting", "queue", own) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.add_rule("waiting", "target", older)
            }
            outcome => outcome,
        }
    }

    /// Shuts or opens the gate: while it is shut, new flows pass by.
    pub fn set_gate(&self, shut: bool) -> io::Result<()> {
        let (kind, flags) =
            if shut { (NEW_ELEMENT, libc::NLM_F_CREATE) } else { (DELETE_ELEMENT, 0) };
        let protocol = [u8::try_from(libc::IPPROTO_TCP).unwrap_or(6)];
        let change = Message::netfilter(kind, flags | libc::NLM_F_ACK, INET, 0)
            .with_name(1, &self.table)
            .with_name(2, "gate")
            .with_nested(3, |list| {
                list.with_nested(LIST_ELEMENT, |element| {
                    element.with_nested(1, |key| key.with(1, &protocol))
                })
            });
        match self.commit(change) {
            // It was open already.
            Err(error) if !shut && error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }

    fn add_rule(
        &self,
        chain: &str,
        expression: &str,
        data: impl FnOnce(Message) -> Message,
    ) -> io::Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_APPEND | libc::NLM_F_ACK;
        let rule = Message::netfilter(NEW_RULE, flags, INET, 0)
            .with_name(1, &self.table)
            .with_name(2, chain)
            .with_nested(4, |list| {
                list.with_nested(LIST_ELEMENT, |element| {
                    element.with_name(1, expression).with_nested(2, data)
                })
            });
        self.commit(rule)
    }

    fn commit(&self, change: Message) -> io::Result<()> {
        let mut batch = Message::netfilter(BATCH_BEGIN, 0, 0, SUBSYSTEM).finish();
        batch.extend(change.finish());
        batch.extend(Message::netfilter(BATCH_END, 0, 0, SUBSYSTEM).finish());
        self.channel.request(&batch)
    }
}
