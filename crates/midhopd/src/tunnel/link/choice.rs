//! Selects QUIC or TCP for a tunnel.
//!
//! QUIC is tried first. If there is no response within a head start, QUIC is tried anew, then TCP
//! beside it. If TCP is the first to open, QUIC is tried once more, for as long as TCP has shown that
//! the path and both hosts need: what was lost before the peer was up proves nothing, and neither
//! does the silence of a host that is busy. While the tunnel is on TCP, QUIC is tried again at
//! growing intervals. Once QUIC is open, new flows use it, and the flows on TCP continue there to
//! their ends. The reverse also holds: if the peer of an open QUIC tunnel sends nothing though a
//! response is due, the tunnel is doubted. It is left for TCP if TCP can be opened, and is used
//! again as soon as its peer sends something. There, too, QUIC has as much time as TCP took.
//!
//! The same applies if UDP passes but carries little. This is [weighed](weigh), because it cannot
//! be observed.
//!
//! Invariant: a refusal by QUIC's peer never causes a fallback to TCP, because it is a response.
//!
//! Decision 0070.

mod judge;
mod weigh;

use self::judge::Judge;
use super::OpenTunnel;
use super::keeper::{LinkKeeper, follow, follow_tcp};
use super::probe_carrier::ProbeCarrier;
use super::refused::{self, OpeningAttempt};
use crate::tunnel::{
    fallback, fallback::socket, peer_validity::PeerValidity, quic::QuicConnection,
    quic::QuicEndpoint, serve, session::QuicSession, transport,
};
use crate::worker::Worker;
use midhop_pep::config::Fallback;
use midhop_pki::handshake::TlsHandshake;
use midhop_pki::identity::Identity;
use midhop_status::snapshot::Carrier;
use midhop_tunnel::control::Steering;
use midhop_tunnel::quic::{ConnectionError, Opening};
use rustls::pki_types::{CertificateDer, ServerName};
use std::{
    cell::{Cell, RefCell},
    future::pending,
    io,
    pin::pin,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::watch,
    task::spawn_local,
    time::{self, Instant},
};
use tokio_rustls::TlsConnector;

/// Timeout of an attempt: three times a handshake over two satellites, or two lost packets.
const ATTEMPT: Duration = Duration::from_secs(10);
/// QUIC's head start over TCP if the round-trip time is not known.
const HEAD_START: Duration = Duration::from_secs(1);
/// The head start in round trips: a handshake, and as much again. Then its minimum.
const HEAD_START_TRIPS: u32 = 2;
const HEAD_START_LEAST: Duration = Duration::from_millis(250);
/// QUIC's head start over TCP when it is tried anew. Unit: parts of the first head start.
const ANEW_PART: u32 = 4;
/// QUIC's time to respond once TCP has opened. Unit: times that TCP took to open, which is more round
/// trips than QUIC needs, and the same work of both hosts. Then its minimum where UDP was not blocked
/// before: a packet may be lost, or a host be busy just then. Otherwise it is that of the head start.
const GRACE_TIMES: u32 = 2;
const GRACE_LEAST: Duration = Duration::from_millis(500);
/// Interval between two attempts to leave TCP again: at first, and at most.
const RETURN_FIRST: Duration = Duration::from_secs(10);
const RETURN_MOST: Duration = Duration::from_secs(300);
/// Silence of a peer that has to respond, after which QUIC is doubted. It is the minimum, and the
/// value if the round-trip time is not known. Below it in round trips, in which a lost packet is
/// sent a third time.
const SILENCE: Duration = Duration::from_secs(5);
const SILENCE_TRIPS: u32 = 8;
/// Interval at which an open tunnel is checked.
const LOOK: Duration = Duration::from_millis(250);

/// Selects the carrier for one peer.
pub struct Choice<'a> {
    keeper: &'a LinkKeeper,
    worker: &'a Rc<Worker>,
    endpoint: QuicEndpoint,
    /// A QUIC tunnel that is not used because its peer is silent.
    doubted: RefCell<Option<Watched>>,
    /// A QUIC tunnel that is not used because UDP is throttled.
    kept: RefCell<Option<Watched>>,
    /// The tunnel that is followed.
    followed: RefCell<Option<Followed>>,
    /// Whether nothing was received over UDP when the last tunnel was opened.
    was_blocked: Cell<bool>,
    /// Judges whether UDP is throttled.
    judge: RefCell<Judge>,
    /// The carrier that some flows are sent over to measure its throughput.
    probe_carrier: Rc<ProbeCarrier>,
}

/// A peer over QUIC, once the handshake is complete at this end.
struct Greeted {
    connection: QuicConnection,
    steering: Arc<Steering>,
    identity: Arc<Identity>,
    handshake: Arc<TlsHandshake>,
}

/// A peer over TCP that has accepted this end, and how long that took.
struct OpenedTcp {
    session: Rc<fallback::TcpSession>,
    took: Duration,
}

/// Turns true when a session is gone.
type Ending = watch::Receiver<bool>;

/// A QUIC tunnel, how it sends, and its end.
#[derive(Clone)]
struct Watched {
    session: Rc<QuicSession>,
    gone: Ending,
}

/// The tunnel that is followed: its end, and more if it is a QUIC tunnel.
#[derive(Clone)]
enum Followed {
    Quic(Watched),
    Tcp(Ending),
}

impl Followed {
    fn gone(&self) -> Ending {
        match self {
            Self::Quic(watched) => watched.gone.clone(),
            Self::Tcp(gone) => gone.clone(),
        }
    }

    fn watched(&self) -> Option<&Watched> {
        match self {
            Self::Quic(watched) => Some(watched),
            Self::Tcp(_) => None,
        }
    }
}

impl<'a> Choice<'a> {
    /// Creates it for the peer that `keeper` keeps a tunnel to.
    pub fn new(
        keeper: &'a LinkKeeper,
        worker: &'a Rc<Worker>,
        endpoint: QuicEndpoint,
        probe_carrier: Rc<ProbeCarrier>,
    ) -> Self {
        let peer = &keeper.peer;
        Self {
            keeper,
            worker,
            endpoint,
            doubted: RefCell::default(),
            kept: RefCell::default(),
            followed: RefCell::default(),
            was_blocked: Cell::default(),
            // If others share the link, only the committed rate can be expected.
            judge: Judge::new([peer.committed.or(peer.rate), peer.rate_in], peer.rtt).into(),
            probe_carrier,
        }
    }

    /// Opens a tunnel over QUIC or TCP, the first to open. QUIC has a head start.
    ///
    /// Before TCP is tried, QUIC is tried anew. Its first packets may have arrived before the peer was up, or may be
    /// lost, and are retransmitted only after a timeout longer than the head start.
    pub async fn open(&self) -> io::Result<OpenTunnel> {
        if self.keeper.peer.fallback == Fallback::Only {
            let tcp = self.open_tcp().await?;
            self.report("a tunnel is open over TCP, as configured");
            return Ok(self.on_tcp(tcp.session, Carrier::TcpOnly));
        }
        let mut quic = pin!(self.greet_quic());
        let mut anew = pin!(async {
            time::sleep(self.head_start()).await;
            match self.greet_quic().await {
                // The first attempt times out as well, or gets a response.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => pending().await,
                opened => opened,
            }
        });
        let mut tcp = pin!(async {
            time::sleep(self.head_start() + self.head_start() / ANEW_PART).await;
            self.open_tcp().await
        });
        let mut failed: Option<io::Error> = None;
        let is_off = self.keeper.peer.fallback == Fallback::Off;
        let mut no_tcp = is_off;
        loop {
            tokio::select! {
                biased;
                greeted = &mut quic, if failed.is_none() => match self.admitted(greeted).await {
                    Ok(session) => {
                        self.report("a tunnel is open");
                        return Ok(self.on_quic(session));
                    }
                    Err(error) if no_tcp || error.kind() != io::ErrorKind::TimedOut => {
                        return Err(error);
                    }
                    Err(error) => failed = Some(error),
                },
                greeted = &mut anew, if failed.is_none() && !is_off => {
                    match self.admitted(greeted).await {
                        Ok(session) => {
                            self.report("a tunnel is open");
                            return Ok(self.on_quic(session));
                        }
                        Err(error) if no_tcp || error.kind() != io::ErrorKind::TimedOut => {
                            return Err(error);
                        }
                        Err(error) => failed = Some(error),
                    }
                }
                opened = &mut tcp, if !no_tcp => match opened {
                    Ok(tcp) => {
                        if let Some(session) = self.greet_once_more(&tcp).await? {
                            self.report("a tunnel is open");
                            return Ok(self.on_quic(session));
                        }
                        self.report("a tunnel is open over TCP: nothing was received over UDP");
                        self.was_blocked.set(true);
                        return Ok(self.on_tcp(tcp.session, Carrier::TcpBlocked));
                    }
                    Err(error) => {
                        tracing::debug!(peer = self.keeper.peer.name, %error, "a tunnel over TCP could not be opened either");
                        no_tcp = true;
                        if let Some(failed) = failed.take() {
                            return Err(failed);
                        }
                    }
                },
            }
        }
    }

    /// Opens a tunnel over QUIC where `tcp` is open now: what QUIC has sent may have been lost before the peer was up, and
    /// QUIC retransmits at growing intervals. `tcp` is closed if there is one; none: nothing is received over UDP.
    ///
    /// # Errors
    /// When the peer refuses.
    async fn greet_once_more(&self, tcp: &OpenedTcp) -> io::Result<Option<Rc<QuicSession>>> {
        let opened = match time::timeout(self.grace(tcp), self.open_quic()).await {
            Err(_) => return Ok(None),
            Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => return Ok(None),
            Ok(opened) => opened,
        };
        tcp.session.close();
        opened.map(Some)
    }

    /// QUIC's time to respond on a path on which TCP was opened just now.
    fn grace(&self, tcp: &OpenedTcp) -> Duration {
        let least = if self.was_blocked.get() { HEAD_START_LEAST } else { GRACE_LEAST };
        (tcp.took * GRACE_TIMES).max(least)
    }

    /// Follows a tunnel until it is gone, accepts no more flows, or a better one exists, which is returned.
    pub async fn follow(&self, way: &OpenTunnel) -> Option<OpenTunnel> {
        let followed = self.followed.borrow().clone();
        let watched = followed.as_ref().and_then(Followed::watched).cloned();
        let gone = followed.as_ref().map(Followed::gone);
        match way {
            OpenTunnel::Quic(session) => tokio::select! {
                () = is_true(gone) => None,
                () = session.left() => self.let_go(),
                next = self.doubt(session) => Some(next),
                next = self.weigh(watched) => Some(next),
            },
            OpenTunnel::Tcp(session) => tokio::select! {
                () = is_true(gone) => self.take_kept(),
                () = session.left() => self.take_kept().or_else(|| self.let_go()),
                next = self.regain(session) => {
                    // Its flows continue to their ends.
                    session.leave();
                    Some(next)
                }
            },
        }
    }

    fn let_go(&self) -> Option<OpenTunnel> {
        self.report("a peer accepts no more flows through a tunnel");
        None
    }

    fn report(&self, what: &str) {
        let LinkKeeper { peer, address, .. } = self.keeper;
        tracing::info!(peer = peer.name, %address, "{what}");
    }

    /// Waits until the peer of an open QUIC tunnel is silent though a response is due, and TCP can
    /// be opened.
    async fn doubt(&self, session: &Rc<QuicSession>) -> OpenTunnel {
        if self.keeper.peer.fallback != Fallback::Tcp {
            return pending().await;
        }
        let mut silence = Silence::of(session);
        loop {
            silence.last(session, self.silence()).await;
            let opened = tokio::select! {
                opened = self.open_tcp() => opened,
                () = silence.ends(session) => continue,
            };
            match opened {
                Ok(tcp) => {
                    session.connection().ping();
                    let grace = self.grace(&tcp) + LOOK;
                    if time::timeout(grace, silence.ends(session)).await.is_ok() {
                        tcp.session.close();
                        continue;
                    }
                    self.report(
                        "a tunnel is open over TCP beside QUIC, which does not respond any more",
                    );
                    let watched =
                        self.followed.borrow().as_ref().and_then(Followed::watched).cloned();
                    self.doubted.replace(watched);
                    return self.on_tcp(tcp.session, Carrier::TcpSilent);
                }
                // The whole path is broken, or the peer is gone.
                Err(error) => {
                    tracing::debug!(peer = self.keeper.peer.name, %error, "a tunnel over TCP could not be opened either");
                    silence = Silence::of(session);
                }
            }
        }
    }

    /// Waits until QUIC can be opened again.
    async fn regain(&self, tcp: &Rc<fallback::TcpSession>) -> OpenTunnel {
        if self.keeper.peer.fallback == Fallback::Only {
            return pending().await;
        }
        let doubted = self.doubted.take();
        if self.kept.borrow().is_some() {
            return self.long_for_udp(tcp).await;
        }
        let answered = async {
            let Some(watched) = doubted else { return pending().await };
            let mut silence = Silence::of(&watched.session);
            silence.ends(&watched.session).await;
            if !watched.session.is_open() {
                return pending().await;
            }
            self.follow_quic(watched)
        };
        tokio::select! {
            way = answered => {
                self.report("a tunnel over QUIC is used again: its peer responds");
                way
            }
            way = self.return_to_quic() => way,
        }
    }

    async fn return_to_quic(&self) -> OpenTunnel {
        let mut pause = RETURN_FIRST;
        loop {
            time::sleep(pause).await;
            pause = (pause * 2).min(RETURN_MOST);
            match self.open_quic().await {
                Ok(session) => {
                    self.report("a tunnel is open again over QUIC: UDP passes");
                    return self.on_quic(session);
                }
                Err(error) => {
                    tracing::debug!(peer = self.keeper.peer.name, %error, ?pause, "UDP does not pass");
                }
            }
        }
    }

    /// Reports the carrier of new flows from now on.
    fn book(&self, carrier: Carrier) {
        self.worker.ledger.carried_by(&self.keeper.peer.name, carrier);
    }

    fn on_quic(&self, session: Rc<QuicSession>) -> OpenTunnel {
        self.was_blocked.set(false);
        self.follow_quic(self.watch_quic(session))
    }

    fn follow_quic(&self, watched: Watched) -> OpenTunnel {
        let session = watched.session.clone();
        self.followed.replace(Some(Followed::Quic(watched)));
        self.book(Carrier::Quic);
        OpenTunnel::Quic(session)
    }

    fn watch_quic(&self, session: Rc<QuicSession>) -> Watched {
        let (sender, gone) = watch::channel(false);
        let (worker, name) = (self.worker.clone(), self.keeper.peer.name.clone());
        let followed = session.clone();
        spawn_local(async move {
            let why = follow(&worker, &name, &followed).await;
            tracing::warn!(peer = name, %why, "a tunnel was lost");
            sender.send_replace(true);
        });
        Watched { session, gone }
    }

    fn on_tcp(&self, session: Rc<fallback::TcpSession>, why: Carrier) -> OpenTunnel {
        let gone = self.watch_tcp(&session);
        self.follow_tcp(session, gone, why)
    }

    fn follow_tcp(
        &self,
        session: Rc<fallback::TcpSession>,
        gone: Ending,
        why: Carrier,
    ) -> OpenTunnel {
        if self.keeper.peer.committed.is_some() {
            self.report("peers.NAME.committed does not apply while the tunnel is over TCP");
        }
        self.followed.replace(Some(Followed::Tcp(gone)));
        self.book(why);
        OpenTunnel::Tcp(session)
    }

    fn watch_tcp(&self, session: &Rc<fallback::TcpSession>) -> Ending {
        let (sender, gone) = watch::channel(false);
        let (worker, name) = (self.worker.clone(), self.keeper.peer.name.clone());
        let followed = session.clone();
        spawn_local(async move {
            let was_left = |session: &fallback::TcpSession| !session.is_open();
            let why = follow_tcp(&worker, &name, &followed).await;
            if was_left(&followed) {
                tracing::info!(peer = name, %why, "a tunnel over TCP has ended");
            } else {
                tracing::warn!(peer = name, %why, "a tunnel over TCP was lost");
            }
            sender.send_replace(true);
        });
        gone
    }

    async fn open_quic(&self) -> io::Result<Rc<QuicSession>> {
        self.admitted(self.greet_quic().await).await
    }

    /// Completes a handshake over QUIC at this end.
    async fn greet_quic(&self) -> io::Result<Greeted> {
        let LinkKeeper { peer, address, identity, .. } = self.keeper;
        let identity = identity.borrow().clone();
        let (config, steering, handshake) = transport::client(&identity, peer, *address)?;
        let opening =
            Opening { initial: peer.flow_window.get(), wants_backlog: true, by_frames: true };
        let config = (config, steering.pace());
        let connection =
            self.endpoint.connect(peer, *address, config, opening).map_err(io::Error::other)?;
        connection
            .count_in(self.worker.tunnels.rooms.of(&peer.name, &self.worker.relay_context.budget));
        let greeted = Greeted { connection, steering, identity, handshake };
        self.within(&greeted, greeted.connection.connected()).await?;
        Ok(greeted)
    }

    /// The session with a peer, once it has accepted this end's certificate. Its decision arrives a
    /// round trip after the handshake is complete here.
    async fn admitted(&self, greeted: io::Result<Greeted>) -> io::Result<Rc<QuicSession>> {
        let greeted = greeted?;
        self.within(&greeted, greeted.connection.confirmed()).await?;
        let Greeted { connection, steering, .. } = greeted;
        let validity = self.validity(&connection.peer_certificates());
        let session = QuicSession::new(connection, &self.keeper.peer, steering.pace());
        spawn_local(serve::dismiss(session.clone(), validity));
        Ok(session)
    }

    async fn within(
        &self,
        greeted: &Greeted,
        step: impl Future<Output = Result<(), ConnectionError>>,
    ) -> io::Result<()> {
        let Greeted { identity, handshake, .. } = greeted;
        let done = time::timeout(ATTEMPT, step).await.map_err(|_| io::ErrorKind::TimedOut)?;
        done.map_err(|lost| {
            let alert = refused::alert_of(&lost);
            OpeningAttempt { keeper: self.keeper, identity, handshake }.explain(lost.into(), alert)
        })
    }

    async fn open_tcp(&self) -> io::Result<OpenedTcp> {
        let begin = Instant::now();
        let LinkKeeper { peer, address, identity, .. } = self.keeper;
        let identity = identity.borrow().clone();
        let (config, handshake) = identity.tcp_client().map_err(io::Error::other)?;
        let attempt =
            OpeningAttempt { keeper: self.keeper, identity: &identity, handshake: &handshake };
        let connector = TlsConnector::from(config);
        let name = ServerName::try_from(peer.identity.clone()).map_err(io::Error::other)?;
        let open = async {
            let tcp = socket::dial(*address, peer).await?;
            let tls = connector.connect(name, tcp).await.map_err(|error| {
                let alert = refused::alert_in(&error);
                attempt.explain(error, alert)
            })?;
            let chain = tls.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
            Ok((fallback::TcpSession::near(tls, peer).await?, chain))
        };
        let opened: io::Result<_> =
            time::timeout(ATTEMPT, open).await.map_err(|_| io::ErrorKind::TimedOut)?;
        let (session, chain) = opened?;
        let accepted = time::timeout(ATTEMPT, session.accepted()).await;
        let accepted = accepted.unwrap_or_else(|_| Err((io::ErrorKind::TimedOut.into(), None)));
        if let Err((error, alert)) = accepted {
            session.close();
            return Err(attempt.explain(error, alert));
        }
        let validity = self.validity(&chain);
        spawn_local(fallback::door::dismiss(session.clone(), validity));
        Ok(OpenedTcp { session, took: begin.elapsed() })
    }

    /// The conditions under which the peer may stay, given its certificates.
    fn validity(&self, chain: &[CertificateDer<'_>]) -> PeerValidity {
        let LinkKeeper { peer, identity, .. } = self.keeper;
        let validity = PeerValidity::new(peer, chain, self.worker.plans(), identity.clone());
        self.worker.ledger.showed(&peer.name, validity.until());
        validity
    }

    fn head_start(&self) -> Duration {
        let known = self.rtt().map(|rtt| (rtt * HEAD_START_TRIPS).max(HEAD_START_LEAST));
        known.unwrap_or(HEAD_START)
    }

    fn silence(&self) -> Duration {
        self.rtt().map_or(SILENCE, |rtt| (rtt * SILENCE_TRIPS).max(SILENCE))
    }

    fn rtt(&self) -> Option<Duration> {
        self.keeper.peer.rtt.map(|rtt| Duration::from_nanos(rtt.as_ns()))
    }
}

/// Waits until it is true. Waits for ever if there is none.
async fn is_true(ending: Option<Ending>) {
    match ending {
        Some(mut ending) => drop(ending.wait_for(|gone| *gone).await),
        None => pending().await,
    }
}

/// Detects whether a peer that has to respond does so.
#[derive(Debug, Clone, Copy)]
struct Silence {
    /// Datagrams received, and frames sent that require a response, at the time of the last
    /// received datagram.
    received: u64,
    asked: u64,
    /// Since when a response has been due.
    since: Option<Instant>,
}

impl Silence {
    fn of(session: &QuicSession) -> Self {
        let (received, asked) = Self::counts(session);
        Self { received, asked, since: None }
    }

    /// Datagrams received, and frames sent that require a response.
    fn counts(session: &QuicSession) -> (u64, u64) {
        let stats = session.connection().stats();
        let sent = &stats.frame_tx;
        // With the last kind, QUIC probes after a loss.
        let asked =
            sent.stream + sent.ping + sent.reset_stream + sent.stop_sending + sent.immediate_ack;
        (stats.udp_rx.datagrams, asked)
    }

    /// Waits until the peer has been silent for `long`.
    async fn last(&mut self, session: &QuicSession, long: Duration) {
        while self.since.is_none_or(|since| since.elapsed() < long) {
            time::sleep(LOOK).await;
            let (received, asked) = Self::counts(session);
            if received != self.received {
                (self.received, self.asked, self.since) = (received, asked, None);
            } else if asked > self.asked {
                self.since.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Waits until the peer sends again.
    async fn ends(&mut self, session: &QuicSession) {
        while Self::counts(session).0 == self.received {
            time::sleep(LOOK).await;
        }
        *self = Self::of(session);
    }
}
