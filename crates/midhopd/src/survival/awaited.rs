//! Flows whose far side another process had opened, and whose clients it had not served.

use super::holder::Succession;
use super::register::{OpeningEntry, Openings, Record, cookie_of};
use crate::ends::{Ends, Side};
use crate::syn_hold::living::Life;
use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time in which a client has to complete its handshake.
const PATIENCE: Duration = Duration::from_secs(20);

/// A flow whose far side is open.
#[derive(Debug)]
pub struct AwaitedFlow {
    /// Its far side.
    pub server: TcpStream,
    /// What is known of it.
    pub record: Record,
    /// While this is held, repeated SYNs belong to it.
    pub life: Life,
}

/// The flows that are being opened, of this process and of the previous one.
#[derive(Debug, Default)]
pub struct Awaited {
    /// Entries of this process's flows; none if nothing outlives the process.
    openings: Option<Arc<Openings>>,
    /// The entries of flows that were left, until this process serves.
    left: Mutex<Vec<usize>>,
    flows: Mutex<HashMap<Ends, AwaitedFlow>>,
    /// Flows whose clients the previous process had accepted, with these clients.
    accepted: Mutex<Vec<(TcpStream, AwaitedFlow)>>,
    begun: Option<Instant>,
}

impl Awaited {
    /// The flows that the previous process has left. `revive` records a flow as live.
    pub fn of(succession: &Succession, revive: impl Fn(Ends) -> Life) -> Self {
        let Succession { register, inherited, .. } = succession;
        let (openings, left) = Openings::of(register);
        let mut this = Self { openings: Some(openings), ..Self::default() };
        let (mut flows, mut accepted) = (HashMap::new(), Vec::new());
        let mut places = Vec::new();
        for (place, record) in left {
            places.push(place);
            let socket = |side: Side| {
                let (number, cookie) =
                    (record.sockets[side as usize], record.cookies[side as usize]);
                let is_meant = |it: BorrowedFd<'_>| cookie_of(it).ok() == Some(cookie);
                inherited.duplicate(number, is_meant).map(TcpStream::from)
            };
            let Some(server) = socket(Side::Server) else { continue };
            let client = record.has_client().then(|| socket(Side::Client));
            let (ends, life) = (record.ends, revive(record.ends));
            let flow = AwaitedFlow { server, record, life };
            match client {
                None => drop(flows.insert(ends, flow)),
                Some(Some(client)) => accepted.push((client, flow)),
                // Its client has left.
                Some(None) => {}
            }
        }
        if flows.len() + accepted.len() > 0 {
            let (waiting, accepted) = (flows.len(), accepted.len());
            tracing::info!(
                waiting,
                accepted,
                "flows that the previous data plane was opening are continued"
            );
        }
        this.left = Mutex::new(places);
        this.flows = Mutex::new(flows);
        this.accepted = Mutex::new(accepted);
        this.begun = Some(Instant::now());
        this
    }

    /// Enters a flow whose far side is open, so that it outlives this process.
    pub fn enter(&self, record: impl FnOnce() -> Option<Record>) -> Option<OpeningEntry> {
        self.openings.as_ref()?.enter(&record()?)
    }

    /// Removes the entries of flows that were left: these flows now belong to this process.
    pub fn settle(&self) {
        let left = std::mem::take(&mut *lock(&self.left));
        if let Some(openings) = &self.openings {
            openings.forget(left);
        }
    }

    /// Whether a client with these ends is expected: its SYN is to be delivered.
    pub fn has(&self, ends: &Ends) -> bool {
        lock(&self.flows).contains_key(ends)
    }

    /// The flow between these ends, whose client is accepted now.
    pub fn take(&self, ends: &Ends) -> Option<AwaitedFlow> {
        lock(&self.flows).remove(ends)
    }

    /// The flows whose clients had been accepted.
    pub fn accepted(&self) -> Vec<(TcpStream, AwaitedFlow)> {
        std::mem::take(&mut *lock(&self.accepted))
    }

    /// Gives up clients that were not accepted in time.
    pub fn sweep(&self, now: Instant) {
        if self.begun.is_none_or(|begun| now.duration_since(begun) < PATIENCE) {
            return;
        }
        // The sockets are closed without the lock.
        let gone = std::mem::take(&mut *lock(&self.flows));
        drop(gone);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
