//! All QUIC connections of a socket, and those that are being opened.
//!
//! [`Endpoint`] takes what the socket received, and passes it to its [`Carrier`]: repairs by the peer's address,
//! QUIC by the connection ID. It [announces](EndpointEvent::Incoming) a new connection, and the caller decides
//! about it.
//!
//! Invariant: the cost of a call does not grow with the number of connections. A connection is visited when
//! something has arrived for it, when the caller uses it, and when its timer expires.

use super::batch::DatagramBatch;
use super::carrier::{Carrier, CarrierError, Label, Opening};
use super::event::CarrierEvent;
use crate::control::Pace;
use crate::fec::Packet;
use bytes::{Bytes, BytesMut};
use midhop_pep::config::PeerPlan;
use midhop_units::Instant;
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, EndpointConfig, Incoming, RetryError,
    ServerConfig, Transmit,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};
use std::net::SocketAddr;
use std::sync::Arc;
use std::{fmt, time};

/// An event of an endpoint.
#[derive(Debug)]
pub enum EndpointEvent {
    /// A new connection. Decide with [`Endpoint::accept`], [`refuse`](Endpoint::refuse), [`retry`](Endpoint::retry)
    /// or [`ignore`](Endpoint::ignore).
    Incoming(Box<Incoming>),
    /// An event of a connection.
    Carrier(ConnectionHandle, CarrierEvent),
    /// A connection is gone, with everything it had in flight. Its handle may be reused from now on.
    Drained(ConnectionHandle, Box<Carrier>),
}

/// A datagram, with its destination or source.
pub type Datagram = (Bytes, Label);

/// All connections of one socket.
///
/// After each call, call [`poll_event`](Self::poll_event) and [`poll_batch`](Self::poll_batch) until they return
/// nothing, and call [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout).
pub struct Endpoint {
    /// The time of QUIC's clock that stands for [`Instant::START`].
    epoch: time::Instant,
    quic: quinn_proto::Endpoint,
    carriers: BTreeMap<ConnectionHandle, Entry>,
    /// Which connection gets the datagrams from an address that are not QUIC's.
    by_address: BTreeMap<SocketAddr, ConnectionHandle>,
    /// The timers of the connections, the soonest first.
    due: BTreeSet<(Instant, ConnectionHandle)>,
    /// Connections whose timers may have changed. They are read when the next timeout is requested.
    stale: Vec<ConnectionHandle>,
    /// Connections on which something may have happened since they were last visited.
    touched: VecDeque<ConnectionHandle>,
    /// Connections that may have something to send, in turn.
    sending: VecDeque<ConnectionHandle>,
    /// Responses to senders without a connection.
    answers: VecDeque<Datagram>,
    events: VecDeque<EndpointEvent>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Entry {
    carrier: Carrier,
    /// Its entry in [`Endpoint::due`].
    due: Option<Instant>,
    /// Its entry in [`Endpoint::by_address`].
    address: Option<SocketAddr>,
    is_touched: bool,
    is_sending: bool,
    /// Whether it is in [`Endpoint::stale`].
    is_stale: bool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("carriers", &self.carriers).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint without connections, whose time begins at `epoch`, which is [`Instant::START`]. With a `server`
    /// it accepts connections. `seed` fixes QUIC's random choices; none: they are random.
    ///
    /// QUIC's fixed bit distinguishes its datagrams from others: `config` must not grease it.
    pub fn new(
        config: Arc<EndpointConfig>,
        server: Option<Arc<ServerConfig>>,
        epoch: time::Instant,
        seed: Option<[u8; 32]>,
    ) -> Self {
        Self {
            epoch,
            quic: quinn_proto::Endpoint::new(config, server, true, seed),
            carriers: BTreeMap::new(),
            by_address: BTreeMap::new(),
            due: BTreeSet::new(),
            stale: Vec::new(),
            touched: VecDeque::new(),
            sending: VecDeque::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// Opens a connection to a peer at `remote`.
    ///
    /// # Errors
    /// When the peer has no name, or the connection cannot be opened.
    pub fn connect(
        &mut self,
        now: Instant,
        peer: &PeerPlan,
        remote: SocketAddr,
        (config, pace): (ClientConfig, Pace),
        opening: Opening,
    ) -> Result<ConnectionHandle, CarrierError> {
        let at = self.at(now);
        let (handle, connection) = self.quic.connect(at, config, remote, &peer.identity)?;
        let mut carrier = Carrier::new(self.epoch, connection, pace, now);
        carrier.begin(now, peer, opening);
        self.put(handle, carrier, remote);
        Ok(handle)
    }

    /// Accepts a connection. The peer is identified once it is [connected](CarrierEvent::Connected); until then the
    /// connection waits for [`Carrier::begin`]. With `may_repair`, the peer may turn out to support repairs.
    ///
    /// # Errors
    /// When the connection cannot be accepted. QUIC has sent the response, if any.
    pub fn accept(
        &mut self,
        now: Instant,
        incoming: Incoming,
        (config, pace): (Arc<ServerConfig>, Pace),
        may_repair: bool,
    ) -> Result<ConnectionHandle, CarrierError> {
        let (at, remote) = (self.at(now), incoming.remote_address());
        self.buffer.clear();
        match self.quic.accept(incoming, at, &mut self.buffer, Some(config)) {
            Ok((handle, connection)) => {
                let mut carrier = Carrier::new(self.epoch, connection, pace, now);
                if may_repair {
                    carrier.propose();
                }
                self.put(handle, carrier, remote);
                Ok(handle)
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.answer(&transmit);
                }
                Err(CarrierError::Accept(error.cause))
            }
        }
    }

    /// Refuses a connection with a response.
    pub fn refuse(&mut self, incoming: Incoming) {
        self.buffer.clear();
        let transmit = self.quic.refuse(incoming, &mut self.buffer);
        self.answer(&transmit);
    }

    /// Makes the client validate its address (Retry).
    ///
    /// # Errors
    /// When its address is validated already.
    pub fn retry(&mut self, incoming: Incoming) -> Result<(), RetryError> {
        self.buffer.clear();
        let transmit = self.quic.retry(incoming, &mut self.buffer)?;
        self.answer(&transmit);
        Ok(())
    }

    /// Ignores a connection without a response.
    pub fn ignore(&mut self, incoming: Incoming) {
        self.quic.ignore(incoming);
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.carriers.len()
    }

    /// The handles of all connections.
    pub fn handles(&self) -> impl Iterator<Item = ConnectionHandle> + '_ {
        self.carriers.keys().copied()
    }

    /// A connection, for reading.
    pub fn carrier(&self, handle: ConnectionHandle) -> Option<&Carrier> {
        self.carriers.get(&handle).map(|entry| &entry.carrier)
    }

    /// A connection, for changing it.
    pub fn carrier_mut(&mut self, handle: ConnectionHandle) -> Option<&mut Carrier> {
        let Self { carriers, touched, .. } = self;
        carriers.get_mut(&handle).map(|entry| {
            entry.touch(handle, touched);
            &mut entry.carrier
        })
    }

    /// A connection, for changes that affect neither what it sends nor its timer.
    pub fn carrier_mut_quietly(&mut self, handle: ConnectionHandle) -> Option<&mut Carrier> {
        self.carriers.get_mut(&handle).map(|entry| &mut entry.carrier)
    }

    /// Whether there is a connection to a peer at this address.
    pub fn has_peer_at(&self, address: SocketAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// Takes datagrams received from one address at once, of `size` bytes each; the last one may be shorter.
    pub fn handle_datagrams(
        &mut self,
        now: Instant,
        mut datagrams: BytesMut,
        size: usize,
        label: Label,
    ) {
        // From the address of a connection, datagrams may be numbered, or may be repairs.
        let listener = self.by_address.get(&label.peer).copied();
        while !datagrams.is_empty() {
            let datagram = datagrams.split_to(size.clamp(1, datagrams.len()));
            if let Some(handle) = listener
                && let Some(entry) = self.carriers.get_mut(&handle)
                && entry.carrier.reads_repairs(&datagram, label)
            {
                entry.touch(handle, &mut self.touched);
                entry.carrier.unwrap(now, datagram.freeze(), label);
                while let Some((datagram, label)) =
                    self.carriers.get_mut(&handle).and_then(|entry| entry.carrier.unwrapped())
                {
                    self.deliver(now, BytesMut::from(datagram), label);
                }
            } else if Packet::is_quic(&datagram) {
                self.deliver(now, datagram, label);
            } else if let Some(quic) = Packet::quic_in(&datagram) {
                // QUIC finds the connection, and responds if necessary.
                self.deliver(now, BytesMut::from(quic), label);
            }
        }
    }

    fn deliver(&mut self, now: Instant, datagram: BytesMut, label: Label) {
        let at = self.at(now);
        self.buffer.clear();
        let Label { peer, own, ecn } = label;
        match self.quic.handle(at, peer, own, ecn, datagram, &mut self.buffer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Self { carriers, touched, .. } = self;
                let Some(entry) = carriers.get_mut(&handle) else { return };
                entry.touch(handle, touched);
                entry.carrier.handle_event(now, event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.events.push_back(EndpointEvent::Incoming(Box::new(incoming)));
            }
            Some(DatagramEvent::Response(transmit)) => self.answer(&transmit),
            None => {}
        }
    }

    /// Handles timeouts that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.set_timers();
        while let Some((at, handle)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            let Self { carriers, touched, .. } = self;
            if let Some(entry) = carriers.get_mut(&handle) {
                entry.due = None;
                entry.touch(handle, touched);
                entry.carrier.handle_timeout(now);
            }
        }
    }

    /// When to call [`Endpoint::handle_timeout`] and to poll for datagrams again.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.settle();
        self.set_timers();
        self.due.first().map(|(at, _)| *at)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<EndpointEvent> {
        self.settle();
        self.events.pop_front()
    }

    /// Fills a batch with datagrams that may leave now with one call. Returns whether there are any. Datagrams of
    /// one connection stay together.
    pub fn poll_batch(&mut self, now: Instant, batch: &mut DatagramBatch) -> bool {
        self.settle();
        while let Some((answer, label)) =
            self.answers.front().filter(|(answer, label)| batch.takes(answer, label))
        {
            batch.put(answer, *label);
            self.answers.pop_front();
        }
        while batch.is_empty()
            && let Some(handle) = self.sending.front().copied()
        {
            if let Some(entry) = self.carriers.get_mut(&handle) {
                entry.carrier.fill(now, batch);
                if !batch.is_empty() {
                    break;
                }
                entry.is_sending = false;
            }
            self.sending.pop_front();
            // Sending may have changed its timer, and may have caused events.
            self.look(handle);
        }
        !batch.is_empty()
    }

    /// Visits the connections on which something may have happened: they may have something to send.
    fn settle(&mut self) {
        while let Some(handle) = self.touched.pop_front() {
            self.look(handle);
            if let Some(entry) = self.carriers.get_mut(&handle)
                && !std::mem::replace(&mut entry.is_sending, true)
            {
                self.sending.push_back(handle);
            }
        }
    }

    /// Updates the timers of the connections that were visited.
    fn set_timers(&mut self) {
        while let Some(handle) = self.stale.pop() {
            let Some(entry) = self.carriers.get_mut(&handle) else { continue };
            entry.is_stale = false;
            let due = entry.carrier.poll_timeout();
            if due != entry.due {
                entry.due.map(|at| self.due.remove(&(at, handle)));
                due.map(|at| self.due.insert((at, handle)));
                entry.due = due;
            }
        }
    }

    /// Collects what has happened on a connection.
    fn look(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.carriers.get_mut(&handle) else { return };
        entry.is_touched = false;
        let mut is_drained = false;
        while let Some(event) = entry.carrier.poll_endpoint_event() {
            is_drained |= event.is_drained();
            if let Some(answer) = self.quic.handle_event(handle, event) {
                entry.carrier.handle_own(answer);
            }
        }
        while let Some(event) = entry.carrier.poll_event() {
            self.events.push_back(EndpointEvent::Carrier(handle, event));
        }
        entry.follow(handle, &mut self.by_address);
        if !std::mem::replace(&mut entry.is_stale, true) {
            self.stale.push(handle);
        }
        if is_drained {
            self.remove(handle);
        }
    }

    fn put(&mut self, handle: ConnectionHandle, carrier: Carrier, remote: SocketAddr) {
        let mut entry = Entry {
            carrier,
            due: None,
            address: None,
            is_touched: false,
            is_sending: false,
            is_stale: false,
        };
        // An unidentified peer never takes the entry of another connection.
        if let btree_map::Entry::Vacant(place) = self.by_address.entry(remote) {
            place.insert(handle);
            entry.address = Some(remote);
        }
        entry.touch(handle, &mut self.touched);
        self.carriers.insert(handle, entry);
    }

    fn remove(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.carriers.remove(&handle) else { return };
        entry.due.map(|at| self.due.remove(&(at, handle)));
        if let Some(address) = entry.address
            && self.by_address.get(&address) == Some(&handle)
        {
            self.by_address.remove(&address);
        }
        self.events.push_back(EndpointEvent::Drained(handle, Box::new(entry.carrier)));
    }

    fn answer(&mut self, transmit: &Transmit) {
        let label = Label { peer: transmit.destination, own: transmit.src_ip, ecn: transmit.ecn };
        let bytes = self.buffer.get(..transmit.size).unwrap_or_default();
        self.answers.push_back((Bytes::copy_from_slice(bytes), label));
    }

    fn at(&self, now: Instant) -> time::Instant {
        self.epoch + now.saturating_since(Instant::START).into()
    }
}

impl Entry {
    fn touch(&mut self, handle: ConnectionHandle, touched: &mut VecDeque<ConnectionHandle>) {
        if !std::mem::replace(&mut self.is_touched, true) {
            touched.push_back(handle);
        }
    }

    /// Enters the connection under its peer's present address, once the peer is identified.
    fn follow(
        &mut self,
        handle: ConnectionHandle,
        by_address: &mut BTreeMap<SocketAddr, ConnectionHandle>,
    ) {
        let remote = self.carrier.remote_address();
        if !self.carrier.is_known() || self.address == Some(remote) {
            return;
        }
        if let Some(before) = self.address.replace(remote)
            && by_address.get(&before) == Some(&handle)
        {
            by_address.remove(&before);
        }
        by_address.insert(remote, handle);
    }
}
