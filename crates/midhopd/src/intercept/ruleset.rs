//! Changes to the running table for which starting `nft` would be too slow, or which it cannot
//! write: the gate that lets new flows pass by, and the rule that hands SYNs to the daemon.

use super::table;
use midhop_linux::netlink::{Channel, Message};
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

/// The first of sixteen registers of four bytes.
const FIRST_REGISTER: u32 = 8;
/// Enters an element, or renews the one that is there.
const UPDATE: u32 = 1;

const CT_MARK: u32 = 3;
const CT_SOURCE_PORT: u32 = 11;
const CT_DESTINATION_PORT: u32 = 12;
const CT_SOURCE_V4: u32 = 19;
const CT_DESTINATION_V4: u32 = 20;
const CT_SOURCE_V6: u32 = 21;
const CT_DESTINATION_V6: u32 = 22;

/// What a rule reads into registers.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// Offset and length in the network header.
    Network(u32, u32),
    /// Offset and length in the transport header.
    Transport(u32, u32),
    /// A part of the connection's original tuple, and its length.
    Original(u32, u32),
    /// The connection's mark.
    ConnectionMark,
}

impl Load {
    /// Registers that it takes.
    const fn words(self) -> u32 {
        let bytes = match self {
            Self::Network(_, length) | Self::Transport(_, length) | Self::Original(_, length) => {
                length
            }
            Self::ConnectionMark => 4,
        };
        bytes.div_ceil(4)
    }

    fn expression(self, rule: Message, register: u32) -> Message {
        let number = |data: Message, kind: u16, value: u32| data.with(kind, &value.to_be_bytes());
        let payload = |base: u32, offset: u32, length: u32| {
            move |data: Message| {
                let fields = [register, base, offset, length];
                (1..).zip(fields).fold(data, |data, (kind, value)| number(data, kind, value))
            }
        };
        match self {
            Self::Network(offset, length) => {
                expression(rule, "payload", payload(1, offset, length))
            }
            Self::Transport(offset, length) => {
                expression(rule, "payload", payload(2, offset, length))
            }
            Self::Original(key, _) => expression(rule, "ct", |data| {
                // The direction of the connection's first packet.
                number(number(data, 1, register), 2, key).with(3, &[0])
            }),
            Self::ConnectionMark => {
                expression(rule, "ct", |data| number(number(data, 1, register), 2, CT_MARK))
            }
        }
    }
}

/// Adds one expression to a rule.
fn expression(rule: Message, name: &str, data: impl FnOnce(Message) -> Message) -> Message {
    rule.with_nested(LIST_ELEMENT, |element| element.with_name(1, name).with_nested(2, data))
}

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

    /// Hands what comes to each chain of [`table::waiting`] to its queue, of `count` from `first` on; where no daemon
    /// listens, it passes.
    ///
    /// A kernel without nftables' own expression has the older one of iptables, which does the same.
    pub fn queue(&self, first: u16, count: u16) -> io::Result<()> {
        (0..count).try_for_each(|number| {
            let queue = first.checked_add(number).ok_or(io::ErrorKind::InvalidInput)?;
            self.queue_one(&table::waiting(number), queue)
        })
    }

    /// Hands packets of assisted flows to a queue; where no daemon listens, they pass.
    pub fn assist(&self, queue: u16) -> io::Result<()> {
        self.queue_one(table::ASSISTING, queue)
    }

    fn queue_one(&self, chain: &str, queue: u16) -> io::Result<()> {
        let own = |data: Message| {
            data.with(1, &queue.to_be_bytes())
                .with(2, &1u16.to_be_bytes())
                .with(3, &1u16.to_be_bytes())
        };
        let older = |data: Message| {
            let mut info = Vec::with_capacity(8);
            for field in [queue, 1, 1, 0] {
                info.extend_from_slice(&field.to_ne_bytes());
            }
            data.with_name(1, "NFQUEUE").with(2, &3u32.to_be_bytes()).with(3, &info)
        };
        match self.add_rule(chain, |rule| expression(rule, "queue", own)) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.add_rule(chain, |rule| expression(rule, "target", older))
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

    /// Fills the chains that note what connection tracking knows of a held SYN: `nft` up to 1.0.6 has
    /// no registers left for keys of this length.
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
        self.add_note(
            table::NOTE_V4,
            table::ORIGINS_V4,
            &v4,
            &[
                Load::Original(CT_SOURCE_V4, 4),
                Load::Original(CT_SOURCE_PORT, 2),
                Load::Original(CT_DESTINATION_V4, 4),
                Load::Original(CT_DESTINATION_PORT, 2),
                Load::ConnectionMark,
            ],
        )?;
        self.add_note(
            table::NOTE_V6,
            table::CLIENTS_V6,
            &v6,
            &[
                Load::Original(CT_SOURCE_V6, 16),
                Load::Original(CT_SOURCE_PORT, 2),
                Load::ConnectionMark,
            ],
        )?;
        self.add_note(
            table::NOTE_V6,
            table::SERVERS_V6,
            &v6,
            &[Load::Original(CT_DESTINATION_V6, 16), Load::Original(CT_DESTINATION_PORT, 2)],
        )
    }

    /// Fills the chains that enter the answers of assisted flows, as they are when they have been translated back.
    pub fn answers(&self) -> io::Result<()> {
        let v4 = [
            Load::Original(CT_DESTINATION_V4, 4),
            Load::Original(CT_DESTINATION_PORT, 2),
            Load::Original(CT_SOURCE_V4, 4),
            Load::Original(CT_SOURCE_PORT, 2),
        ];
        let v6 = [
            Load::Original(CT_DESTINATION_V6, 16),
            Load::Original(CT_DESTINATION_PORT, 2),
            Load::Original(CT_SOURCE_V6, 16),
            Load::Original(CT_SOURCE_PORT, 2),
        ];
        for (set, key) in [(table::ASSISTED_V4, v4), (table::ASSISTED_V6, v6)] {
            self.add_note(&table::answers(set), set, &key, &[])?;
        }
        Ok(())
    }

    /// A rule that enters `value` under `key` into a map, or `key` into a set.
    fn add_note(&self, chain: &str, map: &str, key: &[Load], value: &[Load]) -> io::Result<()> {
        let value_register = FIRST_REGISTER + key.iter().map(|load| load.words()).sum::<u32>();
        self.add_rule(chain, |rule| {
            let mut register = FIRST_REGISTER;
            let rule = key.iter().chain(value).fold(rule, |rule, load| {
                let rule = load.expression(rule, register);
                register += load.words();
                rule
            });
            expression(rule, "dynset", |data| {
                let data = data
                    .with_name(1, map)
                    .with(3, &UPDATE.to_be_bytes())
                    .with(4, &FIRST_REGISTER.to_be_bytes());
                match value {
                    [] => data,
                    _ => data.with(5, &value_register.to_be_bytes()),
                }
            })
        })
    }

    fn add_rule(
        &self,
        chain: &str,
        expressions: impl FnOnce(Message) -> Message,
    ) -> io::Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_APPEND | libc::NLM_F_ACK;
        let rule = Message::netfilter(NEW_RULE, flags, INET, 0)
            .with_name(1, &self.table)
            .with_name(2, chain)
            .with_nested(4, expressions);
        self.commit(rule)
    }

    fn commit(&self, change: Message) -> io::Result<()> {
        let mut batch = Message::netfilter(BATCH_BEGIN, 0, 0, SUBSYSTEM).finish();
        batch.extend(change.finish());
        batch.extend(Message::netfilter(BATCH_END, 0, 0, SUBSYSTEM).finish());
        self.channel.request(&batch)
    }
}
