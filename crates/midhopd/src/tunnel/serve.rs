//! The far end of a tunnel: a peer asks for flows, this daemon opens them.
//!
//! A request is heard, judged by the rules as every flow is, given a place and a TCP connection, and
//! answered; then its bytes are relayed to the very end.

use super::{
    Identity,
    chain::{self, NoNext},
    crowd::{Crowd, Place},
    earlier, identity, link,
    session::Session,
    socket::Paced,
    stream::{Stream, judge},
    told::{self, NoFlow},
    transport,
};
use crate::{
    admission::Ticket,
    flow::{Ends, Side},
    ledger::{FlowBook, Party},
    leg, lookup,
    worker::Worker,
};
use midhop_pep::{
    config::{Action, PeerPlan},
    policy::FlowKey,
};
use midhop_tunnel::{
    cause::Cause,
    connect::{Request, Response},
    http3::Code,
    payload::Payload,
    target::Target,
};
use quinn::Incoming;
use rustls::pki_types::CertificateDer;
use std::{
    fmt, io,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpStream, sync::watch, task::spawn_local, time};

/// How long a handshake, or a request, may take: longer than any satellite needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves a socket to which peers come, until the worker stops.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub async fn listen(
    worker: Rc<Worker>,
    socket: UdpSocket,
    identity: watch::Receiver<Arc<Identity>>,
) -> io::Result<()> {
    let now = identity.borrow().clone();
    let config = transport::welcoming(&now);
    let (endpoint, socket) = transport::endpoint(socket, Some(config), &now)?;
    worker.endpoints.borrow_mut().push(endpoint.clone());
    let crowd = Rc::new(Crowd::default());
    while let Some(incoming) = endpoint.accept().await {
        if worker.tunnels.are_left() {
            incoming.refuse();
            continue;
        }
        let Some((incoming, place)) = crowd.admit(incoming) else { continue };
        let identity = identity.borrow().clone();
        spawn_local(welcome(worker.clone(), incoming, identity, socket.clone(), place));
    }
    Ok(())
}

/// Lets a peer in and serves what it asks for.
async fn welcome(
    worker: Rc<Worker>,
    incoming: Incoming,
    identity: Arc<Identity>,
    socket: Arc<Paced>,
    place: Place,
) {
    let from = incoming.remote_address();
    let plan = worker.plan();
    let (config, steering, guess) = match transport::server(&identity, &plan.peers, from) {
        Ok(found) => found,
        Err(error) => return tracing::warn!(%from, %error, "nobody can come in"),
    };
    let mut course = socket.steer_attempt(from, steering.pace());
    if transport::may_repair(&plan.peers) {
        course.propose();
    }
    let connecting = match incoming.accept_with(Arc::new(config)) {
        Ok(connecting) => time::timeout(PATIENCE, connecting),
        Err(error) => return tracing::debug!(%from, %error, "somebody did not come in"),
    };
    let connection = match connecting.await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::info!(%from, %error, "a stranger was shown out"),
        Err(_late) => return tracing::debug!(%from, "somebody did not come in"),
    };
    drop(place);
    let plan = worker.plan();
    let shown = connection.peer_identity();
    let shown = shown.and_then(|it| it.downcast::<Vec<CertificateDer<'static>>>().ok());
    let certificate = shown.as_ref().and_then(|shown| shown.first());
    let Some(peer) = certificate.and_then(|shown| peer_of(shown, &plan.peers)) else {
        // Known when its certificate was looked at, and not any more.
        return connection.close(0u32.into(), b"");
    };
    if peer != guess
        && let Err(error) = transport::adapt(&connection, &steering, peer)
    {
        return tracing::warn!(peer = peer.name, %error, "a tunnel cannot be steered");
    }
    course.take(connection.remote_address());
    if let Some(repairs) = transport::repairs(peer, connection.remote_address()) {
        course.repair(repairs);
    }
    let session = match Session::begin(connection, peer, steering.pace(), false).await {
        Ok(session) => session,
        Err(error) => return tracing::info!(%from, %error, "a peer left at once"),
    };
    tracing::info!(peer = peer.name, %from, "a peer has come");
    worker.tunnels.earlier.follow(&peer.name, earlier::Way::Quic(session.connection().clone()));
    spawn_local({
        let (worker, peer, session) = (worker.clone(), peer.clone(), session.clone());
        async move {
            let why = link::follow(&worker, &peer.name, &session, course).await;
            tracing::info!(peer = peer.name, %why, "a peer has left");
        }
    });
    spawn_local({
        let (worker, session) = (worker.clone(), session.clone());
        async move {
            tokio::select! {
                () = worker.tunnels.left() => session.leave().await,
                _ = session.connection().closed() => {}
            }
        }
    });
    let peer = Rc::new(peer.clone());
    while let Ok(stream) = session.asked().await {
        spawn_local(serve(worker.clone(), peer.clone(), stream));
    }
}

/// Which peer it is, by its certificate.
pub fn peer_of<'a>(
    certificate: &CertificateDer<'_>,
    peers: &'a [PeerPlan],
) -> Option<&'a PeerPlan> {
    peers.iter().find(|peer| identity::bears(certificate, &peer.identity))
}

/// Serves one stream.
pub async fn serve(worker: Rc<Worker>, peer: Rc<PeerPlan>, mut stream: Stream) {
    let heard = time::timeout(PATIENCE, stream.input.request()).await;
    let request = match heard {
        Ok(Ok(fields)) => Request::decode(&fields),
        Ok(Err(fault)) => return judge(stream.connection(), &fault),
        Err(_late) => {
            stream.output.reset(Code::REQUEST_INCOMPLETE);
            return;
        }
    };
    let answer = match request {
        Ok((request, payload)) => {
            stream.carry_in(payload);
            match open(&worker, &peer, &request, &mut stream).await {
                Ok(opened) => {
                    let Opened { ends, from, .. } = &opened;
                    tracing::debug!(
                        peer = peer.name, client = %ends.client, %from, target = %request.target, ?payload,
                        "a flow is granted"
                    );
                    return carry(&worker, &peer, stream, opened).await;
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
        Err(denied) => denied.fields(Payload::Raw),
    };
    if stream.output.say(&answer).await.is_ok() {
        stream.output.end();
        // What the client has said meanwhile is wanted by nobody.
        stream.input.stop(Code::NO_ERROR);
        let _ = stream.output.stopped().await;
    }
}

/// A far side that has accepted.
struct Opened {
    server: Server,
    ends: Ends,
    leg: Party,
    ticket: Ticket,
    /// Whose address the server sees.
    from: Source,
}

/// How a server is reached.
enum Server {
    Leg(TcpStream),
    /// By the next tunnel of a chain.
    Tunnel(Box<chain::Next>),
}

/// Why there is no far side, and which proxy said so, if it was the next of a chain.
struct Denial {
    cause: Cause,
    next: Option<String>,
}

impl From<Cause> for Denial {
    fn from(cause: Cause) -> Self {
        Self { cause, next: None }
    }
}

/// Opens the far side of a flow.
async fn open(
    worker: &Worker,
    peer: &PeerPlan,
    request: &Request,
    stream: &mut Stream,
) -> Result<Opened, Denial> {
    let plan = worker.plan();
    let client = request.client.unwrap_or_else(|| stream.connection().remote_address());
    let addresses = lookup::look_up(&request.target, plan.tunnel.resolve).await?;
    let ticket = worker.admission.try_enter().ok_or(Cause::Full)?;
    let mut last = Denial::from(Cause::NameUnknown);
    for server in addresses {
        if !plan.tunnel.local_targets && lookup::is_local(server.ip()) {
            return Err(Cause::NotAllowed.into());
        }
        let flow = FlowKey { source: client, destination: server, interface: None, dscp: 0 };
        let decision = plan.policy.decide(&flow);
        if decision.action == Action::Reject {
            worker.ledger.rejected.add(1);
            return Err(Cause::NotAllowed.into());
        }
        let ends = Ends { client, server };
        let class = plan.class(&decision, None, request.class.as_deref());
        stream.output.join(class);
        if let Some(route) = plan.route(&decision) {
            let target = Target::Address(server);
            let onwards = request.onwards(target, class.told()).ok_or_else(|| {
                tracing::warn!(peer = route.peer, %server, "a flow goes round in circles");
                Cause::Loop
            })?;
            let (why, again) = match chain::open(worker, stream, &route.peer, onwards).await {
                Ok(next) => {
                    let (server, leg) =
                        (Server::Tunnel(Box::new(next)), Party::tunnel(&route.peer));
                    let from = Source::Host;
                    return Ok(Opened { server, ends, leg, ticket, from });
                }
                Err(NoNext::Left) => return Err(Cause::Failed.into()),
                Err(NoNext::Refused { why, again }) => (why, again),
            };
            match why {
                NoFlow::Refused(failure) => {
                    worker.ledger.book_failure(&failure);
                    let cause = told::cause_of(&failure);
                    last = Denial { cause, next: Some(route.peer.clone()) };
                    if again {
                        continue;
                    }
                    return Err(last);
                }
                NoFlow::Unavailable(why) if route.otherwise == Action::Reject || !again => {
                    tracing::debug!(peer = route.peer, why, "a chain ends here");
                    return Err(Cause::Failed.into());
                }
                NoFlow::Unavailable(why) => {
                    tracing::debug!(peer = route.peer, why, "a flow goes without the next tunnel");
                }
            }
        }
        let egress = worker.egress(&plan, ends);
        let leg = plan.leg(&decision, server.ip(), egress.as_deref());
        let from = Source::of(peer, request.client, server);
        let dialled = match from {
            // In the class of service that all connections of this host have: the client's is not told.
            Source::Client(client) => leg::dial(Ends { client, server }, leg, 0, true),
            Source::Host => leg::dial_as_self(server, leg),
        };
        let opening = dialled.map_err(|error| {
            tracing::warn!(%server, %from, %error, "a far side cannot be dialled");
            Cause::Failed
        })?;
        let answer = tokio::select! {
            answer = opening.finish() => answer,
            // A peer that goes away takes its request with it.
            _gone = stream.broken() => return Err(Cause::Failed.into()),
        };
        match answer.map(Server::Leg) {
            Ok(server) => {
                return Ok(Opened { server, ends, leg: Party::from(leg), ticket, from });
            }
            Err(failure) => {
                worker.ledger.book_failure(&failure);
                last = told::cause_of(&failure).into();
            }
        }
    }
    Err(last)
}

/// Whose address a server sees.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// This host's.
    Host,
    /// That of the client, for which the peer may stand.
    Client(SocketAddr),
}

impl Source {
    /// Whom the server is to see, given whom the peer says that a flow is of.
    fn of(peer: &PeerPlan, client: Option<SocketAddr>, server: SocketAddr) -> Self {
        let client = client.map(|it| SocketAddr::new(it.ip().to_canonical(), it.port()));
        match client {
            // Nobody routes answers to a loopback or a link of somebody else.
            Some(client)
                if client.is_ipv4() == server.is_ipv4()
                    && peer.may_stand_for(client)
                    && !lookup::is_local(client.ip()) =>
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

/// Answers and moves the bytes, to the very end.
async fn carry(worker: &Worker, peer: &PeerPlan, mut stream: Stream, opened: Opened) {
    let Opened { server, ends, leg, ticket, .. } = opened;
    if stream.output.say(&Response::Granted.fields(stream.payload())).await.is_err() {
        return;
    }
    worker.ledger.flows.add(1);
    let book = FlowBook::new(ends, Party::tunnel(&peer.name), leg);
    match server {
        Server::Leg(server) => super::carry(worker, server, Side::Server, stream, book).await,
        Server::Tunnel(next) => chain::carry(worker, stream, *next, book).await,
    }
    drop(ticket);
}
