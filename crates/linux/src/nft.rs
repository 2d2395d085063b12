//! nftables: whole transactions as text with `nft(8)`, and over netlink where that is too slow or cannot express
//! the rule (`include/uapi/linux/netfilter/nf_tables.h`).

use crate::netlink::{Channel, Message, allow, attributes, messages};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const NEW_ELEMENT: u16 = SUBSYSTEM << 8 | 12;
const GET_ELEMENT: u16 = SUBSYSTEM << 8 | 13;
const DELETE_ELEMENT: u16 = SUBSYSTEM << 8 | 14;
/// Announces that a transaction is complete.
const NEW_GENERATION: u16 = SUBSYSTEM << 8 | 15;
const NEW_OBJECT: u16 = SUBSYSTEM << 8 | 18;
const GET_OBJECT: u16 = SUBSYSTEM << 8 | 19;
/// The family `inet`, of IPv4 and IPv6.
const INET: i32 = 1;
/// Unit: bytes. The netfilter header in front of the attributes.
const HEADER: usize = 4;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const LIST_ELEMENT: u16 = 1;
/// Unit: milliseconds, of 64 bits (`NFTA_SET_ELEM_TIMEOUT`).
const ELEMENT_TIMEOUT: u16 = 4;
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
const TYPE_COUNTER: u32 = 1;
const COUNTER_PACKETS: u16 = 2;
/// Unit: bytes. More than the kernel puts into one part of a response.
const ANSWER_BYTES: usize = 32 << 10;

/// The first of sixteen registers of four bytes.
const FIRST_REGISTER: u32 = 8;
/// Adds an element, or renews an existing one.
const UPDATE: u32 = 1;
/// The key of `ct mark`.
const CT_MARK: u32 = 3;

/// Changes of tables, as the bit of a multicast group of [`SockProtocol::NetlinkNetFilter`].
pub const CHANGES: u32 = 1 << (7 - 1);

/// Whether an announcement of this kind tells of elements of sets and maps only: no table, chain or rule has changed.
pub const fn is_about_elements(kind: u16) -> bool {
    matches!(kind, NEW_ELEMENT | DELETE_ELEMENT | NEW_GENERATION)
}

/// Why a transaction failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NftError {
    /// `nft` cannot be started.
    #[error("cannot start nft: {0}; install nftables")]
    Start(#[source] io::Error),
    /// The kernel or `nft` refused it.
    #[error("{0}")]
    Refused(
        /// What `nft` printed, or how it ended.
        String,
    ),
}

impl NftError {
    /// The first line of the reason.
    pub fn first_line(&self) -> String {
        self.to_string().lines().next().unwrap_or_default().trim().to_owned()
    }
}

/// Runs a transaction in the calling thread's network namespace: all of it, or nothing.
///
/// # Errors
/// When `nft` cannot be started, or the transaction is refused.
pub fn run(transaction: &str) -> Result<(), NftError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A terminal's ^C must reach only the caller, which has to clean up.
        .process_group(0)
        .spawn()
        .map_err(NftError::Start)?;
    if let Some(mut input) = child.stdin.take() {
        // A child that fails early closes its input; its exit status below reports that.
        let _ = input.write_all(transaction.as_bytes());
    }
    succeeded(child.wait_with_output()).map(drop)
}

/// The output of `nft` for these arguments, which change nothing.
///
/// # Errors
/// When `nft` cannot be started, or fails.
pub fn ask(arguments: &[&str]) -> Result<String, NftError> {
    succeeded(Command::new("nft").args(arguments).stdin(Stdio::null()).output())
}

/// The output of a program that succeeded.
fn succeeded(output: io::Result<Output>) -> Result<String, NftError> {
    let output = output.map_err(NftError::Start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // A program killed by a signal has printed nothing.
    let ended = || format!("nft ended with {}", output.status);
    Err(NftError::Refused(if errors.is_empty() { ended() } else { errors }))
}

/// What a rule loads into registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// So many bytes of the network header: offset and length.
    Network(u32, u32),
    /// So many bytes of the transport header: offset and length.
    Transport(u32, u32),
    /// A field of the connection's original tuple.
    Original(Original),
    /// The connection's mark.
    ConnectionMark,
}

/// A field of the tuple of a connection's first packet, before any translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Original {
    /// The source's address of IPv4.
    SourceV4,
    /// The destination's.
    DestinationV4,
    /// The source's address of IPv6.
    SourceV6,
    /// The destination's.
    DestinationV6,
    /// The source's port.
    SourcePort,
    /// The destination's.
    DestinationPort,
}

impl Original {
    /// The kernel's key, and the length of the field. Unit: bytes.
    const fn key(self) -> (u32, u32) {
        match self {
            Self::SourceV4 => (19, 4),
            Self::DestinationV4 => (20, 4),
            Self::SourceV6 => (21, 16),
            Self::DestinationV6 => (22, 16),
            Self::SourcePort => (11, 2),
            Self::DestinationPort => (12, 2),
        }
    }
}

impl Load {
    /// How many registers it takes.
    const fn words(self) -> u32 {
        let bytes = match self {
            Self::Network(_, length) | Self::Transport(_, length) => length,
            Self::Original(part) => part.key().1,
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
            Self::Original(part) => expression(rule, "ct", |data| {
                // The direction of the connection's first packet.
                number(number(data, 1, register), 2, part.key().0).with(3, &[0])
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

/// A table, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Table {
    channel: Channel,
    name: String,
    family: TableFamily,
    /// The number of the next transaction with several changes.
    next: AtomicU32,
}

/// The family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFamily {
    /// `inet`: IPv4 and IPv6.
    Both,
    /// `ip`.
    V4,
    /// `ip6`.
    V6,
}

impl TableFamily {
    const fn number(self) -> i32 {
        match self {
            Self::Both => INET,
            Self::V4 => libc::NFPROTO_IPV4,
            Self::V6 => libc::NFPROTO_IPV6,
        }
    }
}

/// What happens to a packet for a queue that no program has bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unbound {
    /// It passes.
    Passes,
    /// It is dropped.
    Drops,
}

/// A change of the elements of a set or a map.
#[derive(Debug, Clone, Copy)]
pub enum ElementChange<'a> {
    /// Adds a key for so long. One that is there stays.
    Add(&'a str, &'a [u8], Duration),
    /// Adds a key with its value for so long. One that is there with this value stays.
    AddValue(&'a str, &'a [u8], &'a [u8], Duration),
    /// Deletes a key. One that is not there makes the whole transaction fail.
    Delete(&'a str, &'a [u8]),
}

impl Table {
    /// Opens a channel to a table of the family `inet`, even if the table does not exist yet.
    ///
    /// # Errors
    /// When the kernel opens no channel.
    pub fn open(name: impl Into<String>) -> io::Result<Self> {
        Self::open_in(TableFamily::Both, name)
    }

    /// The same for a table of any family.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in(family: TableFamily, name: impl Into<String>) -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkNetFilter)?;
        Ok(Self { channel, name: name.into(), family, next: AtomicU32::new(1) })
    }

    /// Appends a rule that sends packets to a queue. If no program has bound the queue, they pass, or are dropped.
    ///
    /// On a kernel without nftables' own expression it uses the older one of iptables, which does the same.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_queue(&self, chain: &str, queue: u16, unbound: Unbound) -> io::Result<()> {
        let bypass = u16::from(unbound == Unbound::Passes);
        let own = |data: Message| {
            data.with(1, &queue.to_be_bytes())
                .with(2, &1u16.to_be_bytes())
                .with(3, &bypass.to_be_bytes())
        };
        let older = |data: Message| {
            let mut info = Vec::with_capacity(8);
            for field in [queue, 1, bypass, 0] {
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

    /// Appends a rule that adds `value` under `key` to a map, or `key` to a set.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_update(
        &self,
        chain: &str,
        map: &str,
        key: &[Load],
        value: &[Load],
    ) -> io::Result<()> {
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

    /// Adds a key to a set.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_element(&self, set: &str, key: &[u8]) -> io::Result<()> {
        self.change_element(NEW_ELEMENT, libc::NLM_F_CREATE, set, key)
    }

    /// Changes elements in one transaction, which is much cheaper than one for each: all changes are done, or none is.
    ///
    /// # Errors
    /// When the kernel refuses one of them.
    pub fn change_elements(&self, changes: &[ElementChange<'_>]) -> io::Result<()> {
        let changes: Vec<_> = changes.iter().map(|change| (self, *change)).collect();
        self.change_tables(&changes)
    }

    /// The same for elements of several tables of this one's network namespace.
    ///
    /// # Errors
    /// As [`Self::change_elements`].
    pub fn change_tables(&self, changes: &[(&Self, ElementChange<'_>)]) -> io::Result<()> {
        let number = self.next.fetch_add(1, Relaxed);
        let timed = |element: Message, timeout: Duration| {
            let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            element.with(ELEMENT_TIMEOUT, &timeout_ms.to_be_bytes())
        };
        let mut batch = Message::netfilter(BATCH_BEGIN, 0, 0, SUBSYSTEM).numbered(number).finish();
        for (at, (table, change)) in changes.iter().enumerate() {
            // One acknowledgement is enough: a refusal always comes.
            let ack = if at + 1 == changes.len() { libc::NLM_F_ACK } else { 0 };
            let (kind, set, key) = match *change {
                ElementChange::Add(set, key, _) | ElementChange::AddValue(set, key, ..) => {
                    (NEW_ELEMENT, set, key)
                }
                ElementChange::Delete(set, key) => (DELETE_ELEMENT, set, key),
            };
            let create = if kind == NEW_ELEMENT { libc::NLM_F_CREATE } else { 0 };
            let message = Message::netfilter(kind, ack | create, table.family.number(), 0);
            let message = message.numbered(number).with_name(1, &table.name).with_name(2, set);
            let message = message.with_nested(3, |list| {
                list.with_nested(LIST_ELEMENT, |element| {
                    let element = element.with_nested(1, |data| data.with(1, key));
                    match *change {
                        ElementChange::Add(_, _, timeout) => timed(element, timeout),
                        ElementChange::AddValue(_, _, value, timeout) => {
                            timed(element.with_nested(2, |data| data.with(1, value)), timeout)
                        }
                        ElementChange::Delete(..) => element,
                    }
                })
            });
            batch.extend(message.finish());
        }
        batch.extend(Message::netfilter(BATCH_END, 0, 0, SUBSYSTEM).numbered(number).finish());
        self.channel.send(&batch)?;
        let mut buffer = vec![0; 8192];
        loop {
            let received = self.channel.receive(&mut buffer, true)?;
            // After a refusal, the kernel may still acknowledge the last message of that transaction.
            let mut own = messages(received).filter(|message| message.number == number);
            if let Some(verdict) = own.find_map(|message| message.verdict()) {
                return verdict;
            }
        }
    }

    /// Deletes a key from a set.
    ///
    /// # Errors
    /// `ENOENT`: the key is not in it.
    pub fn delete_element(&self, set: &str, key: &[u8]) -> io::Result<()> {
        self.change_element(DELETE_ELEMENT, 0, set, key)
    }

    fn change_element(&self, kind: u16, flags: i32, set: &str, key: &[u8]) -> io::Result<()> {
        let change = Message::netfilter(kind, flags | libc::NLM_F_ACK, self.family.number(), 0);
        self.commit(self.element_of(change, set, key))
    }

    /// Deletes a key from a set, if it is in it. The kernel gives up a whole transaction, which takes 10 ms, if it is to
    /// delete a key that is not there. So the kernel is asked first.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn delete_element_if_there(&self, set: &str, key: &[u8]) -> io::Result<()> {
        if let Ok(false) = self.has_element(set, key) {
            return Ok(());
        }
        allow(&[libc::ENOENT], self.delete_element(set, key))
    }

    /// Whether a key is in a set; no if there is no such set.
    ///
    /// # Errors
    /// When the kernel does not respond.
    pub fn has_element(&self, set: &str, key: &[u8]) -> io::Result<bool> {
        match self.look_up(set, key, |_| ()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            found => found.map(|()| true),
        }
    }

    /// The value of a key in a map, as in the rule's registers.
    ///
    /// # Errors
    /// When the map does not have the key.
    pub fn element(&self, map: &str, key: &[u8]) -> io::Result<Vec<u8>> {
        let value = self.look_up(map, key, |body| body.get(HEADER..).and_then(value))?;
        value.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn look_up<T>(&self, set: &str, key: &[u8], read: impl Fn(&[u8]) -> T) -> io::Result<T> {
        let question =
            self.element_of(Message::netfilter(GET_ELEMENT, 0, self.family.number(), 0), set, key);
        self.ask(question, NEW_ELEMENT, read)
    }

    /// Sends a question whose answer is one message of a kind.
    fn ask<T>(&self, question: Message, kind: u16, read: impl Fn(&[u8]) -> T) -> io::Result<T> {
        self.channel.send(&question.finish())?;
        let mut buffer = vec![0; 8192];
        loop {
            for message in messages(self.channel.receive(&mut buffer, true)?) {
                if let Some(verdict) = message.verdict() {
                    verdict?;
                }
                if message.kind == kind {
                    return Ok(read(message.body));
                }
            }
        }
    }

    /// Adds a chain that no hook calls.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_chain(&self, chain: &str) -> io::Result<()> {
        self.commit(self.chain_of(NEW_CHAIN, libc::NLM_F_CREATE | libc::NLM_F_ACK, chain))
    }

    /// Whether the table exists and has a chain.
    ///
    /// # Errors
    /// When the kernel does not respond.
    pub fn has_chain(&self, chain: &str) -> io::Result<bool> {
        match self.ask(self.chain_of(GET_CHAIN, 0, chain), NEW_CHAIN, |_| ()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            found => found.map(|()| true),
        }
    }

    fn chain_of(&self, kind: u16, flags: i32, chain: &str) -> Message {
        let message = Message::netfilter(kind, flags, self.family.number(), 0);
        message.with_name(CHAIN_TABLE, &self.name).with_name(CHAIN_NAME, chain)
    }

    fn element_of(&self, message: Message, set: &str, key: &[u8]) -> Message {
        message.with_name(1, &self.name).with_name(2, set).with_nested(3, |list| {
            list.with_nested(LIST_ELEMENT, |element| {
                element.with_nested(1, |data| data.with(1, key))
            })
        })
    }

    /// The packet counts of the table's named counters.
    ///
    /// # Errors
    /// When the kernel does not respond.
    pub fn counters(&self) -> io::Result<BTreeMap<String, u64>> {
        let question = Message::netfilter(GET_OBJECT, libc::NLM_F_DUMP, self.family.number(), 0)
            .with_name(OBJECT_TABLE, &self.name)
            .with(OBJECT_TYPE, &TYPE_COUNTER.to_be_bytes());
        let mut counters = BTreeMap::new();
        self.channel.dump(question, &mut vec![0; ANSWER_BYTES], |message| {
            if message.kind == NEW_OBJECT {
                counters.extend(counter(message.body, &self.name));
            }
        })?;
        Ok(counters)
    }

    fn add_rule(
        &self,
        chain: &str,
        expressions: impl FnOnce(Message) -> Message,
    ) -> io::Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_APPEND | libc::NLM_F_ACK;
        let rule = Message::netfilter(NEW_RULE, flags, self.family.number(), 0)
            .with_name(1, &self.name)
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

/// The data of the first element in a list.
fn value(bytes: &[u8]) -> Option<Vec<u8>> {
    let inside = |bytes, wanted| attributes(bytes).find(|(kind, _)| *kind == wanted);
    let (_, list) = inside(bytes, 3)?;
    let (_, element) = inside(list, LIST_ELEMENT)?;
    let (_, data) = inside(element, 2)?;
    inside(data, 1).map(|(_, value)| value.to_vec())
}

/// Name and packet count of a counter, if it belongs to `table`.
fn counter(body: &[u8], table: &str) -> Option<(String, u64)> {
    let text = |value: &[u8]| {
        std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok().map(str::to_owned)
    };
    let (mut of, mut name, mut packets) = (None, None, None);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            OBJECT_TABLE => of = text(value),
            OBJECT_NAME => name = text(value),
            OBJECT_DATA => {
                packets = attributes(value)
                    .find(|(kind, _)| *kind == COUNTER_PACKETS)
                    .and_then(|(_, value)| Some(u64::from_be_bytes(value.try_into().ok()?)));
            }
            _ => {}
        }
    }
    (of? == table).then_some((name?, packets?))
}

#[cfg(test)]
mod tests;
