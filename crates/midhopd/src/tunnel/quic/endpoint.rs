//! An endpoint, as tasks use it: connects to peers, and admits peers that connect.

use super::connection::QuicConnection;
use super::driver::Driver;
use super::state::{EndpointShared, wake};
use crate::ledger::Ledger;
use crate::tunnel::shards::Shard;
use midhop_pep::config::PeerPlan;
use midhop_tunnel::control::Pace;
use midhop_tunnel::http3::Code;
use midhop_tunnel::quic::{CarrierError, Endpoint, Opening};
use quinn_proto::{ClientConfig, EndpointConfig, ServerConfig};
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::task::Poll;
use tokio::task::spawn_local;
use tokio::time;

/// An endpoint, and the socket that it is on.
#[derive(Debug, Clone)]
pub struct QuicEndpoint {
    shared: Arc<EndpointShared>,
    address: SocketAddr,
}

impl QuicEndpoint {
    /// Creates an endpoint on `socket`, driven by a task of this thread from now on. Received datagrams are counted
    /// in `ledger`.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn open(
        socket: UdpSocket,
        config: EndpointConfig,
        server: Option<ServerConfig>,
        shard: Shard,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        let (address, epoch) = (socket.local_addr()?, time::Instant::now());
        let server = server.map(Arc::new);
        let machine = Endpoint::new(Arc::new(config), server, epoch.into_std(), None);
        let shared = EndpointShared::new(machine, epoch);
        let endpoint = Self { shared: shared.clone(), address };
        shard.open(&endpoint);
        let driver = Driver::new(shared, socket, shard, ledger)?;
        spawn_local(driver.run());
        Ok(endpoint)
    }

    /// A weak reference for others.
    pub fn downgrade(&self) -> std::sync::Weak<EndpointShared> {
        Arc::downgrade(&self.shared)
    }

    /// Its address.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Begins a connection to a peer.
    ///
    /// # Errors
    /// When none can be made.
    pub fn connect(
        &self,
        peer: &PeerPlan,
        remote: SocketAddr,
        (config, pace): (ClientConfig, Pace),
        opening: Opening,
    ) -> Result<QuicConnection, CarrierError> {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        let handle = state.endpoint.connect(now, peer, remote, (config, pace), opening)?;
        let connection = QuicConnection::new(&self.shared, &mut state, handle);
        drop(state);
        self.shared.call();
        Ok(connection)
    }

    /// Waits for an incoming connection. None: no more are admitted.
    pub async fn accept(&self) -> Option<Incoming> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Some(incoming) = state.incoming.pop_front() {
                let shared = self.shared.clone();
                return Poll::Ready(Some(Incoming { shared, incoming: Some(incoming) }));
            }
            if state.is_closed {
                return Poll::Ready(None);
            }
            state.acceptor = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Number of connections.
    pub fn open_connections(&self) -> usize {
        self.shared.lock().endpoint.connections()
    }

    /// Closes all connections, and admits no more.
    pub fn close(&self, code: Code) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.is_closed = true;
        wake(&mut state.acceptor);
        state.close_all(now, code);
        drop(state);
        self.shared.call();
    }

    /// Waits until there is no connection.
    pub async fn wait_idle(&self) {
        let idle = self.shared.lock().idle.clone();
        let notified = idle.notified();
        tokio::pin!(notified);
        // Notifications from here on are not missed.
        notified.as_mut().enable();
        if self.open_connections() > 0 && !self.has_failed() {
            notified.await;
        }
    }

    /// Whether its socket cannot be used any more: another one has to be opened.
    pub fn has_failed(&self) -> bool {
        *self.shared.failed.borrow()
    }

    /// Waits until it cannot be used any more.
    pub async fn failed(&self) {
        let mut failed = self.shared.failed.subscribe();
        // The sender is owned by the same value.
        let _ = failed.wait_for(|failed| *failed).await;
    }

    /// It cannot be used any more, or is not used any more.
    pub fn fail(&self) {
        self.shared.fail();
    }
}

/// An incoming connection. If it is dropped, it gets no response.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<EndpointShared>,
    incoming: Option<midhop_tunnel::quic::Incoming>,
}

impl Incoming {
    /// Address of the client.
    pub fn remote_address(&self) -> SocketAddr {
        let nowhere = SocketAddr::from(([0; 4], 0));
        self.incoming.as_ref().map_or(nowhere, midhop_tunnel::quic::Incoming::remote_address)
    }

    /// Whether the client has proven its address.
    pub fn remote_address_validated(&self) -> bool {
        self.incoming.as_ref().is_some_and(midhop_tunnel::quic::Incoming::remote_address_validated)
    }

    /// Accepts it. The connection waits for [`QuicConnection::begin`] once it is
    /// [connected](QuicConnection::connected).
    ///
    /// # Errors
    /// When the connection cannot be made.
    pub fn accept(
        mut self,
        (config, pace): (ServerConfig, Pace),
        may_repair: bool,
    ) -> Result<QuicConnection, CarrierError> {
        let gone = CarrierError::Accept(midhop_tunnel::quic::ConnectionError::LocallyClosed);
        let incoming = self.incoming.take().ok_or(gone)?;
        let now = self.shared.now();
        let mut state = self.shared.lock();
        let config = (Arc::new(config), pace);
        let accepted = state.endpoint.accept(now, incoming, config, may_repair);
        let accepted = accepted.map(|it| QuicConnection::new(&self.shared, &mut state, it));
        drop(state);
        self.shared.call();
        accepted
    }

    /// Refuses it, and sends the refusal.
    pub fn refuse(mut self) {
        if let Some(incoming) = self.incoming.take() {
            self.shared.lock().endpoint.refuse(incoming);
            self.shared.call();
        }
    }

    /// Sends no response.
    pub fn ignore(self) {}

    /// Requests a proof of its address. A client that has proven it already gets no response.
    pub fn retry(mut self) {
        if let Some(incoming) = self.incoming.take() {
            let mut state = self.shared.lock();
            if let Err(refused) = state.endpoint.retry(incoming) {
                state.endpoint.ignore(refused.into_incoming());
            }
            drop(state);
            self.shared.call();
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            self.shared.lock().endpoint.ignore(incoming);
        }
    }
}
