//! HTTP/3 on one QUIC connection: what concerns all of its streams.
//!
//! Invariant: the control stream of this end lives as long as the session, and the connection ends with
//! whoever breaks a rule that concerns it as a whole.

use super::{
    carrier::{self, Receiver, Sender, quic},
    credit::Credit,
    reorder::{Intake, ReorderRoom},
    scheduling::{ScheduledFlow, SharedScheduler},
    stream::{self, Stream, StreamError},
};
use midhop_pep::config::{ClassPlan, PeerPlan, Repair, RequestForm};
use midhop_tunnel::{
    connect::{Form, Request},
    control::Pace,
    credit::{self, CreditBounds},
    fec,
    http3::{Code, Frame, FrameReader, Settings, StreamKind, frame},
    peer::Places,
    varint,
};
use midhop_units::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use std::{
    cell::{Cell, RefCell},
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::spawn_local,
    time::{self, Instant},
};

/// How long a peer may take to let a control stream be opened: longer than any satellite needs.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a peer says of its backlog says nothing of a longer time than this.
const BACKLOG_MS_MAX: u64 = 10_000;

/// One tunnel, open.
#[derive(Debug)]
pub struct QuicSession {
    connection: Connection,
    /// Never written again, and closed by nobody: that would end the connection.
    control: RefCell<Option<SendStream>>,
    /// What of the control stream waits to be said.
    unsaid: RefCell<Vec<u8>>,
    /// Until when the peer is taken to have more to say than the path takes.
    backlog_until: Cell<Option<Instant>>,
    /// What the peer understands, once it has said so.
    settings: watch::Sender<Option<Settings>>,
    /// Whether one of the ends has said that there will be no more requests.
    leaving: watch::Sender<bool>,
    /// The number of the first request that has not come.
    next: Cell<u64>,
    /// Held by each flow.
    seats: Arc<()>,
    /// How many flows the peer may have open at a time.
    places: Cell<Places>,
    /// What of one stream may wait behind a gap.
    held_max: Bytes,
    /// What its streams may say beside QUIC's credit.
    credit: Arc<Credit>,
    /// Whether the peer was found to have broken a rule that concerns the connection.
    broken: Arc<AtomicBool>,
    /// What of the peer's streams waits outside of QUIC.
    room: Arc<ReorderRoom>,
    /// Who may write.
    scheduler: Arc<SharedScheduler>,
    /// What they may have written that the peer has not acknowledged.
    pool: Bytes,
    /// How flows are asked for.
    form: RequestForm,
    /// Until when flows wait for what the peer has to say of itself.
    patient_until: Instant,
    /// Whether it was told that nothing was said until then.
    told: Cell<bool>,
    /// The peer as a proxy is named: by its name and port.
    authority: String,
}

impl QuicSession {
    /// Begins to speak HTTP/3 on a connection to `peer`, whose datagrams leave at `pace`, and to listen. An
    /// end that opens tunnels `hears_backlog`: whether the peer has more to say than the path takes.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn begin(
        connection: Connection,
        peer: &PeerPlan,
        pace: Pace,
        hears_backlog: bool,
        intake: Intake,
    ) -> Result<Rc<Self>, ConnectionError> {
        let opened = time::timeout(PATIENCE, connection.open_uni()).await;
        let Ok(opened) = opened else { return Err(mute(&connection)) };
        let mut control = opened?;
        let mut said = Vec::new();
        varint::write(StreamKind::CONTROL, &mut said);
        let repair_window = if peer.repair == Repair::Off { 0 } else { fec::WINDOW_MAX as u64 };
        let flow_window = peer.flow_window.get();
        let bounds = CreditBounds::of(flow_window, peer.receive_window.get(), intake.initial.get());
        said.extend(
            Settings {
                repair_window,
                stream_credit: bounds.first,
                hears_backlog,
                ..Settings::own()
            }
            .encode(),
        );
        let session = Rc::new(Self {
            scheduler: Arc::new(SharedScheduler::paced(pace)),
            pool: peer.send_window,
            form: peer.request,
            patient_until: Instant::now() + Duration::from_nanos(peer.timeout.as_ns()),
            told: Cell::new(false),
            authority: format!("{}:{}", peer.identity, connection.remote_address().port()),
            connection,
            control: RefCell::new(None),
            unsaid: RefCell::default(),
            backlog_until: Cell::new(None),
            settings: watch::Sender::new(None),
            leaving: watch::Sender::new(false),
            next: Cell::new(0),
            seats: Arc::default(),
            places: Cell::new(Places::new(peer.flows)),
            held_max: Bytes::new(credit::held_max(flow_window)),
            credit: Credit::new(bounds),
            broken: Arc::default(),
            room: intake.room,
        });
        match time::timeout(PATIENCE, control.write_all(&said)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                stream::judge(
                    &session.carrier(),
                    &StreamError::Wrong(Code::CLOSED_CRITICAL_STREAM),
                );
            }
            Err(_late) => return Err(mute(&session.connection)),
        }
        session.control.replace(Some(control));
        spawn_local(listen(session.clone()));
        spawn_local({
            let (credit, connection) = (session.credit.clone(), session.connection.clone());
            async move {
                tokio::select! {
                    () = credit.grant(&connection) => {}
                    _ = connection.closed() => {}
                }
            }
        });
        Ok(session)
    }

    /// The connection below.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// What the peer understands, once it has said so.
    pub async fn settings(&self) -> Settings {
        let mut settings = self.settings.subscribe();
        // The sender is here.
        let known = settings.wait_for(Option::is_some).await.ok().and_then(|known| *known);
        known.unwrap_or_default()
    }

    /// Whether the peer was found to have broken a rule that concerns the connection: that is why it ended.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// Whether new flows may be asked for.
    pub fn is_open(&self) -> bool {
        !*self.leaving.borrow() && self.connection.close_reason().is_none()
    }

    /// Waits until one of the ends has said that there will be no more requests.
    pub async fn left(&self) {
        let mut leaving = self.leaving.subscribe();
        // The sender is here.
        let _ = leaving.wait_for(|leaving| *leaving).await;
    }

    /// Whether it has no flow.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.seats) == 1
    }

    /// Tells the peer that no more requests are served than have come; those go on.
    pub async fn leave(&self) {
        if self.leaving.send_replace(true) {
            return;
        }
        let Some(mut control) = self.control.take() else { return };
        let (mut said, mut next) = (self.unsaid.take(), Vec::new());
        varint::write(self.next.get(), &mut next);
        frame::write(frame::GOAWAY, &next, &mut said);
        // Where it cannot be told the connection is gone, and so is the peer.
        let _ = control.write_all(&said).await;
        self.control.replace(Some(control));
    }

    /// Tells the peer, if it listens, that this end has had more to say for so long than the path took.
    pub fn tell_backlog(&self, lasted: Duration) {
        if !self.settings.borrow().is_some_and(|known| known.hears_backlog) {
            return;
        }
        let mut unsaid = self.unsaid.borrow_mut();
        let mut control = self.control.borrow_mut();
        let Some(control) = control.as_mut() else { return };
        if unsaid.is_empty() {
            let mut number = Vec::new();
            varint::write(u64::try_from(lasted.as_millis()).unwrap_or(0), &mut number);
            frame::write(frame::BACKLOG, &number, &mut unsaid);
        }
        // The flows' pool is full then: there is room beside it. What finds none is said the next time.
        self.connection.set_send_window(self.pool.get().saturating_mul(2));
        let mut context = Context::from_waker(Waker::noop());
        let written = pin!(control.write(&unsaid)).poll(&mut context);
        if let Poll::Ready(Ok(count)) = written {
            unsaid.drain(..count);
        }
        self.connection.set_send_window(self.pool.get());
    }

    /// Whether the peer has more to say than the path takes, as far as it has said.
    pub fn is_backlogged(&self) -> bool {
        self.backlog_until.get().is_some_and(|until| Instant::now() < until)
    }

    /// Asks for a flow of some class; the answer comes on the stream. Waits while the peer has as many flows as it
    /// takes.
    ///
    /// # Errors
    /// When the tunnel is gone.
    pub async fn ask(&self, request: &Request, class: &ClassPlan) -> Result<Stream, StreamError> {
        let form = self.form().await?;
        let (sender, receiver) = self.carry(self.connection.open_bi().await?);
        let mut stream = Stream::to_ask(self.carrier(), sender, receiver);
        stream.output.join(class);
        stream.seat = Some(self.seats.clone());
        stream.carry_in(form.payload());
        stream.output.say(&request.fields(form)).await?;
        Ok(stream)
    }

    /// In which form a flow is asked for. Nobody waits for the peer to say what it serves, unless that was
    /// configured: as long as it has not, requests have the form that every proxy serves.
    async fn form(&self) -> Result<Form<'_>, StreamError> {
        let template = Form::Template { authority: &self.authority };
        match self.form {
            RequestForm::Classic => Ok(Form::Classic),
            RequestForm::Auto => {
                let known = *self.settings.borrow();
                Ok(if known.is_some_and(|it| it.serves_templates()) {
                    template
                } else {
                    Form::Classic
                })
            }
            RequestForm::Template => tokio::select! {
                biased;
                known = self.settings() => {
                    if known.extended_connect { Ok(template) } else { Err(StreamError::Unable) }
                }
                lost = self.connection.closed() => Err(lost.into()),
                () = time::sleep_until(self.patient_until) => {
                    if !self.told.replace(true) {
                        tracing::warn!(
                            peer = self.authority,
                            "a peer says nothing of what it serves: no flows go there while \
                             peers.NAME.request is \"template\""
                        );
                    }
                    Err(StreamError::Unsaid)
                }
            },
        }
    }

    /// Waits for the next request. Those that come after this end has said that it is leaving are
    /// rejected.
    ///
    /// # Errors
    /// When the tunnel is gone.
    pub async fn asked(&self) -> Result<Stream, ConnectionError> {
        loop {
            let halves = self.connection.accept_bi().await?;
            self.make_room();
            let number = VarInt::from(halves.0.id()).into_inner();
            let (sender, receiver) = self.carry(halves);
            let mut stream = Stream::to_answer(self.carrier(), sender, receiver);
            if *self.leaving.borrow() && number >= self.next.get() {
                // The peer may ask elsewhere: nothing was done.
                stream.output.reset(Code::REQUEST_REJECTED);
                stream.input.stop(Code::REQUEST_REJECTED);
                continue;
            }
            // Streams of one kind are four apart.
            self.next.set(self.next.get().max(number + 4));
            stream.seat = Some(self.seats.clone());
            return Ok(stream);
        }
    }

    /// Lets the peer have more flows before it misses them. QUIC keeps something for each that it may have, so that
    /// a peer that has few may not have many at once.
    fn make_room(&self) {
        let mut places = self.places.get();
        if let Some(more) = places.grow(Arc::strong_count(&self.seats) as u64) {
            self.places.set(places);
            self.connection.set_max_concurrent_bi_streams(VarInt::from_u32(more));
        }
    }

    /// Flows that it has.
    pub fn flows(&self) -> u64 {
        self.scheduler.flows()
    }

    /// The halves of a new flow, whose class is to be told.
    fn carry(&self, (send, receive): (SendStream, RecvStream)) -> (Sender, Receiver) {
        let share = ScheduledFlow::new(&self.scheduler);
        let sender = quic::QuicSender::new(&self.connection, send, self.pool, share, &self.credit);
        let receiver = quic::QuicReceiver::new(receive, self.held_max, &self.credit, &self.room);
        (Sender::Quic(sender), Receiver::Quic(receiver))
    }

    /// The connection as a stream of it knows it.
    pub fn carrier(&self) -> carrier::Connection {
        carrier::Connection::Quic(self.connection.clone(), self.broken.clone())
    }

    /// Unit: bytes. What its flows have written and the peer has not acknowledged, as far as it shows: of
    /// that, QUIC tells only what is `in_flight`.
    pub fn held(&self, in_flight: u64) -> u64 {
        let pool = self.pool.get();
        if self.scheduler.is_full() { pool } else { in_flight.min(pool) }
    }

    /// Ends the connection, and with it whatever flows it has. Why one has ended before stays known.
    pub fn close(&self, code: Code) {
        if self.connection.close_reason().is_none() {
            self.connection.close(quic::varint(code), b"");
        }
    }
}

/// Ends a connection whose peer lets nothing be said to it: RFC 9114 §6.2 has each end let the other open what
/// HTTP needs.
fn mute(connection: &Connection) -> ConnectionError {
    connection.close(quic::varint(Code::GENERAL_PROTOCOL_ERROR), b"");
    ConnectionError::TimedOut
}

/// Hears the peer's unidirectional streams until the connection is gone.
async fn listen(session: Rc<QuicSession>) {
    let seen = Rc::new(RefCell::new(Vec::new()));
    while let Ok(stream) = session.connection.accept_uni().await {
        let (session, seen) = (session.clone(), seen.clone());
        spawn_local(async move {
            if let Err(code) = hear(&session, stream, &seen).await {
                stream::judge(&session.carrier(), &StreamError::Wrong(code));
            }
        });
    }
}

/// Hears one of them to its end.
async fn hear(
    session: &QuicSession,
    mut stream: RecvStream,
    seen: &RefCell<Vec<StreamKind>>,
) -> Result<(), Code> {
    let mut head = Vec::new();
    let number = loop {
        // One byte at a time: what follows belongs to the stream's own reader.
        match stream.read_chunk(1, true).await {
            Ok(Some(chunk)) => head.extend_from_slice(&chunk.bytes),
            Ok(None) | Err(_) => return Ok(()),
        }
        if let Some((number, _)) = varint::read(&head) {
            break number;
        }
    };
    let kind = StreamKind::of(number);
    match kind {
        StreamKind::Unknown => {
            let _ =
                stream.stop(VarInt::from_u64(Code::STREAM_CREATION_ERROR.0).unwrap_or_default());
            return Ok(());
        }
        StreamKind::Push => return Err(Code::STREAM_CREATION_ERROR),
        StreamKind::Control | StreamKind::Encoder | StreamKind::Decoder | StreamKind::Credit => {}
    }
    if seen.borrow().contains(&kind) {
        return Err(Code::STREAM_CREATION_ERROR);
    }
    seen.borrow_mut().push(kind);
    match kind {
        StreamKind::Control => hear_control(session, &mut stream).await,
        StreamKind::Credit => {
            session.credit.answer();
            hear_credit(session, &mut stream).await
        }
        kind => hear_tables(kind, &mut stream).await,
    }
}

async fn hear_control(session: &QuicSession, stream: &mut RecvStream) -> Result<(), Code> {
    let mut reader = FrameReader::default();
    let mut pending = bytes::Bytes::new();
    loop {
        while let Some(frame) = reader.read(&mut pending)? {
            let known = *session.settings.borrow();
            match (frame, known) {
                (Frame::Settings(said), None) => {
                    let settings = Settings::decode(&said)?;
                    session.credit.begin(settings.stream_credit);
                    session.settings.send_replace(Some(settings));
                }
                (_, None) => return Err(Code::MISSING_SETTINGS),
                (Frame::GoAway(_), Some(_)) => drop(session.leaving.send_replace(true)),
                (Frame::Backlog(lasted_ms), Some(_)) => {
                    // What is said as often as it lasts may be late.
                    let lasted = Duration::from_millis(lasted_ms.min(BACKLOG_MS_MAX)) * 5 / 2;
                    session.backlog_until.set(Some(Instant::now() + lasted));
                }
                (Frame::Push, Some(_)) => {}
                (_, Some(_)) => return Err(Code::FRAME_UNEXPECTED),
            }
        }
        match stream.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => pending = chunk.bytes,
            Err(quinn::ReadError::ConnectionLost(_)) => return Ok(()),
            Ok(None) | Err(_) => return Err(Code::CLOSED_CRITICAL_STREAM),
        }
    }
}

/// Hears how far this end's streams may be used. Of streams that are no more, or have not begun, it says nothing
/// that matters.
async fn hear_credit(session: &QuicSession, stream: &mut RecvStream) -> Result<(), Code> {
    let mut reader = credit::CreditReader::default();
    loop {
        match stream.read_chunk(usize::MAX, true).await {
            Ok(Some(mut chunk)) => {
                while let Some((stream, limit)) = reader.read(&mut chunk.bytes) {
                    session.credit.raise(stream, limit);
                }
            }
            Err(quinn::ReadError::ConnectionLost(_)) => return Ok(()),
            Ok(None) | Err(_) => return Err(Code::CLOSED_CRITICAL_STREAM),
        }
    }
}

/// Reads what a peer may say about a dynamic table to one who has none: nothing but that it is empty.
async fn hear_tables(kind: StreamKind, stream: &mut RecvStream) -> Result<(), Code> {
    /// "Set Dynamic Table Capacity" to 0, RFC 9204 §4.3.1.
    const EMPTY: u8 = 0b0010_0000;
    loop {
        match stream.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) if kind == StreamKind::Encoder => {
                if chunk.bytes.iter().any(|byte| *byte != EMPTY) {
                    return Err(Code::ENCODER_STREAM_ERROR);
                }
            }
            // Nothing of ours could be acknowledged or cancelled, but a stream may be.
            Ok(Some(_)) => {}
            Err(quinn::ReadError::ConnectionLost(_)) => return Ok(()),
            Ok(None) | Err(_) => return Err(Code::CLOSED_CRITICAL_STREAM),
        }
    }
}

#[cfg(test)]
mod tests;
