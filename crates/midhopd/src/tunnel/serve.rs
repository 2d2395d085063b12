//! The far end of a tunnel: a peer requests flows, and this daemon opens them.
//!
//! For each request, the daemon reads it, applies the rules as for every flow, takes a place and a TCP connection,
//! and responds. Then it relays the flow's bytes until the flow ends.

use super::{
    carry::{self, Permits},
    chain::{self, NoNext},
    error_mapping::{self, NoFlow},
    handshake_limiter::{HandshakeLimiter, HandshakeSlot},
    link,
    opened::Leaving,
    peer_limits,
    peer_validity::PeerValidity,
    quic::Incoming,
    refusal, resumable_flows, resume,
    session::QuicSession,
    shards::Shard,
    silence, stale_connections,
    stream::{Stream, judge, kept::Offer},
    transport::{self, Welcome},
};
use crate::{
    admission::Ticket,
    ends::{Ends, Side},
    happy_eyeballs::{self, race},
    ledger::{FlowBook, FlowOrigin, Party},
    leg::{self, Departure},
    relocation::host,
    targets::{self, Targets},
    worker::Worker,
};
use midhop_pep::{
    config::{Action, ClassPlan, PeerPlan, Plan},
    policy::{Decision, FlowKey, Route},
};
use midhop_pki::identity;
use midhop_pki::identity::Identity;
use midhop_tunnel::{
    cause::Cause,
    connect::{Request, Response},
    http3::Code,
    payload::Payload,
    quic::Opening,
    relocation,
    resumption::{self, FlowId, Resumption},
    target::Target,
};
use rustls::pki_types::CertificateDer;
use std::{
    fmt, io,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpStream, sync::watch, task::spawn_local, time};

/// Timeout of a handshake and of a request: longer than any satellite needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves a socket to which peers connect, until the worker stops.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub async fn listen(
    worker: Rc<Worker>,
    (socket, shard): (UdpSocket, Shard),
    limiter: Arc<HandshakeLimiter>,
    identity: watch::Receiver<Arc<Identity>>,
) -> io::Result<()> {
    let now = identity.borrow().clone();
    let (config, ledger) = (transport::welcoming(&now)?.0, worker.ledger.clone());
    let endpoint = transport::endpoint(socket, Some(config), &now, shard, ledger)?;
    worker.endpoints.borrow_mut().push(endpoint.clone());
    while let Some(incoming) = endpoint.accept().await {
        if worker.tunnels.are_left() {
            incoming.refuse();
            continue;
        }
        let Some((incoming, slot)) = limiter.admit(incoming, &worker.ledger) else { continue };
        let identity = (identity.borrow().clone(), identity.clone());
        spawn_local(welcome(worker.clone(), incoming, identity, slot));
    }
    Ok(())
}

/// Admits a peer and serves its requests.
async fn welcome(
    worker: Rc<Worker>,
    incoming: Incoming,
    (identity, identities): (Arc<Identity>, watch::Receiver<Arc<Identity>>),
    slot: HandshakeSlot,
) {
    let from = incoming.remote_address();
    let plan = worker.plan();
    let Welcome { config, steering, guess, handshake } = match transport::server(
        &identity,
        &plan.peers,
        from,
    ) {
        Ok(found) => found,
        Err(error) => {
            return tracing::warn!(%from, %error, "a connection is refused: no TLS configuration could be made");
        }
    };
    let widest = transport::widest(&plan.peers);
    let may_repair = transport::may_repair(&plan.peers);
    let connection = match incoming.accept((config, steering.pace()), may_repair) {
        Ok(connection) => connection,
        // The first packet can ask for a name that is not ours.
        Err(error) if handshake.asked().is_some() => {
            return refusal::report(&worker, &identity, &handshake, from, &error);
        }
        Err(error) => return tracing::debug!(%from, %error, "a connection could not be accepted"),
    };
    match time::timeout(PATIENCE, connection.connected()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return refusal::report(&worker, &identity, &handshake, from, &error),
        Err(_late) => return tracing::debug!(%from, "a handshake was not completed in time"),
    }
    drop(slot);
    let plan = worker.plan();
    let chain = connection.peer_certificates();
    let Some(peer) = chain.first().and_then(|shown| peer_of(shown, &plan.peers)) else {
        // The certificate's name was configured when it was verified, but is not any more.
        return connection.close(Code(0));
    };
    let mut validity = PeerValidity::new(peer, &chain, worker.plans(), identities);
    if let Some(why) = validity.dismissal() {
        tracing::info!(peer = peer.name, %from, %why, "a peer was refused");
        return connection.close(Code(0));
    }
    worker.ledger.showed(&peer.name, validity.until());
    let Some(peer_slot) = worker.tunnels.peer_limits.connect(peer) else {
        worker.ledger.excessive.add(1);
        // Some of the earlier connections may belong to a process that has died.
        worker.tunnels.stale_connections.doubt(&peer.name);
        tracing::warn!(peer = peer.name, %from, "a peer has too many connections: one more is refused");
        return connection.close(Code::EXCESSIVE_LOAD);
    };
    if peer != guess
        && let Err(error) = connection.adapt(&steering, peer)
    {
        return tracing::warn!(peer = peer.name, %error, "a peer's settings could not be applied to its connection");
    }
    let portion = worker.tunnels.windows.join(peer, connection.clone());
    connection.count_in(worker.tunnels.rooms.of(&peer.name, &worker.relay_context.budget));
    let opening = Opening { initial: widest.get(), wants_backlog: false, by_frames: true };
    connection.begin(peer, opening);
    let session = QuicSession::new(connection, peer, steering.pace());
    tracing::info!(peer = peer.name, %from, "a peer has connected");
    worker
        .tunnels
        .stale_connections
        .follow(&peer.name, stale_connections::PeerTransport::Quic(session.connection().clone()));
    spawn_local({
        let (worker, peer, session) = (worker.clone(), peer.clone(), session.clone());
        async move {
            let why = link::keeper::follow(&worker, &peer.name, &session).await;
            tracing::info!(peer = peer.name, %why, "a peer has disconnected");
            drop((peer_slot, portion));
        }
    });
    spawn_local({
        let (worker, session) = (worker.clone(), session.clone());
        async move {
            tokio::select! {
                () = worker.tunnels.left() => session.connection().leave(),
                _ = session.connection().closed() => {}
            }
        }
    });
    spawn_local(dismiss(session.clone(), validity));
    spawn_local(silence::end(session.connection().clone(), peer.clone()));
    let peer = Rc::new(peer.clone());
    while let Ok(stream) = session.asked().await {
        spawn_local(serve(worker.clone(), peer.clone(), stream));
    }
}

/// Closes a tunnel, and its flows with it, once its peer may not stay any more.
pub async fn dismiss(session: Rc<QuicSession>, validity: PeerValidity) {
    let name = validity.peer_name().to_owned();
    tokio::select! {
        why = validity.ends() => {
            tracing::warn!(peer = name, %why, "a tunnel is closed");
            session.close(Code::NO_ERROR);
        }
        _ = session.connection().closed() => {}
    }
}

/// Identifies the peer by its certificate.
pub fn peer_of<'a>(
    certificate: &CertificateDer<'_>,
    peers: &'a [PeerPlan],
) -> Option<&'a PeerPlan> {
    let names = identity::CertificateNames::of(certificate)?;
    peers.iter().find(|peer| names.bear(&peer.identity))
}

/// Serves one stream.
pub async fn serve(worker: Rc<Worker>, peer: Rc<PeerPlan>, mut stream: Stream) {
    let peer_slot = worker.tunnels.peer_limits.open(&peer);
    let requested = time::timeout(PATIENCE, stream.input.request()).await;
    let fields = match requested {
        Ok(Ok(fields)) => fields,
        Ok(Err(fault)) => {
            worker.ledger.unserved.add(1);
            return judge(stream.connection(), &fault);
        }
        Err(_late) => {
            worker.ledger.unserved.add(1);
            stream.output.reset(Code::REQUEST_INCOMPLETE);
            return;
        }
    };
    if relocation::is_requested(&fields) {
        return Box::pin(host::serve(worker, peer, stream)).await;
    }
    let resumption = Resumption::decode(&fields);
    if let Ok(Some(Resumption::Requested { id, received })) = resumption {
        // A flow that is resumed is open already, and has its place.
        drop(peer_slot);
        stream.carry_in(Payload::Capsules);
        let resumable = &worker.tunnels.resumable_flows;
        let is_whole = resumable.is_whole();
        if let Err(stream) = resumable.go_on(&peer.name, id, stream, received) {
            if !is_whole {
                // Another worker may be about to continue it.
                return stream.deny(&Response::from(Cause::Full).fields(Payload::Raw)).await;
            }
            let finished = resumable.finished(&peer.name, id);
            if let Some(flow) = finished.filter(|flow| flow.lacks_no_byte(received)) {
                if let Err(why) = resume::conclude(*stream, flow, received).await {
                    tracing::debug!(peer = peer.name, flow = ?id, %why, "a completed flow could not be concluded");
                }
                return;
            }
            tracing::debug!(peer = peer.name, flow = ?id, "a peer requested to resume an unknown flow");
            worker.ledger.resumptions_refused.add(1);
            stream.deny(&resume::gone()).await;
        }
        return;
    }
    let Some(peer_slot) = peer_slot else {
        worker.ledger.excessive.add(1);
        return stream.deny(&Response::from(Cause::Full).fields(Payload::Raw)).await;
    };
    let malformed = Response::Denied { status: 400, cause: Cause::Malformed };
    let request = resumption.map_err(|_| malformed).and_then(|resumption| {
        let (request, payload) = Request::decode(&fields)?;
        Ok((request, payload, resumption))
    });
    let answer = match request {
        Ok((request, payload, resumption)) => {
            let offered = match resumption {
                Some(Resumption::Offered(id)) if peer.resume > Duration::ZERO.into() => Some(id),
                _ => None,
            };
            let payload = match payload {
                Payload::Raw if offered.is_some() && resumable_flows::is_by_capsules(&fields) => {
                    Payload::Capsules
                }
                payload => payload,
            };
            stream.carry_in(payload);
            match open(&worker, &peer, &request, &mut stream).await {
                Ok(opened) => {
                    let Opened { ends, from, .. } = &opened;
                    let claims = request.client.filter(|client| *client != ends.client);
                    let claims = claims.map(tracing::field::display);
                    tracing::debug!(
                        peer = peer.name, client = %ends.client, claims, %from, target = %request.target, ?payload,
                        "a flow is granted"
                    );
                    return carry_on(&worker, &peer, stream, opened, (peer_slot, offered)).await;
                }
                Err(Denial { cause, next }) => {
                    let client = request.client.map(tracing::field::display);
                    tracing::debug!(
                        peer = peer.name, client, target = %request.target, ?cause, ?next,
                        "a flow is denied"
                    );
                    let response = Response::from(cause);
                    next.map_or_else(
                        || response.fields(Payload::Raw),
                        |next| response.fields_of(&next),
                    )
                }
            }
        }
        Err(denied) => {
            worker.ledger.unserved.add(1);
            denied.fields(Payload::Raw)
        }
    };
    stream.deny(&answer).await;
}

/// A far side that has accepted the flow.
struct Opened {
    server: Server,
    ends: Ends,
    leg: Party,
    /// The rule that decided, from 0.
    rule: Option<usize>,
    ticket: Ticket,
    /// Whose address the server sees.
    from: Source,
    /// The flow's entry among flows that leave this host. None: it leaves through the next tunnel.
    leaving: Option<Leaving>,
    class: ClassPlan,
}

/// How a server is reached.
enum Server {
    Leg(TcpStream),
    /// By the next tunnel of a chain.
    Tunnel(Box<chain::NextHop>),
}

/// Why there is no far side, and which proxy reported this, if it was the next of a chain.
struct Denial {
    cause: Cause,
    next: Option<String>,
}

impl From<Cause> for Denial {
    fn from(cause: Cause) -> Self {
        Self { cause, next: None }
    }
}

/// A requested flow, as this end judges it.
struct Wish<'a> {
    worker: &'a Worker,
    plan: &'a Plan,
    peer: &'a PeerPlan,
    request: &'a Request,
    /// The flow's client, as far as the peer is trusted to name it.
    client: SocketAddr,
}

/// Opens the far side of a flow.
async fn open(
    worker: &Worker,
    peer: &PeerPlan,
    request: &Request,
    stream: &mut Stream,
) -> Result<Opened, Denial> {
    let plan = worker.plan();
    let client = request.client.filter(|client| peer.may_speak_for(*client));
    if client != request.client {
        worker.ledger.disbelieved.add(1);
    }
    let client = client.unwrap_or_else(|| stream.connection().remote_address());
    let wish = Wish { worker, plan: &plan, peer, request, client };
    let resolve = plan.tunnel.resolve;
    let found = worker.resolver.look_up(&request.target, resolve, &peer.name).await?;
    let ticket = worker.admission.try_enter().ok_or(Cause::Full)?;
    let mut last = Denial::from(Cause::NameUnknown);
    let mut direct = Vec::new();
    for server in found.first {
        let decision = match wish.decide(server) {
            Ok(decision) => decision,
            Err(cause) => {
                last = cause.into();
                continue;
            }
        };
        if wish.route(&decision).is_none() {
            direct.push((server, decision));
            continue;
        }
        match wish.open_next(server, &decision, stream).await? {
            Step::Opened(next, leg) => {
                let (server, ends) = (Server::Tunnel(next), Ends { client, server });
                let from = Source::Host;
                let (rule, class) = (decision.rule, wish.class(&decision).clone());
                return Ok(Opened { server, ends, leg, rule, ticket, from, leaving: None, class });
            }
            Step::Denied(denial) => last = denial,
            Step::Alone => direct.push((server, decision)),
        }
    }
    let later = async {
        let decided = found.later.await.into_iter().map(|it| (it, wish.decide(it)));
        let decided = decided.filter_map(|(server, decided)| Some((server, decided.ok()?)));
        decided.filter(|(_, decision)| wish.route(decision).is_none()).collect()
    };
    let connected = tokio::select! {
        connected = race(direct, later, async |(server, decision)| wish.dial(server, decision).await) => {
            connected
        }
        // When the peer goes away, its request ends.
        _gone = stream.broken() => return Err(Cause::Failed.into()),
    };
    let Connected { stream: tcp, server, decision, leg, from, leaving } =
        connected.map_err(|failed| failed.map_or(last, Denial::from))?;
    let class = wish.class(&decision).clone();
    stream.output.join(&class);
    let ends = Ends { client, server };
    let (server, rule) = (Server::Leg(tcp), decision.rule);
    Ok(Opened { server, ends, leg, rule, ticket, from, leaving, class })
}

/// Result of requesting the flow from the next tunnel of a chain.
enum Step {
    Opened(Box<chain::NextHop>, Party),
    Denied(Denial),
    /// There is no next tunnel, and the flow goes without one.
    Alone,
}

/// A server that has accepted the connection.
struct Connected {
    stream: TcpStream,
    server: SocketAddr,
    decision: Decision,
    leg: Party,
    from: Source,
    leaving: Option<Leaving>,
}

impl Wish<'_> {
    /// Applies the rules to the flow if it goes to `server`.
    fn decide(&self, server: SocketAddr) -> Result<Decision, Cause> {
        let opened = &self.worker.tunnels.opened;
        if let Some(client) =
            self.request.client.filter(|it| opened.has(Ends { client: *it, server }))
        {
            tracing::warn!(peer = self.peer.name, %client, %server, "a flow is refused: its tunnels lead back to the proxy that opened it");
            return Err(Cause::Loop);
        }
        let flow = FlowKey {
            source: self.client,
            destination: server,
            interface: None,
            peer: Some(&self.peer.name),
            dscp: 0,
        };
        let decision = self.plan.policy.decide(&flow);
        if decision.action == Action::Reject {
            self.worker.ledger.rejected.add(1);
            return Err(Cause::NotAllowed);
        }
        Ok(decision)
    }

    /// Selects the tunnel by which the flow goes on. It never returns to the peer that requests it: both ends may
    /// send each other all flows.
    fn route(&self, decision: &Decision) -> Option<&Route> {
        self.plan.route(decision).filter(|route| route.peer != self.peer.name)
    }

    fn class(&self, decision: &Decision) -> &ClassPlan {
        self.plan.class(decision, None, self.request.class.as_deref())
    }

    /// Requests the flow from the next proxy of a chain, which judges for itself what its peers may request.
    async fn open_next(
        &self,
        server: SocketAddr,
        decision: &Decision,
        stream: &mut Stream,
    ) -> Result<Step, Denial> {
        let Some(route) = self.route(decision) else { return Ok(Step::Alone) };
        let class = self.class(decision);
        stream.output.join(class);
        let target = Target::Address(server);
        let mut onwards = self.request.onwards(target, class.announced()).ok_or_else(|| {
            tracing::warn!(peer = route.peer, %server, "a flow is refused: it has passed too many proxies, probably in a loop");
            Cause::Loop
        })?;
        // A client address that is not trusted here is not forwarded.
        onwards.client = onwards.client.filter(|client| *client == self.client);
        let (why, again) = match chain::open(self.worker, stream, &route.peer, onwards).await {
            Ok(next) => return Ok(Step::Opened(Box::new(next), Party::tunnel(&route.peer))),
            Err(NoNext::Left) => return Err(Cause::Failed.into()),
            Err(NoNext::Refused { why, again }) => (why, again),
        };
        match why {
            NoFlow::Refused(failure) => {
                self.worker.ledger.book_failure(&failure);
                let cause = error_mapping::cause_of(&failure);
                let denial = Denial { cause, next: Some(route.peer.clone()) };
                if again { Ok(Step::Denied(denial)) } else { Err(denial) }
            }
            NoFlow::Unavailable(why) if route.otherwise == Action::Reject || !again => {
                tracing::debug!(
                    peer = route.peer,
                    why,
                    "a flow is refused: the next tunnel is unavailable"
                );
                Err(Cause::Failed.into())
            }
            NoFlow::Unavailable(why) => {
                tracing::debug!(
                    peer = route.peer,
                    why,
                    "the next tunnel is unavailable: a flow continues without it"
                );
                Ok(Step::Alone)
            }
        }
    }

    /// Connects to a server if the peer may request it.
    async fn dial(&self, server: SocketAddr, decision: Decision) -> Result<Connected, Cause> {
        let (worker, plan) = (self.worker, self.plan);
        if !Targets::of_peer(&plan.tunnel, self.peer).allow(server.ip(), worker.routes()) {
            worker.ledger.forbidden.add(1);
            return Err(Cause::NotAllowed);
        }
        let egress = worker.egress(plan, Ends { client: self.client, server });
        let leg = plan.leg(&decision, server.ip(), egress.as_deref());
        let from = Source::of(self.peer, self.request.client, server);
        let dialled = match from {
            // The class of service is that of all connections of this host: the client's is not known.
            Source::Client(client) => {
                let mark = worker.hold.marks.server;
                let ends = Ends { client, server };
                leg::dial(&Departure { ends, mark, egress: None }, leg, 0)
            }
            Source::Host => leg::dial_as_self(server, leg),
        };
        let opening = dialled.map_err(|error| {
            tracing::warn!(%server, %from, %error, "a connection to a server cannot be opened");
            Cause::Failed
        })?;
        let seen = opening.local_addr();
        let leaving = seen.map(|client| worker.tunnels.opened.note(Ends { client, server }));
        match happy_eyeballs::answer(opening, plan.tunnel.connect_timeout.into()).await {
            Ok(stream) => {
                let leg = Party::from(leg);
                Ok(Connected { stream, server, decision, leg, from, leaving })
            }
            Err(failure) => {
                worker.ledger.book_failure(&failure);
                Err(error_mapping::cause_of(&failure))
            }
        }
    }
}

/// The source address that a server sees.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// This host's.
    Host,
    /// The client's address, if the peer may use it.
    Client(SocketAddr),
}

impl Source {
    /// Selects the source address that the server sees, given the client that the peer reports.
    fn of(peer: &PeerPlan, client: Option<SocketAddr>, server: SocketAddr) -> Self {
        let client = client.map(|it| SocketAddr::new(it.ip().to_canonical(), it.port()));
        match client {
            // Nobody routes responses to another host's loopback or link-local address.
            Some(client)
                if client.is_ipv4() == server.is_ipv4()
                    && peer.may_stand_for(client)
                    && !targets::is_of_one_link(client.ip()) =>
            {
                Self::Client(client)
            }
            _ => Self::Host,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("this host"),
            Self::Client(client) => client.fmt(f),
        }
    }
}

/// Sends the response, and has the bytes relayed.
async fn carry_on(
    worker: &Rc<Worker>,
    peer: &PeerPlan,
    mut stream: Stream,
    opened: Opened,
    (peer_slot, offered): (peer_limits::PeerSlot, Option<FlowId>),
) {
    let Opened { server, ends, leg, rule, ticket, leaving, class, .. } = opened;
    let mut answer = Response::Granted.fields(stream.payload());
    match (offered, &server) {
        // Bytes in capsules have a place for confirmations.
        (Some(id), Server::Leg(_)) if stream.payload() == Payload::Capsules => {
            let most = resumable_flows::most_kept(peer.send_window.get());
            stream.keep(Offer { id, request: None, class }, most);
            answer.push(resumption::granted(id));
        }
        (None, _) if stream.connection().is_tcp() && peer.resume > Duration::ZERO.into() => {
            answer.push(resumption::announced(peer.resume.as_ns() / 1_000_000_000));
        }
        _ => {}
    }
    // A peer that lets nothing be sent to it must not hold a server for ever.
    let sent = time::timeout(peer.timeout.into(), stream.output.send_fields(&answer)).await;
    if !matches!(sent, Ok(Ok(()))) {
        return;
    }
    worker.ledger.flows.add(1);
    let book = FlowBook::new(ends, Party::tunnel(&peer.name), leg)
        .with_origin(FlowOrigin { rule, ..FlowOrigin::default() });
    let permits = Permits { ticket, life: None, of_peer: Some(peer_slot), leaving };
    match server {
        Server::Leg(server) => carry::spawn(worker, (server, Side::Server), stream, book, permits),
        Server::Tunnel(next) => chain::spawn(worker, stream, next, book, permits),
    }
}
