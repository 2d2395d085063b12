//! Connection tracking: enters the two legs of a flow before their first packets, and reads the
//! entry of a held SYN.
//!
//! Both legs have the same 5-tuple unless it is translated, so each leg is tracked in its own zone.
//! The client's leg is in one zone. The server's leg is in another zone for what leaves, and in the
//! host's zone for what comes back. An entry counts as answered. So stateful rules find the leg
//! established, as the rules that let its SYN through intend, and NAT rules are not evaluated
//! again.

use crate::ends::Ends;
use crate::keeper::line::line;
use crate::keeper::order::{ConntrackEntry, ENTRIES_MAX, Order, pair};
use midhop_linux::conntrack::{Connection, Conntrack, NewEntry, Zone};
use nix::libc;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

/// The longest time for which the kernel retransmits a SYN. The first packet of the leg renews the
/// timeout.
const TIMEOUT_S: u32 = 60;
/// Age beyond which a leg is entered again. It is well below the timeout.
const FRESH: Duration = Duration::from_secs(30);
/// Number of unused records at which those that are not fresh are removed.
const ENTERED_MAX: usize = 1 << 14;

/// A connection before any translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackedConnection {
    /// The ends as the client sees them.
    pub ends: Ends,
    /// The mark that the administrator's rules gave it.
    pub mark: u32,
}

impl From<Connection> for TrackedConnection {
    fn from(Connection { client, server, mark }: Connection) -> Self {
        Self { ends: Ends { client, server }, mark }
    }
}

/// The most flows of one message to the keeper: each has two legs.
pub const FLOWS_MAX: usize = ENTRIES_MAX / 2;

/// The state after flows have been passed on to be entered.
#[derive(Debug)]
pub enum EntryStart {
    /// Entered: the outcome for each server's leg.
    Done(Vec<io::Result<()>>),
    /// The keeper was asked, with this request number.
    Asked(u64),
}

/// The two legs of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Legs {
    /// The client's leg: the ends as the client sees them.
    pub client: Ends,
    /// The server's leg: the flow as it leaves, with its mark.
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
    table: Conntrack,
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
        Ok(Self { table: Conntrack::open()?, zone, entered: RefCell::default() })
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

    /// Enters both legs of flows: those between this host and the servers, and those of the
    /// clients, which are used later. Returns the outcome for each server's leg.
    ///
    /// # Errors
    /// When nothing can be entered.
    pub fn enter_both(&self, legs: &[Legs]) -> io::Result<Vec<io::Result<()>>> {
        let entries: Vec<ConntrackEntry> = legs.iter().flat_map(Legs::entries).collect();
        Ok(self.note(legs, self.enter(&entries)?))
    }

    /// The same for at most [`FLOWS_MAX`] flows. Where there is a keeper, this does not wait for
    /// its answer.
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

    /// Records the outcomes for both legs of flows. Returns the outcome for each server's leg.
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

    /// Enters legs, by the keeper where there is one. Returns the outcome for each.
    ///
    /// # Errors
    /// When nothing can be entered.
    pub fn enter(&self, entries: &[ConntrackEntry]) -> io::Result<Vec<io::Result<()>>> {
        if let Some(line) = line() {
            return line.enter(entries);
        }
        let entries: Vec<NewEntry> = entries.iter().map(|entry| self.place(entry)).collect();
        let mut outcomes = self.table.enter(&entries)?;
        for (outcome, entry) in outcomes.iter_mut().zip(&entries) {
            let is_there = |error: &io::Error| error.raw_os_error() == Some(libc::EEXIST);
            if outcome.as_ref().is_err_and(is_there) {
                // The entry is left from an earlier connection with the same ports.
                *outcome = self.table.replace(entry);
            }
        }
        Ok(outcomes)
    }

    /// Returns the entry and its zone.
    fn place(&self, entry: &ConntrackEntry) -> NewEntry {
        let ConntrackEntry { to_server, ends: Ends { client, server }, mark } = *entry;
        let zone = if to_server { self.departing() } else { Zone::Whole(self.zone) };
        NewEntry { connection: Connection { client, server, mark }, zone, timeout_s: TIMEOUT_S }
    }

    /// The zone of servers' legs.
    fn departing(&self) -> Zone {
        Zone::Departing(self.zone + 1)
    }

    /// Removes the entry of a server's leg that was not opened in the end: a flow that passes by
    /// takes its place.
    pub fn forget_server(&self, ends: Ends) {
        if let Some(line) = line() {
            if let Err(error) = line.order(&Order::ForgetServer(pair(ends)), None) {
                tracing::debug!(?ends, %error, "a connection tracking entry could not be removed");
            }
            return;
        }
        let connection = Connection { client: ends.client, server: ends.server, mark: 0 };
        match self.table.forget(&connection, self.departing()) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                tracing::debug!(?ends, %error, "a connection tracking entry could not be removed, and stays until it expires");
            }
            _ => {}
        }
    }
}

/// The keeper's answer lacks what was requested.
fn short() -> io::Result<()> {
    Err(io::ErrorKind::InvalidData.into())
}
