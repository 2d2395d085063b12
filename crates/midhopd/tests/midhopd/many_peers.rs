//! Many peers at one address, each with a certificate of its own. All of them connect, and all of
//! their bytes arrive. The workers divide them. If a peer's address changes, its connection
//! continues on the worker that has its keys.
//!
//! `make scale` prints the figures for 1,000.

use crate::ends::{self, Authority, PORT, TARGETS};
use crate::pages::{self, metric, of_workers, page, quantile};
use crate::program::{Running, Setup};
use crate::stage::{self, Family, PATIENCE, Stage, noise, until};
use crate::strangers::resident;
use crate::visitor::{self, Flow, Shown};
use midhop_tunnel::connect::{Form, Request, Response};
use midhop_tunnel::http3::{Frame, frame};
use midhop_tunnel::payload::Payload;
use midhop_tunnel::target::Target;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const WORKERS: u64 = 2;
/// Concurrent handshakes: beyond this number clients would have to prove their address first.
const TOGETHER: usize = 32;
/// Unit: bytes. The payload of each flow in each direction.
const SIZE: usize = 40_000;

/// Peers on the gateway, and the daemon on the server's host to which they connect.
struct Crowd {
    runtime: Runtime,
    stage: Stage,
    setup: Setup,
    daemon: Running,
    shown: Vec<Shown>,
    family: Family,
    /// Unit: KiB. The daemon's memory before any peer connects.
    empty: u64,
}

/// A connected peer.
struct Guest {
    endpoint: quinn::Endpoint,
    connection: quinn::Connection,
}

fn name(number: usize) -> String {
    format!("peer-{number}")
}

impl Crowd {
    fn new(stage: Stage, family: Family, count: usize) -> Self {
        let names: Vec<String> = (0..count).map(name).collect();
        let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
        all.push("far");
        let authority = Authority::new(&all);
        let address = SocketAddr::new(family.server(), PORT);
        let listen = format!("listen = \"{address}\"\n{TARGETS}");
        let peers: String = names.iter().map(|name| format!("[peers.{name}]\n")).collect();
        let own = authority.table("far", &listen);
        // The limit that a host of 1 GiB would have for all flows.
        let setup = Setup::new(&format!(
            "[daemon]\nworkers = {WORKERS}\n[limits]\nmemory = \"256 MiB\"\n\
             [admin]\nlisten = \"127.0.0.1:{}\"\n{own}{peers}",
            pages::ADMIN.1
        ));
        let daemon = Running::start_in(&stage.server, &setup);
        let shown = names.iter().map(|name| Shown::of(&authority, name)).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("an event loop");
        let empty = resident(daemon.id());
        Self { runtime, stage, setup, daemon, shown, family, empty }
    }

    /// A socket at an unused port of the gateway.
    fn socket(&self) -> UdpSocket {
        let own: IpAddr = match self.family {
            Family::V4 => [10, 0, 2, 1].into(),
            Family::V6 => [0xfd00, 0, 0, 2, 0, 0, 0, 1].into(),
        };
        let bind = || UdpSocket::bind(SocketAddr::new(own, 0));
        self.stage.gateway.run(bind).expect("entering").expect("a socket")
    }

    /// Connects all peers, each from a port of its own, and waits until the daemon knows them.
    fn come(&self) -> Vec<Guest> {
        let sockets: Vec<_> = self.shown.iter().map(|_| self.socket()).collect();
        let address = SocketAddr::new(self.family.server(), PORT);
        let guests = self.runtime.block_on(async {
            let (places, mut coming) = (Arc::new(Semaphore::new(TOGETHER)), JoinSet::new());
            for (shown, socket) in self.shown.iter().zip(sockets) {
                let (config, _) = visitor::config(Some(shown));
                let places = places.clone();
                coming.spawn(async move {
                    let _place = places.acquire().await.expect("places");
                    let endpoint = quinn::Endpoint::new(
                        quinn::EndpointConfig::default(),
                        None,
                        socket,
                        Arc::new(quinn::TokioRuntime),
                    )
                    .expect("an endpoint");
                    let connecting = endpoint.connect_with(config, address, "far");
                    let connecting = connecting.expect("a handshake begins");
                    let connection = connecting.await.expect("a peer gets in");
                    // The daemon sends this only to peers that it has admitted.
                    let control = tokio::time::timeout(PATIENCE, connection.accept_uni()).await;
                    let _ = control.expect("in time").expect("the daemon's control stream");
                    Guest { endpoint, connection }
                });
            }
            coming.join_all().await
        });
        let count = self.shown.len() as u64;
        until("all are in", || self.workers("tunnels").iter().sum::<u64>() == count);
        guests
    }

    /// A metric of each worker.
    fn workers(&self, of: &str) -> Vec<u64> {
        of_workers(&page(&self.stage.server, "/metrics"), &format!("midhop_worker_{of}"))
    }

    /// A server on the daemon's host that sends back what it receives.
    fn echo(&self) -> SocketAddr {
        let listener: TcpListener = self.stage.listen(self.family);
        // All peers open their flows at once.
        socket2::SockRef::from(&listener).listen(4096).expect("a longer queue");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a listener that does not block");
        self.runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(async move {
                    let mut buffer = vec![0; 16_384];
                    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                        if stream.write_all(&buffer[..length]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }
}

/// Opens a flow.
async fn open(connection: quinn::Connection, to: SocketAddr) -> Flow {
    let request = Request { target: Target::Address(to), client: None, class: None, hops: 0 };
    let asked = request.fields(Form::Classic);
    let (answer, flow) = Flow::ask(connection, &asked, b"").await;
    let answer = Response::decode(&answer, Payload::Raw).expect("a response");
    assert_eq!(answer.expect("a final one"), Response::Granted);
    flow
}

/// Sends bytes that are unique to this flow, and receives them again.
async fn carry(flow: &mut Flow, seed: usize) {
    let sent = noise(seed as u64 + 1, SIZE);
    let mut framed = Vec::new();
    frame::write(frame::DATA, &sent, &mut framed);
    flow.send.write_all(&framed).await.expect("a flow");
    let mut received = Vec::with_capacity(SIZE);
    while received.len() < SIZE {
        match flow.frame().await.expect("a flow") {
            Some(Frame::Data(bytes)) => received.extend_from_slice(&bytes),
            other => panic!("{other:?} after {} bytes", received.len()),
        }
    }
    assert!(received == sent, "bytes of peer {seed} are others");
}

fn are_served(family: Family, count: usize) {
    let Some(stage) = Stage::set() else { return };
    // The peers' sockets and the server's ends of their flows, and the daemon's ends of them.
    let wanted = 3 * count as u64 + 1024;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    if soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted.max(hard)).is_err() {
        midhop_testkit::skipped(format!("{wanted} open files"));
        return;
    }
    let crowd = Crowd::new(stage, family, count);
    let guests = crowd.come();
    let idle = resident(crowd.daemon.id()).saturating_sub(crowd.empty);
    let to = crowd.echo();
    // Dropping a peer's first flow ends its connection.
    let _flows = crowd.runtime.block_on(async {
        let mut carrying = JoinSet::new();
        for (number, guest) in guests.iter().enumerate() {
            let connection = guest.connection.clone();
            carrying.spawn(async move {
                let mut flow = open(connection, to).await;
                carry(&mut flow, number).await;
                flow.send.finish().expect("a flow");
                assert!(flow.frame().await.expect("its end").is_none());
                flow
            });
        }
        carrying.join_all().await
    });
    let busy = resident(crowd.daemon.id()).saturating_sub(crowd.empty);
    let tunnels = crowd.workers("tunnels");
    let metrics = page(&crowd.stage.server, "/metrics");
    let p99 = quantile(&metrics, "midhop_worker_delay_seconds", 0.99);
    println!(
        "{count} peers, {family:?}, load {}",
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim()
    );
    let per_peer = |kib: u64| kib as f64 / count as f64;
    println!("{:<40} {:>8.2} KiB a peer", "midhopd, resident, all idle", per_peer(idle));
    println!("{:<40} {:>8.2} KiB a peer", "after each had a flow", per_peer(busy));
    println!("{:<40} {tunnels:?}", "tunnels of each worker");
    println!("{:<40} {:?}", "datagrams of each worker", crowd.workers("datagrams_total"));
    println!("{:<40} {p99} s or less", "99 % of loop delays");
    assert_eq!(tunnels.len() as u64, WORKERS);
    // The chance that a worker has fewer is one in ten million.
    assert!(tunnels.iter().all(|own| *own >= count as u64 / WORKERS / 2), "{tunnels:?}");
    assert_eq!(metric(&metrics, "midhop_flows_started_total{action=\"split\"}"), count as u64);
    // Keys, windows and timers, but no buffers.
    assert!(idle <= 256 * count as u64 + 16 * 1024, "{idle} KiB for {count} idle peers");
    for guest in &guests {
        guest.connection.close(quinn::VarInt::from_u32(0x100), b"");
    }
    until("all have left", || crowd.workers("tunnels").iter().sum::<u64>() == 0);
    crowd.runtime.block_on(async {
        for guest in guests {
            guest.endpoint.wait_idle().await;
        }
    });
    crowd.setup.assert_no_errors();
}

#[test]
fn a_hundred_peers_are_served_by_all_workers() {
    are_served(Family::V4, 100);
}

/// A NAT that loses its state gives every peer another port, by which the kernel selects one of the
/// daemon's sockets.
fn a_peer_whose_address_changes_goes_on(family: Family) {
    const COUNT: usize = 40;
    let Some(stage) = Stage::set() else { return };
    let crowd = Crowd::new(stage, family, COUNT);
    let guests = crowd.come();
    let to = crowd.echo();
    let before = crowd.workers("tunnels");
    let mut flows: Vec<Flow> = crowd.runtime.block_on(async {
        let mut flows = Vec::new();
        for (number, guest) in guests.iter().enumerate() {
            let mut flow = open(guest.connection.clone(), to).await;
            carry(&mut flow, number).await;
            flows.push(flow);
        }
        flows
    });
    assert_eq!(crowd.workers("handed_datagrams_total"), vec![0; WORKERS as usize]);
    for guest in &guests {
        let _entered = crowd.runtime.enter();
        guest.endpoint.rebind(crowd.socket()).expect("another socket");
    }
    for round in 1..=2 {
        crowd.runtime.block_on(async {
            for (number, flow) in flows.iter_mut().enumerate() {
                carry(flow, COUNT * round + number).await;
            }
        });
    }
    // The chance that every datagram reaches its worker without being handed over is one in 10¹².
    assert!(crowd.workers("handed_datagrams_total").iter().sum::<u64>() > 0);
    assert_eq!(crowd.workers("tunnels"), before, "each is where it was");
    crowd.setup.assert_no_errors();
}

#[test]
fn a_peer_whose_address_changes_goes_on_with_its_worker_ipv4() {
    a_peer_whose_address_changes_goes_on(Family::V4);
}

#[test]
fn a_peer_whose_address_changes_goes_on_with_its_worker_ipv6() {
    a_peer_whose_address_changes_goes_on(Family::V6);
}

/// QUIC lets a peer open few streams at first.
#[test]
fn flows_beyond_those_that_a_peer_may_have_at_first_find_room() {
    const FLOWS: usize = 300;
    let Some(stage) = Stage::set() else { return };
    let _ends = ends::Ends::start(&stage, Family::V4, "");
    let listener = stage.listen(Family::V4);
    let flows: Vec<_> = (0..FLOWS).map(|_| stage.flow(&listener)).collect();
    for (number, (client, server)) in flows.into_iter().enumerate() {
        stage::send_all(&client, &noise(number as u64, 100));
        assert_eq!(stage::receive_all(&server), noise(number as u64, 100));
    }
}

#[test]
#[ignore = "takes a minute: make scale"]
fn figures() {
    let wanted = std::env::var("MIDHOP_SCALE_PEERS").ok();
    let count = wanted.and_then(|text| text.parse().ok()).unwrap_or(1000);
    for family in [Family::V4, Family::V6] {
        are_served(family, count);
    }
}
