//! One end of a connection: quinn-proto's connection, the session above it and the shim below.

mod by_frames;

use super::batch::DatagramBatch;
use super::event::CarrierEvent;
use super::flow::{FlowFault, Taken};
use super::session::Session;
use crate::cause::Cause;
use crate::connect::{Request, Response};
use crate::control::{Pace, Steering};
use crate::fec::{DATAGRAM_MAX, FecSettings, Packet, Shim, Stats};
use crate::http3::{Code, Field, Settings};
use crate::peer;
use crate::send_pool::{PathState, PoolLaw};
use bytes::Bytes;
use midhop_congestion::BuildError;
use midhop_pep::config::{ClassPlan, PeerPlan};
use midhop_units::{Duration, Instant};
use quinn_proto::{
    ConnectError, Connection, ConnectionError, ConnectionEvent, ConnectionStats, Dir, EcnCodepoint,
    EndpointEvent, Event, StreamId, Transmit, VarInt,
};
use std::any::Any;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::{fmt, time};

/// The most datagrams that QUIC may make in one batch.
const SEGMENTS_MAX: u64 = 10;

/// The counters of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CarrierStats {
    /// Datagrams of QUIC sent.
    pub sent: u64,
    /// How many of them were lost.
    pub lost: u64,
    /// Datagrams of QUIC received.
    pub received: u64,
    /// The smallest round-trip time; none: none was measured.
    pub rtt_min: Option<Duration>,
    /// The counters of the repairs.
    pub repairs: Stats,
}

/// Addresses of a datagram, and its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The other end.
    pub peer: SocketAddr,
    /// This end's address, if it is known.
    pub own: Option<IpAddr>,
    /// Its ECN mark.
    pub ecn: Option<EcnCodepoint>,
}

impl Label {
    /// The label of a datagram to or from a peer, without an own address and mark.
    pub fn of(peer: SocketAddr) -> Self {
        Self { peer, own: None, ecn: None }
    }

    /// Whether the path has marked it with CE.
    fn is_marked(&self) -> bool {
        self.ecn == Some(EcnCodepoint::Ce)
    }
}

/// A datagram on its way through the shim.
#[derive(Debug, Clone, Copy)]
struct Tag {
    label: Label,
    /// When QUIC made it; none: it was received.
    made: Option<Instant>,
}

impl From<Transmit> for Label {
    fn from(transmit: Transmit) -> Self {
        Self { peer: transmit.destination, own: transmit.src_ip, ecn: transmit.ecn }
    }
}

/// One end of a connection, as its [`Endpoint`](super::Endpoint) keeps it.
///
/// After any call on it, poll its endpoint for events and datagrams.
pub struct Carrier {
    /// The time of QUIC's clock that stands for [`Instant::START`].
    epoch: time::Instant,
    connection: Connection,
    /// None: the peer is not identified yet.
    session: Option<Session>,
    pool: PoolLaw,
    shim: Shim<Tag>,
    /// Whether datagrams other than QUIC's may arrive.
    reads_repairs: bool,
    /// Whether the use of repairs is still to be agreed on.
    to_agree: bool,
    /// Whether the handshake is complete.
    is_connected: bool,
    /// Whether the peer has confirmed it.
    is_confirmed: bool,
    /// Datagrams that QUIC made when there was no room: they cannot be returned to QUIC.
    made: VecDeque<(Bytes, Tag)>,
    /// Events from before the session began.
    events: VecDeque<CarrierEvent>,
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
    /// Its congestion control cannot be built.
    #[error("the congestion control is not available: {0}")]
    Congestion(#[from] BuildError),
    /// QUIC refused to start it.
    #[error("the connection cannot be opened: {0}")]
    Connect(#[from] ConnectError),
    /// The incoming connection cannot be accepted.
    #[error("the connection could not be established: {0}")]
    Accept(ConnectionError),
}

/// Options of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Unit: bytes. What QUIC accepts of each stream before any of it is read.
    pub initial: u64,
    /// Whether the peer is to report when it has more to send than the path takes.
    pub wants_backlog: bool,
    /// Whether the caller reads and writes the frames of flows itself ([`Carrier::open_flow`],
    /// [`Carrier::next_frame`]). Otherwise it handles requests, responses and payload.
    pub by_frames: bool,
}

impl Carrier {
    /// One end of `connection`, whose datagrams leave at `pace`.
    pub(super) fn new(
        epoch: time::Instant,
        connection: Connection,
        pace: Pace,
        now: Instant,
    ) -> Self {
        Self {
            epoch,
            connection,
            session: None,
            pool: PoolLaw::new(midhop_units::Bytes::MAX),
            shim: Shim::new(FecSettings::default(), pace, now),
            reads_repairs: false,
            to_agree: false,
            is_connected: false,
            is_confirmed: false,
            made: VecDeque::new(),
            events: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// The connection may turn out to be from a peer that supports repairs.
    pub(super) fn propose(&mut self) {
        self.shim.propose();
    }

    /// The peer is identified: begins the session with it.
    pub fn begin(&mut self, now: Instant, peer: &PeerPlan, opening: Opening) {
        let remote = self.connection.remote_address();
        let repairs = peer::repairs(peer, remote.is_ipv6());
        self.reads_repairs = repairs.is_some();
        self.to_agree = self.reads_repairs;
        self.shim.follow(repairs.unwrap_or_default(), self.shim.pace().clone());
        if self.reads_repairs {
            self.shim.propose();
        }
        let authority = format!("{}:{}", peer.identity, remote.port());
        self.pool.set_most(peer.send_window);
        self.pool.set_follows(peer.goes_by_its_rate());
        let mut session = Session::new(peer, authority, opening, now, self.shim.pace().rate());
        session.events.append(&mut self.events);
        let session = self.session.insert(session);
        if self.is_connected {
            session.begin(now, &mut self.connection);
        }
        self.work(now);
    }

    /// Applies the rest of a peer's plan, if it was not known when the connection began.
    ///
    /// # Errors
    /// When its congestion control cannot be built.
    pub fn adapt(
        &mut self,
        now: Instant,
        peer: &PeerPlan,
        steering: &Steering,
    ) -> Result<(), BuildError> {
        let leg = peer::leg(peer, self.connection.remote_address().is_ipv6());
        self.connection.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(leg.streams_max));
        self.pool.set_follows(peer.goes_by_its_rate());
        leg.turn(steering, self.at(now), peer::congestion(peer))
    }

    /// Changes how much may be sent and unacknowledged at most, and how much may be received. Unit: bytes.
    pub fn set_windows(&mut self, send: u64, receive: u64) {
        self.pool.set_most(midhop_units::Bytes::new(send));
        self.connection.set_receive_window(VarInt::from_u64(receive).unwrap_or(VarInt::MAX));
    }

    /// The peer's address.
    pub fn remote_address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Whether the peer is identified.
    pub fn is_known(&self) -> bool {
        self.session.is_some()
    }

    /// The certificates that the peer has shown, as the crypto of the connection has them.
    pub fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.connection.crypto_session().peer_identity()
    }

    /// Closes the connection with all its flows.
    pub fn close(&mut self, now: Instant, code: Code) {
        if !self.connection.is_closed() {
            let at = self.at(now);
            self.connection.close(at, varint(code), Bytes::new());
            self.events.push_back(CarrierEvent::Lost(ConnectionError::LocallyClosed));
        }
    }

    /// Accepts no more flows, and announces that (GOAWAY); open flows continue.
    pub fn leave(&mut self, now: Instant) {
        self.with(|session, connection| session.leave(connection));
        self.work(now);
    }

    /// Reports to the peer, if it wants that, that this end has had more to send than the path takes, for so long.
    pub fn report_backlog(&mut self, now: Instant, lasted: Duration) {
        self.with(|session, connection| session.report_backlog(lasted, connection));
        self.work(now);
    }

    /// Whether flows may be requested: neither end has sent GOAWAY.
    pub fn is_open(&self) -> bool {
        !self.connection.is_closed() && self.session.as_ref().is_some_and(|it| !it.is_leaving())
    }

    /// The peer's settings, once they have arrived.
    pub fn settings(&self) -> Option<&Settings> {
        self.session.as_ref()?.settings()
    }

    /// The connection-level rule that the peer broke, for which the connection was closed.
    pub fn broken_rule(&self) -> Option<Code> {
        self.session.as_ref()?.broken_rule()
    }

    /// Whether the send window is full: no more may be unacknowledged.
    pub fn is_full(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_full)
    }

    /// Unit: bytes. Memory used by received bytes of all flows, behind gaps or not.
    pub fn stored(&self) -> u64 {
        self.session.as_ref().map_or(0, Session::stored)
    }

    /// Memory that other connections of the same peer [store](Self::stored). One bound holds for all together.
    /// Unit: bytes.
    pub fn set_stored_elsewhere(&mut self, bytes: u64) {
        if let Some(session) = &mut self.session {
            session.set_stored_elsewhere(bytes);
        }
    }

    /// QUIC's own statistics.
    pub fn quic_stats(&self) -> ConnectionStats {
        self.connection.stats()
    }

    /// Requests a flow of a class. None: the peer accepts no more for now; [`CarrierEvent::Available`] follows when
    /// it does.
    pub fn ask(&mut self, now: Instant, request: &Request, class: &ClassPlan) -> Option<StreamId> {
        let asked = self.session.as_mut()?.ask(now, request, class, &mut self.connection);
        self.work(now);
        asked
    }

    /// Grants a requested flow, and gives it a class.
    pub fn grant(&mut self, now: Instant, id: StreamId, class: &ClassPlan) {
        self.with(|session, connection| {
            session.join(id, class);
            session.answer(now, id, &Response::Granted, connection);
        });
        self.work(now);
    }

    /// Denies a requested flow. [`CarrierEvent::Delivered`] follows when the peer has acknowledged the response.
    pub fn deny(&mut self, now: Instant, id: StreamId, cause: Cause) {
        self.with(|session, connection| session.deny(now, id, cause, connection));
        self.work(now);
    }

    /// Unit: bytes. How much of a flow waits to be sent; none: there is no such flow.
    pub fn waiting(&self, id: StreamId) -> Option<usize> {
        self.session.as_ref()?.waiting(id)
    }

    /// Unit: bytes. How much of a flow has been received and not taken.
    pub fn held(&self, id: StreamId) -> u64 {
        self.session.as_ref().map_or(0, |session| session.held(id))
    }

    /// Enqueues bytes of a flow. Call it only when nothing of the flow waits.
    pub fn enqueue(&mut self, now: Instant, id: StreamId, bytes: Bytes) {
        self.with(|session, connection| session.enqueue(now, id, bytes, connection));
        self.work(now);
    }

    /// The flow has nothing more to send for now, so others may send. Returns whether another one waits for that.
    pub fn release_turn(&mut self, id: StreamId) -> bool {
        self.session.as_mut().is_some_and(|session| session.release_turn(id))
    }

    /// Unit: bytes. How much of a stream was received in order and not delivered.
    pub fn unread(&self, id: StreamId) -> usize {
        self.session.as_ref().map_or(0, |session| session.unread(id))
    }

    /// Ends a flow. Call it only when nothing of the flow waits. [`CarrierEvent::Delivered`] follows when the peer
    /// has acknowledged all of it.
    pub fn finish(&mut self, now: Instant, id: StreamId) {
        self.with(|session, connection| session.finish(now, id, connection));
        self.work(now);
    }

    /// The flow broke after the bytes that were enqueued: ends this half of the stream without the flow's end. Call it
    /// only when nothing waits.
    pub fn cut(&mut self, id: StreamId) {
        self.with(|session, connection| session.cut(id, connection));
    }

    /// Takes the available bytes of a flow. The bytes taken before count as passed on.
    ///
    /// # Errors
    /// Why no more of it will follow.
    pub fn take(&mut self, id: StreamId) -> Result<Taken, FlowFault> {
        match &mut self.session {
            Some(session) => session.take(id, &mut self.connection),
            None => Ok(Taken::default()),
        }
    }

    /// Whether the stream has ended too, after the flow's end was taken. Until then the peer may still reset it.
    ///
    /// # Errors
    /// Why it did not end in order.
    pub fn take_end(&mut self, id: StreamId) -> Result<bool, FlowFault> {
        match &mut self.session {
            Some(session) => session.take_end(id, &mut self.connection),
            None => Ok(true),
        }
    }

    /// Opens a stream for a flow. None: the peer accepts no more for now; [`CarrierEvent::Available`] follows when
    /// it does.
    pub fn open_flow(&mut self, now: Instant) -> Option<StreamId> {
        self.session.as_mut()?.open_flow(now, &mut self.connection)
    }

    /// Gives a flow its class.
    pub fn join(&mut self, id: StreamId, class: &ClassPlan) {
        self.with(|session, _| session.join(id, class));
    }

    /// Enqueues header fields. Call it only when nothing of the flow waits.
    pub fn enqueue_fields(&mut self, now: Instant, id: StreamId, fields: &[Field]) {
        self.with(|session, connection| session.enqueue_fields(now, id, fields, connection));
        self.work(now);
    }

    /// Enqueues payload: `head`, which is short, and `bytes` behind it. Call it only when nothing of the flow
    /// waits.
    pub fn enqueue_data(&mut self, now: Instant, id: StreamId, head: &[u8], bytes: Bytes) {
        self.with(|session, connection| session.enqueue_data(now, id, head, bytes, connection));
        self.work(now);
    }

    /// Sends a PING.
    pub fn ping(&mut self) {
        self.connection.ping();
    }

    /// The fraction of datagrams that the peer has recently missed, before repairs.
    pub fn loss(&self) -> f64 {
        self.shim.loss()
    }

    /// Whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Removes a flow. Resets or stops with this code each half that has not ended.
    pub fn forget(&mut self, id: StreamId, code: Code) {
        self.with(|session, connection| session.forget(id, code, connection));
    }

    /// Flows that are open.
    pub fn flows(&self) -> usize {
        self.session.as_ref().map_or(0, Session::flows)
    }

    /// The pace at which datagrams leave.
    pub fn pace(&self) -> &Pace {
        self.shim.pace()
    }

    /// The counters of the connection.
    pub fn stats(&self) -> CarrierStats {
        let stats = self.connection.stats();
        let path = stats.path;
        CarrierStats {
            sent: stats.udp_tx.datagrams,
            lost: path.lost_packets,
            received: stats.udp_rx.datagrams,
            rtt_min: (path.min_rtt > time::Duration::ZERO).then(|| path.min_rtt.into()),
            repairs: self.shim.stats(),
        }
    }

    /// Whether a datagram from the peer's address is for the shim.
    pub(super) fn reads_repairs(&self, datagram: &[u8], label: Label) -> bool {
        self.reads_repairs && (label.is_marked() || !Packet::is_quic(datagram))
    }

    /// Passes such a datagram to the shim; [`Carrier::unwrapped`] returns the datagrams of QUIC in it.
    pub(super) fn unwrap(&mut self, now: Instant, datagram: Bytes, label: Label) {
        self.shim.handle_input(now, datagram, Tag { label, made: None }, label.is_marked());
    }

    /// The next datagram of QUIC out of the received ones.
    pub(super) fn unwrapped(&mut self) -> Option<(Bytes, Label)> {
        self.shim.poll_delivery().map(|(datagram, tag)| (datagram, tag.label))
    }

    /// Handles an event of QUIC's endpoint, caused by a received datagram.
    pub(super) fn handle_event(&mut self, now: Instant, event: ConnectionEvent) {
        self.connection.handle_event(event);
        self.work(now);
    }

    /// Handles an event of QUIC's endpoint, caused by the connection itself.
    pub(super) fn handle_own(&mut self, event: ConnectionEvent) {
        self.connection.handle_event(event);
    }

    /// The next event for QUIC's endpoint.
    pub(super) fn poll_endpoint_event(&mut self) -> Option<EndpointEvent> {
        self.connection.poll_endpoint_events()
    }

    /// Handles the timeout.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let at = self.at(now);
        if self.connection.poll_timeout().is_some_and(|due| due <= at) {
            self.connection.handle_timeout(at);
        }
        self.with(|session, connection| session.handle_timeout(now, connection));
        self.work(now);
    }

    /// When to call [`Carrier::handle_timeout`].
    pub(super) fn poll_timeout(&mut self) -> Option<Instant> {
        let epoch = self.epoch;
        let timer = self.connection.poll_timeout();
        let timer = timer.map(|at| Instant::START + at.saturating_duration_since(epoch).into());
        let session = self.session.as_ref().and_then(Session::poll_timeout);
        [timer, session, self.shim.poll_timeout()].into_iter().flatten().min()
    }

    /// The next event.
    pub(super) fn poll_event(&mut self) -> Option<CarrierEvent> {
        self.events.pop_front().or_else(|| self.session.as_mut()?.events.pop_front())
    }

    /// Fills a batch with datagrams that may leave now.
    ///
    /// QUIC writes them into the batch directly, unless they are numbered or wait for the pace.
    pub(super) fn fill(&mut self, now: Instant, batch: &mut DatagramBatch) {
        loop {
            while let Some((datagram, tag)) = self.shim.peek_output(now) {
                if !batch.takes(datagram, &tag.label) {
                    return;
                }
                let Some((datagram, tag)) = self.shim.poll_output(now) else { return };
                batch.put(&datagram, tag.label);
                if let Some(made) = tag.made {
                    self.shim.pace().leaves(self.at(made), now.saturating_since(made));
                }
            }
            self.work(now);
            let room = match self.made.is_empty() {
                true => self.shim.room(now, batch.room(DATAGRAM_MAX.get() as usize)),
                false => 0,
            };
            let goes_on = match room {
                0 => self.transmit(now),
                // Queued datagrams leave first; QUIC writes only into an empty batch.
                _ => batch.is_empty() && self.write(now, room, batch) && batch.is_empty(),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Lets QUIC write up to `count` datagrams into an empty batch. Returns whether there were any.
    fn write(&mut self, now: Instant, count: usize, batch: &mut DatagramBatch) -> bool {
        let (at, connection) = (self.at(now), &mut self.connection);
        let wrote = batch.write(|buffer| {
            let transmit = connection.poll_transmit(at, count, buffer)?;
            buffer.truncate(transmit.size);
            let segment = transmit.segment_size.unwrap_or(transmit.size);
            Some((Label::from(transmit), segment))
        });
        let Some(label) = wrote else { return false };
        let (count, size) = (batch.datagrams().len(), batch.bytes().len());
        if count == 1 && self.shim.is_probe(size) {
            let probe = Bytes::copy_from_slice(batch.bytes());
            batch.clear();
            self.shim.push(now, probe, Tag { label, made: Some(now) });
        } else {
            self.shim.pass(now, count, size, Tag { label, made: Some(now) });
        }
        true
    }

    /// Moves datagrams from QUIC to the shim while that has room. Returns whether there were any.
    fn transmit(&mut self, now: Instant) -> bool {
        let at = self.at(now);
        let segments = self.segments();
        let mut any = false;
        loop {
            if self.made.is_empty() {
                self.buffer.clear();
                let Some(transmit) = self.connection.poll_transmit(at, segments, &mut self.buffer)
                else {
                    return any;
                };
                let (size, segment) = (transmit.size, transmit.segment_size);
                let tag = Tag { label: Label::from(transmit), made: Some(now) };
                let segment = segment.unwrap_or(size).max(1);
                let made = self.buffer.get(..size).unwrap_or_default();
                let mut made = Bytes::copy_from_slice(made);
                while !made.is_empty() {
                    let datagram = made.split_to(segment.min(made.len()));
                    self.made.push_back((datagram, tag));
                }
            }
            if self.shim.is_full() {
                self.shim.refuse();
                return any;
            }
            any = true;
            self.made.drain(..).for_each(|(made, tag)| self.shim.push(now, made, tag));
        }
    }

    /// Datagrams that QUIC makes in one batch: on a slow leg a large batch would wait longer than necessary.
    fn segments(&self) -> usize {
        let Some(rate) = self.shim.pace().rate() else { return SEGMENTS_MAX as usize };
        (rate.bytes_in(self.shim.pace().queue_time()).get() / DATAGRAM_MAX.get())
            .clamp(1, SEGMENTS_MAX) as usize
    }

    /// Adapts the size of the send pool to the path.
    fn follow_pool(&mut self, now: Instant) {
        let Some(session) = &mut self.session else { return };
        let pace = self.shim.pace();
        let path = PathState {
            window: pace.window(),
            losses: pace.losses(),
            rtt: self.connection.rtt().into(),
            is_contradicted: pace.carried().is_some(),
        };
        let size = self.pool.size(now, path).get();
        if session.set_pool(size) {
            self.connection.set_send_window(size);
        }
    }

    /// Does all that is due now, except for sending.
    fn work(&mut self, now: Instant) {
        let at = self.at(now);
        let rate = self.shim.pace().rate();
        self.follow_pool(now);
        let Self { connection, session, shim, to_agree, is_connected, is_confirmed, .. } = self;
        let Some(session) = session else {
            // Later events wait in QUIC until the peer is identified.
            while !*is_connected && let Some(event) = connection.poll() {
                match event {
                    Event::Connected => {
                        *is_connected = true;
                        self.events.push_back(CarrierEvent::Connected);
                    }
                    Event::ConnectionLost { reason } => {
                        self.events.push_back(CarrierEvent::Lost(reason));
                    }
                    _ => {}
                }
            }
            return;
        };
        loop {
            if let Some(settings) = session.settings().filter(|_| *to_agree) {
                shim.agree(usize::try_from(settings.repair_window).unwrap_or(usize::MAX));
                *to_agree = false;
            }
            session.pump(now, rate, connection);
            if let Some(code) = session.take_fault()
                && !connection.is_closed()
            {
                connection.close(at, varint(code), Bytes::new());
                session.events.push_back(CarrierEvent::Lost(ConnectionError::LocallyClosed));
            }
            let Some(event) = connection.poll() else {
                // A server has nothing that confirms it (RFC 9001 §4.1.2).
                let may_be_confirmed = *is_connected && !*is_confirmed;
                if may_be_confirmed
                    && connection.side().is_client()
                    && connection.stats().frame_rx.handshake_done > 0
                {
                    *is_confirmed = true;
                    session.events.push_back(CarrierEvent::Confirmed);
                }
                return;
            };
            match event {
                Event::Connected => {
                    *is_connected = true;
                    session.events.push_back(CarrierEvent::Connected);
                    session.begin(now, connection);
                }
                Event::Stream(event) => session.handle_event(now, event, connection),
                Event::ConnectionLost { reason } => {
                    session.events.push_back(CarrierEvent::Lost(reason));
                }
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {
                }
            }
        }
    }

    fn with(&mut self, act: impl FnOnce(&mut Session, &mut Connection)) {
        if let Some(session) = &mut self.session {
            act(session, &mut self.connection);
        }
    }

    fn at(&self, now: Instant) -> time::Instant {
        self.epoch + now.saturating_since(Instant::START).into()
    }
}

/// A code as QUIC's integer.
fn varint(code: Code) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}
