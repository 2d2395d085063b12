//! Finds out how the client of a held SYN sees its flow. The packet has the addresses with which
//! the flow leaves. Connection tracking has those with which it arrived.

use super::conntrack::TrackedConnection;
use super::table;
use crate::ends::Ends;
use crate::keeper::line::line;
use crate::keeper::order::{Done, Order, pair};
use midhop_linux::nfqueue::Packet;
use midhop_linux::nft::Table;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Queries the maps of the instance's table.
#[derive(Debug)]
pub struct Origins {
    table: Table,
}

impl Origins {
    /// Opens a channel to the table of an instance, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel gives no channel.
    pub fn open(instance: &str) -> io::Result<Self> {
        Ok(Self { table: table::open_table(instance)? })
    }

    /// The connection that a held packet opens, which leaves between `leaving`. `noted`: connection
    /// tracking knows more of it than the packet contains.
    ///
    /// # Errors
    /// When connection tracking knows more, and cannot be queried.
    pub fn of(&self, packet: &Packet, leaving: Ends, noted: bool) -> io::Result<TrackedConnection> {
        match packet.connection {
            Some(connection) => Ok(connection.into()),
            None if noted => self.ask(leaving),
            None => Ok(TrackedConnection { ends: leaving, mark: 0 }),
        }
    }

    /// Queries the maps for a flow that leaves between these ends.
    ///
    /// # Errors
    /// When they have no entry.
    pub fn ask(&self, leaving: Ends) -> io::Result<TrackedConnection> {
        if let Some(line) = line() {
            return match line.order(&Order::Origin(pair(leaving)), None)? {
                Done::Origin((client, server), mark) => {
                    Ok(TrackedConnection { ends: Ends { client, server }, mark })
                }
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
        let key = key(leaving);
        let short = || io::Error::from(io::ErrorKind::InvalidData);
        match leaving.client {
            SocketAddr::V4(_) => {
                let value = self.table.element(table::ORIGINS_V4, &key)?;
                let (client, rest) = v4(&value).ok_or_else(short)?;
                let (server, rest) = v4(rest).ok_or_else(short)?;
                Ok(TrackedConnection {
                    ends: Ends { client, server },
                    mark: mark(rest).ok_or_else(short)?,
                })
            }
            SocketAddr::V6(_) => {
                let value = self.table.element(table::CLIENTS_V6, &key)?;
                let (client, rest) = v6(&value).ok_or_else(short)?;
                let mark = mark(rest).ok_or_else(short)?;
                let value = self.table.element(table::SERVERS_V6, &key)?;
                let (server, _) = v6(&value).ok_or_else(short)?;
                Ok(TrackedConnection { ends: Ends { client, server }, mark })
            }
        }
    }
}

/// The key of a flow in the maps: each part is padded to whole words.
pub(super) fn key(ends: Ends) -> Vec<u8> {
    let mut key = Vec::with_capacity(40);
    for end in [ends.client, ends.server] {
        match end.ip() {
            IpAddr::V4(address) => key.extend(address.octets()),
            IpAddr::V6(address) => key.extend(address.octets()),
        }
        key.extend(end.port().to_be_bytes());
        key.extend([0, 0]);
    }
    key
}

fn v4(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (address, rest) = bytes.split_first_chunk::<4>()?;
    let (port, rest) = rest.split_first_chunk::<4>()?;
    Some(((Ipv4Addr::from(*address), u16::from_be_bytes([port[0], port[1]])).into(), rest))
}

fn v6(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (address, rest) = bytes.split_first_chunk::<16>()?;
    let (port, rest) = rest.split_first_chunk::<4>()?;
    Some(((Ipv6Addr::from(*address), u16::from_be_bytes([port[0], port[1]])).into(), rest))
}

/// Registers hold marks in this machine's byte order.
fn mark(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk::<4>()?))
}
