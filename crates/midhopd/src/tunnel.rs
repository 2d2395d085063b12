//! Flows through a tunnel to another proxy: HTTP/3 CONNECT on one QUIC connection per peer.
//!
//! Near the client: a rule names a peer → [`open`] asks its tunnel for a flow → the answer is the far
//! side's → the bytes are relayed ([`relay`]). Near the server: a peer asks ([`serve`]), this daemon
//! judges, dials and answers. [`link`] holds the tunnels that we open, [`identity`] says who may come,
//! [`transport`] sets QUIC up for a peer's leg, [`scheduling`] divides its window among flows, and [`socket`]
//! lets its datagrams go at the leg's pace and repairs what the leg loses. Where UDP does not pass [`fallback`]
//! has HTTP/2 on TCP instead; [`carrier`] is what of a stream is either's.
//!
//! Peers come to all workers: each has a socket of its own at each address ([`shards`]), and a connection stays with
//! the worker that let it in.
//!
//! [`guests`] counts what each peer has open, and [`standing`] closes the tunnels of those who may not stay.
//!
//! Invariant: a tunnel belongs to one worker, and all of its flows live there. A flow that another worker
//! took is handed over before its first byte is moved; no lock is taken on the way of a byte. A flow that goes
//! from one tunnel into the next ([`chain`]) lives with the one that it came by.

pub mod arrivals;
pub mod carrier;
pub mod chain;
pub mod credit;
pub mod crowd;
mod drivers;
pub mod earlier;
pub mod fallback;
mod gathering;
pub mod guests;
pub mod identity;
pub mod lane;
mod lanes;
pub mod link;
pub mod opened;
pub mod paces;
pub mod relay;
pub mod reopen;
pub mod reorder;
pub mod revoked;
pub mod scheduling;
pub mod serve;
pub mod session;
pub mod shards;
pub mod silence;
pub mod socket;
pub mod standing;
pub mod stream;
pub mod told;
pub mod transport;
pub mod windows;

use crate::admission::Ticket;
use crate::close;
use crate::flow::{Ends, Flow, Packed, Side};
use crate::ledger::{FlowBook, Party};
use crate::leg::{self, Sample};
use crate::lookup;
use crate::worker::Worker;
use bytes::Bytes;
use crowd::Crowd;
pub use identity::{Doubt, Identity, IdentityError};
use midhop_pep::config::{Fallback, PeerPlan, Plan};
use midhop_pep::source;
use midhop_tunnel::{connect::Request, http3::Code};
use quinn::VarInt;
use shards::{Shard, Shards};
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use stream::Stream;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_local;
use tokio::time;
use told::NoFlow;

/// The tunnels of all workers, as each of them reaches them.
#[derive(Debug, Default)]
pub struct Tunnels {
    entrances: RwLock<Vec<Entrance>>,
    /// Where each worker is given the tunnels that a reload adds; none where there is no identity for them.
    openings: Vec<UnboundedSender<OpeningTunnel>>,
    /// What peers have open here.
    pub guests: Arc<guests::Guests>,
    /// The names that are being looked up.
    pub lookups: Arc<lookup::PendingLookups>,
    /// Whether peers are to ask for nothing more.
    left: watch::Sender<bool>,
    /// By what peers have come.
    pub earlier: earlier::Earlier,
    /// What waits of their streams.
    pub rooms: reorder::Rooms,
    /// What QUIC may hold for those that have come.
    pub windows: Arc<windows::Windows>,
    /// How the carriers of a tunnel divide its rate.
    pub paces: Arc<paces::Paces>,
    /// Flows that leave from here for peers.
    pub opened: opened::Opened,
}

#[derive(Debug)]
struct Entrance {
    peer: PeerPlan,
    /// The tunnel is kept for as long as this is there.
    orders: UnboundedSender<Order>,
}

/// A tunnel that a worker is to open from now on.
#[derive(Debug)]
pub struct OpeningTunnel {
    peer: PeerPlan,
    address: SocketAddr,
    orders: UnboundedReceiver<Order>,
}

/// What a thread asks of the one that owns a tunnel.
#[derive(Debug)]
enum Order {
    /// A flow is wanted.
    Open { request: Request, until: Until, answer: oneshot::Sender<Result<Stream, NoFlow>> },
    /// A client has been accepted.
    Live(Box<Packed>),
    /// A client asked for the proxy, and both of its sides are open.
    Carry(Box<RequestedFlow>),
}

/// Up to when a flow is opened for somebody else.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// The far side has been asked.
    Asked,
    /// The far side has answered.
    Answered,
}

/// A flow that a client asked for, whose far side is a stream.
#[derive(Debug)]
pub struct RequestedFlow {
    /// The client.
    pub client: std::net::TcpStream,
    /// The leg that it is on.
    pub client_leg: Party,
    /// The peer at the other end of its tunnel.
    pub peer: String,
    /// What it said behind its request.
    pub first: Bytes,
    /// The far side.
    pub stream: Stream,
    /// Its addresses.
    pub ends: Ends,
    /// Its place.
    pub ticket: Ticket,
}

/// One worker's part of all tunnels.
#[derive(Debug, Default)]
pub struct TunnelDoors {
    /// Those that it opens.
    links: Vec<(link::LinkKeeper, UnboundedReceiver<Order>)>,
    /// Those that it is to open later, and as whom.
    later: Option<(UnboundedReceiver<OpeningTunnel>, watch::Receiver<Arc<Identity>>)>,
    /// Where peers come.
    sockets: Vec<Door<(UdpSocket, Shard)>>,
    /// Where those come to whom UDP does not pass.
    listeners: Vec<Door<TcpListener>>,
}

/// One worker's part of an address at which peers come in.
#[derive(Debug)]
struct Door<S> {
    address: SocketAddr,
    socket: S,
    crowd: Arc<Crowd>,
    identity: watch::Receiver<Arc<Identity>>,
}

/// Binds what the plan's tunnels take, and divides it among `workers`.
///
/// # Errors
/// The address that cannot be bound, with why.
pub fn doors(
    plan: &Plan,
    identity: Option<&watch::Receiver<Arc<Identity>>>,
    workers: usize,
) -> Result<(Tunnels, Vec<TunnelDoors>), (SocketAddr, io::Error)> {
    let mut doors: Vec<TunnelDoors> = (0..workers.max(1)).map(|_| TunnelDoors::default()).collect();
    let mut tunnels = Tunnels::default();
    let Some(identity) = identity else { return Ok((tunnels, doors)) };
    let keys = transport::keys(&identity.borrow());
    for (number, address) in plan.tunnel.listen.iter().enumerate() {
        let (address, count) = (*address, doors.len());
        let failed = |error| (address, error);
        if plan.tunnel.fallback != Fallback::Only {
            let crowd = Arc::<Crowd>::default();
            let sockets = transport::bind_shards(address, count).map_err(failed)?;
            let sockets = sockets.into_iter().zip(Shards::divide(keys, count));
            for (own, socket) in doors.iter_mut().zip(sockets) {
                let (crowd, identity) = (crowd.clone(), identity.clone());
                own.sockets.push(Door { address, socket, crowd, identity });
            }
        }
        if plan.tunnel.fallback != Fallback::Off {
            let socket = fallback::socket::listen(address, &plan.peers).map_err(failed)?;
            let (crowd, identity) = (Arc::default(), identity.clone());
            doors[number % count].listeners.push(Door { address, socket, crowd, identity });
        }
    }
    for door in &mut doors {
        let (sender, receiver) = mpsc::unbounded_channel();
        tunnels.openings.push(sender);
        door.later = Some((receiver, identity.clone()));
    }
    let mut entrances = Vec::new();
    // From the other end, so that a daemon that both goes and is come to uses more than one thread.
    for (number, peer) in plan.peers.iter().rev().enumerate() {
        let Some(address) = peer.address else { continue };
        let at = doors.len() - 1 - number % doors.len();
        let socket = Some(reopen::towards(address).map_err(|error| (address, error))?);
        let (sender, receiver) = mpsc::unbounded_channel();
        entrances.push(Entrance { peer: peer.clone(), orders: sender });
        let peer = peer.clone();
        let keeper = link::LinkKeeper { peer, address, socket, identity: identity.clone() };
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
                        link::LinkKeeper { peer, address, socket: None, identity },
                        orders,
                    );
                }
            });
        }
        for Door { address, socket, crowd, identity } in self.sockets {
            let serves = reopen::listen(worker.clone(), address, socket, crowd, identity);
            worker.health.keep("serving peers", serves);
        }
        for Door { address, socket, crowd, identity } in self.listeners {
            let serves = reopen::listen_tcp(worker.clone(), address, socket, crowd, identity);
            worker.health.keep("serving peers over TCP", serves);
        }
    }
}

/// Keeps a tunnel open for as long as somebody may order something of it.
fn keep(worker: &Rc<Worker>, keeper: link::LinkKeeper, orders: UnboundedReceiver<Order>) {
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
        // There may be another of the same name by now.
        if links.get(&name).is_some_and(|kept| kept.is(&link)) {
            links.remove(&name);
        }
        drop(ending);
    });
}

impl Tunnels {
    /// Opens the tunnels to `peers`, and no others: those to peers whose tables have changed are opened anew.
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
            // Where the worker has ended, so has the daemon.
            if opening.send(OpeningTunnel { peer: peer.clone(), address, orders }).is_ok() {
                entrances.push(Entrance { peer: peer.clone(), orders: sender });
            }
        }
    }

    /// Tells all peers to ask for nothing more; their flows go on.
    pub fn leave(&self) {
        self.left.send_replace(true);
    }

    /// Whether peers have been told so.
    pub fn are_left(&self) -> bool {
        *self.left.borrow()
    }

    /// Waits until they are.
    pub async fn left(&self) {
        let mut left = self.left.subscribe();
        // The sender is here.
        let _ = left.wait_for(|left| *left).await;
    }

    /// Asks the tunnel to `peer` for a flow, and waits for the far side's answer.
    ///
    /// # Errors
    /// The far side's refusal, or that there is no tunnel.
    pub async fn open(&self, peer: &str, request: Request) -> Result<Stream, NoFlow> {
        self.order(peer, request, Until::Answered).await
    }

    /// Asks the tunnel to `peer` for a flow whose answer comes with its first bytes.
    ///
    /// # Errors
    /// That there is no tunnel: nothing has been asked for then.
    pub async fn begin(&self, peer: &str, request: Request) -> Result<Stream, NoFlow> {
        self.order(peer, request, Until::Asked).await
    }

    async fn order(&self, peer: &str, request: Request, until: Until) -> Result<Stream, NoFlow> {
        let none = || NoFlow::Unavailable(format!("there is no tunnel to {peer}"));
        let (answer, answered) = oneshot::channel();
        let order = Order::Open { request, until, answer };
        self.orders(peer).ok_or_else(none)?.send(order).map_err(|_| none())?;
        answered.await.unwrap_or_else(|_| Err(none()))
    }

    /// Hands a flow to the worker that owns the tunnel to `peer`.
    ///
    /// # Errors
    /// The flow itself, if there is none.
    pub fn live(&self, peer: &str, flow: Box<Packed>) -> Result<(), Box<Packed>> {
        let Some(orders) = self.orders(peer) else { return Err(flow) };
        // Where the data plane has ended the flow ends with it.
        let _ = orders.send(Order::Live(flow));
        Ok(())
    }

    /// Hands a flow both of whose sides are open to the worker that owns its tunnel.
    ///
    /// # Errors
    /// When the data plane has ended.
    pub fn carry(&self, asked: RequestedFlow) -> io::Result<()> {
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the data plane has ended");
        let orders = self.orders(&asked.peer);
        let order = Order::Carry(Box::new(asked));
        orders.ok_or_else(ended)?.send(order).map_err(|_| ended())
    }

    fn orders(&self, peer: &str) -> Option<UnboundedSender<Order>> {
        let entrances = self.entrances.read().unwrap_or_else(PoisonError::into_inner);
        let entrance = entrances.iter().find(|entrance| entrance.peer.name == peer);
        entrance.map(|entrance| entrance.orders.clone())
    }
}

/// Tells all peers that this end goes. They need not answer.
pub async fn close(endpoints: &[quinn::Endpoint], fallbacks: &[Rc<fallback::TcpSession>]) {
    /// Enough for the words to leave this host.
    const MOMENT: Duration = Duration::from_millis(20);
    fallback::session::close(fallbacks).await;
    if endpoints.iter().all(|endpoint| endpoint.open_connections() == 0) {
        return;
    }
    for endpoint in endpoints {
        endpoint.close(VarInt::from_u32(Code::NO_ERROR.0 as u32), b"");
    }
    time::sleep(MOMENT).await;
}

/// Does what other threads ask of a tunnel.
async fn follow(worker: Rc<Worker>, link: link::Link, mut orders: UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        let (worker, link) = (worker.clone(), link.clone());
        spawn_local(async move {
            match order {
                Order::Open { request, until, answer } => {
                    let opened = match until {
                        Until::Asked => begin(&worker.plan(), &link, &request).await,
                        Until::Answered => open(&worker.plan(), &link, &request).await,
                    };
                    // Whoever asked may have gone: then the stream is reset as it is dropped.
                    let _ = answer.send(opened);
                }
                Order::Live(packed) => match Flow::unpack(&worker, *packed) {
                    Ok(flow) => flow.run().await,
                    Err(error) => tracing::warn!(%error, "a flow was handed over in vain"),
                },
                Order::Carry(asked) => {
                    if let Err(error) = carry_asked(&worker, *asked).await {
                        tracing::warn!(%error, "a flow was handed over in vain");
                    }
                }
            }
        });
    }
}

/// Asks for a flow and waits for the answer.
async fn open(plan: &Plan, link: &link::Link, request: &Request) -> Result<Stream, NoFlow> {
    let mut stream = begin(plan, link, request).await?;
    match stream.input.answer().await {
        Ok(()) => Ok(stream),
        Err(fault) => Err(NoFlow::of(fault, &request.target)),
    }
}

/// Asks for a flow whose answer comes with its first bytes.
///
/// # Errors
/// That there is no tunnel: nothing has been asked for then.
pub async fn begin(plan: &Plan, link: &link::Link, request: &Request) -> Result<Stream, NoFlow> {
    let class = plan.class_named(request.class.as_deref());
    let way = link.way().await.ok_or_else(|| NoFlow::Unavailable("it is not open".into()))?;
    way.ask(request, class).await.map_err(|fault| NoFlow::of(fault, &request.target))
}

async fn carry_asked(worker: &Worker, asked: RequestedFlow) -> io::Result<()> {
    let RequestedFlow { client, client_leg, peer, first, mut stream, ends, ticket } = asked;
    leg::guard(&client)?;
    let client = TcpStream::from_std(client)?;
    worker.ledger.flows.add(1);
    if !first.is_empty() {
        worker.ledger.bytes_up.add(first.len() as u64);
        stream.output.put(first);
    }
    let book = FlowBook::new(ends, client_leg, Party::tunnel(&peer));
    carry(worker, client, Side::Client, stream, book).await;
    drop(ticket);
    Ok(())
}

/// Offers the end that a flow has on this side what keeps the tunnel full from as far as it is.
fn welcome_source(worker: &Worker, book: &FlowBook, side: Side, tcp: &TcpStream) {
    let plan = worker.plan();
    let peer = book.peer().and_then(|name| plan.peers.iter().find(|peer| peer.name == name));
    let Some(rate) = peer.and_then(|peer| peer.rate) else { return };
    let Some(sample) = worker.ledger.sample(book, side, tcp).filter(Sample::is_measured) else {
        return;
    };
    let rtt = midhop_units::Duration::from_us(u64::from(sample.rtt_us));
    let window = source::window(rate, rtt, plan.limits.flow_buffer, plan.limits.memory);
    let leg = &book.party(side).name;
    let fixed = plan.legs.iter().any(|it| it.name == **leg && it.window.is_some());
    if let Err(error) = leg::offer(tcp, window, fixed) {
        tracing::debug!(ends = ?book.ends, %error, "a source is offered less than it could fill");
    }
}

/// Moves the bytes of a flow between `tcp`, which is its `side`, and a stream, to its very end.
pub async fn carry(
    worker: &Worker,
    tcp: TcpStream,
    side: Side,
    mut stream: Stream,
    book: FlowBook,
) {
    let book = worker.ledger.open(book);
    let watched = worker.watch.add(&book, crate::watch::One { side, stream: tcp });
    let tcp = &watched.sides().stream;
    welcome_source(worker, &book, side, tcp);
    let linger = worker.plan().limits.linger.into();
    let carried = relay::relay(tcp, side, &mut stream, &book, &worker.desk, linger).await;
    let last = worker.ledger.sample(&book, side, tcp);
    if let Err(broken) = &carried.outcome {
        tracing::debug!(ends = ?book.ends, by = ?broken.side, error = %broken.error, "a flow broke");
    }
    // Both resets, where it broke, before whatever else takes time.
    drop(stream);
    if let Some(crate::watch::One { stream: tcp, .. }) = watched.release() {
        close::close_one(tcp, last, &carried, linger, &worker.looks).await;
    }
    worker.ledger.close(&book, &carried);
}
