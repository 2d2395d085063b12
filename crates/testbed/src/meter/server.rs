//! The server's end: any number of clients at once, until asked to stop.
//!
//! A server sends nothing to a peer that has not sent the meter's preface, and serves only within
//! its [`Limits`]. It keeps the logs of its sockets until the client fetches them.

use super::clock;
use super::connection::Connection;
use super::error::{FlowError, ServeError};
use super::link::{self, LinkLimits, LinkMessage, LinkSessions};
use super::message::{Accept, Amount, Direction, Received, Refusal, RefusalReason, Request};
use super::options::Progress;
use super::payload::Payload;
use super::sampler::{INTERVAL_MIN, SharedLog};
use super::series::Capacity;
use super::sessions::Sessions;
use super::socket;
use super::wire::{ControlFrame, PREFACE};
use midhop_units::{Bytes, Duration, Number, Seed};
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration as StdDuration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How long a new connection may take to send its request.
const HELLO: StdDuration = StdDuration::from_secs(10);
/// How long a connection may be idle between two requests.
const IDLE: StdDuration = StdDuration::from_secs(600);
/// How long `once` waits for a client that left without fetching its logs.
const VANISHED: StdDuration = StdDuration::from_secs(30);
/// Pause of `accept` when there are no descriptors.
const STARVED: StdDuration = StdDuration::from_millis(100);
/// How long a server reads from a connection that it has refused, so that the refusal arrives.
const FAREWELL: StdDuration = StdDuration::from_secs(2);

/// Limits of a server, for all clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; further ones wait in the kernel.
    pub connections: usize,
    /// Payload per request.
    pub bytes: Bytes,
    /// Time per request.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16_384, bytes: Bytes::new(1 << 40), time: Duration::from_s(3600) }
    }
}

/// Resolves the name of a congestion control, as a user writes it, to one that this kernel knows.
pub type Resolve = dyn Fn(&str) -> Result<String, String> + Send + Sync;

/// Called for each connection that carried payload, at its end.
pub type OnFlow = dyn Fn(&ServedFlow) + Send + Sync;

/// Options of a server.
pub struct ServerOptions {
    /// Where to listen; port 0 takes any.
    pub listen: SocketAddr,
    /// Whether to stop after the first client's run.
    pub once: bool,
    /// The server's limits.
    pub limits: Limits,
    /// How to resolve names of congestion controls; none: names are used as they are.
    pub resolve: Option<Box<Resolve>>,
    /// The receiver of reports on finished flows.
    pub on_flow: Option<Box<OnFlow>>,
    /// The counter of arriving payload.
    pub arrived: Option<Arc<Progress>>,
    /// Limits of link measurements; none: they are refused.
    pub links: Option<LinkLimits>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0u16; 8], super::PORT)),
            once: false,
            limits: Limits::default(),
            resolve: None,
            on_flow: None,
            arrived: None,
            links: None,
        }
    }
}

/// One connection as the server recorded it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServedFlow {
    /// Number of the flow in the client's run.
    pub flow: u32,
    /// The client's address, as the server sees it.
    pub peer: SocketAddr,
    /// Payload sent.
    #[serde(rename = "sent_bytes", with = "Number::<Bytes>")]
    pub sent: Bytes,
    /// Payload received.
    #[serde(rename = "received_bytes", with = "Number::<Bytes>")]
    pub received: Bytes,
    /// From the connection's acceptance to its end.
    #[serde(rename = "took_s", with = "Number::<Duration>")]
    pub took: Duration,
    /// Segments retransmitted.
    pub retransmissions: u64,
    /// Congestion control, as the kernel names it.
    pub congestion: String,
    /// What ended the flow early.
    pub error: Option<String>,
}

/// A server that listens.
pub struct Server {
    listener: std::net::TcpListener,
    datagrams: Option<std::net::UdpSocket>,
    address: SocketAddr,
    options: ServerOptions,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens; clients may connect from now on. The socket belongs to the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// When the address is taken or is not this host's.
    pub fn bind(options: ServerOptions) -> Result<Self, ServeError> {
        let (listener, address) = socket::listen(options.listen)
            .map_err(|source| ServeError::Listen { address: options.listen, source })?;
        socket::raise_file_limit();
        // If another program uses the port for datagrams, the server still serves flows.
        let datagrams = options.links.and_then(|_| {
            link::bind(address)
                .inspect_err(|error| tracing::warn!(%error, "links cannot be measured here"))
                .ok()
        });
        Ok(Self { listener, datagrams, address, options })
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the future is dropped or, with `once`, until the first client has its results.
    ///
    /// # Errors
    /// When the listening socket cannot be used by the async runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn run(self) -> Result<(), ServeError> {
        let address = self.address;
        let listener = TcpListener::from_std(self.listener)
            .map_err(|source| ServeError::Listen { address, source })?;
        let once = self.options.once;
        let most = self.options.limits.connections.max(1);
        let links = LinkSessions::new(self.options.links, self.datagrams)
            .map_err(|source| ServeError::Listen { address, source })?;
        let host = Arc::new(Host {
            links,
            options: self.options,
            sessions: Sessions::default(),
            clock: clock::name(),
        });
        let mut running = JoinSet::new();
        let mut seen = false;
        // Set while `accept` finds no free descriptor: then another connection has to end first.
        let mut starved = false;
        loop {
            tokio::select! {
                accepted = listener.accept(), if running.len() < most && !starved => match accepted {
                    Ok((stream, peer)) => {
                        let host = Arc::clone(&host);
                        running.spawn(async move { host.converse(stream, peer).await });
                    }
                    // Among the errors of accept(2), those of the connection itself affect nobody
                    // else. A lack of descriptors ends when a connection ends.
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept");
                        starved = socket::out_of_descriptors(&error);
                    }
                },
                Some(ended) = running.join_next() => {
                    starved = false;
                    match ended {
                        // A link's measurement has flows of its own, whose logs it fetches: that
                        // fetch does not end the run.
                        Ok(Ended::Fetched) if once && !host.links.busy() => return Ok(()),
                        Ok(Ended::Linked) if once => return Ok(()),
                        Ok(Ended::Flow) => seen = true,
                        Ok(_) => {}
                        Err(error) => tracing::error!(%error, "a connection's task died"),
                    }
                }
                () = host.links.receive() => {}
                () = tokio::time::sleep(STARVED), if starved => starved = false,
                () = tokio::time::sleep(VANISHED), if once && seen && running.is_empty() => {
                    return Ok(());
                }
            }
        }
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Flow,
    Fetched,
    Linked,
    Stranger,
}

struct Host {
    links: LinkSessions,
    options: ServerOptions,
    sessions: Sessions,
    clock: Option<String>,
}

impl Host {
    async fn converse(&self, stream: TcpStream, peer: SocketAddr) -> Ended {
        let origin_ns = clock::now().as_ns();
        socket::prepare(&stream);
        let mut connection = Connection::of_server(stream);
        let hello = async {
            if !connection.receives(PREFACE).await? {
                return Err(FlowError::Unexpected { what: "no preface of a meter" });
            }
            connection.frame().await
        };
        let hello = tokio::time::timeout(HELLO, hello)
            .await
            .unwrap_or(Err(FlowError::Silent { seconds: HELLO.as_secs() }));
        match hello {
            Ok(Some(ControlFrame::Request(request))) => {
                self.flow(connection, request, origin_ns, peer).await;
                Ended::Flow
            }
            Ok(Some(ControlFrame::Fetch(fetch))) => {
                for log in self.sessions.take(fetch.session).await {
                    connection.queue(&ControlFrame::Log(Box::new(log)));
                    if connection.flush().await.is_err() {
                        return Ended::Stranger;
                    }
                }
                connection.queue(&ControlFrame::Done);
                match connection.flush().await {
                    Ok(()) => Ended::Fetched,
                    Err(_) => Ended::Stranger,
                }
            }
            Ok(Some(ControlFrame::Link(message))) if *message == LinkMessage::Open {} => {
                let result = self.links.serve(&mut connection, peer).await;
                refuse(&mut connection, &result).await;
                Ended::Linked
            }
            other => {
                tracing::debug!(%peer, ?other, "a connection is closed: its first frame is not a request of the meter");
                Ended::Stranger
            }
        }
    }

    /// Serves the requests of one connection and keeps its log.
    async fn flow(
        &self,
        mut connection: Connection,
        first: Request,
        origin_ns: u64,
        peer: SocketAddr,
    ) {
        let interval_ns = first
            .interval_ns
            .map(|ns| ns.max(u64::try_from(INTERVAL_MIN.as_nanos()).unwrap_or(ns)));
        let capacity = Capacity::among(self.sessions.len() + 1);
        let log = SharedLog::begin(first.flow, origin_ns, interval_ns, capacity, first.gaps);
        self.sessions.add(first.session, log.clone());
        let sampling = interval_ns.filter(|_| first.direction == Direction::Down);
        let stream = connection.socket();
        let result = tokio::select! {
            result = self.requests(&mut connection, &log, first) => result,
            never = log.watch(&stream, sampling) => match never {},
        };
        log.look(&stream, sampling);
        refuse(&mut connection, &result).await;
        let served = {
            let mut log = log.lock();
            log.error = result.err().map(|error| error.to_string());
            ServedFlow {
                flow: log.flow,
                peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
                sent: Bytes::new(log.sent),
                received: Bytes::new(log.received),
                took: Duration::from_ns(clock::now().as_ns().saturating_sub(origin_ns)),
                retransmissions: log.retransmissions,
                congestion: log.congestion.clone(),
                error: log.error.clone(),
            }
        };
        // Reported first, then marked closed: when a client has fetched a run, all its flows have
        // been reported.
        if let Some(on_flow) = &self.options.on_flow {
            on_flow(&served);
        }
        log.lock().closed = true;
        self.sessions.note_closed();
    }

    async fn requests(
        &self,
        connection: &mut Connection,
        log: &SharedLog,
        first: Request,
    ) -> Result<(), FlowError> {
        let (session, flow) = (first.session, first.flow);
        let mut request = first;
        loop {
            self.admit(&request).map_err(FlowError::Refused)?;
            if (request.session, request.flow) != (session, flow) {
                return Err(refused(
                    RefusalReason::Request,
                    "a connection has one session and flow",
                ));
            }
            match request.direction {
                Direction::Down => self.push(connection, log, &request).await?,
                Direction::Up => self.pull(connection, log, &request).await?,
            }
            let next = tokio::time::timeout(IDLE, connection.frame())
                .await
                .unwrap_or(Err(FlowError::Silent { seconds: IDLE.as_secs() }))?;
            request = match next {
                None => return Ok(()),
                Some(ControlFrame::Request(request)) => request,
                Some(other) => return Err(FlowError::Unexpected { what: other.name() }),
            };
        }
    }

    fn admit(&self, request: &Request) -> Result<(), Refusal> {
        let limits = &self.options.limits;
        let detail = match request.amount {
            Amount::Bytes(bytes) if bytes > limits.bytes.get() => {
                format!(
                    "{} per request is more than the {} given here",
                    Bytes::new(bytes),
                    limits.bytes
                )
            }
            Amount::TimeNs(ns) if ns > limits.time.as_ns() => {
                let asked = Duration::from_ns(ns);
                format!("{asked} per request is more than the {} given here", limits.time)
            }
            _ => return Ok(()),
        };
        Err(Refusal { reason: RefusalReason::Limit, detail })
    }

    /// Sends the requested payload.
    async fn push(
        &self,
        connection: &mut Connection,
        log: &SharedLog,
        request: &Request,
    ) -> Result<(), FlowError> {
        if let Some(name) = &request.congestion {
            let name = match &self.options.resolve {
                Some(resolve) => {
                    resolve(name).map_err(|why| refused(RefusalReason::Congestion, &why))?
                }
                None => name.clone(),
            };
            socket::set_congestion(&connection.socket(), &name).map_err(|error| {
                refused(
                    RefusalReason::Congestion,
                    &format!(
                        "congestion control {name:?} is not available on the server: {error} \
                         (its kernel has: {})",
                        socket::available_congestion()
                    ),
                )
            })?;
        }
        self.accept(connection, log)?;
        let payload = Payload::of_flow(Seed(request.seed), request.flow);
        connection.send(payload, request.amount, |bytes| log.lock().sent += bytes).await
    }

    /// Receives the payload that the client has announced, and reports to it what arrived.
    async fn pull(
        &self,
        connection: &mut Connection,
        log: &SharedLog,
        request: &Request,
    ) -> Result<(), FlowError> {
        self.accept(connection, log)?;
        connection.flush().await?;
        let before = connection.received.bytes;
        let mut first_byte = None;
        let mut last_byte = clock::now();
        let arrived = |now: midhop_units::Instant, bytes: u64| {
            first_byte.get_or_insert(now);
            last_byte = now;
            if let Some(counter) = &self.options.arrived {
                counter.add(bytes);
            }
            let mut log = log.lock();
            log.received += bytes;
            log.last_byte_ns = now.as_ns();
            let at = now.as_ns().saturating_sub(log.origin_ns);
            log.arrivals.add(at, bytes as f64);
            if let Some(gaps) = &mut log.gaps {
                gaps.arrived(at);
            }
        };
        let control = |frame: ControlFrame| Err(FlowError::Unexpected { what: frame.name() });
        let result = connection.receive(arrived, control).await;
        // The client reports a difference in the bytes: it gets the count and the hash to detect
        // it.
        let difference = match result {
            Ok(_) => None,
            Err(error @ (FlowError::Count { .. } | FlowError::Hash { .. })) => Some(error),
            Err(error) => return Err(error),
        };
        let received = connection.received.bytes;
        connection.queue(&ControlFrame::Received(Received {
            bytes: received,
            hash: connection.received.hash(),
            first_byte_ns: first_byte.unwrap_or(last_byte).as_ns(),
            last_byte_ns: last_byte.as_ns(),
        }));
        connection.flush().await?;
        if let Some(error) = difference {
            return Err(error);
        }
        match request.amount {
            Amount::Bytes(asked) if asked != received - before => {
                Err(FlowError::Amount { asked, received: received - before })
            }
            _ => Ok(()),
        }
    }

    fn accept(&self, connection: &mut Connection, log: &SharedLog) -> Result<(), FlowError> {
        let congestion = socket::congestion(&connection.socket())
            .map_err(|source| FlowError::Socket { doing: "read the congestion control", source })?;
        let mut log = log.lock();
        log.congestion.clone_from(&congestion);
        log.clock.clone_from(&self.clock);
        drop(log);
        connection.queue(&ControlFrame::Accept(Accept { congestion, clock: self.clock.clone() }));
        Ok(())
    }
}

/// Sends a refusal to the client where `result` is one.
async fn refuse(connection: &mut Connection, result: &Result<(), FlowError>) {
    if let Err(FlowError::Refused(refusal)) = result {
        connection.queue(&ControlFrame::Refuse(refusal.clone()));
        if connection.flush().await.is_ok() {
            socket::farewell(&connection.socket(), FAREWELL).await;
        }
    }
}

fn refused(reason: RefusalReason, detail: &str) -> FlowError {
    FlowError::Refused(Refusal { reason, detail: detail.to_owned() })
}
