//! A busy gateway, for tests of its displays. Clients of several sources have flows of every kind,
//! over a link with a rate, a delay and losses. Some flows are split, some use a tunnel, and some
//! pass by or are refused.
use crate::ends::{Authority, far_config, near_tables};
use crate::flows::count_on;
use crate::pages::{ADMIN, page};
use crate::program::{Running, Setup};
use crate::stage::{Family, PATIENCE, Stage, noise, until};
use midhop_testbed::namespace::Namespace;
use socket2::{Domain, Socket, Type};
use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

/// Sources in addition to the lan's own, each in a prefix of its own.
const SOURCES: u8 = 3;
/// The port of servers that a rule rejects.
const REFUSED: u16 = 4444;
/// Limit of flows per source.
const MOST: usize = 4;

/// The gateway's configuration, except for its end of the tunnel.
const GATEWAY: &str = "[intercept]\ninterfaces = \"lan0\"\naccept = \"early\"\n\
    [limits]\nflows_per_source = 4\n\
    [sources]\nprefixes = \"10.0.1.0/24\"\n\
    [legs.lan0]\nrate = \"100 Mbit/s\"\nrtt = \"2 ms\"\n\
    [legs.wan0]\nrate = \"20 Mbit/s\"\nrtt = \"60 ms\"\n\
    [[rules]]\naction = \"reject\"\nmatch.destination_port = 4444\n";

/// A scene that goes on until it is dropped.
pub struct Scene {
    listener: TcpListener,
    flows: Vec<(TcpStream, TcpStream)>,
    threads: Vec<JoinHandle<()>>,
    /// They end before the namespaces do.
    _daemons: [Running; 2],
    _setups: [Setup; 2],
    pub stage: Stage,
    _authority: Authority,
}

impl Scene {
    /// Begins; `None`, with a message, if this user may create no namespaces on the host. `daemon`
    /// adds to the gateway's configuration.
    pub fn begin(daemon: &str) -> Option<Self> {
        let link = "rate = \"20 Mbit/s\"\ndelay = \"30 ms\"\nloss = 0.005\n";
        let stage = Stage::set_over(link, link, "60 ms")?;
        let authority = Authority::new(&["near", "far"]);
        let rate = "rate = \"20 Mbit/s\"\nrtt = \"60 ms\"\n";
        let admin = format!("[admin]\nlisten = \"127.0.0.1:{}\"\n", ADMIN.1);
        let far = Setup::new(&format!("{admin}{}", far_config(Family::V4, &authority, rate)));
        let to_peer = near_tables(Family::V4, &authority, rate, "match.source = \"10.7.1.0/24\"\n");
        let near = Setup::new(&format!("{daemon}{admin}{GATEWAY}{to_peer}"));
        for source in 0..SOURCES {
            let client = client_of(source);
            stage.client.add_address("lan0", client, 32).expect("a client's address");
            let via = Family::V4.client();
            stage.gateway.add_route(client, 32, via).expect("a route to a client");
        }
        let far_runs = Running::start_in(&stage.server, &far);
        let daemons = [Running::start(&stage, &near), far_runs];
        let has_tunnel =
            || page(&stage.gateway, "/metrics").contains("peer_tunnels{peer=\"far\"} 1");
        until("the tunnel is open", has_tunnel);
        let (flows, threads) = (Vec::new(), Vec::new());
        let listener = stage.listen(Family::V4);
        let setups = [near, far];
        let mut scene = Self {
            listener,
            flows,
            threads,
            _daemons: daemons,
            _setups: setups,
            stage,
            _authority: authority,
        };
        scene.play();
        Some(scene)
    }

    /// Opens the flows.
    fn play(&mut self) {
        for source in 0..SOURCES {
            for _ in 0..MOST {
                let (client, server) = self.flow(client_of(source));
                self.run(&client, &server);
            }
        }
        let own = Family::V4.client();
        let (client, server) = self.flow(own);
        self.run(&server, &client);
        // A flow whose client does not read: its window closes.
        let (client, server) = self.flow(own);
        let writer = server.try_clone().expect("a descriptor");
        self.threads.push(std::thread::spawn(move || send_on(&writer)));
        self.flows.push((client, server));
        // Two of these pass by.
        for _ in 0..MOST {
            self.pass_by();
        }
        let refused = SocketAddr::new(Family::V4.server(), REFUSED);
        assert!(self.stage.connect(refused).is_err(), "a rule refuses it");
    }

    /// One more flow of a source that has reached its limit: it passes by.
    pub fn pass_by(&mut self) {
        let flow = self.flow(Family::V4.client());
        self.flows.push(flow);
    }

    fn flow(&self, client: IpAddr) -> (TcpStream, TcpStream) {
        let address = self.listener.local_addr().expect("an address");
        let connect = || -> std::io::Result<TcpStream> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&SocketAddr::new(client, 0).into())?;
            socket.connect_timeout(&address.into(), PATIENCE)?;
            Ok(socket.into())
        };
        let client = self.stage.client.run(connect).expect("entering").expect("a connection");
        let (server, _) = self.listener.accept().expect("the connection's other end");
        (client, server)
    }

    /// The server sends without end what the client counts, or the reverse.
    fn run(&mut self, to: &TcpStream, from: &TcpStream) {
        let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        let (reader, writer, counted) = (copy(to), copy(from), Arc::<AtomicU64>::default());
        self.threads.push(std::thread::spawn(move || send_on(&writer)));
        self.threads.push(std::thread::spawn(move || count_on(&reader, &counted)));
        self.flows.push((copy(to), copy(from)));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for (one, other) in &self.flows {
            let _ = one.shutdown(Shutdown::Both);
            let _ = other.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn client_of(source: u8) -> IpAddr {
    IpAddr::from([10, 7, source + 1, 2])
}

/// Sends until the other end is gone.
fn send_on(mut stream: &TcpStream) {
    let piece = noise(4, 64 << 10);
    while stream.write_all(&piece).is_ok() {}
}

/// A program beside the daemon, which ends with this.
pub struct Beside(Child);

impl Beside {
    pub fn start(namespace: &Namespace, command: &mut Command) -> Self {
        Self(namespace.run(|| command.spawn()).expect("entering").expect("it starts"))
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("waiting").is_some()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
