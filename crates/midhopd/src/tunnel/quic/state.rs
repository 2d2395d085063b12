//! The state that the tasks of one endpoint share: the machine, and the tasks that wait for its events.

use super::connection::ConnectionShared;
use crate::tunnel::number::next_number;
use crate::tunnel::reorder::ReorderRoom;
use midhop_pep::budget::BudgetPart;
use midhop_tunnel::http3::Code;
use midhop_tunnel::quic::{
    Carrier, CarrierEvent, ConnectionError, ConnectionHandle, Datagram, Endpoint, EndpointEvent,
    FlowFault, StreamId,
};
use midhop_units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use tokio::sync::{Notify, watch};
use tokio::time;

/// The most datagrams from other workers' sockets that wait.
pub const HANDED_MAX: usize = 1024;

/// One endpoint, as its tasks share it.
#[derive(Debug)]
pub struct EndpointShared {
    /// Zero of the endpoint's clock.
    epoch: time::Instant,
    state: Mutex<EndpointState>,
    /// Whether the driver was called since it last ran.
    is_called: AtomicBool,
    /// Locked under the state's lock or alone. No other lock is taken under it.
    called: Mutex<Called>,
    /// Whether its socket cannot be used any more.
    pub failed: watch::Sender<bool>,
}

/// The reasons for calling the driver.
#[derive(Debug, Default)]
struct Called {
    driver: Option<Waker>,
    /// Connections without users.
    dropped: Vec<u64>,
}

/// The state behind the lock.
#[derive(Debug)]
pub struct EndpointState {
    pub endpoint: Endpoint,
    connections: BTreeMap<u64, Entry>,
    /// The connection numbers of handles: handles are used again.
    numbers: BTreeMap<ConnectionHandle, u64>,
    /// Incoming connections that were not examined yet.
    pub incoming: VecDeque<midhop_tunnel::quic::Incoming>,
    pub acceptor: Option<Waker>,
    /// Whether new connections are refused.
    pub is_closed: bool,
    /// Notifies that there is no connection any more.
    pub idle: Arc<Notify>,
    /// Datagrams for this endpoint that other workers' sockets have received.
    pub handed: VecDeque<Datagram>,
}

/// A connection, as seen by its tasks.
#[derive(Debug)]
struct Entry {
    handle: ConnectionHandle,
    /// The final state of the connection, once none of its packets is on its way.
    gone: Option<Box<Carrier>>,
    inner: Weak<ConnectionShared>,
    /// Streams that the peer has opened and that were not accepted.
    opened: VecDeque<StreamId>,
    streams: BTreeMap<StreamId, StreamWaiters>,
    /// Where the bytes that its streams store are counted.
    stored: Option<Stored>,
}

/// The tasks that wait for a stream, and its state.
#[derive(Debug, Default)]
pub struct StreamWaiters {
    pub reader: Option<Waker>,
    /// Waits until all bytes were taken.
    pub writer: Option<Waker>,
    /// Waits until the peer has all of this end's half, or wants no more of it.
    pub ender: Option<Waker>,
    /// Whether the peer has all of this end's half.
    pub is_delivered: bool,
    /// The code with which the peer has stopped this end's half.
    pub stopped: Option<Code>,
    pub fault: Option<FlowFault>,
}

/// Wakes the waiting task, if there is one.
pub fn wake(place: &mut Option<Waker>) {
    if let Some(waker) = place.take() {
        waker.wake();
    }
}

impl StreamWaiters {
    fn wake(&mut self) {
        wake(&mut self.reader);
        wake(&mut self.writer);
        wake(&mut self.ender);
    }
}

/// The bytes that the streams of a connection store, in the memory of all flows and in the room of their peer.
#[derive(Debug)]
struct Stored {
    room: Arc<ReorderRoom>,
    part: BudgetPart,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.room.recount(self.part.held(), 0);
    }
}

impl EndpointShared {
    /// Creates the shared state around an endpoint made at `epoch`.
    pub fn new(endpoint: Endpoint, epoch: time::Instant) -> Arc<Self> {
        let (connections, numbers, incoming, handed) = Default::default();
        let state = EndpointState {
            endpoint,
            connections,
            numbers,
            incoming,
            acceptor: None,
            is_closed: false,
            idle: Arc::default(),
            handed,
        };
        Arc::new(Self {
            epoch,
            state: Mutex::new(state),
            is_called: AtomicBool::new(false),
            called: Mutex::default(),
            failed: watch::Sender::new(false),
        })
    }

    /// The endpoint's time.
    pub fn now(&self) -> Instant {
        Instant::START + self.epoch.elapsed().into()
    }

    /// Converts from the endpoint's time.
    pub fn since(&self, at: Instant) -> time::Instant {
        self.epoch + at.saturating_since(Instant::START).into()
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, EndpointState> {
        // Its holder never panics with the lock held, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called when the socket cannot be used any more, or is not used any more.
    pub fn fail(&self) {
        self.failed.send_replace(true);
        let mut state = self.lock();
        state.is_closed = true;
        wake(&mut state.acceptor);
        drop(state);
        self.call();
    }

    /// Takes a datagram that another worker's socket has received. Without room it is lost, as in any network.
    ///
    /// # Errors
    /// The datagram, where the endpoint cannot be used any more.
    pub fn take_over(&self, datagram: Datagram) -> Result<(), Datagram> {
        if *self.failed.borrow() {
            return Err(datagram);
        }
        let mut state = self.lock();
        if state.handed.len() < HANDED_MAX {
            state.handed.push_back(datagram);
        }
        drop(state);
        self.call();
        Ok(())
    }

    /// Calls the driver, because there is something to do.
    pub fn call(&self) {
        if !self.is_called.swap(true, AcqRel)
            && let Some(driver) = &self.called().driver
        {
            driver.wake_by_ref();
        }
    }

    /// Registers the waker for the next call. Returns the connections without users.
    pub fn attend(&self, waker: &Waker) -> Vec<u64> {
        self.is_called.store(false, Release);
        let mut called = self.called();
        match &mut called.driver {
            Some(known) => known.clone_from(waker),
            None => called.driver = Some(waker.clone()),
        }
        std::mem::take(&mut called.dropped)
    }

    /// To be called when a connection has no users any more.
    pub fn drop_connection(&self, number: u64) {
        self.called().dropped.push(number);
        self.call();
    }

    fn called(&self) -> MutexGuard<'_, Called> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EndpointState {
    /// Adds a connection. Returns its number.
    pub fn add(&mut self, handle: ConnectionHandle, inner: Weak<ConnectionShared>) -> u64 {
        let number = next_number();
        self.numbers.insert(handle, number);
        let (opened, streams) = Default::default();
        let entry = Entry { handle, gone: None, inner, opened, streams, stored: None };
        self.connections.insert(number, entry);
        number
    }

    /// A connection, to read its state.
    pub fn carrier(&self, number: u64) -> Option<&Carrier> {
        let entry = self.connections.get(&number)?;
        entry.gone.as_deref().or_else(|| self.endpoint.carrier(entry.handle))
    }

    /// A connection, to act on it. Afterwards the endpoint must be [called](EndpointShared::call).
    pub fn carrier_mut(&mut self, number: u64) -> Option<&mut Carrier> {
        let Self { endpoint, connections, .. } = self;
        let entry = connections.get_mut(&number)?;
        match &mut entry.gone {
            Some(gone) => Some(&mut **gone),
            None => endpoint.carrier_mut(entry.handle),
        }
    }

    /// The same, with the tasks that wait for one of its streams.
    pub fn stream(
        &mut self,
        number: u64,
        id: StreamId,
    ) -> Option<(&mut Carrier, &mut StreamWaiters)> {
        let Self { endpoint, connections, .. } = self;
        let entry = connections.get_mut(&number)?;
        let carrier = match &mut entry.gone {
            Some(gone) => Some(&mut **gone),
            None => endpoint.carrier_mut(entry.handle),
        };
        Some((carrier?, entry.streams.entry(id).or_default()))
    }

    /// The next stream that the peer has opened.
    pub fn next_opened(&mut self, number: u64) -> Option<StreamId> {
        self.connections.get_mut(&number)?.opened.pop_front()
    }

    /// To be called when a stream has no users any more.
    pub fn forget_stream(&mut self, number: u64, id: StreamId, code: Code) {
        if let Some(carrier) = self.carrier_mut(number) {
            carrier.forget(id, code);
        }
        if let Some(entry) = self.connections.get_mut(&number) {
            entry.streams.remove(&id);
        }
        self.recount(number);
    }

    /// To be called when a connection has no users any more. It is closed, and removed once none of
    /// its packets is on its way.
    pub fn forget(&mut self, number: u64, now: Instant) {
        if let Some(carrier) = self.carrier_mut(number) {
            carrier.close(now, Code::NO_ERROR);
        }
        if self.connections.get(&number).is_some_and(|entry| entry.gone.is_some()) {
            self.connections.remove(&number);
        }
    }

    /// From now on, counts the bytes that a connection's streams store.
    pub fn count_in(&mut self, number: u64, room: Arc<ReorderRoom>) {
        if let Some(entry) = self.connections.get_mut(&number) {
            let part = BudgetPart::new(room.budget().clone());
            entry.stored = Some(Stored { room, part });
        }
    }

    /// Counts the bytes that a connection's streams store now.
    pub fn recount(&mut self, number: u64) {
        let Self { endpoint, connections, .. } = self;
        let Some(entry) = connections.get_mut(&number) else { return };
        let Some(Stored { room, part }) = &mut entry.stored else { return };
        let stored = endpoint.carrier(entry.handle).map_or(0, Carrier::stored);
        if stored != part.held() {
            room.recount(part.held(), stored);
            part.set(stored);
        }
        let elsewhere = room.held().saturating_sub(stored);
        if let Some(carrier) = endpoint.carrier_mut_quietly(entry.handle) {
            carrier.set_stored_elsewhere(elsewhere);
        }
    }

    /// To be called when the connections are not driven any more.
    pub fn lose_all(&mut self) {
        for entry in self.connections.values_mut() {
            if let Some(connection) = entry.inner.upgrade() {
                connection.on_lost(ConnectionError::LocallyClosed, None);
            }
            entry.streams.values_mut().for_each(StreamWaiters::wake);
        }
        self.idle.notify_waiters();
    }

    /// Closes all connections.
    pub fn close_all(&mut self, now: Instant, code: Code) {
        let handles: Vec<_> = self.endpoint.handles().collect();
        for handle in handles {
            if let Some(carrier) = self.endpoint.carrier_mut(handle) {
                carrier.close(now, code);
            }
        }
        self.settle();
    }

    /// Wakes the tasks that wait for the events so far.
    pub fn settle(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                EndpointEvent::Incoming(incoming) => {
                    if self.is_closed {
                        self.endpoint.ignore(*incoming);
                        continue;
                    }
                    self.incoming.push_back(*incoming);
                    wake(&mut self.acceptor);
                }
                EndpointEvent::Carrier(handle, event) => {
                    self.on_carrier(handle, event);
                }
                EndpointEvent::Drained(handle, carrier) => self.on_drained(handle, carrier),
            }
        }
    }

    fn on_carrier(&mut self, handle: ConnectionHandle, event: CarrierEvent) {
        let Some(number) = self.numbers.get(&handle).copied() else { return };
        self.recount(number);
        let Some(entry) = self.connections.get_mut(&number) else { return };
        // No state is kept for a stream without users.
        let has = |id| self.endpoint.carrier(handle).is_some_and(|it| it.waiting(id).is_some());
        let inner = entry.inner.upgrade();
        match event {
            CarrierEvent::Readable(id) => {
                if let Some(waiting) = entry.streams.get_mut(&id) {
                    wake(&mut waiting.reader);
                }
            }
            CarrierEvent::Writable(id) => {
                if let Some(waiting) = entry.streams.get_mut(&id) {
                    wake(&mut waiting.writer);
                }
            }
            CarrierEvent::Delivered(id) => {
                if has(id) {
                    let waiting = entry.streams.entry(id).or_default();
                    waiting.is_delivered = true;
                    wake(&mut waiting.ender);
                }
            }
            CarrierEvent::Stopped(id, code) => {
                if has(id) {
                    let waiting = entry.streams.entry(id).or_default();
                    waiting.stopped = Some(code);
                    wake(&mut waiting.writer);
                    wake(&mut waiting.ender);
                }
            }
            CarrierEvent::Broken(id, fault) => {
                if has(id) {
                    let waiting = entry.streams.entry(id).or_default();
                    waiting.fault = Some(fault);
                    waiting.wake();
                }
            }
            CarrierEvent::Opened(id) => {
                entry.opened.push_back(id);
                if let Some(inner) = inner {
                    inner.came.notify_one();
                }
            }
            CarrierEvent::Lost(why) => {
                entry.streams.values_mut().for_each(StreamWaiters::wake);
                let carrier = self.endpoint.carrier(handle);
                let rule = carrier.and_then(|it| Some((it.remote_address(), it.broken_rule()?)));
                if let Some(inner) = inner {
                    inner.on_lost(why, rule);
                }
            }
            event => {
                let settings = self.endpoint.carrier(handle).and_then(Carrier::settings).copied();
                if let Some(inner) = inner {
                    inner.on_event(&event, settings);
                }
            }
        }
    }

    fn on_drained(&mut self, handle: ConnectionHandle, carrier: Box<Carrier>) {
        if self.endpoint.connections() == 0 {
            self.idle.notify_waiters();
        }
        let Some(number) = self.numbers.remove(&handle) else { return };
        let Some(entry) = self.connections.get_mut(&number) else { return };
        entry.gone = Some(carrier);
        entry.stored = None;
        match entry.inner.upgrade() {
            Some(inner) => inner.on_lost(ConnectionError::TimedOut, None),
            None => drop(self.connections.remove(&number)),
        }
    }
}
