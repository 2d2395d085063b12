//! The tunnels of all workers, and the orders that one thread sends to the thread that owns a tunnel.

use super::error_mapping::NoFlow;
use super::stream::Stream;
use super::{
    carrier_rates, opened, peer_limits, reorder, reported, resumable_flows, stale_connections,
    warnings, windows,
};
use crate::admission::Ticket;
use crate::ends::Ends;
use crate::flow::packed::Packed;
use crate::ledger::Party;
use crate::relocation::order::{MoveOrder, STREAMS};
use crate::relocation::waiting::WaitingPackets;
use bytes::Bytes;
use midhop_lookup::PendingLookups;
use midhop_pep::config::PeerPlan;
use midhop_tunnel::connect::Request;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// Shared by all threads.
#[derive(Debug, Default)]
pub struct Tunnels {
    pub(super) entrances: RwLock<Vec<TunnelEntrance>>,
    /// Sends each worker the tunnels that a reload adds. None where there is no identity for them.
    pub(super) openings: Vec<UnboundedSender<OpeningTunnel>>,
    /// The connections and flows that peers have open here.
    pub peer_limits: Arc<peer_limits::PeerLimits>,
    /// The names that are being looked up.
    pub lookups: Arc<PendingLookups>,
    /// Whether peers should send no more requests.
    pub(super) left: watch::Sender<bool>,
    /// Warnings that were logged lately.
    pub(super) warnings: warnings::Warnings,
    /// The connections by which peers have connected.
    pub stale_connections: stale_connections::StaleConnections,
    /// Bytes of their streams that wait for earlier ones.
    pub rooms: reorder::Rooms,
    /// The QUIC windows of connected peers.
    pub windows: Arc<windows::Windows>,
    /// How the carriers of a tunnel divide its rate.
    pub carrier_rates: Arc<carrier_rates::CarrierRates>,
    /// What modems report of the links to peers.
    pub reported: reported::ReportedRates,
    /// Flows that outlive their carriers.
    pub resumable_flows: Arc<resumable_flows::ResumableFlows>,
    /// Flows that leave from here for peers.
    pub opened: opened::Opened,
    /// Places for peers that move flows here.
    pub relocations: RelocationPlaces,
    /// The packets of such flows that wait.
    pub waiting: WaitingPackets,
}

/// The most streams at a time by which peers move flows here: twice as many as one of them uses.
const RELOCATIONS: usize = 2 * STREAMS;

/// Places for streams by which peers move flows here.
#[derive(Debug, Clone)]
pub struct RelocationPlaces(Arc<Semaphore>);

impl Default for RelocationPlaces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(RELOCATIONS)))
    }
}

impl RelocationPlaces {
    /// Takes a place until the returned value is dropped.
    pub fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}

#[derive(Debug)]
pub(super) struct TunnelEntrance {
    pub(super) peer: PeerPlan,
    /// The tunnel is kept as long as this exists.
    pub(super) orders: UnboundedSender<TunnelOrder>,
}

/// A tunnel that a worker is to open from now on.
#[derive(Debug)]
pub struct OpeningTunnel {
    pub(super) peer: PeerPlan,
    pub(super) address: SocketAddr,
    pub(super) orders: UnboundedReceiver<TunnelOrder>,
}

/// An order to the thread that owns a tunnel.
#[derive(Debug)]
pub(super) enum TunnelOrder {
    /// Opens a flow.
    Open { request: Request, until: Until, answer: oneshot::Sender<Result<Stream, NoFlow>> },
    /// A client has been accepted.
    Live(Box<Packed>),
    /// A client has requested the proxy, and both of its sides are open.
    Carry(Box<RequestedFlow>),
    /// Flows are to move to the peer.
    Move(Box<MoveOrder>),
}

/// How far a flow is opened for another thread.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    /// Until the request is sent.
    Asked,
    /// Until the far side has responded.
    Answered,
}

/// A flow that a client requested, whose far side is a stream.
#[derive(Debug)]
pub struct RequestedFlow {
    /// The client.
    pub client: std::net::TcpStream,
    /// The leg that it is on.
    pub client_leg: Party,
    /// The peer at the other end of its tunnel.
    pub peer: String,
    /// The client's bytes after its request.
    pub first: Bytes,
    /// The far side.
    pub stream: Stream,
    /// Its addresses.
    pub ends: Ends,
    /// The rule that decided, from 0.
    pub rule: Option<usize>,
    /// Its place.
    pub ticket: Ticket,
}

impl Tunnels {
    /// Keeps tunnels open to `peers`, and to no others. A tunnel to a peer whose table has changed
    /// is opened anew.
    pub fn follow(&self, peers: &[PeerPlan]) {
        let mut entrances = self.entrances.write().unwrap_or_else(PoisonError::into_inner);
        entrances.retain(|kept| peers.iter().any(|peer| peer.is_written_as(&kept.peer)));
        for (number, peer) in peers.iter().enumerate() {
            let Some(address) = peer.address else { continue };
            if entrances.iter().any(|kept| kept.peer.name == peer.name) {
                continue;
            }
            let Some(opening) = self.openings.get(number % self.openings.len().max(1)) else {
                continue;
            };
            let (sender, orders) = mpsc::unbounded_channel();
            // If the worker has ended, the daemon has ended, too.
            if opening.send(OpeningTunnel { peer: peer.clone(), address, orders }).is_ok() {
                entrances.push(TunnelEntrance { peer: peer.clone(), orders: sender });
            }
        }
    }

    /// Announces to all peers that they should send no more requests. Their flows go on.
    pub fn leave(&self) {
        self.left.send_replace(true);
    }

    /// Whether this has been announced.
    pub fn are_left(&self) -> bool {
        *self.left.borrow()
    }

    /// Waits for that announcement.
    pub async fn left(&self) {
        let mut left = self.left.subscribe();
        // The sender is owned by the same value.
        let _ = left.wait_for(|left| *left).await;
    }

    /// Requests a flow from the tunnel to `peer`, and waits for the far side's response.
    ///
    /// # Errors
    /// The far side's refusal, or that there is no tunnel.
    pub async fn open(&self, peer: &str, request: Request) -> Result<Stream, NoFlow> {
        self.order(peer, request, Until::Answered).await
    }

    /// Requests a flow from the tunnel to `peer` whose response arrives with its first bytes.
    ///
    /// # Errors
    /// When there is no tunnel: nothing has been requested then.
    pub async fn begin(&self, peer: &str, request: Request) -> Result<Stream, NoFlow> {
        self.order(peer, request, Until::Asked).await
    }

    async fn order(&self, peer: &str, request: Request, until: Until) -> Result<Stream, NoFlow> {
        let none = || NoFlow::Unavailable(format!("there is no tunnel to {peer}"));
        let (answer, answered) = oneshot::channel();
        let order = TunnelOrder::Open { request, until, answer };
        self.orders(peer).ok_or_else(none)?.send(order).map_err(|_| none())?;
        answered.await.unwrap_or_else(|_| Err(none()))
    }

    /// Hands a flow to the worker that owns the tunnel to `peer`.
    ///
    /// # Errors
    /// The flow itself, if there is none.
    pub fn live(&self, peer: &str, flow: Box<Packed>) -> Result<(), Box<Packed>> {
        let Some(orders) = self.orders(peer) else { return Err(flow) };
        // If the data plane has ended, the flow ends with it.
        let _ = orders.send(TunnelOrder::Live(flow));
        Ok(())
    }

    /// Hands a flow whose two sides are open to the worker that owns its tunnel.
    ///
    /// # Errors
    /// When the data plane has ended.
    pub fn carry(&self, asked: RequestedFlow) -> io::Result<()> {
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the data plane has ended");
        let orders = self.orders(&asked.peer);
        let order = TunnelOrder::Carry(Box::new(asked));
        orders.ok_or_else(ended)?.send(order).map_err(|_| ended())
    }

    /// Has flows moved to the peer of a tunnel.
    ///
    /// # Errors
    /// The order itself, if this daemon opens no tunnel to that peer.
    pub fn relocate(&self, order: Box<MoveOrder>) -> Result<(), Box<MoveOrder>> {
        let Some(orders) = self.orders(&order.peer) else { return Err(order) };
        // If the data plane has ended, so has who asked.
        let _ = orders.send(TunnelOrder::Move(order));
        Ok(())
    }

    fn orders(&self, peer: &str) -> Option<UnboundedSender<TunnelOrder>> {
        let entrances = self.entrances.read().unwrap_or_else(PoisonError::into_inner);
        let entrance = entrances.iter().find(|entrance| entrance.peer.name == peer);
        entrance.map(|entrance| entrance.orders.clone())
    }
}
