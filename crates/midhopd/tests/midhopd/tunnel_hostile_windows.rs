//! A peer with several connections has its windows once, and not once for each. If it withholds the
//! first byte of its streams, what it sends costs no more memory than that.

use crate::ends::{Authority, far_config};
use crate::hostile::{Flow, Hostile};
use crate::program::{Running, Setup};
use crate::stage::{self, Family, Stage, noise, until};
use crate::strangers::resident;
use crate::visitor::Shown;
use midhop_tunnel::connect::Request;
use midhop_tunnel::target::Target;
use std::io::Read;
use std::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 8;
/// Streams of each connection: one stream may use only a part of its connection's window.
const STREAMS: usize = 12;
/// The most that all flows may hold.
const MEMORY: u64 = 16 << 20;
/// The most that the only peer may have sent and that was not passed on.
const WINDOW: u64 = MEMORY / 2;
/// The minimum of each connection, however many there are.
const LEAST: u64 = 64 << 10;
/// The windows of the first connection and of those behind it, each with half of the previous
/// one's, and what waits outside of QUIC.
const GRANTED: u64 = 2 * WINDOW + CONNECTIONS as u64 * LEAST + WINDOW;
/// What is sent and read before the withheld bytes: requests, and one datagram of each stream.
const SLACK: u64 = (CONNECTIONS * STREAMS) as u64 * 2048;
/// Number of rounds without progress after which no more is expected to be accepted.
const STILL: u32 = 200;

/// A peer with several connections, with streams of which the first byte of payload is never sent.
struct Crowd {
    connections: Vec<(Hostile, Vec<Flow>)>,
    /// Their flows would end without these.
    _servers: Vec<TcpStream>,
}

impl Crowd {
    fn enter(stage: &Stage, family: Family, shown: &Shown, listener: &TcpListener) -> Self {
        let target = Target::Address(listener.local_addr().expect("an address"));
        let request = Request { target, client: None, class: None, hops: 0 };
        let mut servers = Vec::new();
        let mut enter = || {
            let peer = Hostile::enter(&stage.gateway, family, shown, false);
            let ask = || {
                let flow = peer.ask(&request);
                peer.withhold_next(&flow);
                flow
            };
            let flows: Vec<_> = (0..STREAMS).map(|_| ask()).collect();
            servers.extend(flows.iter().map(|_| listener.accept().expect("the far side").0));
            (peer, flows)
        };
        let connections = (0..CONNECTIONS).map(|_| enter()).collect();
        Self { connections, _servers: servers }
    }

    /// Sends what is accepted. Returns how much that was. Unit: bytes.
    fn send(&mut self, piece: &[u8]) -> u64 {
        let mut more = 0;
        for (peer, flows) in &mut self.connections {
            assert_eq!(peer.connection.close_reason(), None, "it is let stay");
            for flow in flows {
                more += peer.send_some(flow, piece).expect("a stream that is open") as u64;
            }
        }
        more
    }
}

/// A sound flow of the same peer, over the last connection.
struct Sound {
    peer: Hostile,
    flow: Flow,
    server: TcpStream,
}

impl Sound {
    fn new(stage: &Stage, family: Family, shown: &Shown, listener: &TcpListener) -> Self {
        let peer = Hostile::enter(&stage.gateway, family, shown, false);
        let target = Target::Address(listener.local_addr().expect("an address"));
        let flow = peer.ask(&Request { target, client: None, class: None, hops: 0 });
        let (server, _) = listener.accept().expect("the far side");
        server.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
        Self { peer, flow, server }
    }

    fn pass(&mut self) {
        assert_eq!(self.peer.send_some(&mut self.flow, b"ping"), Some(4));
        let mut received = [0; 4];
        self.server.read_exact(&mut received).expect("reading");
        assert_eq!(&received, b"ping");
    }
}

fn several_connections(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let connections = CONNECTIONS + 1;
    let more = format!("connections = {connections}\n[limits]\nmemory = \"{MEMORY} B\"\n");
    let setup = Setup::new(&far_config(family, &authority, &more));
    let running = Running::start_in(&stage.server, &setup);
    let shown = Shown::of(&authority, "near");
    let listener = stage.listen(family);
    let mut crowd = Crowd::enter(&stage, family, &shown, &listener);
    let mut sound = Sound::new(&stage, family, &shown, &listener);
    let before = resident(running.id());
    let (piece, mut sent, mut still) = (noise(1, 64 << 10), 0, 0);
    until("no more is taken", || {
        let more = crowd.send(&piece);
        sent += more;
        still = if more > 0 { 0 } else { still + 1 };
        assert!(sent <= GRANTED + SLACK, "{sent} bytes were taken");
        sound.pass();
        still > STILL
    });
    let grown = resident(running.id()).saturating_sub(before) << 10;
    println!("{sent} bytes of {GRANTED} were taken, and {grown} of memory");
    assert!(sent > 2 * WINDOW, "{sent} bytes: not all of it was asked for");
    // With full windows for each connection it would be more.
    assert!(grown <= 2 * GRANTED, "memory grew by {grown} bytes for {sent}");
    for (peer, _) in &crowd.connections {
        peer.connection.close(0_u32.into(), b"");
    }
    sound.pass();
    setup.assert_no_errors();
}

#[test]
fn several_connections_have_the_windows_of_one_peer_ipv4() {
    several_connections(Family::V4);
}

#[test]
fn several_connections_have_the_windows_of_one_peer_ipv6() {
    several_connections(Family::V6);
}
