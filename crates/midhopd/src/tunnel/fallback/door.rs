//! The far end of a tunnel over TCP: a peer connects, authenticates, and sends the same requests as over QUIC.

use super::{TcpSession, socket};
use crate::{
    tunnel::{
        handshake_limiter::{HandshakeLimiter, HandshakeSlot},
        link,
        peer_limits::PeerSlot,
        peer_validity::PeerValidity,
        refusal, serve, stale_connections,
    },
    worker::Worker,
};
use midhop_pep::config::PeerPlan;
use midhop_pki::identity::Identity;
use midhop_tunnel::http2;
use std::{io, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::spawn_local,
    time,
};
use tokio_rustls::TlsAcceptor;

/// Timeout of a handshake: longer than any satellite needs.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a refused peer may take to receive the reason.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Pause before the next attempt when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a listener to which peers connect, until the worker stops.
///
/// # Errors
/// When the runtime cannot watch it, or it listens no more.
pub async fn listen(
    worker: Rc<Worker>,
    listener: std::net::TcpListener,
    limiter: Arc<HandshakeLimiter>,
    identity: watch::Receiver<Arc<Identity>>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The listener was closed from outside: a pause does not help.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                time::sleep(PAUSE).await;
                continue;
            }
        };
        // A peer that is not admitted is reset: its address is known already, and it gets no other response.
        let leaves = worker.tunnels.are_left();
        let slot = if leaves { None } else { limiter.enter(from.ip()) };
        let Some(slot) = slot else {
            worker.ledger.dropped_handshakes.add(u64::from(!leaves));
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            continue;
        };
        let identity = identity.clone();
        spawn_local(welcome(worker.clone(), stream, from, identity, slot));
    }
}

/// Admits a peer and serves its requests.
async fn welcome(
    worker: Rc<Worker>,
    stream: TcpStream,
    from: SocketAddr,
    identity: watch::Receiver<Arc<Identity>>,
    slot: HandshakeSlot,
) {
    let now = identity.borrow().clone();
    let (config, handshake) = match now.tcp_server() {
        Ok(found) => found,
        Err(error) => {
            return tracing::warn!(%from, %error, "a connection is refused: no TLS configuration could be made");
        }
    };
    let accepting = TlsAcceptor::from(config).accept(stream).into_fallible();
    let tls = match time::timeout(PATIENCE, accepting).await {
        Ok(Ok(tls)) => tls,
        Ok(Err((error, stream))) => {
            refusal::report(&worker, &now, &handshake, from, &error);
            return let_alert_arrive(stream).await;
        }
        Err(_late) => return tracing::debug!(%from, "a TLS handshake was not completed in time"),
    };
    let plan = worker.plan();
    let (stream, state) = tls.get_ref();
    let chain = state.peer_certificates().unwrap_or_default();
    // The certificate's name was configured when it was verified, but perhaps is not any more.
    let peer = chain.first().and_then(|shown| serve::peer_of(shown, &plan.peers));
    let Some(peer) = peer.filter(|_| state.alpn_protocol() == Some(http2::ALPN)) else { return };
    let mut validity = PeerValidity::new(peer, chain, worker.plans(), identity);
    if let Some(why) = validity.dismissal() {
        return tracing::info!(peer = peer.name, %from, %why, "a peer was refused");
    }
    worker.ledger.showed(&peer.name, validity.until());
    let Some(peer_slot) = worker.tunnels.peer_limits.connect(peer) else {
        worker.ledger.excessive.add(1);
        // Some of the earlier connections may belong to a process that has ended.
        worker.tunnels.stale_connections.doubt(&peer.name);
        return tracing::warn!(
            peer = peer.name, %from, "a peer has too many connections: one more is refused"
        );
    };
    if let Err(error) = socket::equip(stream, peer) {
        return tracing::warn!(peer = peer.name, %error, "socket options could not be set for a tunnel over TCP");
    }
    let session = match time::timeout(PATIENCE, TcpSession::far(tls, peer)).await {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => {
            return tracing::info!(%from, %error, "an HTTP/2 session could not be opened");
        }
        Err(_late) => return tracing::info!(%from, "an HTTP/2 session was not opened in time"),
    };
    drop(slot);
    tracing::info!(peer = peer.name, %from, "a peer has connected over TCP");
    worker
        .tunnels
        .stale_connections
        .follow(&peer.name, stale_connections::PeerTransport::Tcp(session.doubt()));
    spawn_local(dismiss(session.clone(), validity));
    serve_session(worker, peer.clone(), session, peer_slot).await;
}

/// Closes a connection behind its last alert. A reset, which unread bytes would cause, could overtake the alert.
async fn let_alert_arrive(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut unread = [0; 1024];
    let drained = async { while matches!(stream.read(&mut unread).await, Ok(1..)) {} };
    let _ = time::timeout(LAST_WORDS, drained).await;
}

/// Closes a tunnel, and its flows with it, once its peer may not stay any more.
pub async fn dismiss(session: Rc<TcpSession>, validity: PeerValidity) {
    let name = validity.peer_name().to_owned();
    tokio::select! {
        why = validity.ends() => {
            tracing::warn!(peer = name, %why, "a tunnel over TCP is closed");
            session.close();
        }
        _ = session.gone() => {}
    }
}

async fn serve_session(
    worker: Rc<Worker>,
    peer: PeerPlan,
    session: Rc<TcpSession>,
    peer_slot: PeerSlot,
) {
    spawn_local({
        let (worker, name, session) = (worker.clone(), peer.name.clone(), session.clone());
        async move {
            let why = link::keeper::follow_tcp(&worker, &name, &session).await;
            tracing::info!(peer = name, %why, "a peer has disconnected");
            drop(peer_slot);
        }
    });
    spawn_local({
        let (worker, session) = (worker.clone(), session.clone());
        async move {
            tokio::select! {
                () = worker.tunnels.left() => session.leave(),
                _ = session.gone() => {}
            }
        }
    });
    let peer = Rc::new(peer);
    while let Some(stream) = session.asked().await {
        spawn_local(serve::serve(worker.clone(), peer.clone(), stream));
    }
}
