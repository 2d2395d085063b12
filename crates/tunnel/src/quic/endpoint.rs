//! All QUIC connections of a socket, and those that are being opened.
//!
//! [`Endpoint`] gets what the socket received, and hands it to its [`Carrier`]: by the peer's address for
//! repairs, by the connection ID for QUIC. A new connection is [announced](EndpointEvent::Incoming), and the
//! caller decides about it.
//!
//! Invariant: the cost of a call does not grow with the number of connections. A connection is visited when
//! something has arrived for it, when the caller asks it for something, and when its timer expires.

use super::batch::DatagramBatch;
use super::carrier::{Carrier, CarrierError, CarrierEvent, Label, Opening};
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

/// What happens at an endpoint.
#[derive(Debug)]
pub enum EndpointEvent {
    /// Somebody begins a connection: [`Endpoint::accept`], [`refuse`](Endpoint::refuse), [`retry`](Endpoint::retry) or
    /// [`ignore`](Endpoint::ignore).
    Incoming(Box<Incoming>),
    /// Something happened on a connection.
    Carrier(ConnectionHandle, CarrierEvent),
    /// A connection is gone, and so is whatever was on its way: what it was. Its handle may be another's from now on.
    Drained(ConnectionHandle, Box<Carrier>),
}

/// A datagram, and where it goes to or has come from.
pub type Datagram = (Bytes, Label);

/// All connections of one socket.
///
/// After each call ask [`poll_event`](Self::poll_event) and [`poll_batch`](Self::poll_batch) until there is none, and
/// call [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout).
pub struct Endpoint {
    /// What stands for [`Instant::START`] in QUIC.
    epoch: time::Instant,
    quic: quinn_proto::Endpoint,
    carriers: BTreeMap<ConnectionHandle, Entry>,
    /// Whose what comes from an address is, where it is not QUIC's.
    by_address: BTreeMap<SocketAddr, ConnectionHandle>,
    /// When connections want to be looked at, the soonest first.
    due: BTreeSet<(Instant, ConnectionHandle)>,
    /// Connections that may want to be looked at at another time than is known: found out once somebody asks.
    stale: Vec<ConnectionHandle>,
    /// Connections on which something may have happened since they were looked at.
    touched: VecDeque<ConnectionHandle>,
    /// Connections that may have something to send, in their turns.
    sending: VecDeque<ConnectionHandle>,
    /// Answers to those who have no connection.
    answers: VecDeque<Datagram>,
    events: VecDeque<EndpointEvent>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Entry {
    carrier: Carrier,
    /// What of it is in [`Endpoint::due`].
    due: Option<Instant>,
    /// Under which address it is known.
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
    /// An endpoint without connections, whose time begins at `epoch`, which is [`Instant::START`]. To one with a `server`
    /// others may come. `seed` decides whatever QUIC leaves to chance; none: the system's does.
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

    /// Begins a connection to a peer at `remote`.
    ///
    /// # Errors
    /// When the peer has no name, or no connection can be had.
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

    /// Lets somebody in. Who it is shows once it is [connected](CarrierEvent::Connected); the connection waits for
    /// [`Carrier::begin`]. Where it `may_repair`, the peer may turn out to be one that repairs losses.
    ///
    /// # Errors
    /// When the connection does not come about. QUIC has answered what there is to answer.
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

    /// Refuses somebody, and lets it know.
    pub fn refuse(&mut self, incoming: Incoming) {
        self.buffer.clear();
        let transmit = self.quic.refuse(incoming, &mut self.buffer);
        self.answer(&transmit);
    }

    /// Has somebody prove its address.
    ///
    /// # Errors
    /// Whoever has shown that already.
    pub fn retry(&mut self, incoming: Incoming) -> Result<(), RetryError> {
        self.buffer.clear();
        let transmit = self.quic.retry(incoming, &mut self.buffer)?;
        self.answer(&transmit);
        Ok(())
    }

    /// Does not answer somebody.
    pub fn ignore(&mut self, incoming: Incoming) {
        self.quic.ignore(incoming);
    }

    /// Connections that are there.
    pub fn connections(&self) -> usize {
        self.carriers.len()
    }

    /// The handles of those.
    pub fn handles(&self) -> impl Iterator<Item = ConnectionHandle> + '_ {
        self.carriers.keys().copied()
    }

    /// A connection, to be looked at.
    pub fn carrier(&self, handle: ConnectionHandle) -> Option<&Carrier> {
        self.carriers.get(&handle).map(|entry| &entry.carrier)
    }

    /// A connection, to be asked for something.
    pub fn carrier_mut(&mut self, handle: ConnectionHandle) -> Option<&mut Carrier> {
        let Self { carriers, touched, .. } = self;
        carriers.get_mut(&handle).map(|entry| {
            entry.touch(handle, touched);
            &mut entry.carrier
        })
    }

    /// A connection, for what changes nothing of what it sends or when it wants to be looked at.
    pub fn carrier_mut_quietly(&mut self, handle: ConnectionHandle) -> Option<&mut Carrier> {
        self.carriers.get_mut(&handle).map(|entry| &mut entry.carrier)
    }

    /// Whether there is a connection to somebody at this address.
    pub fn has_peer_at(&self, address: SocketAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// Takes what has come from an address at once: datagrams of `size` bytes each, but for the last one.
    pub fn handle_datagrams(
        &mut self,
        now: Instant,
        mut datagrams: BytesMut,
        size: usize,
        label: Label,
    ) {
        // Of an address with a connection the datagrams may be numbered, and some of them repairs.
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
                // Who it is, and what to answer, QUIC knows.
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

    /// The time that it asked for has come.
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

    /// When to call [`Endpoint::handle_timeout`], and to ask for datagrams again.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.settle();
        self.set_timers();
        self.due.first().map(|(at, _)| *at)
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<EndpointEvent> {
        self.settle();
        self.events.pop_front()
    }

    /// Fills a batch with what may leave now by one call; whether there is anything. Those of one connection follow one
    /// another.
    pub fn poll_batch(&mut self, now: Instant, batch: &mut DatagramBatch) -> bool {
        self.settle();
        while let Some(answer) = self.answers.front().filter(|answer| batch.takes(answer)) {
            batch.put(answer);
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
            // What was sent may have changed when it is to be looked at, and what has happened.
            self.look(handle);
        }
        !batch.is_empty()
    }

    /// Looks at the connections on which something may have happened: they may have something to send.
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

    /// Finds out when the connections that were looked at want to be looked at again.
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

    /// Looks what has happened on a connection.
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
        // Somebody who is not known yet takes the place of nobody who is.
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

    /// What comes from where its peer is now is its own, once it has shown who it is.
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
