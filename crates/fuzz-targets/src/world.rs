//! A real daemon on the loopback, for whole sessions: one for all inputs of a process.
//!
//! Nothing leaves this host: the only target that its rules allow is an echo of ours.

use midhop_pep::config::Plan;
use midhop_pki::authority;
use midhop_process::privileges;
use midhopd::data_plane::DataPlane;
use midhopd::explicit::{Explicit, Listeners};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::{ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// A session that waits for longer has found a fault: no machine is so busy.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// How often a start is repeated, if another process has taken a port in between.
const STARTS: usize = 20;

/// The daemon, its clients and its peers.
pub struct World {
    /// Runs the sessions, and the echo.
    pub runtime: Runtime,
    /// The target that may be requested: it sends back what it receives.
    pub echo: SocketAddr,
    /// Where the daemon speaks HTTP CONNECT.
    pub http: SocketAddr,
    /// Where it speaks SOCKS5.
    pub socks: SocketAddr,
    far: SocketAddr,
    endpoint: quinn::Endpoint,
    credentials: quinn::ClientConfig,
    over_tcp: Arc<rustls::ClientConfig>,
    data_plane: DataPlane,
    _explicit: Explicit,
    /// A valid flow of another client.
    sound: Mutex<TcpStream>,
}

impl World {
    /// The world of this process, for one session at a time.
    pub fn enter() -> (&'static Self, MutexGuard<'static, ()>) {
        static WORLD: OnceLock<World> = OnceLock::new();
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        (WORLD.get_or_init(Self::new), turn)
    }

    fn new() -> Self {
        privileges::raise_file_limit(4096);
        let files = tempfile::tempdir().expect("a directory");
        authority::init(files.path(), "fuzz").expect("an authority");
        for name in ["far", "rogue"] {
            authority::issue(files.path(), name, 30).expect("a certificate");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("an event loop");
        let echo = runtime.block_on(async {
            // A fuzzer's process is not started by Rust's runtime, which would have ignored the signal.
            let ignored = signal(SignalKind::pipe());
            drop(ignored.expect("a handler, which stays"));
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.expect("a listener");
            let address = listener.local_addr().expect("an address");
            tokio::spawn(echo(listener));
            address
        });
        let at = files.path().display();
        let (far, http, socks, data_plane, explicit) = (0..STARTS)
            .find_map(|_| {
                let (far, http, socks) = (free_udp(), free_tcp(), free_tcp());
                let text = format!(
                    "[daemon]\nworkers = 1\n[limits]\nmemory = \"64 MiB\"\n\
                     [explicit]\nhttp_connect = \"{http}\"\nsocks5 = \"{socks}\"\nresolve = false\n\
                     targets = \"127.0.0.1/32\"\n\
                     [tunnel]\nlisten = \"{far}\"\nresolve = false\ntargets = \"127.0.0.1/32\"\n\
                     certificate = \"{at}/far.pem\"\nkey = \"{at}/far.key\"\nauthority = \"{at}/ca.pem\"\n\
                     [peers.rogue]\n\
                     [[rules]]\nmatch = {{ destination = \"127.0.0.1/32\", destination_port = {} }}\n\
                     action = \"split\"\n\
                     [[rules]]\naction = \"reject\"\n",
                    echo.port()
                );
                let plan = Plan::read("fuzz.toml", &text).unwrap_or_else(|it| panic!("{it}"));
                let listeners = Listeners::open(&plan, None).ok()?;
                let data_plane = DataPlane::start(plan).ok()?;
                let explicit = listeners.serve(
                    data_plane.plan(),
                    data_plane.handover(),
                    data_plane.tunnels().clone(),
                    data_plane.health().clone(),
                );
                Some((far, http, socks, data_plane, explicit.expect("a thread")))
            })
            .expect("a daemon that starts");
        let own = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let endpoint = runtime.block_on(async {
            let config = quinn::EndpointConfig::default();
            quinn::Endpoint::new(config, None, own, Arc::new(quinn::TokioRuntime))
        });
        let world = Self {
            credentials: {
                let tls = credentials(files.path(), b"h3");
                let tls = QuicClientConfig::try_from(tls).expect("a suite for QUIC");
                quinn::ClientConfig::new(Arc::new(tls))
            },
            over_tcp: Arc::new(credentials(files.path(), b"h2")),
            endpoint: endpoint.expect("an endpoint"),
            sound: Mutex::new(sound(socks, echo)),
            _explicit: explicit,
            runtime,
            echo,
            http,
            socks,
            far,
            data_plane,
        };
        world.settle();
        world
    }

    /// Connects to the daemon as a peer that it knows.
    pub async fn come(&self) -> quinn::Connection {
        let coming = self.endpoint.connect_with(self.credentials.clone(), self.far, "far");
        let coming = tokio::time::timeout(PATIENCE, coming.expect("a handshake begins"));
        coming.await.expect("it comes to an end").expect("a peer gets in")
    }

    /// The same over TCP, as where UDP does not pass.
    pub fn come_over_tcp(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let socket = TcpStream::connect(self.far).expect("a listener");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_nodelay(true).expect("an option");
        let name = ServerName::try_from("far").expect("a name");
        let connection = ClientConnection::new(self.over_tcp.clone(), name).expect("TLS begins");
        let mut stream = StreamOwned::new(connection, socket);
        stream.conn.complete_io(&mut stream.sock).expect("a peer gets in");
        stream
    }

    /// What must hold after any session, once its client is gone: its flows are gone, nothing is held of it,
    /// nothing has failed, and the flows of others continue.
    pub fn settle(&self) {
        let (flows, budget) = (self.data_plane.admission(), self.data_plane.budget());
        let begin = Instant::now();
        while flows.flows() > 1 || budget.held() > 0 {
            let (flows, held) = (flows.flows() - 1, budget.held());
            let waited = begin.elapsed();
            assert!(waited < PATIENCE, "{flows} flows are left, and {held} bytes of them");
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut sound = self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        let mut echoed = [0; 4];
        sound.write_all(b"ping").expect("a sound flow goes on");
        sound.read_exact(&mut echoed).expect("a sound flow goes on");
        assert_eq!(&echoed, b"ping");
    }
}

/// Sends back everything that it receives on each connection.
async fn echo(listener: tokio::net::TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut piece = vec![0; 16 << 10];
            while let Ok(count @ 1..) = stream.read(&mut piece).await {
                if stream.write_all(&piece[..count]).await.is_err() {
                    return;
                }
            }
            let _ = stream.shutdown().await;
        });
    }
}

fn sound(socks: SocketAddr, echo: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(socks).expect("a listener");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_nodelay(true).expect("an option");
    let mut asked = vec![5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1];
    asked.extend(echo.port().to_be_bytes());
    stream.write_all(&asked).expect("a request");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..4], [5, 0, 5, 0], "a sound client is served");
    stream
}

/// The certificates that a peer shows, and those that it trusts.
fn credentials(files: &Path, protocol: &[u8]) -> rustls::ClientConfig {
    let read = |name: &str| {
        let chain = CertificateDer::pem_file_iter(files.join(name)).expect("a file");
        chain.collect::<Result<Vec<_>, _>>().expect("certificates")
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read("ca.pem"));
    let key = PrivateKeyDer::from_pem_file(files.join("rogue.key")).expect("a key");
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_root_certificates(roots)
        .with_client_auth_cert(read("rogue.pem"), key)
        .expect("a certificate and its key");
    tls.alpn_protocols = vec![protocol.to_vec()];
    tls
}

fn free_udp() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    socket.local_addr().expect("an address")
}

fn free_tcp() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    listener.local_addr().expect("an address")
}
