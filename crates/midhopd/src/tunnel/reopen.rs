//! Sockets of tunnels that fail are opened again, at growing intervals; meanwhile the daemon says that it is not well.

use super::{
    crowd::Crowd,
    fallback,
    identity::Identity,
    serve,
    shards::Shard,
    transport::{self, Sharing},
};
use crate::health::Fault;
use crate::worker::Worker;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time;

/// Between two attempts: at first, and at most.
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
    /// None yet; `what` it is.
    pub fn not(what: String) -> Self {
        Self { what, pause: PAUSE_FIRST, fault: None }
    }

    /// It has failed, or cannot be opened: says so and waits until it may be tried again.
    pub async fn rest(&mut self, worker: &Worker, why: &dyn fmt::Display) {
        self.tell(worker, why);
        time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MOST);
    }

    /// It has failed: says so.
    pub fn tell(&mut self, worker: &Worker, why: &dyn fmt::Display) {
        tracing::error!(what = self.what, %why, "a socket has failed");
        // The old one, if there is any, goes first: it would take the new one's name with it.
        self.fault = None;
        self.fault = Some(worker.health.fault(&self.what, why));
    }

    /// It is there. Should it fail at once, the intervals go on growing.
    pub fn is_back(&mut self) {
        if self.fault.take().is_some() {
            tracing::info!(what = self.what, "a socket is open again");
        }
    }
}

/// Serves peers that come over UDP, for ever.
pub async fn listen(
    worker: Rc<Worker>,
    address: SocketAddr,
    (socket, shard): (UdpSocket, Shard),
    crowd: Arc<Crowd>,
    identity: watch::Receiver<Arc<Identity>>,
) {
    // Each of an address's sockets fails by itself.
    let which =
        if shard.is_alone() { String::new() } else { format!(", worker {}", worker.number()) };
    let mut failed = FailedSocket::not(format!("tunnel.listen {address} (UDP{which})"));
    let sharing = if shard.is_alone() { Sharing::Nobody } else { Sharing::Others };
    let mut socket = Some(socket);
    loop {
        let why = match socket.take().map_or_else(|| transport::bind(address, sharing), Ok) {
            Ok(socket) => {
                failed.is_back();
                let own = (socket, shard.clone());
                let served = serve::listen(worker.clone(), own, crowd.clone(), identity.clone());
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

/// Serves peers that come over TCP, for ever.
pub async fn listen_tcp(
    worker: Rc<Worker>,
    address: SocketAddr,
    listener: TcpListener,
    crowd: Arc<Crowd>,
    identity: watch::Receiver<Arc<Identity>>,
) {
    let mut failed = FailedSocket::not(format!("tunnel.listen {address} (TCP)"));
    let mut listener = Some(listener);
    loop {
        let open = || fallback::socket::listen(address, &worker.plan().peers);
        let why = match listener.take().map_or_else(open, Ok) {
            Ok(listener) => {
                failed.is_back();
                let (crowd, identity) = (crowd.clone(), identity.clone());
                let served = fallback::door::listen(worker.clone(), listener, crowd, identity);
                served.await.err().unwrap_or_else(|| io::Error::other("its socket has failed"))
            }
            Err(error) => error,
        };
        failed.rest(&worker, &why).await;
    }
}

/// Lets go of the endpoint of a socket that has failed: while anybody has it, its address is taken.
pub fn forget(worker: &Worker, address: Option<SocketAddr>) {
    worker.endpoints.borrow_mut().retain(|endpoint| Some(endpoint.local_addr()) != address);
}

/// A socket by which this end goes to a peer.
///
/// # Errors
/// When there is none to be had.
pub fn towards(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any = if peer.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    transport::bind(SocketAddr::new(any, 0), Sharing::Nobody)
}
