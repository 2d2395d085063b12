//! Flows through a tunnel to another proxy: HTTP/3 CONNECT on one QUIC connection per peer.
//!
//! Near the client, a rule names a peer. [`open`] requests a flow from its tunnel, the response is the far side's,
//! and the bytes are relayed ([`relay`]). Near the server, a peer requests a flow ([`serve`]), and this daemon
//! judges, dials and responds. [`link`] holds the tunnels that this daemon opens, [`Identity`] decides who may
//! connect, and [`transport`] configures QUIC for a peer's leg. [`quic`] drives the machine that divides its window
//! among flows, sends datagrams at the leg's pace and repairs the leg's losses. Where UDP does not pass, [`fallback`]
//! uses HTTP/2 on TCP instead, whose flows take turns by [`scheduling`]. [`carrier`] is what both have in common for
//! a stream.
//!
//! Peers connect to all workers: each has sockets of its own at each address, for UDP ([`shards`]) and for TCP, and a
//! connection stays with the worker that admitted it.
//!
//! [`peer_limits`] counts the flows and connections of each peer, and [`peer_validity`] closes the tunnels of peers that may
//! not stay.
//!
//! Invariant: a tunnel belongs to one worker, and all of its flows live there. A flow that another worker took is
//! handed over before its first byte is moved. A flow that goes from one tunnel into the next ([`chain`]) lives with
//! the one that it arrived by, and uses the endpoint of another worker under its lock ([`quic`]).

pub mod carrier;
pub mod carrier_rates;
pub mod carry;
pub mod chain;
mod coalescing;
pub mod directory;
pub mod error_mapping;
pub mod fallback;
pub mod handshake_limiter;
pub mod link;
pub mod modem;
mod number;
pub mod opened;
pub mod peer_limits;
pub mod peer_validity;
pub mod quic;
mod refusal;
pub mod relay;
pub mod reopen;
pub mod reorder;
pub mod reported;
pub mod resumable_flows;
pub mod resume;
pub mod scheduling;
pub mod serve;
pub mod session;
pub mod shards;
pub mod silence;
pub mod stale_connections;
pub mod stream;
pub mod transport;
mod warnings;
pub mod windows;

use crate::flow::Flow;
use crate::relocation::mover;
use crate::worker::Worker;
use carry::{begin, carry_asked, open};
use directory::{OpeningTunnel, TunnelEntrance, TunnelOrder, Tunnels, Until};
use handshake_limiter::HandshakeLimiter;
use midhop_pep::config::{Fallback, Plan};
use midhop_pki::identity::Identity;
use midhop_tunnel::http3::Code;
use shards::{Shard, Shards};
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_local;
use tokio::time;
use transport::Sharing;

/// One worker's part of all tunnels.
#[derive(Debug, Default)]
pub struct TunnelDoors {
    /// The tunnels that it opens.
    links: Vec<(link::keeper::LinkKeeper, UnboundedReceiver<TunnelOrder>)>,
    /// Tunnels to open later, and the identity for them.
    later: Option<(UnboundedReceiver<OpeningTunnel>, watch::Receiver<Arc<Identity>>)>,
    /// UDP sockets to which peers connect.
    sockets: Vec<Door<(UdpSocket, Shard)>>,
    /// TCP listeners for peers that cannot use UDP.
    listeners: Vec<Door<(TcpListener, Sharing)>>,
}

/// One worker's part of an address to which peers connect.
#[derive(Debug)]
struct Door<S> {
    address: SocketAddr,
    socket: S,
    limiter: Arc<HandshakeLimiter>,
    identity: watch::Receiver<Arc<Identity>>,
}

/// Binds the addresses of the plan's tunnels, and divides them among `workers`.
///
/// # Errors
/// The address that cannot be bound, with the reason.
pub fn doors(
    plan: &Plan,
    identity: Option<&watch::Receiver<Arc<Identity>>>,
    workers: usize,
) -> Result<(Tunnels, Vec<TunnelDoors>), (SocketAddr, io::Error)> {
    let mut doors: Vec<TunnelDoors> = (0..workers.max(1)).map(|_| TunnelDoors::default()).collect();
    let mut tunnels = Tunnels::default();
    let Some(identity) = identity else { return Ok((tunnels, doors)) };
    let keys = transport::keys(&identity.borrow());
    for address in &plan.tunnel.listen {
        let (address, count) = (*address, doors.len());
        let failed = |error| (address, error);
        if plan.tunnel.fallback != Fallback::Only {
            let limiter = Arc::<HandshakeLimiter>::default();
            let sockets = transport::bind_shards(address, count).map_err(failed)?;
            let sockets = sockets.into_iter().zip(Shards::divide(keys, count));
            for (own, socket) in doors.iter_mut().zip(sockets) {
                let (limiter, identity) = (limiter.clone(), identity.clone());
                own.sockets.push(Door { address, socket, limiter, identity });
            }
        }
        if plan.tunnel.fallback != Fallback::Off {
            let limiter = Arc::<HandshakeLimiter>::default();
            let listeners = fallback::socket::listen_shards(address, &plan.peers, count);
            for (own, listener) in doors.iter_mut().zip(listeners.map_err(failed)?) {
                let (limiter, identity) = (limiter.clone(), identity.clone());
                let sharing = if count < 2 { Sharing::Nobody } else { Sharing::Others };
                let socket = (listener, sharing);
                own.listeners.push(Door { address, socket, limiter, identity });
            }
        }
    }
    for door in &mut doors {
        let (sender, receiver) = mpsc::unbounded_channel();
        tunnels.openings.push(sender);
        door.later = Some((receiver, identity.clone()));
    }
    let mut entrances = Vec::new();
    // From the other end, so that a daemon that both opens and accepts tunnels uses more than one thread.
    for (number, peer) in plan.peers.iter().rev().enumerate() {
        let Some(address) = peer.address else { continue };
        let at = doors.len() - 1 - number % doors.len();
        let socket = Some(reopen::towards(address).map_err(|error| (address, error))?);
        let (sender, receiver) = mpsc::unbounded_channel();
        entrances.push(TunnelEntrance { peer: peer.clone(), orders: sender });
        let peer = peer.clone();
        let keeper = link::keeper::LinkKeeper { peer, address, socket, identity: identity.clone() };
        doors[at].links.push((keeper, receiver));
    }
    tunnels.entrances = RwLock::new(entrances);
    Ok((tunnels, doors))
}

impl TunnelDoors {
    /// Serves them on the worker's thread until it stops.
    pub fn serve(self, worker: &Rc<Worker>) {
        for (keeper, orders) in self.links {
            keep(worker, keeper, orders);
        }
        if let Some((mut later, identity)) = self.later {
            let opener = worker.clone();
            worker.health.keep("opening tunnels", async move {
                while let Some(OpeningTunnel { peer, address, orders }) = later.recv().await {
                    let identity = identity.clone();
                    keep(
                        &opener,
                        link::keeper::LinkKeeper { peer, address, socket: None, identity },
                        orders,
                    );
                }
            });
        }
        for Door { address, socket, limiter, identity } in self.sockets {
            let serves = reopen::listen(worker.clone(), address, socket, limiter, identity);
            worker.health.keep("serving peers", serves);
        }
        for Door { address, socket, limiter, identity } in self.listeners {
            let serves = reopen::listen_tcp(worker.clone(), address, socket, limiter, identity);
            worker.health.keep("serving peers over TCP", serves);
        }
    }
}

/// Keeps a tunnel open as long as someone may send it orders.
fn keep(
    worker: &Rc<Worker>,
    keeper: link::keeper::LinkKeeper,
    orders: UnboundedReceiver<TunnelOrder>,
) {
    let name = keeper.peer.name.clone();
    let (ending, end) = oneshot::channel::<Infallible>();
    let (link, keep) = keeper.begin(worker.clone(), async { drop(end.await) });
    worker.links.borrow_mut().insert(name.clone(), link.clone());
    // Both end once the tunnel is not configured any more.
    worker.health.start("keeping a tunnel", keep);
    let opener = worker.clone();
    worker.health.start("asking for flows", async move {
        let worker = opener;
        follow(worker.clone(), link.clone(), orders).await;
        let mut links = worker.links.borrow_mut();
        // A newer tunnel of the same name may have taken its place.
        if links.get(&name).is_some_and(|kept| kept.is(&link)) {
            links.remove(&name);
        }
        drop(ending);
    });
}

/// Announces to all peers that this end closes. They need not respond.
pub async fn close(endpoints: &[quic::QuicEndpoint], fallbacks: &[Rc<fallback::TcpSession>]) {
    /// Enough for the last packets to leave this host.
    const MOMENT: Duration = Duration::from_millis(20);
    fallback::session::close(fallbacks).await;
    if endpoints.iter().all(|endpoint| endpoint.open_connections() == 0) {
        return;
    }
    for endpoint in endpoints {
        endpoint.close(Code::NO_ERROR);
    }
    time::sleep(MOMENT).await;
}

/// Executes other threads' orders for a tunnel.
async fn follow(worker: Rc<Worker>, link: link::Link, mut orders: UnboundedReceiver<TunnelOrder>) {
    while let Some(order) = orders.recv().await {
        let (worker, link) = (worker.clone(), link.clone());
        spawn_local(async move {
            match order {
                TunnelOrder::Open { request, until, answer } => {
                    let opened = match until {
                        Until::Asked => begin(&worker.plan(), &link, &request).await,
                        Until::Answered => open(&worker.plan(), &link, &request).await,
                    };
                    // The requester may be gone: then the stream is dropped, and so reset.
                    let _ = answer.send(opened);
                }
                TunnelOrder::Live(packed) => match Flow::unpack(&worker, *packed) {
                    Ok(flow) => flow.spawn(),
                    Err(error) => {
                        tracing::warn!(%error, "a flow could not be moved to this worker");
                    }
                },
                TunnelOrder::Move(order) => Box::pin(mover::carry_out(worker, link, *order)).await,
                TunnelOrder::Carry(asked) => {
                    if let Err(error) = carry_asked(&worker, *asked) {
                        tracing::warn!(%error, "a flow could not be moved to this worker");
                    }
                }
            }
        });
    }
}
