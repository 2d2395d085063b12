//! One end of a connection: quinn-proto's connection, the session above it and the shim below.

use super::batch::DatagramBatch;
use super::flow::{FlowFault, Taken};
use super::session::Session;
use crate::cause::Cause;
use crate::connect::{Request, Response};
use crate::control::{Pace, Steering};
use crate::departures::QUEUE_TIME;
use crate::fec::{DATAGRAM_MAX, FecSettings, Packet, Shim, Stats};
use crate::http3::{Code, Field, Frame, Settings};
use crate::peer;
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

/// Datagrams that QUIC may make at once, at most.
const SEGMENTS_MAX: u64 = 10;

/// What happens on a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum CarrierEvent {
    /// The handshake is over: the peer has shown its certificates.
    Connected,
    /// The peer's settings have come.
    Settled,
    /// The peer has opened a stream for a flow, and its frames are the caller's to read.
    Opened(StreamId),
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
    /// The peer takes no more flows; those that it has go on.
    Leaving,
    /// The peer has had more to send than the path takes, for so long.
    Backlog(Duration),
    /// The connection is gone, and why.
    Lost(ConnectionError),
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

/// Where a datagram goes to or has come from, and how it is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The other end.
    pub peer: SocketAddr,
    /// This end's address, where it is known.
    pub own: Option<IpAddr>,
    /// How it is marked (ECN).
    pub ecn: Option<EcnCodepoint>,
}

impl Label {
    /// That of a datagram to or from a peer, of which nothing else is known.
    pub fn of(peer: SocketAddr) -> Self {
        Self { peer, own: None, ecn: None }
    }

    /// Whether the path has marked it: it has met congestion.
    fn is_marked(&self) -> bool {
        self.ecn == Some(EcnCodepoint::Ce)
    }
}

impl From<Transmit> for Label {
    fn from(transmit: Transmit) -> Self {
        Self { peer: transmit.destination, own: transmit.src_ip, ecn: transmit.ecn }
    }
}

/// One end of a connection, as its [`Endpoint`](super::Endpoint) keeps it.
///
/// Whatever it is asked for, its endpoint is asked for events and datagrams afterwards.
pub struct Carrier {
    /// What stands for [`Instant::START`] in QUIC.
    epoch: time::Instant,
    connection: Connection,
    /// None: it is not known yet who the peer is.
    session: Option<Session>,
    shim: Shim<Label>,
    /// Whether anything but QUIC may come.
    reads_repairs: bool,
    /// Whether it is still to be agreed that repairs are read.
    to_agree: bool,
    /// Whether the handshake is over.
    is_connected: bool,
    /// What QUIC made when there was no room for it: it cannot be taken back.
    made: VecDeque<(Bytes, Label)>,
    /// What has happened while there was no session.
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
    /// Its congestion control cannot be had.
    #[error("the congestion control is not to be had: {0}")]
    Congestion(#[from] BuildError),
    /// QUIC does not begin.
    #[error("the connection cannot be opened: {0}")]
    Connect(#[from] ConnectError),
    /// Whoever came cannot be let in.
    #[error("the connection does not come about: {0}")]
    Accept(ConnectionError),
}

/// What is agreed when a session begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Unit: bytes. What QUIC lets come of each stream before anything of it is read.
    pub initial: u64,
    /// Whether the peer is to report that it has more to send than the path takes.
    pub wants_backlog: bool,
    /// Whether the caller reads and writes the frames of flows itself ([`Carrier::open_flow`], [`Carrier::next_frame`]);
    /// else it has requests, answers and payload.
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
            shim: Shim::new(FecSettings::default(), pace, now),
            reads_repairs: false,
            to_agree: false,
            is_connected: false,
            made: VecDeque::new(),
            events: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// Somebody may turn out to be a peer that reads repairs.
    pub(super) fn propose(&mut self) {
        self.shim.propose();
    }

    /// It is known who the peer is: the session with it begins.
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
        let mut session = Session::new(peer, authority, opening, now, self.shim.pace().rate());
        session.events.append(&mut self.events);
        let session = self.session.insert(session);
        if self.is_connected {
            session.begin(now, &mut self.connection);
        }
        self.work(now);
    }

    /// What a peer's plan has besides, where it was not known when its connection began.
    ///
    /// # Errors
    /// When its congestion control cannot be had.
    pub fn adapt(
        &mut self,
        now: Instant,
        peer: &PeerPlan,
        steering: &Steering,
    ) -> Result<(), BuildError> {
        let leg = peer::leg(peer, self.connection.remote_address().is_ipv6());
        self.connection.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(leg.streams_max));
        leg.turn(steering, self.at(now), peer::congestion(peer))
    }

    /// From now on so much of what was sent may be unacknowledged, and so much may come. Unit: bytes.
    pub fn set_windows(&mut self, send: u64, receive: u64) {
        self.connection.set_send_window(send);
        self.connection.set_receive_window(VarInt::from_u64(receive).unwrap_or(VarInt::MAX));
        if let Some(session) = &mut self.session {
            session.set_pool(send);
        }
    }

    /// Where the peer is.
    pub fn remote_address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Whether it is known who the peer is.
    pub fn is_known(&self) -> bool {
        self.session.is_some()
    }

    /// The certificates that the peer has shown, as the crypto of the connection has them.
    pub fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.connection.crypto_session().peer_identity()
    }

    /// Ends the connection, and with it whatever flows it has.
    pub fn close(&mut self, now: Instant, code: Code) {
        if !self.connection.is_closed() {
            let at = self.at(now);
            self.connection.close(at, varint(code), Bytes::new());
            self.events.push_back(CarrierEvent::Lost(ConnectionError::LocallyClosed));
        }
    }

    /// Takes no more flows, and announces that (GOAWAY); those that have come go on.
    pub fn leave(&mut self, now: Instant) {
        self.with(|session, connection| session.leave(connection));
        self.work(now);
    }

    /// Reports to the peer, if it wants that, that this end has had more to send than the path takes, for so long.
    pub fn report_backlog(&mut self, now: Instant, lasted: Duration) {
        self.with(|session, connection| session.report_backlog(lasted, connection));
        self.work(now);
    }

    /// Whether flows may be asked for: neither end has sent GOAWAY.
    pub fn is_open(&self) -> bool {
        !self.connection.is_closed() && self.session.as_ref().is_some_and(|it| !it.is_leaving())
    }

    /// The peer's settings, once they have come.
    pub fn settings(&self) -> Option<&Settings> {
        self.session.as_ref()?.settings()
    }

    /// Which rule the peer broke that concerns the connection as a whole, for which it ended.
    pub fn broken_rule(&self) -> Option<Code> {
        self.session.as_ref()?.broken_rule()
    }

    /// Whether the flows have written as much as may be unacknowledged.
    pub fn is_full(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_full)
    }

    /// Unit: bytes. What has come of all flows, behind gaps or not, and costs memory here.
    pub fn stored(&self) -> u64 {
        self.session.as_ref().map_or(0, Session::stored)
    }

    /// What other connections of the same peer [store](Self::stored): together they are bounded. Unit: bytes.
    pub fn set_stored_elsewhere(&mut self, bytes: u64) {
        if let Some(session) = &mut self.session {
            session.set_stored_elsewhere(bytes);
        }
    }

    /// What QUIC has counted.
    pub fn quic_stats(&self) -> ConnectionStats {
        self.connection.stats()
    }

    /// Asks for a flow of some class; none: the peer takes no more for now, and [`CarrierEvent::Available`] comes when it does.
    pub fn ask(&mut self, now: Instant, request: &Request, class: &ClassPlan) -> Option<StreamId> {
        let asked = self.session.as_mut()?.ask(now, request, class, &mut self.connection);
        self.work(now);
        asked
    }

    /// Grants a flow that was asked for, as one of some class.
    pub fn grant(&mut self, now: Instant, id: StreamId, class: &ClassPlan) {
        self.with(|session, connection| {
            session.join(id, class);
            session.answer(now, id, &Response::Granted, connection);
        });
        self.work(now);
    }

    /// Denies one. [`CarrierEvent::Delivered`] comes when the peer knows.
    pub fn deny(&mut self, now: Instant, id: StreamId, cause: Cause) {
        self.with(|session, connection| session.deny(now, id, cause, connection));
        self.work(now);
    }

    /// Unit: bytes. What waits of a flow to be sent; none: there is no such flow.
    pub fn waiting(&self, id: StreamId) -> Option<usize> {
        self.session.as_ref()?.waiting(id)
    }

    /// Unit: bytes. What has come of a flow and has not been taken.
    pub fn held(&self, id: StreamId) -> u64 {
        self.session.as_ref().map_or(0, |session| session.held(id))
    }

    /// Takes some bytes of a flow, of which nothing may wait.
    pub fn put(&mut self, now: Instant, id: StreamId, bytes: Bytes) {
        self.with(|session, connection| session.put(now, id, bytes, connection));
        self.work(now);
    }

    /// A flow has nothing more to send for now: others may; whether any waits for that.
    pub fn rest(&mut self, id: StreamId) -> bool {
        self.session.as_mut().is_some_and(|session| session.rest(id))
    }

    /// Unit: bytes. What of a stream has come in order and was not given out.
    pub fn unread(&self, id: StreamId) -> usize {
        self.session.as_ref().map_or(0, |session| session.unread(id))
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
        match &mut self.session {
            Some(session) => session.take(id, &mut self.connection),
            None => Ok(Taken::default()),
        }
    }

    /// Whether the stream of a flow has ended as well, whose end was taken: until then the peer may still break off.
    ///
    /// # Errors
    /// Why it has not ended in order.
    pub fn take_end(&mut self, id: StreamId) -> Result<bool, FlowFault> {
        match &mut self.session {
            Some(session) => session.take_end(id, &mut self.connection),
            None => Ok(true),
        }
    }

    /// Opens a stream for a flow of some class; none: the peer takes no more for now, and [`CarrierEvent::Available`]
    /// comes when it does.
    pub fn open_flow(&mut self, now: Instant) -> Option<StreamId> {
        self.session.as_mut()?.open_flow(now, &mut self.connection)
    }

    /// Makes it that of a flow of some class.
    pub fn join(&mut self, id: StreamId, class: &ClassPlan) {
        self.with(|session, _| session.join(id, class));
    }

    /// Takes header fields. Nothing may wait.
    pub fn put_fields(&mut self, now: Instant, id: StreamId, fields: &[Field]) {
        self.with(|session, connection| session.put_fields(now, id, fields, connection));
        self.work(now);
    }

    /// Takes some payload: `head`, which is short, and what follows it. Nothing may wait.
    pub fn put_data(&mut self, now: Instant, id: StreamId, head: &[u8], bytes: Bytes) {
        self.with(|session, connection| session.put_data(now, id, head, bytes, connection));
        self.work(now);
    }

    /// The next frame of a stream; none of them: it has ended; none at all: it has not come.
    ///
    /// # Errors
    /// Why there is no more of it.
    pub fn next_frame(&mut self, id: StreamId) -> Result<Option<Option<Frame>>, FlowFault> {
        match &mut self.session {
            Some(session) => session.next_frame(id, &mut self.connection),
            None => Ok(None),
        }
    }

    /// Whatever frames of a stream were given out have been passed on: the peer may send as much again.
    pub fn pass_on(&mut self, now: Instant, id: StreamId) {
        self.with(|session, _| session.pass_on(id));
        self.work(now);
    }

    /// What breaks a stream off that nobody reads; none: nothing does.
    pub fn reset_of(&mut self, id: StreamId) -> Option<FlowFault> {
        self.session.as_mut()?.reset_of(id, &mut self.connection)
    }

    /// Nobody reads a stream for now: what comes is drawn out of QUIC in a moment, so that its window is free for others,
    /// unless somebody does by then. Whether that was not known before.
    pub fn stand_still(&mut self, now: Instant, id: StreamId) -> bool {
        self.session.as_mut().is_some_and(|session| session.stand_still(now, id))
    }

    /// Ends this end's half of a stream abruptly.
    pub fn reset(&mut self, id: StreamId, code: Code) {
        self.with(|session, connection| session.reset(id, code, connection));
    }

    /// Wants no more of a stream.
    pub fn stop(&mut self, id: StreamId, code: Code) {
        self.with(|session, connection| session.stop(id, code, connection));
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        self.connection.ping();
    }

    /// What part of its datagrams the peer has lately missed, before repairs.
    pub fn loss(&self) -> f64 {
        self.shim.loss()
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Forgets a flow. A half that has not ended is broken off with this code.
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

    /// What the connection has done.
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

    /// Whether a datagram from the peer's address concerns more than QUIC.
    pub(super) fn reads_repairs(&self, datagram: &[u8], label: Label) -> bool {
        self.reads_repairs && (label.is_marked() || !Packet::is_quic(datagram))
    }

    /// Takes such a datagram; [`Carrier::unwrapped`] gives what of it is QUIC's.
    pub(super) fn unwrap(&mut self, now: Instant, datagram: Bytes, label: Label) {
        self.shim.handle_input(now, datagram, label, label.is_marked());
    }

    /// The next datagram of QUIC of those that have come.
    pub(super) fn unwrapped(&mut self) -> Option<(Bytes, Label)> {
        self.shim.poll_delivery()
    }

    /// QUIC has something for the connection that has come.
    pub(super) fn handle_event(&mut self, now: Instant, event: ConnectionEvent) {
        self.connection.handle_event(event);
        self.work(now);
    }

    /// QUIC has something for the connection that it asked for.
    pub(super) fn handle_own(&mut self, event: ConnectionEvent) {
        self.connection.handle_event(event);
    }

    /// What of the connection concerns QUIC's endpoint.
    pub(super) fn poll_endpoint_event(&mut self) -> Option<EndpointEvent> {
        self.connection.poll_endpoint_events()
    }

    /// The time that it asked for has come.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let at = self.at(now);
        if self.connection.poll_timeout().is_some_and(|due| due <= at) {
            self.connection.handle_timeout(at);
        }
        self.with(|session, connection| session.handle_timeout(now, connection));
        self.work(now);
    }

    /// When it wants to be looked at.
    pub(super) fn poll_timeout(&mut self) -> Option<Instant> {
        let epoch = self.epoch;
        let timer = self.connection.poll_timeout();
        let timer = timer.map(|at| Instant::START + at.saturating_duration_since(epoch).into());
        let session = self.session.as_ref().and_then(Session::poll_timeout);
        [timer, session, self.shim.poll_timeout()].into_iter().flatten().min()
    }

    /// What has happened.
    pub(super) fn poll_event(&mut self) -> Option<CarrierEvent> {
        self.events.pop_front().or_else(|| self.session.as_mut()?.events.pop_front())
    }

    /// Fills a batch with datagrams that may leave now.
    ///
    /// QUIC writes them there itself, unless they are to be numbered, or have to wait for the pace.
    pub(super) fn fill(&mut self, now: Instant, batch: &mut DatagramBatch) {
        loop {
            while let Some(next) = self.shim.peek_output(now) {
                if !batch.takes(next) {
                    return;
                }
                self.shim.poll_output(now).iter().for_each(|next| batch.put(next));
            }
            self.work(now);
            let room = match self.made.is_empty() {
                true => self.shim.room(now, batch.room(DATAGRAM_MAX.get() as usize)),
                false => 0,
            };
            let goes_on = match room {
                0 => self.transmit(now),
                // What is there leaves first: QUIC writes to an empty one.
                _ => batch.is_empty() && self.write(now, room, batch) && batch.is_empty(),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Lets QUIC write up to `count` datagrams to an empty batch; whether there was anything.
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
            self.shim.push(now, probe, label);
        } else {
            self.shim.pass(now, count, size, label);
        }
        true
    }

    /// Hands what QUIC has to send to the shim, as long as that has room; whether there was anything.
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
                let label = Label::from(transmit);
                let segment = segment.unwrap_or(size).max(1);
                let made = self.buffer.get(..size).unwrap_or_default();
                let mut made = Bytes::copy_from_slice(made);
                while !made.is_empty() {
                    let datagram = made.split_to(segment.min(made.len()));
                    self.made.push_back((datagram, label));
                }
            }
            if self.shim.is_full() {
                self.shim.refuse();
                return any;
            }
            any = true;
            self.made.drain(..).for_each(|(made, label)| self.shim.push(now, made, label));
        }
    }

    /// Datagrams that QUIC is to make at once: those of a slow leg would wait for longer than they need.
    fn segments(&self) -> usize {
        let Some(rate) = self.shim.pace().rate() else { return SEGMENTS_MAX as usize };
        (rate.bytes_in(QUEUE_TIME).get() / DATAGRAM_MAX.get()).clamp(1, SEGMENTS_MAX) as usize
    }

    /// Does all that there is to do at this moment but for sending.
    fn work(&mut self, now: Instant) {
        let at = self.at(now);
        let rate = self.shim.pace().rate();
        let Self { connection, session, shim, to_agree, is_connected, .. } = self;
        let Some(session) = session else {
            // What follows waits in QUIC until it is known who the peer is.
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
            let Some(event) = connection.poll() else { return };
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

/// QUIC's number of a code.
fn varint(code: Code) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}
