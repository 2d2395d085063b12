//! One connection with its own endpoint, for simulations and tests: in virtual time, without encryption.

use super::batch::DatagramBatch;
use super::carrier::{Carrier, CarrierError, CarrierStats, Label, Opening};
use super::endpoint::{Endpoint, EndpointEvent};
use super::event::CarrierEvent;
use super::plaintext::Plaintext;
use crate::control::Pace;
use crate::peer;
use bytes::{Bytes, BytesMut};
use midhop_congestion::Settings;
use midhop_pep::config::{PeerPlan, Repair};
use midhop_units::{Instant, Seed};
use quinn_proto::{
    ClientConfig, ConnectionHandle, EcnCodepoint, EndpointConfig, ServerConfig, TransportConfig,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time;

/// Datagrams that leave at once, as by Linux's segmentation offload.
const BATCH_MAX: usize = 64;

/// A connection and its endpoint.
///
/// After each call, call [`poll_event`](Self::poll_event) and [`poll_datagram`](Self::poll_datagram) until they
/// return none, and call [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct Lone {
    endpoint: Endpoint,
    remote: SocketAddr,
    peer: PeerPlan,
    /// How an incoming connection is accepted; none: no connection is accepted, or one already was.
    welcome: Option<(Arc<ServerConfig>, Pace)>,
    connection: State,
    batch: DatagramBatch,
    /// Datagrams of a batch that were not returned yet.
    left: VecDeque<Bytes>,
}

/// The state of the connection.
#[derive(Debug)]
enum State {
    Awaited,
    Open(ConnectionHandle),
    Gone(Box<Carrier>),
}

impl Lone {
    /// The end that connects to a peer at `remote`, beginning at `epoch`, which is [`Instant::START`]. `seed` fixes
    /// QUIC's random choices.
    ///
    /// # Errors
    /// When its congestion control cannot be built, or the peer has no name.
    pub fn connect(
        peer: &PeerPlan,
        remote: SocketAddr,
        (epoch, seed): (time::Instant, Seed),
    ) -> Result<Self, CarrierError> {
        let (transport, pace) = transport(peer, remote, seed)?;
        let mut config = ClientConfig::new(Arc::new(Plaintext));
        config.transport_config(Arc::new(transport));
        let mut endpoint = endpoint(None, (epoch, seed));
        let now = Instant::START;
        let handle = endpoint.connect(now, peer, remote, (config, pace), opening(peer))?;
        let connection = State::Open(handle);
        Ok(Self::new(endpoint, remote, peer, None, connection))
    }

    /// The end that accepts a connection from the peer at `remote`.
    ///
    /// # Errors
    /// When its congestion control cannot be built.
    pub fn listen(
        peer: &PeerPlan,
        remote: SocketAddr,
        (epoch, seed): (time::Instant, Seed),
    ) -> Result<Self, CarrierError> {
        let (transport, pace) = transport(peer, remote, seed)?;
        let mut config = ServerConfig::with_crypto(Arc::new(Plaintext));
        config.transport_config(Arc::new(transport));
        let config = Arc::new(config);
        let endpoint = endpoint(Some(config.clone()), (epoch, seed));
        Ok(Self::new(endpoint, remote, peer, Some((config, pace)), State::Awaited))
    }

    fn new(
        endpoint: Endpoint,
        remote: SocketAddr,
        peer: &PeerPlan,
        welcome: Option<(Arc<ServerConfig>, Pace)>,
        connection: State,
    ) -> Self {
        let (batch, left) = (DatagramBatch::new(BATCH_MAX), VecDeque::new());
        Self { endpoint, remote, peer: peer.clone(), welcome, connection, batch, left }
    }

    /// The connection.
    ///
    /// # Panics
    /// Before the peer has connected.
    pub fn carrier(&mut self) -> &mut Carrier {
        let carrier = match &mut self.connection {
            State::Awaited => None,
            State::Open(handle) => self.endpoint.carrier_mut(*handle),
            State::Gone(carrier) => Some(&mut **carrier),
        };
        carrier.unwrap_or_else(|| unreachable!("the peer has not come"))
    }

    /// The counters of the connection.
    pub fn stats(&self) -> CarrierStats {
        let carrier = match &self.connection {
            State::Awaited => None,
            State::Open(handle) => self.endpoint.carrier(*handle),
            State::Gone(carrier) => Some(&**carrier),
        };
        carrier.map_or_else(CarrierStats::default, Carrier::stats)
    }

    /// Takes a datagram received from the peer; `marked` if the path reports congestion (ECN: CE).
    pub fn handle_datagram(&mut self, now: Instant, datagram: Bytes, marked: bool) {
        let label = Label { ecn: marked.then_some(EcnCodepoint::Ce), ..Label::of(self.remote) };
        let size = datagram.len();
        self.endpoint.handle_datagrams(now, BytesMut::from(datagram), size, label);
    }

    /// Handles timeouts that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
    }

    /// When to call [`Lone::handle_timeout`] and to poll for datagrams again.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.endpoint.poll_timeout()
    }

    /// The next event.
    pub fn poll_event(&mut self, now: Instant) -> Option<CarrierEvent> {
        loop {
            match self.endpoint.poll_event()? {
                EndpointEvent::Incoming(incoming) => {
                    let Some(welcome) = self.welcome.take() else {
                        self.endpoint.ignore(*incoming);
                        continue;
                    };
                    let may_repair = self.peer.repair != Repair::Off;
                    let accepted = self.endpoint.accept(now, *incoming, welcome, may_repair);
                    let Ok(handle) = accepted else { continue };
                    self.connection = State::Open(handle);
                    let opening = opening(&self.peer);
                    if let Some(carrier) = self.endpoint.carrier_mut(handle) {
                        carrier.begin(now, &self.peer, opening);
                    }
                }
                EndpointEvent::Carrier(_, event) => return Some(event),
                EndpointEvent::Drained(_, carrier) => self.connection = State::Gone(carrier),
            }
        }
    }

    /// The next datagram that may leave.
    pub fn poll_datagram(&mut self, now: Instant) -> Option<Bytes> {
        if self.left.is_empty() && self.endpoint.poll_batch(now, &mut self.batch) {
            self.left.extend(self.batch.datagrams().map(Bytes::copy_from_slice));
            self.batch.clear();
        }
        self.left.pop_front()
    }
}

fn opening(peer: &PeerPlan) -> Opening {
    Opening { initial: peer.flow_window.get(), wants_backlog: false, by_frames: false }
}

fn transport(
    peer: &PeerPlan,
    remote: SocketAddr,
    seed: Seed,
) -> Result<(TransportConfig, Pace), CarrierError> {
    let repaired = peer.repair != Repair::Off;
    let settings = Settings { seed: seed.derive("congestion"), ..peer::congestion(peer) };
    let (config, steering) = peer::transport(peer, remote.is_ipv6(), repaired, settings)?;
    Ok((config, steering.pace()))
}

fn endpoint(server: Option<Arc<ServerConfig>>, (epoch, seed): (time::Instant, Seed)) -> Endpoint {
    let mut own = EndpointConfig::default();
    // That bit distinguishes QUIC from the datagrams of the shim.
    own.grease_quic_bit(false);
    Endpoint::new(Arc::new(own), server, epoch, Some(random_seed(seed)))
}

/// The seed of QUIC's random numbers.
fn random_seed(seed: Seed) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (part, name) in bytes.chunks_mut(8).zip(["quic-0", "quic-1", "quic-2", "quic-3"]) {
        part.copy_from_slice(&seed.derive(name).0.to_be_bytes());
    }
    bytes
}
