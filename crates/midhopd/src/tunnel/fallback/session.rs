//! HTTP/2 on one connection: what concerns all of its streams.
//!
//! h2 drives the connection as a future, which a separate task polls here. Orders reach it by channels.
//!
//! Invariant: once a session is gone its connection is dropped, and each flow that had not ended is informed that it
//! broke.

use super::socket;
use super::tls_end::{NotedTls, TlsEnd};
use crate::{
    leg::Sample,
    tunnel::{
        carrier::{
            Connection, Receiver, Sender,
            http2::{self, Http2Room, Piece},
        },
        number::next_number,
        resumable_flows,
        scheduling::{ScheduledFlow, SharedScheduler},
        silence, stale_connections,
        stream::{Stream, StreamError, kept::Offer, resumable::SessionSeat},
    },
};
use h2::{Ping, PingPong, Reason, RecvStream, client, server};
use http::Request as Message;
use midhop_linux::sockopt;
use midhop_pep::config::{ClassPlan, PeerPlan, RequestForm};
use midhop_tunnel::{
    connect::{Form, Request},
    http3::{Code, Field},
    payload::Payload,
    resumption::Resumption,
};
use midhop_units::Rate;
use rustls::AlertDescription;
use std::{
    cell::{Cell, RefCell},
    future::{pending, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    rc::Rc,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    net::TcpStream,
    sync::{Notify, mpsc, watch},
    task::spawn_local,
    time::{self, Instant},
};

/// The largest section of header fields, as over QUIC.
const FIELDS_BYTES: u32 = 16 << 10;
/// Exceeds the room for all flows, which is the actual limit of each.
const STREAM_BYTES: usize = 1 << 20;
/// How long frames of a reset stream may still arrive: the peer receives the reset a round trip later.
const RESET: Duration = Duration::from_secs(30);
/// How long the last frames to a peer may take to leave this host.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// HTTP/2's largest window.
const WINDOW_MOST: u64 = (1 << 31) - 1;

/// TLS to a peer that this end connected to.
pub type Near = tokio_rustls::client::TlsStream<TcpStream>;
/// The same, while HTTP/2 uses it.
type NearStream = NotedTls<Near>;
/// TLS to a peer that connected to this end.
pub type AcceptedTls = tokio_rustls::server::TlsStream<TcpStream>;
/// The same, while HTTP/2 uses it.
type FarStream = NotedTls<AcceptedTls>;

/// An open tunnel over TCP.
#[derive(Debug)]
pub struct TcpSession {
    /// Its number in this process.
    number: u64,
    remote: SocketAddr,
    /// A handle for the kernel's statistics.
    socket: socket2::Socket,
    /// Sends the requests of the near end.
    requests: RefCell<Option<client::SendRequest<Piece>>>,
    /// Receives the peer's requests at the far end.
    asked: RefCell<Option<mpsc::UnboundedReceiver<Stream>>>,
    /// Whether one of the ends has announced that it sends or accepts no more requests.
    leaving: watch::Sender<bool>,
    /// Why it is gone, once it is.
    gone: watch::Sender<Option<Arc<str>>>,
    /// Whether the peer has accepted this end's certificate, where this end connected.
    accepted: watch::Sender<bool>,
    /// How it ends.
    end: Arc<TlsEnd>,
    closing: Notify,
    doubt: Arc<LivenessProbe>,
    /// Held by each flow.
    seats: Arc<SessionSeat>,
    scheduler: Arc<SharedScheduler>,
    room: Arc<Http2Room>,
    /// The most bytes that are kept of flows whose carrier is gone; none: nothing is kept.
    resumes: Option<u64>,
    /// The configured rate of the link, if any.
    rate: Option<Rate>,
    /// The kernel's present limit of the send rate.
    paced: Cell<Option<Rate>>,
}

impl TcpSession {
    fn new(stream: &TcpStream, peer: &PeerPlan) -> io::Result<Self> {
        Ok(Self {
            number: next_number(),
            remote: stream.peer_addr()?,
            socket: socket2::SockRef::from(stream).try_clone()?,
            requests: RefCell::default(),
            asked: RefCell::default(),
            leaving: watch::Sender::new(false),
            gone: watch::Sender::new(None),
            accepted: watch::Sender::new(false),
            end: Arc::default(),
            closing: Notify::new(),
            doubt: Arc::default(),
            seats: Arc::default(),
            scheduler: Arc::default(),
            room: Http2Room::new(socket::ahead(peer)),
            resumes: (peer.resume > midhop_units::Duration::ZERO
                && peer.request != RequestForm::Classic)
                .then_some(resumable_flows::most_kept(peer.send_window.get())),
            rate: peer.rate,
            paced: Cell::new(peer.rate),
        })
    }

    /// Starts HTTP/2 with a peer that this end connected to.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn near(near: Near, peer: &PeerPlan) -> io::Result<Rc<Self>> {
        let session = Self::new(near.get_ref().0, peer)?;
        let mut builder = client::Builder::new();
        builder
            .initial_window_size(window(peer.flow_window))
            .initial_connection_window_size(window(peer.receive_window))
            .max_header_list_size(FIELDS_BYTES)
            .header_table_size(0)
            .enable_push(false)
            .max_concurrent_streams(0)
            .max_send_buffer_size(STREAM_BYTES)
            .reset_stream_duration(RESET)
            .max_concurrent_reset_streams(peer.flows as usize)
            .max_local_error_reset_streams(None);
        let near = NotedTls::new(near, session.end.clone());
        let (requests, connection) = builder.handshake(near).await.map_err(http2::io_error)?;
        let session = Rc::new(session);
        session.requests.replace(Some(requests));
        spawn_local(drive_near(session.clone(), connection, Heart::of(peer)));
        Ok(session)
    }

    /// Starts HTTP/2 with a peer that connected to this end.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn far(far: AcceptedTls, peer: &PeerPlan) -> io::Result<Rc<Self>> {
        let session = Self::new(far.get_ref().0, peer)?;
        let mut builder = server::Builder::new();
        builder
            .initial_window_size(window(peer.flow_window))
            .initial_connection_window_size(window(peer.receive_window))
            .max_header_list_size(FIELDS_BYTES)
            .header_table_size(0)
            .max_concurrent_streams(peer.flows)
            .max_send_buffer_size(STREAM_BYTES)
            .reset_stream_duration(RESET)
            .max_concurrent_reset_streams(peer.flows as usize)
            // Both limits protect against unknown clients, which are not admitted. All flows of a
            // peer may break at once.
            .max_pending_accept_reset_streams(peer.flows as usize)
            .max_local_error_reset_streams(None);
        let far = NotedTls::new(far, session.end.clone());
        let connection = builder.handshake(far).await.map_err(http2::io_error)?;
        let session = Rc::new(session);
        let (sender, receiver) = mpsc::unbounded_channel();
        session.asked.replace(Some(receiver));
        spawn_local(drive_far(session.clone(), connection, sender, Heart::of(peer)));
        Ok(session)
    }

    /// Its number in this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Address of the other end.
    pub fn remote_address(&self) -> SocketAddr {
        self.remote
    }

    /// Whether it accepts new flows.
    pub fn is_open(&self) -> bool {
        !*self.leaving.borrow() && self.gone.borrow().is_none()
    }

    /// Whether it has no flows.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.seats) == 1
    }

    /// Number of its flows.
    pub fn flows(&self) -> u64 {
        self.scheduler.flows()
    }

    /// The kernel's measurements.
    pub fn sample(&self) -> Option<Sample> {
        Sample::of(&self.socket)
    }

    /// Limits the send rate. None: to the rate that the link carries.
    pub fn pace(&self, rate: Option<Rate>) {
        let rate = rate.or(self.rate);
        if rate != self.paced.replace(rate)
            && let Some(rate) = rate
        {
            // The kernel accepted it when the connection was made.
            let _ = socket::pace(&self.socket, rate);
        }
    }

    /// Whether all sent bytes have reached the peer's host.
    pub fn is_quiet(&self) -> bool {
        self.held() == 0
    }

    /// Unit: bytes. What its flows have written and the peer's host has not acknowledged.
    pub fn held(&self) -> u64 {
        let in_kernel = sockopt::unacknowledged(&self.socket).unwrap_or(0);
        ((self.room.held() + in_kernel) as u64).max(self.seats.kept())
    }

    /// The probe that requests a sign of life of its peer.
    pub fn doubt(&self) -> Weak<LivenessProbe> {
        Arc::downgrade(&self.doubt)
    }

    /// Timeout of a sign of life of the peer, and the counters of what has arrived so far.
    fn signs(&self) -> (Duration, Option<[u64; 2]>) {
        let sample = self.sample();
        let rtt = sample.as_ref().map_or(0, |sample| sample.rtt_us);
        let received = sample.map(|sample| [sample.received, sample.sent]);
        (stale_connections::patience(Duration::from_micros(rtt.into())), received)
    }

    /// Waits until one of the ends has announced that there will be no more requests.
    pub async fn left(&self) {
        let mut leaving = self.leaving.subscribe();
        // The sender is owned by the same value.
        let _ = leaving.wait_for(|leaving| *leaving).await;
    }

    /// Waits until it is gone. Returns the reason.
    pub async fn gone(&self) -> Arc<str> {
        let mut gone = self.gone.subscribe();
        // The sender is owned by the same value.
        let why = gone.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }

    /// Waits until the peer has accepted this end's certificate.
    ///
    /// # Errors
    /// The reason why the connection is gone, and the peer's alert, if there was one.
    pub async fn accepted(&self) -> Result<(), (io::Error, Option<AlertDescription>)> {
        let mut accepted = self.accepted.subscribe();
        tokio::select! {
            biased;
            // The sender is owned by the same value.
            _ = accepted.wait_for(|it| *it) => Ok(()),
            why = self.gone() => {
                let error = io::Error::new(io::ErrorKind::ConnectionAborted, why.to_string());
                Err((error, self.end.alert()))
            }
        }
    }

    /// Stops requests: a far end announces this to its peer, a near end sends no more.
    pub fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Closes the connection and all of its flows.
    pub fn close(&self) {
        self.end.close();
        self.seats.close();
        self.leave();
        self.closing.notify_one();
    }

    /// Requests a flow of the given class. The response arrives on the stream. Waits while the peer's limit of flows
    /// is reached.
    ///
    /// # Errors
    /// When the tunnel is gone, or the peer takes no more.
    pub async fn ask(&self, request: &Request, class: &ClassPlan) -> Result<Stream, StreamError> {
        let mut fields = request.fields(Form::Classic);
        let most = self.resumes.filter(|_| request.hops == 0 && self.seats.resumes());
        let id = most.map(|most| (resumable_flows::new_id(), most));
        if let Some((id, _)) = id {
            fields.extend(resumable_flows::by_capsules(&Resumption::Offered(id)));
        }
        let mut stream = self.open(&fields, class).await?;
        match id {
            Some((id, most)) => {
                stream.carry_in(Payload::Capsules);
                let (request, class) = (Some(request.clone()), class.clone());
                stream.keep(Offer { id, request, class }, most);
            }
            None => stream.note_announcements(),
        }
        Ok(stream)
    }

    /// Requests that a flow continues here. `again` has how much of it this end has received.
    ///
    /// # Errors
    /// When the tunnel is gone, or the peer takes no more.
    pub async fn ask_again(
        &self,
        request: &Request,
        class: &ClassPlan,
        again: Resumption,
    ) -> Result<Stream, StreamError> {
        let mut fields = request.fields(Form::Classic);
        fields.extend(resumable_flows::by_capsules(&again));
        let mut stream = self.open(&fields, class).await?;
        stream.carry_in(Payload::Capsules);
        Ok(stream)
    }

    async fn open(&self, fields: &[Field], class: &ClassPlan) -> Result<Stream, StreamError> {
        let message = http2::request_of(fields);
        let message = message.ok_or(StreamError::Wrong(Code::MESSAGE_ERROR))?;
        let mut requests = self.requests().ok_or_else(|| StreamError::Lost(closed()))?;
        let halves = match requests.send_request(message, false) {
            Ok(halves) => halves,
            Err(error) => {
                self.look();
                return Err(http2::fault_of(error));
            }
        };
        let (sender, receiver) = http2::to_ask(halves, &self.room, self.share());
        let mut stream = self.seated(Stream::to_ask(self.carrier(), wrap(sender), keep(receiver)));
        stream.output.join(class);
        // Waits until the peer's limit allows it.
        poll_fn(|cx| requests.poll_ready(cx)).await.map_err(http2::fault_of)?;
        Ok(stream)
    }

    /// Waits for the next request.
    pub async fn asked(&self) -> Option<Stream> {
        poll_fn(|cx| match &mut *self.asked.borrow_mut() {
            Some(asked) => asked.poll_recv(cx),
            None => Poll::Ready(None),
        })
        .await
    }

    /// Checks whether the peer has announced that it accepts no more requests: h2 reports this only when asked.
    pub fn look(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        if let Some(mut requests) = self.requests()
            && let Poll::Ready(Err(_)) = requests.poll_ready(&mut cx)
        {
            self.leave();
        }
    }

    fn requests(&self) -> Option<client::SendRequest<Piece>> {
        self.requests.borrow().clone()
    }

    fn share(&self) -> ScheduledFlow {
        ScheduledFlow::new(&self.scheduler)
    }

    fn carrier(&self) -> Connection {
        Connection::Tcp { number: self.number, peer: self.remote }
    }

    fn seated(&self, mut stream: Stream) -> Stream {
        stream.seat = Some(self.seats.clone());
        stream
    }

    fn take(&self, asked: (Message<RecvStream>, server::SendResponse<Piece>)) -> Stream {
        let (sender, receiver) = http2::to_answer(asked, &self.room, self.share());
        self.seated(Stream::to_answer(self.carrier(), wrap(sender), keep(receiver)))
    }
}

fn wrap(sender: http2::Http2Sender) -> Sender {
    Sender::Http2(sender)
}

fn keep(receiver: http2::Http2Receiver) -> Receiver {
    Receiver::Http2(receiver)
}

/// Closes sessions. Those whose flows have all ended are closed once their last bytes have arrived.
pub async fn close(sessions: &[Rc<TcpSession>]) {
    /// Time limit for this: longer than any round trip.
    const ARRIVAL: Duration = Duration::from_secs(3);
    const LOOK: Duration = Duration::from_millis(5);
    let is_done = |session: &Rc<TcpSession>| {
        session.gone.borrow().is_some() || !session.is_idle() || session.is_quiet()
    };
    let arrived = async {
        while !sessions.iter().all(is_done) {
            time::sleep(LOOK).await;
        }
    };
    let _ = time::timeout(ARRIVAL, arrived).await;
    for session in sessions {
        session.close();
    }
    let gone = async {
        for session in sessions {
            session.gone().await;
        }
    };
    let _ = time::timeout(LAST_WORDS, gone).await;
}

/// When the peer is sent a ping, and when it counts as gone.
#[derive(Debug, Clone, Copy)]
struct Heart {
    pause: Duration,
    patience: Duration,
}

impl Heart {
    fn of(peer: &PeerPlan) -> Self {
        let time = |time: midhop_units::Duration| Duration::from_nanos(time.as_ns());
        let pause = time(peer.keepalive);
        Self { pause, patience: time(peer.timeout).saturating_sub(pause) }
    }

    /// Waits until the peer does not respond any more.
    async fn fails(self, ping: Option<PingPong>, session: &TcpSession) {
        let Some(mut ping) = ping else { return pending().await };
        let doubt = &session.doubt;
        loop {
            let mut doubted = tokio::select! {
                () = time::sleep(self.pause) => None,
                () = doubt.0.notified() => Some(session.signs()),
            };
            let begun = Instant::now();
            let mut answer = pin!(ping.ping(Ping::opaque()));
            loop {
                let patience = doubted.map_or(self.patience, |(patience, _)| patience);
                tokio::select! {
                    answered = &mut answer => match answered {
                        Ok(_) => break,
                        // The connection reports this itself.
                        Err(_) => return pending().await,
                    },
                    () = doubt.0.notified(), if doubted.is_none() => doubted = Some(session.signs()),
                    () = silence::wait(patience) => {
                        // Anything that has arrived meanwhile is a sign of life, too.
                        let silent = doubted.take().is_none_or(|(_, before)| before == session.signs().1);
                        if silent || begun.elapsed() > self.patience {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Lets another thread request a sign of life of a session's peer.
#[derive(Debug, Default)]
pub struct LivenessProbe(Notify);

impl LivenessProbe {
    /// Requests the sign of life.
    pub fn raise(&self) {
        self.0.notify_one();
    }
}

const SILENT: &str = "timed out";
const CLOSED: &str = "closed";
const CUT_OFF: &str = "connection ended without TLS close_notify";

async fn drive_near(
    session: Rc<TcpSession>,
    mut connection: client::Connection<NearStream, Piece>,
    heart: Heart,
) {
    let mut ping = connection.ping_pong();
    let fails = async {
        // TLS is complete at this end before the peer has seen this end's certificate. A response proves that it
        // has accepted it.
        if let Some(ping) = &mut ping
            && ping.ping(Ping::opaque()).await.is_ok()
        {
            session.accepted.send_replace(true);
        }
        heart.fails(ping, &session).await;
    };
    let why = {
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = &mut connection => Some(ended),
            () = fails => None,
            () = session.closing.notified() => {
                // When its last handle is dropped, the connection announces its end.
                session.requests.take();
                let _ = time::timeout(LAST_WORDS, connection).await;
                Some(Ok(()))
            }
        };
        close_if_in_order(&session, ended.as_ref());
        reason(ended)
    };
    session.requests.take();
    session.gone.send_replace(Some(why));
}

async fn drive_far(
    session: Rc<TcpSession>,
    mut connection: server::Connection<FarStream, Piece>,
    asked: mpsc::UnboundedSender<Stream>,
    heart: Heart,
) {
    let why = {
        let mut fails = pin!(heart.fails(connection.ping_pong(), &session));
        let mut left = false;
        let mut connection = connection;
        let ended = loop {
            tokio::select! {
                next = connection.accept() => match next {
                    // If requests are not served any more, the stream is dropped, and so reset.
                    Some(Ok(next)) => drop(asked.send(session.take(next))),
                    Some(Err(error)) => break Some(Err(error)),
                    None => break Some(Ok(())),
                },
                () = &mut fails => break None,
                () = session.left(), if !left => {
                    left = true;
                    connection.graceful_shutdown();
                }
                () = session.closing.notified() => {
                    connection.abrupt_shutdown(Reason::NO_ERROR);
                    let ended = poll_fn(|cx| connection.poll_closed(cx));
                    let _ = time::timeout(LAST_WORDS, ended).await;
                    break Some(Ok(()));
                }
            }
        };
        // A server of h2 that has nothing to send takes a stream that was cut off for one that has ended.
        if matches!(ended, Some(Ok(()))) && session.end.has_failed() {
            CUT_OFF.into()
        } else {
            close_if_in_order(&session, ended.as_ref());
            reason(ended)
        }
    };
    session.leaving.send_replace(true);
    session.gone.send_replace(Some(why));
}

/// If the peer has ended the connection in order, its flows have ended with it.
fn close_if_in_order(session: &TcpSession, ended: Option<&Result<(), h2::Error>>) {
    if matches!(ended, Some(Ok(()))) {
        session.seats.close();
    }
}

/// Why a connection ended. None: its peer was silent.
fn reason(ended: Option<Result<(), h2::Error>>) -> Arc<str> {
    match ended {
        None => SILENT.into(),
        Some(Ok(())) => CLOSED.into(),
        Some(Err(error)) => error.to_string().into(),
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, CLOSED)
}

fn window(bytes: midhop_units::Bytes) -> u32 {
    u32::try_from(bytes.get().min(WINDOW_MOST)).unwrap_or(u32::MAX >> 1)
}
