//! Connection tracking: enters the two legs of a flow before their first packets, and reads what is
//! known of a held SYN.
//!
//! Both legs have one 5-tuple where nothing translates it, so each is tracked in a zone: the client's
//! leg in one of its own, the server's leg in another for what leaves, and in the host's for what comes
//! back. An entry has SEEN_REPLY set: stateful rules then find the leg established, as
//! the rules that let its SYN through would have them, and NAT rules are not asked again.

use crate::ends::Ends;
use crate::keeper::line::line;
use crate::keeper::order::{ConntrackEntry, ENTRIES_MAX, Order, pair};
use midhop_linux::netlink::{Channel, Message, attributes};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const SUBSYSTEM: u16 = 1;
const NEW: u16 = SUBSYSTEM << 8;
const DELETE: u16 = SUBSYSTEM << 8 | 2;

const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_STATE: u16 = 4;
const TIMEOUT: u16 = 7;
const MARK: u16 = 8;
const ZONE: u16 = 18;
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;

const SEEN_REPLY: u32 = 1 << 1;
const CONFIRMED: u32 = 1 << 3;
const SYN_SENT: u8 = 1;
/// Both sides may use SACK, and windows are not checked: the entry never saw the SYN's options.
const LENIENT: u8 = 0x08 | 0x02;
/// As long as the kernel repeats a SYN at most; the first packet of the leg renews it.
const TIMEOUT_S: u32 = 60;
/// A leg that was entered longer ago is entered again: well below that.
const FRESH: Duration = Duration::from_secs(30);
/// With so many that have not been asked for, those are forgotten that are not fresh.
const ENTERED_MAX: usize = 1 << 14;

/// How a connection was before anything translated it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackedConnection {
    /// As its client sees it.
    pub ends: Ends,
    /// The mark that the administrator's rules gave it.
    pub mark: u32,
}

impl TrackedConnection {
    /// Reads the attributes of a connection, without their header.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut tuple = None;
        let mut mark = 0;
        for (kind, value) in attributes(bytes) {
            match kind {
                ORIGINAL => tuple = read_tuple(value),
                MARK => mark = u32::from_be_bytes(value.try_into().ok()?),
                _ => {}
            }
        }
        Some(Self { ends: tuple?, mark })
    }
}

fn read_tuple(bytes: &[u8]) -> Option<Ends> {
    let (mut source, mut destination) = (None, None);
    let (mut source_port, mut destination_port) = (None, None);
    let address = |value: &[u8]| -> Option<IpAddr> {
        <[u8; 4]>::try_from(value)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from))
            .ok()
    };
    let port = |value: &[u8]| Some(u16::from_be_bytes(value.try_into().ok()?));
    for (kind, value) in attributes(bytes) {
        for (inner, value) in attributes(value) {
            match (kind, inner) {
                (TUPLE_ADDRESSES, 1 | 3) => source = address(value),
                (TUPLE_ADDRESSES, 2 | 4) => destination = address(value),
                (TUPLE_PROTOCOL, 2) => source_port = port(value),
                (TUPLE_PROTOCOL, 3) => destination_port = port(value),
                _ => {}
            }
        }
    }
    Some(Ends {
        client: SocketAddr::new(source?, source_port?),
        server: SocketAddr::new(destination?, destination_port?),
    })
}

/// So many flows are entered meanwhile by one message: each has two legs.
pub const FLOWS_MAX: usize = ENTRIES_MAX / 2;

/// How flows are entered.
#[derive(Debug)]
pub enum EntryStart {
    /// They are: what became of each server's leg.
    Done(Vec<io::Result<()>>),
    /// The keeper was asked, under this number.
    Asked(u64),
}

/// The two legs of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Legs {
    /// Its ends as its client sees them.
    pub client: Ends,
    /// As the flow leaves, with its mark.
    pub server: TrackedConnection,
}

impl Legs {
    fn entries(&self) -> [ConntrackEntry; 2] {
        let TrackedConnection { ends, mark } = self.server;
        let server = ConntrackEntry { to_server: true, ends, mark };
        [server, ConntrackEntry { to_server: false, ends: self.client, mark: 0 }]
    }
}

/// Enters connections.
#[derive(Debug)]
pub struct Tracker {
    channel: Channel,
    zone: u16,
    /// Clients' legs that were entered with those of their servers, and when.
    entered: RefCell<HashMap<Ends, Instant>>,
}

impl Tracker {
    /// A channel to the connection tracking of the calling thread's network namespace. Clients' legs
    /// are entered in `zone`, servers' legs in the next one.
    ///
    /// # Errors
    /// When the kernel gives no channel.
    pub fn open(zone: u16) -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkNetFilter)?;
        Ok(Self { channel, zone, entered: RefCell::default() })
    }

    /// Enters the leg between a client and this host, unless that was done with its server's.
    ///
    /// # Errors
    /// When the table is full.
    pub fn enter_client(&self, connection: &TrackedConnection) -> io::Result<()> {
        let TrackedConnection { ends, mark } = *connection;
        if self.entered.borrow_mut().remove(&ends).is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(());
        }
        self.enter(&[ConntrackEntry { to_server: false, ends, mark }])?.pop().unwrap_or_else(short)
    }

    /// Enters the legs of flows: those between this host and their servers, and those of their clients, which
    /// will follow. Gives what became of each server's.
    ///
    /// # Errors
    /// When nothing can be entered.
    pub fn enter_both(&self, legs: &[Legs]) -> io::Result<Vec<io::Result<()>>> {
        let entries: Vec<ConntrackEntry> = legs.iter().flat_map(Legs::entries).collect();
        Ok(self.note(legs, self.enter(&entries)?))
    }

    /// The same of at most [`FLOWS_MAX`] flows, while this thread does something else where there is a keeper.
    ///
    /// # Errors
    /// When nothing can be entered.
    pub fn enter_meanwhile(&self, legs: &[Legs]) -> io::Result<EntryStart> {
        let entries: Vec<ConntrackEntry> = legs.iter().flat_map(Legs::entries).collect();
        match line() {
            Some(line) => line.enter_meanwhile(&entries).map(EntryStart::Asked),
            None => Ok(EntryStart::Done(self.note(legs, self.enter(&entries)?))),
        }
    }

    /// Notes what became of the legs of flows. Gives what became of each server's.
    pub fn note(&self, legs: &[Legs], outcomes: Vec<io::Result<()>>) -> Vec<io::Result<()>> {
        let mut outcomes = outcomes.into_iter();
        let mut entered = self.entered.borrow_mut();
        if entered.len() >= ENTERED_MAX {
            entered.retain(|_, at| at.elapsed() < FRESH);
        }
        let now = Instant::now();
        let mut of_servers = Vec::with_capacity(legs.len());
        for Legs { client, .. } in legs {
            of_servers.push(outcomes.next().unwrap_or_else(short));
            if let Some(Ok(())) = outcomes.next() {
                entered.insert(*client, now);
            }
        }
        of_servers
    }

    /// Enters legs, by the keeper where there is one. Gives what became of each.
    ///
    /// # Errors
    /// When nothing can be entered.
    pub fn enter(&self, entries: &[ConntrackEntry]) -> io::Result<Vec<io::Result<()>>> {
        if let Some(line) = line() {
            return line.enter(entries);
        }
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let last = entries.len().saturating_sub(1);
        let messages = (0..).zip(entries).map(|(number, one)| {
            let flags = if number as usize == last { flags | libc::NLM_F_ACK } else { flags };
            let (connection, zone) = self.place(one);
            entry(NEW, flags, &connection, zone).numbered(number)
        });
        let mut outcomes = self.channel.request_all(messages.collect())?;
        for (outcome, one) in outcomes.iter_mut().zip(entries) {
            let is_there = |error: &io::Error| error.raw_os_error() == Some(libc::EEXIST);
            if outcome.as_ref().is_err_and(is_there) {
                // What is left of a connection that had the same ports.
                let (connection, zone) = self.place(one);
                let flags = flags | libc::NLM_F_ACK;
                *outcome = self.delete(&connection, zone).and_then(|()| {
                    self.channel.request(&entry(NEW, flags, &connection, zone).finish())
                });
            }
        }
        Ok(outcomes)
    }

    /// What is entered, and where.
    fn place(&self, entry: &ConntrackEntry) -> (TrackedConnection, Zone) {
        let ConntrackEntry { to_server, ends, mark } = *entry;
        let zone = if to_server { Zone::Departing(self.zone + 1) } else { Zone::Whole(self.zone) };
        (TrackedConnection { ends, mark }, zone)
    }

    /// Forgets the leg between this host and a server that was not opened after all: a flow that passes by
    /// takes its place.
    pub fn forget_server(&self, ends: Ends) {
        if let Some(line) = line() {
            if let Err(error) = line.order(&Order::ForgetServer(pair(ends)), None) {
                tracing::debug!(?ends, %error, "an entry of connection tracking stays");
            }
            return;
        }
        let connection = TrackedConnection { ends, mark: 0 };
        match self.delete(&connection, Zone::Departing(self.zone + 1)) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                tracing::debug!(?ends, %error, "an entry of connection tracking stays until it expires");
            }
            _ => {}
        }
    }

    fn delete(&self, connection: &TrackedConnection, zone: Zone) -> io::Result<()> {
        let message = Message::netfilter(DELETE, libc::NLM_F_ACK, family(connection), 0);
        self.channel.request(&key(message, connection, zone).finish())
    }
}

/// The keeper's answer has not what it was asked for.
fn short() -> io::Result<()> {
    Err(io::ErrorKind::InvalidData.into())
}

/// Where an entry is found.
#[derive(Debug, Clone, Copy)]
enum Zone {
    /// In both directions.
    Whole(u16),
    /// In the direction of its first packet; answers come in the host's own zone.
    Departing(u16),
}

fn family(connection: &TrackedConnection) -> i32 {
    if connection.ends.client.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn entry(kind: u16, flags: i32, connection: &TrackedConnection, zone: Zone) -> Message {
    let Ends { client, server } = connection.ends;
    let message = Message::netfilter(kind, flags, family(connection), 0);
    let message = key(message, connection, zone)
        .with_nested(REPLY, |data| tuple(data, server, client))
        .with(STATUS, &(SEEN_REPLY | CONFIRMED).to_be_bytes())
        .with(TIMEOUT, &TIMEOUT_S.to_be_bytes())
        .with_nested(PROTOCOL_STATE, |data| {
            data.with_nested(1, |tcp| {
                tcp.with(1, &[SYN_SENT]).with(4, &[LENIENT; 2]).with(5, &[LENIENT; 2])
            })
        });
    if connection.mark == 0 { message } else { message.with(MARK, &connection.mark.to_be_bytes()) }
}

/// What an entry is found by.
fn key(message: Message, connection: &TrackedConnection, zone: Zone) -> Message {
    let Ends { client, server } = connection.ends;
    let message = message.with_nested(ORIGINAL, |data| {
        let data = tuple(data, client, server);
        match zone {
            Zone::Whole(_) => data,
            Zone::Departing(zone) => data.with(TUPLE_ZONE, &zone.to_be_bytes()),
        }
    });
    match zone {
        Zone::Whole(zone) => message.with(ZONE, &zone.to_be_bytes()),
        Zone::Departing(_) => message,
    }
}

fn tuple(data: Message, source: SocketAddr, destination: SocketAddr) -> Message {
    let addresses = |data: Message| match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            data.with(1, &source.octets()).with(2, &destination.octets())
        }
        (source, destination) => data.with(3, &v6(source)).with(4, &v6(destination)),
    };
    data.with_nested(TUPLE_ADDRESSES, addresses).with_nested(TUPLE_PROTOCOL, |data| {
        data.with(1, &[6])
            .with(2, &source.port().to_be_bytes())
            .with(3, &destination.port().to_be_bytes())
    })
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_linux::netlink::messages;

    #[test]
    fn what_is_entered_is_read_back() {
        for (client, server) in [("10.0.0.1:5", "10.0.0.2:80"), ("[fd00::1]:5", "[fd00::2]:80")] {
            let ends = Ends {
                client: client.parse().expect("an address"),
                server: server.parse().expect("an address"),
            };
            let connection = TrackedConnection { ends, mark: 7 };
            let bytes = entry(NEW, 0, &connection, Zone::Departing(3)).finish();
            let message = messages(&bytes).next().expect("a message");
            assert_eq!(TrackedConnection::read(&message.body[4..]), Some(connection));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = TrackedConnection::read(&bytes);
        }
    }
}
