//! The stage on which flows are tested: a client, a gateway with the proxy, and a server. Each is
//! in a network namespace of its own, with IPv4 and IPv6.
//!
//! `client lan0 – lan0 gateway wan0 – wan0 server`
use midhop_path::DirectionSpec;
use midhop_pep::config::Plan;
use midhop_testbed::emulator::{Emulator, Wire};
use midhop_testbed::namespace::{Namespace, veth};
use midhop_units::Seed;
use midhopd::data_plane::{DataPlane, StartError};
use midhopd::intercept::InterceptError;
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// An address family: tests run in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn client(self) -> IpAddr {
        self.address(1, 2)
    }

    pub fn server(self) -> IpAddr {
        self.address(2, 2)
    }

    fn address(self, net: u8, host: u8) -> IpAddr {
        match self {
            Self::V4 => IpAddr::from([10, 0, net, host]),
            Self::V6 => IpAddr::from([0xfd00, 0, 0, u16::from(net), 0, 0, 0, u16::from(host)]),
        }
    }
}

/// The three namespaces.
pub struct Stage {
    /// The link between gateway and server, if it is emulated. It ends before the namespaces do.
    _link: Option<Emulator>,
    pub client: Namespace,
    pub gateway: Namespace,
    pub server: Namespace,
}

impl Stage {
    /// Sets the stage; `None`, with a clear message, if this user may create no namespaces on the
    /// host.
    pub fn set() -> Option<Self> {
        Self::set_with(|gateway, server| {
            let wan = veth(gateway, "wan0", server, "wan0", 1500).expect("the internet");
            (wan.map(|end| end.mac), None)
        })
    }

    /// The same, with an emulated link between gateway and server. Its properties towards the
    /// gateway and towards the server are written as in a scenario.
    pub fn set_over(down: &str, up: &str, rtt: &str) -> Option<Self> {
        let plan = |keys: &str| {
            let spec: DirectionSpec = toml::from_str(keys).expect("a direction");
            spec.resolve(rtt.parse().expect("a time")).expect("a plan")
        };
        Self::set_with(|gateway, server| {
            let hub = Namespace::create("hub").expect("a namespace for the link");
            let [first, _] = veth(gateway, "wan0", &hub, "link0", 1500).expect("the link");
            let [second, _] = veth(server, "wan0", &hub, "link1", 1500).expect("the link");
            let wire = Wire {
                name: "link".to_owned(),
                first: "link0".to_owned(),
                second: "link1".to_owned(),
                nodes: ["gateway".to_owned(), "server".to_owned()],
                mtu: 1500,
                down: plan(down),
                up: plan(up),
                ack_filters: [None, None],
                posts: Default::default(),
                burst: midhop_units::Bytes::MAX,
            };
            let clock = nix::time::ClockId::CLOCK_MONOTONIC.now().expect("a clock");
            let epoch = midhop_units::Instant::START + Duration::from(clock).into();
            let link = Emulator::start(&hub, wire, Seed(7), epoch).expect("an emulated link");
            ([first.mac, second.mac], Some(link))
        })
    }

    fn set_with(
        join: impl FnOnce(&Namespace, &Namespace) -> ([[u8; 6]; 2], Option<Emulator>),
    ) -> Option<Self> {
        let client = match Namespace::create("client") {
            Ok(client) => client,
            Err(error) => {
                midhop_testkit::skipped(error);
                return None;
            }
        };
        let gateway = Namespace::create("gateway").expect("a second namespace");
        let server = Namespace::create("server").expect("a third namespace");
        let lan = veth(&client, "lan0", &gateway, "lan0", 1500).expect("the lan");
        let (wan, link) = join(&gateway, &server);
        for family in [Family::V4, Family::V6] {
            let (prefix, all) = match family {
                Family::V4 => (24, IpAddr::from([0, 0, 0, 0])),
                Family::V6 => (64, IpAddr::from([0u16; 8])),
            };
            let at = |net, host| family.address(net, host);
            client.add_address("lan0", at(1, 2), prefix).expect("the client's address");
            gateway.add_address("lan0", at(1, 1), prefix).expect("the gateway's address");
            gateway.add_address("wan0", at(2, 1), prefix).expect("the gateway's address");
            server.add_address("wan0", at(2, 2), prefix).expect("the server's address");
            client.add_route(all, 0, at(1, 1)).expect("the client's route");
            server.add_route(all, 0, at(2, 1)).expect("the server's route");
            // The devices have no link-local addresses to ask for neighbours from.
            client.add_neighbour("lan0", at(1, 1), lan[1].mac).expect("a neighbour");
            gateway.add_neighbour("lan0", at(1, 2), lan[0].mac).expect("a neighbour");
            gateway.add_neighbour("wan0", at(2, 2), wan[1]).expect("a neighbour");
            server.add_neighbour("wan0", at(2, 1), wan[0]).expect("a neighbour");
        }
        Some(Self { _link: link, client, gateway, server })
    }

    /// Starts a proxy in this process, on the gateway. `config` adds to an interception of `lan0`.
    pub fn proxy(&self, config: &str) -> DataPlane {
        self.start(&format!("[intercept]\ninterfaces = \"lan0\"\n{config}"))
    }

    /// Starts a proxy on the gateway, from a whole configuration.
    pub fn start(&self, config: &str) -> DataPlane {
        start(&self.gateway, config)
    }

    /// Listens on the server.
    pub fn listen(&self, family: Family) -> TcpListener {
        let address = SocketAddr::new(family.server(), 0);
        self.server
            .run(|| TcpListener::bind(address))
            .expect("entering the server")
            .expect("a listener")
    }

    /// Connects from the client.
    pub fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = self
            .client
            .run(|| TcpStream::connect_timeout(&address, PATIENCE))
            .expect("entering the client")?;
        // A bound on a test that hangs. It measures nothing.
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// A flow from client to server.
    pub fn flow(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client =
            self.connect(listener.local_addr().expect("an address")).expect("a connection");
        let (server, _) = listener.accept().expect("the connection's other end");
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        server.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        (client, server)
    }
}

/// Stops listening. A child that a parallel test has just started has all of its parent's
/// descriptors until it executes another program. So a listener that is merely dropped may live on
/// for a moment, and accept.
pub fn stop_listening(listener: TcpListener) {
    SockRef::from(&listener).shutdown(Shutdown::Read).expect("a listener");
}

/// Runs a command of a namespace's firewall.
pub fn nft(namespace: &Namespace, rules: &str) {
    let status =
        namespace.command("nft").arg(rules).stdin(Stdio::null()).status().expect("nft starts");
    assert!(status.success(), "nft refused: {rules}");
}

/// Time after which a test that waits for something has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until a condition holds.
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds);
}

/// Waits until a condition holds, but no longer than this.
pub fn until_within(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience, "waited in vain: {what}");
        std::thread::sleep(midhop_testkit::POLL);
    }
}

/// Starts a proxy in this process, on `host`.
///
/// After an earlier proxy, its sockets may live on for a moment: a parallel test starts programs,
/// and a child has all of its parent's descriptors until it executes another program.
pub fn start(host: &Namespace, config: &str) -> DataPlane {
    let plan = Plan::read("test.toml", config).unwrap_or_else(|error| panic!("{error}"));
    let begin = Instant::now();
    loop {
        let error = match host.run(|| DataPlane::start(plan.clone())).expect("entering the host") {
            Ok(proxy) => return proxy,
            Err(error) => error,
        };
        let in_use = match &error {
            StartError::Listen { source, .. } | StartError::Tunnel { source, .. } => {
                source.kind() == io::ErrorKind::AddrInUse
            }
            // The kernel reports this for a queue that another socket has.
            StartError::Intercept(InterceptError::Queue { source }) => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        };
        assert!(in_use && begin.elapsed() < PATIENCE, "a proxy does not start: {error}");
        std::thread::sleep(midhop_testkit::POLL);
    }
}

/// Writes all and ends the stream.
pub fn send_all(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("writing");
    stream.shutdown(Shutdown::Write).expect("ending the stream");
}

/// Reads up to the end of the stream.
pub fn receive_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("reading to the end");
    bytes
}

/// One read, repeated if a signal interrupted it. A wait with a timeout is not restarted after the
/// process was stopped and continued (`signal(7)`), as a machine does that is frozen and thawed.
pub trait ReadOnce: Read {
    fn read_once(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl<R: Read + ?Sized> ReadOnce for R {}

/// Pseudo-random bytes that differ from seed to seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; length];
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

/// The bytes that the kernel holds for a socket.
pub mod queued {
    #![allow(unsafe_code, reason = "ioctl takes a raw pointer")]
    #![allow(unused_qualifications, reason = "the macros write them")]

    use std::net::TcpStream;
    use std::os::fd::AsRawFd;

    nix::ioctl_read_bad!(outq, nix::libc::TIOCOUTQ, nix::libc::c_int);
    nix::ioctl_read_bad!(inq, nix::libc::FIONREAD, nix::libc::c_int);

    pub fn unacknowledged(stream: &TcpStream) -> usize {
        let mut bytes = 0;
        // SAFETY: the request writes one int to the address given.
        unsafe { outq(stream.as_raw_fd(), &raw mut bytes) }.expect("a queue");
        usize::try_from(bytes).expect("a length")
    }

    pub fn unread(stream: &TcpStream) -> usize {
        let mut bytes = 0;
        // SAFETY: the request writes one int to the address given.
        unsafe { inq(stream.as_raw_fd(), &raw mut bytes) }.expect("a queue");
        usize::try_from(bytes).expect("a length")
    }
}

/// Four bytes in one direction, and four back.
pub fn pass(client: &mut TcpStream, server: &mut TcpStream) {
    let mut received = [0; 4];
    client.write_all(b"ping").expect("writing");
    server.read_exact(&mut received).expect("reading");
    server.write_all(b"pong").expect("writing");
    client.read_exact(&mut received).expect("reading");
    assert_eq!(&received, b"pong");
}
