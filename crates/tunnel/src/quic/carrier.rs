//! One end of a connection: quinn-proto's, with its session above it and its shim below.

use super::flow::{FlowFault, Taken};
use super::session::Session;
use crate::connect::{Request, Response};
use crate::control::Pace;
use crate::departures::QUEUE_TIME;
use crate::fec::{Shim, Stats};
use crate::http3::Code;
use crate::{cause::Cause, peer};
use bytes::{Bytes, BytesMut};
use midhop_congestion::{BuildError, Settings};
use midhop_pep::config::{ClassPlan, PeerPlan, Repair};
use midhop_units::{Duration, Instant, Seed};
use quinn_proto::{
    ClientConfig, ConnectError, Connection, ConnectionHandle, DatagramEvent, Endpoint,
    EndpointConfig, Event, ServerConfig, StreamEvent, StreamId, TransportConfig, VarInt, crypto,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::{fmt, time};

/// Datagrams that QUIC may make at once, at most.
const SEGMENTS_MAX: u64 = 10;
/// What a datagram takes at most. Unit: bytes.
const DATAGRAM: u64 = 1500;

/// What happens on a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum CarrierEvent {
    /// The handshake is over.
    Connected,
    /// The peer's settings have come.
    Settled,
    /// The peer asks for a flow.
    Asked(StreamId, Box<Request>),
    /// The peer has granted a flow.
    Granted(StreamId),
    /// Something has come of a flow, or its end.
    Readable(StreamId),
    /// Nothing waits of a flow any more.
    Writable(StreamId),
    /// The peer has all of this end's half.
    Delivered(StreamId),
    /// The peer wants no more of this end's half.
    Stopped(StreamId, Code),
    /// A flow broke.
    Broken(StreamId, FlowFault),
    /// The peer takes more flows than before.
    Available,
    /// The connection is gone, and why.
    Lost(String),
}

/// What a connection has done.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CarrierStats {
    /// Datagrams of QUIC sent.
    pub sent: u64,
    /// Those of them that were found lost.
    pub lost: u64,
    /// Datagrams of QUIC that have come.
    pub received: u64,
    /// The smallest round trip; none: nothing was measured.
    pub rtt_min: Option<Duration>,
    /// What repairs have cost and given.
    pub repairs: Stats,
}

/// One end of a connection.
///
/// After each call ask [`poll_event`](Self::poll_event) and [`poll_datagram`](Self::poll_datagram) until there is none, and
/// call [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout).
pub struct Carrier {
    /// What stands for [`Instant::START`] in QUIC.
    epoch: time::Instant,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    remote: SocketAddr,
    session: Session,
    shim: Shim<()>,
    /// Whether it is still to be agreed that it does.
    to_agree: bool,
    /// What QUIC made when there was no room for it: it cannot be taken back.
    made: VecDeque<Bytes>,
    buffer: Vec<u8>,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carrier").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// Its congestion control cannot be had.
    #[error("the congestion control is not to be had: {0}")]
    Congestion(#[from] BuildError),
    /// QUIC does not begin.
    #[error("the connection cannot be opened: {0}")]
    Connect(#[from] ConnectError),
}

impl Carrier {
    /// The end that goes to a peer at `remote`, beginning at `epoch`, which is [`Instant::START`]. `seed` decides whatever
    /// QUIC leaves to chance.
    ///
    /// # Errors
    /// When its congestion control cannot be had, or the peer has no name.
    pub fn connect(
        peer: &PeerPlan,
        remote: SocketAddr,
        crypto: Arc<dyn crypto::ClientConfig>,
        (epoch, seed): (time::Instant, Seed),
    ) -> Result<Self, CarrierError> {
        let (transport, pace) = Self::transport(peer, remote, seed)?;
        let mut config = ClientConfig::new(crypto);
        config.transport_config(Arc::new(transport));
        let mut carrier = Self::new(peer, remote, pace, None, (epoch, seed));
        let made = carrier.endpoint.connect(epoch, config, remote, &peer.identity)?;
        carrier.connection = Some(made);
        Ok(carrier)
    }

    /// The end to which the peer at `remote` comes.
    ///
    /// # Errors
    /// When its congestion control cannot be had.
    pub fn listen(
        peer: &PeerPlan,
        remote: SocketAddr,
        crypto: Arc<dyn crypto::ServerConfig>,
        (epoch, seed): (time::Instant, Seed),
    ) -> Result<Self, CarrierError> {
        let (transport, pace) = Self::transport(peer, remote, seed)?;
        let mut config = ServerConfig::with_crypto(crypto);
        config.transport_config(Arc::new(transport));
        Ok(Self::new(peer, remote, pace, Some(Arc::new(config)), (epoch, seed)))
    }

    fn transport(
        peer: &PeerPlan,
        remote: SocketAddr,
        seed: Seed,
    ) -> Result<(TransportConfig, Pace), CarrierError> {
        let repaired = peer.repair != Repair::Off;
        let settings = Settings { seed: seed.derive("congestion"), ..peer::congestion(peer) };
        let (config, steering) = peer::transport(peer, remote.is_ipv6(), repaired, settings)?;
        Ok((config, steering.pace()))
    }

    fn new(
        peer: &PeerPlan,
        remote: SocketAddr,
        pace: Pace,
        server: Option<Arc<ServerConfig>>,
        (epoch, seed): (time::Instant, Seed),
    ) -> Self {
        let mut own = EndpointConfig::default();
        // By that bit QUIC is distinguished from what may be sent below it.
        own.grease_quic_bit(false);
        let repairs = peer::repairs(peer, remote.is_ipv6());
        let now = Instant::START;
        let authority = format!("{}:{}", peer.identity, remote.port());
        let initial = peer.flow_window.get();
        let repair = repairs.is_some();
        let mut shim = Shim::new(repairs.unwrap_or_default(), pace.clone(), now);
        if repair {
            shim.propose();
        }
        Self {
            epoch,
            endpoint: Endpoint::new(Arc::new(own), server, true, Some(random_seed(seed))),
            connection: None,
            remote,
            session: Session::new(peer, authority, initial, now, pace.rate()),
            shim,
            to_agree: repair,
            made: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// Asks for a flow of some class; none: the peer takes no more for now, and [`CarrierEvent::Available`] comes when it does.
    pub fn ask(&mut self, now: Instant, request: &Request, class: &ClassPlan) -> Option<StreamId> {
        let (_, connection) = self.connection.as_mut()?;
        let asked = self.session.ask(now, request, class, connection);
        self.work(now);
        asked
    }

    /// Grants a flow that was asked for, as one of some class.
    pub fn grant(&mut self, now: Instant, id: StreamId, class: &ClassPlan) {
        self.session.join(id, class);
        self.with(|session, connection| session.answer(now, id, &Response::Granted, connection));
        self.work(now);
    }

    /// Denies one. [`CarrierEvent::Delivered`] comes when the peer knows.
    pub fn deny(&mut self, now: Instant, id: StreamId, cause: Cause) {
        self.with(|session, connection| session.deny(now, id, cause, connection));
        self.work(now);
    }

    /// Unit: bytes. What waits of a flow to be sent; none: there is no such flow.
    pub fn waiting(&self, id: StreamId) -> Option<usize> {
        self.session.waiting(id)
    }

    /// Unit: bytes. What has come of a flow and has not been taken.
    pub fn held(&self, id: StreamId) -> u64 {
        self.session.held(id)
    }

    /// Takes some bytes of a flow, of which nothing may wait.
    pub fn put(&mut self, now: Instant, id: StreamId, bytes: Bytes) {
        self.with(|session, connection| session.put(now, id, bytes, connection));
        self.work(now);
    }

    /// A flow has nothing more to send for now: others may.
    pub fn rest(&mut self, id: StreamId) {
        self.session.rest(id);
    }

    /// A flow has ended. Nothing of it may wait. [`CarrierEvent::Delivered`] comes when the peer has all of it.
    pub fn finish(&mut self, now: Instant, id: StreamId) {
        self.with(|session, connection| session.finish(now, id, connection));
        self.work(now);
    }

    /// A flow broke behind what was put: its half ends without the flow's end. Nothing of it may wait.
    pub fn cut(&mut self, id: StreamId) {
        self.with(|session, connection| session.cut(id, connection));
    }

    /// Takes what there is of a flow. What was taken before counts as passed on.
    ///
    /// # Errors
    /// Why there is no more of it.
    pub fn take(&mut self, id: StreamId) -> Result<Taken, FlowFault> {
        match &mut self.connection {
            Some((_, connection)) => self.session.take(id, connection),
            None => Ok(Taken::default()),
        }
    }

    /// Whether the stream of a flow has ended as well, whose end was taken: until then the peer may still break off.
    ///
    /// # Errors
    /// Why it has not ended in order.
    pub fn take_end(&mut self, id: StreamId) -> Result<bool, FlowFault> {
        match &mut self.connection {
            Some((_, connection)) => self.session.take_end(id, connection),
            None => Ok(true),
        }
    }

    /// Forgets a flow. A half that has not ended is broken off with this code.
    pub fn forget(&mut self, id: StreamId, code: Code) {
        self.with(|session, connection| session.forget(id, code, connection));
    }

    /// Flows that are open.
    pub fn flows(&self) -> usize {
        self.session.flows()
    }

    /// The pace at which datagrams leave.
    pub fn pace(&self) -> &Pace {
        self.shim.pace()
    }

    /// What the connection has done.
    pub fn stats(&self) -> CarrierStats {
        let Some((_, connection)) = &self.connection else { return CarrierStats::default() };
        let stats = connection.stats();
        let path = stats.path;
        CarrierStats {
            sent: stats.udp_tx.datagrams,
            lost: path.lost_packets,
            received: stats.udp_rx.datagrams,
            rtt_min: (path.min_rtt > time::Duration::ZERO).then(|| path.min_rtt.into()),
            repairs: self.shim.stats(),
        }
    }

    /// Takes a datagram that has come from the peer; `marked` where the path reports congestion (ECN: CE).
    pub fn handle_datagram(&mut self, now: Instant, datagram: Bytes, marked: bool) {
        self.shim.handle_input(now, datagram, (), marked);
        let at = self.at(now);
        while let Some((datagram, ())) = self.shim.poll_delivery() {
            self.deliver(at, &datagram);
        }
        self.work(now);
    }

    fn deliver(&mut self, at: time::Instant, datagram: &Bytes) {
        self.buffer.clear();
        let data = BytesMut::from(datagram.as_ref());
        let Self { endpoint, connection, buffer, remote, .. } = self;
        match endpoint.handle(at, *remote, None, None, data, buffer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((_, connection)) = connection.as_mut().filter(|(own, _)| *own == handle)
                {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) if connection.is_none() => {
                *connection = endpoint.accept(incoming, at, buffer, None).ok();
            }
            Some(DatagramEvent::NewConnection(incoming)) => endpoint.ignore(incoming),
            // For nobody who is here.
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// The time that it asked for has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let at = self.at(now);
        if let Some((_, connection)) = &mut self.connection {
            if connection.poll_timeout().is_some_and(|due| due <= at) {
                connection.handle_timeout(at);
            }
            self.session.handle_timeout(now, connection);
        }
        self.work(now);
    }

    /// When to call [`Carrier::handle_timeout`], and to ask for datagrams again.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let epoch = self.epoch;
        let timer = self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout());
        let timer = timer.map(|at| Instant::START + at.saturating_duration_since(epoch).into());
        let own = [timer, self.session.poll_timeout(), self.shim.poll_timeout()];
        own.into_iter().flatten().min()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<CarrierEvent> {
        self.session.events.pop_front()
    }

    /// The next datagram that may leave.
    pub fn poll_datagram(&mut self, now: Instant) -> Option<Bytes> {
        loop {
            if let Some((datagram, ())) = self.shim.poll_output(now) {
                return Some(datagram);
            }
            self.work(now);
            if !self.transmit(now) {
                return self.shim.poll_output(now).map(|(datagram, ())| datagram);
            }
        }
    }

    /// Hands what QUIC has to send to the shim, as long as that has room; whether there was anything.
    fn transmit(&mut self, now: Instant) -> bool {
        let at = self.at(now);
        let segments = self.segments();
        let Some((_, connection)) = &mut self.connection else { return false };
        let mut any = false;
        loop {
            if self.made.is_empty() {
                self.buffer.clear();
                let Some(transmit) = connection.poll_transmit(at, segments, &mut self.buffer)
                else {
                    return any;
                };
                let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
                let datagrams = self.buffer.get(..transmit.size).unwrap_or_default();
                self.made.extend(datagrams.chunks(segment).map(Bytes::copy_from_slice));
            }
            if self.shim.is_full() {
                self.shim.refuse();
                return any;
            }
            any = true;
            self.made.drain(..).for_each(|datagram| self.shim.push(now, datagram, ()));
        }
    }

    /// Datagrams that QUIC is to make at once: those of a slow leg would wait for longer than they need.
    fn segments(&self) -> usize {
        let Some(rate) = self.shim.pace().rate() else { return SEGMENTS_MAX as usize };
        (rate.bytes_in(QUEUE_TIME).get() / DATAGRAM).clamp(1, SEGMENTS_MAX) as usize
    }

    /// Does all that there is to do at this moment but for sending.
    fn work(&mut self, now: Instant) {
        let at = self.at(now);
        let rate = self.shim.pace().rate();
        let Self { endpoint, connection, session, shim, to_agree, .. } = self;
        let Some((handle, connection)) = connection else { return };
        loop {
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = endpoint.handle_event(*handle, event) {
                    connection.handle_event(event);
                }
            }
            if let Some(settings) = session.settings().filter(|_| *to_agree) {
                shim.agree(usize::try_from(settings.repair_window).unwrap_or(usize::MAX));
                *to_agree = false;
            }
            session.pump(now, rate, connection);
            if let Some(code) = session.fault.take() {
                let code = VarInt::from_u64(code.0).unwrap_or(VarInt::MAX);
                connection.close(at, code, Bytes::new());
            }
            let Some(event) = connection.poll() else { return };
            match event {
                Event::Connected => {
                    session.begin(connection);
                    session.events.push_back(CarrierEvent::Connected);
                }
                Event::Stream(StreamEvent::Opened { dir }) => session.accept(now, dir, connection),
                Event::Stream(StreamEvent::Readable { id }) => {
                    session.readable(now, id, connection);
                }
                Event::Stream(StreamEvent::Writable { id }) => session.writable(id, connection),
                Event::Stream(StreamEvent::Finished { id }) => session.finished(id),
                Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                    session.stopped(id, error_code);
                }
                Event::Stream(StreamEvent::Available { .. }) => {
                    session.events.push_back(CarrierEvent::Available);
                }
                Event::ConnectionLost { reason } => {
                    session.events.push_back(CarrierEvent::Lost(reason.to_string()));
                }
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {
                }
            }
        }
    }

    fn with(&mut self, act: impl FnOnce(&mut Session, &mut Connection)) {
        if let Some((_, connection)) = &mut self.connection {
            act(&mut self.session, connection);
        }
    }

    fn at(&self, now: Instant) -> time::Instant {
        self.epoch + now.saturating_since(Instant::START).into()
    }
}

/// What decides the numbers that QUIC draws.
fn random_seed(seed: Seed) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (part, name) in bytes.chunks_mut(8).zip(["quic-0", "quic-1", "quic-2", "quic-3"]) {
        part.copy_from_slice(&seed.derive(name).0.to_be_bytes());
    }
    bytes
}
