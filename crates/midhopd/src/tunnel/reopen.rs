//! Opens failed sockets of tunnels again, at growing intervals. Meanwhile the daemon reports bad health.

use super::{
    fallback,
    handshake_limiter::HandshakeLimiter,
    serve,
    shards::Shard,
    transport::{self, Sharing},
};
use crate::worker::Worker;
use midhop_pki::identity::Identity;
use midhop_status::health::Fault;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time;

/// Pause between two attempts: the first, and the maximum.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MOST: Duration = Duration::from_secs(30);

/// A socket that has failed.
#[derive(Debug)]
pub struct FailedSocket {
    what: String,
    pause: Duration,
    fault: Option<Fault>,
}

impl FailedSocket {
    /// Creates it for `what`, which is not open yet.
    pub fn not(what: String) -> Self {
        Self { what, pause: PAUSE_FIRST, fault: None }
    }

    /// To be called when it has failed, or cannot be opened. Reports this, and waits until the next
    /// attempt.
    pub async fn rest(&mut self, worker: &Worker, why: &dyn fmt::Display) {
        self.report(worker, why);
        time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MOST);
    }

    /// To be called when it has failed. Reports this.
    pub fn report(&mut self, worker: &Worker, why: &dyn fmt::Display) {
        tracing::error!(what = self.what, %why, "a socket has failed");
        // The old report, if any, is dropped first. Otherwise it would remove the new one of the
        // same name.
        self.fault = None;
        self.fault = Some(worker.health.fault(&self.what, why));
    }

    /// To be called when it is open. If it fails at once, the intervals go on growing.
    pub fn is_back(&mut self) {
        if self.fault.take().is_some() {
            tracing::info!(what = self.what, "a socket is open again");
        }
    }
}

/// Serves peers that connect over UDP, for ever.
pub async fn listen(
    worker: Rc<Worker>,
    address: SocketAddr,
    (socket, shard): (UdpSocket, Shard),
    limiter: Arc<HandshakeLimiter>,
    identity: watch::Receiver<Arc<Identity>>,
) {
    let sharing = if shard.is_alone() { Sharing::Nobody } else { Sharing::Others };
    let mut failed = FailedSocket::not(name(&worker, address, "UDP", sharing));
    let mut socket = Some(socket);
    loop {
        let why = match socket.take().map_or_else(|| transport::bind(address, sharing), Ok) {
            Ok(socket) => {
                failed.is_back();
                let own = (socket, shard.clone());
                let served = serve::listen(worker.clone(), own, limiter.clone(), identity.clone());
                let served = served.await;
                served.err().unwrap_or_else(|| io::Error::other("its socket has failed"))
            }
            Err(error) => error,
        };
        if worker.is_stopping() {
            // Its socket was closed on purpose.
            return std::future::pending().await;
        }
        forget(&worker, Some(address));
        failed.rest(&worker, &why).await;
    }
}

/// Serves peers that connect over TCP, for ever.
pub async fn listen_tcp(
    worker: Rc<Worker>,
    address: SocketAddr,
    (listener, sharing): (TcpListener, Sharing),
    limiter: Arc<HandshakeLimiter>,
    identity: watch::Receiver<Arc<Identity>>,
) {
    let mut failed = FailedSocket::not(name(&worker, address, "TCP", sharing));
    let mut listener = Some(listener);
    loop {
        let open = || fallback::socket::listen(address, &worker.plan().peers, sharing);
        let why = match listener.take().map_or_else(open, Ok) {
            Ok(listener) => {
                failed.is_back();
                let (limiter, identity) = (limiter.clone(), identity.clone());
                let served = fallback::door::listen(worker.clone(), listener, limiter, identity);
                served.await.err().unwrap_or_else(|| io::Error::other("its socket has failed"))
            }
            Err(error) => error,
        };
        failed.rest(&worker, &why).await;
    }
}

/// The name of a worker's socket at an address. Sockets that share an address fail independently.
fn name(worker: &Worker, address: SocketAddr, protocol: &str, sharing: Sharing) -> String {
    match sharing {
        Sharing::Nobody => format!("tunnel.listen {address} ({protocol})"),
        _ => format!("tunnel.listen {address} ({protocol}, worker {})", worker.number()),
    }
}

/// Drops the endpoint of a failed socket: as long as it exists, its address is taken.
pub fn forget(worker: &Worker, address: Option<SocketAddr>) {
    worker.endpoints.borrow_mut().retain(|endpoint| Some(endpoint.local_addr()) != address);
}

/// Opens a socket to connect to a peer.
///
/// # Errors
/// When no socket can be opened.
pub fn towards(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any = if peer.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    transport::bind(SocketAddr::new(any, 0), Sharing::Nobody)
}
