//! Connection tracking over netlink (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`): adds and deletes
//! entries of TCP connections, and parses the attributes of an entry.

use crate::netlink::{Channel, Message, attributes};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::{IpAddr, SocketAddr};

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
/// Both sides may use SACK, and windows are not checked: the SYN's options are unknown to the entry.
const LENIENT: u8 = 0x08 | 0x02;

/// A TCP connection before any address translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// The sender of the SYN.
    pub client: SocketAddr,
    /// The destination of the SYN.
    pub server: SocketAddr,
    /// The connection's mark.
    pub mark: u32,
}

/// The conntrack zone of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    /// The same zone for both directions.
    Whole(u16),
    /// The zone for the direction of the first packet; replies are in the default zone of the host.
    Departing(u16),
}

/// An entry to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewEntry {
    /// The connection. Both its ends are of one address family.
    pub connection: Connection,
    /// Its zone.
    pub zone: Zone,
    /// Unit: seconds. How long the entry stays without a packet.
    pub timeout_s: u32,
}

/// The table of connections of a network namespace.
#[derive(Debug)]
pub struct Conntrack {
    channel: Channel,
}

impl Conntrack {
    /// A channel to the table of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel opens no channel.
    pub fn open() -> io::Result<Self> {
        Ok(Self { channel: Channel::open(SockProtocol::NetlinkNetFilter)? })
    }

    /// Adds entries of connections whose SYN is in transit and counts as answered. Stateful rules regard them as
    /// established, and rules that translate addresses are not consulted. Returns the result of each; `EEXIST`:
    /// there is an entry already.
    ///
    /// # Errors
    /// When nothing can be added.
    pub fn enter(&self, entries: &[NewEntry]) -> io::Result<Vec<io::Result<()>>> {
        let last = entries.len().saturating_sub(1);
        let messages = (0..).zip(entries).map(|(number, one)| {
            let flags = if number as usize == last { libc::NLM_F_ACK } else { 0 };
            message(one, flags).numbered(number)
        });
        self.channel.request_all(messages.collect())
    }

    /// Adds one entry in place of an existing one with the same addresses and ports.
    ///
    /// # Errors
    /// When it is not added.
    pub fn replace(&self, entry: &NewEntry) -> io::Result<()> {
        self.forget(&entry.connection, entry.zone)?;
        self.channel.request(&message(entry, libc::NLM_F_ACK).finish())
    }

    /// Deletes the entry of a connection, whatever its mark is.
    ///
    /// # Errors
    /// `ENOENT`: there is none.
    pub fn forget(&self, connection: &Connection, zone: Zone) -> io::Result<()> {
        let message = Message::netfilter(DELETE, libc::NLM_F_ACK, family(connection), 0);
        self.channel.request(&key(message, connection, zone).finish())
    }
}

impl Connection {
    /// Parses the attributes of a connection, without their header.
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
        let (client, server) = tuple?;
        Some(Self { client, server, mark })
    }
}

fn read_tuple(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
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
    let source = SocketAddr::new(source?, source_port?);
    Some((source, SocketAddr::new(destination?, destination_port?)))
}

fn family(connection: &Connection) -> i32 {
    if connection.client.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn message(entry: &NewEntry, flags: i32) -> Message {
    let NewEntry { connection, zone, timeout_s } = entry;
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL | flags;
    let message = Message::netfilter(NEW, flags, family(connection), 0);
    let message = key(message, connection, *zone)
        .with_nested(REPLY, |data| tuple(data, connection.server, connection.client))
        .with(STATUS, &(SEEN_REPLY | CONFIRMED).to_be_bytes())
        .with(TIMEOUT, &timeout_s.to_be_bytes())
        .with_nested(PROTOCOL_STATE, |data| {
            data.with_nested(1, |tcp| {
                tcp.with(1, &[SYN_SENT]).with(4, &[LENIENT; 2]).with(5, &[LENIENT; 2])
            })
        });
    if connection.mark == 0 { message } else { message.with(MARK, &connection.mark.to_be_bytes()) }
}

/// Adds the attributes by which an entry is found.
fn key(message: Message, connection: &Connection, zone: Zone) -> Message {
    let message = message.with_nested(ORIGINAL, |data| {
        let data = tuple(data, connection.client, connection.server);
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
    use crate::netlink::messages;
    use proptest::prelude::*;

    #[test]
    fn what_is_entered_is_read_back() {
        for (client, server) in [("10.0.0.1:5", "10.0.0.2:80"), ("[fd00::1]:5", "[fd00::2]:80")] {
            let connection = Connection {
                client: client.parse().expect("an address"),
                server: server.parse().expect("an address"),
                mark: 7,
            };
            let entry = NewEntry { connection, zone: Zone::Departing(3), timeout_s: 60 };
            let bytes = message(&entry, 0).finish();
            let message = messages(&bytes).next().expect("a message");
            assert_eq!(Connection::read(&message.body[4..]), Some(connection));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Connection::read(&bytes);
        }
    }
}
