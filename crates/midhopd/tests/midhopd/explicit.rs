//! Clients that request the proxy, by HTTP CONNECT and SOCKS5, end to end.

use crate::flows::{self, duties};
use crate::program::{Running, Setup, log_of};
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, noise, receive_all, send_all};
use crate::survival::kill_data_plane;
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

pub const HTTP: u16 = 3128;
const SOCKS: u16 = 1080;

/// A proxy that listens on the gateway's addresses and serves the client's network.
pub fn start(stage: &Stage, more: &str) -> (Setup, Running) {
    let setup = Setup::new(&format!(
        "[explicit]\nhttp_connect = \"[::]:{HTTP}\"\nsocks5 = \"[::]:{SOCKS}\"\n\
         clients = [\"10.0.1.0/24\", \"fd00:0:0:1::/64\"]\n\
         targets = [\"10.0.0.0/8\", \"fd00::/8\", \"192.0.2.0/24\", \"2001:db8::/32\"]\n{more}"
    ));
    let running = Running::start(stage, &setup);
    (setup, running)
}

/// The gateway's address, as its client knows it.
pub fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 0, 1, 1]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 1, 0, 0, 0, 1]),
    }
}

/// Sends a CONNECT request, with `early` directly behind it. Returns the head of the response.
fn connect(stage: &Stage, family: Family, target: &str, early: &[u8]) -> (TcpStream, String) {
    let mut stream = stage.connect(SocketAddr::new(gateway(family), HTTP)).expect("the proxy");
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes();
    request.extend(early);
    stream.write_all(&request).expect("asking");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        head.extend(byte);
    }
    (stream, String::from_utf8(head).expect("text"))
}

/// Sends a SOCKS5 request, with `early` directly behind it. Returns the code of the reply.
fn socks(stage: &Stage, family: Family, target: SocketAddr, early: &[u8]) -> (TcpStream, u8) {
    let mut stream = stage.connect(SocketAddr::new(gateway(family), SOCKS)).expect("the proxy");
    let mut request = vec![5, 1, 0, 5, 1, 0];
    match target.ip() {
        IpAddr::V4(address) => {
            request.push(1);
            request.extend(address.octets());
        }
        IpAddr::V6(address) => {
            request.push(4);
            request.extend(address.octets());
        }
    }
    request.extend(target.port().to_be_bytes());
    request.extend(early);
    stream.write_all(&request).expect("asking");
    let mut greeting = [0; 2];
    stream.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(greeting, [5, 0]);
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).expect("a reply");
    let bound = if reply[3] == 1 { 6 } else { 18 };
    stream.read_exact(&mut vec![0; bound]).expect("a bound address");
    (stream, reply[1])
}

/// The bytes that the proxy itself has exchanged with a client do not belong to the flow when
/// another process counts the flow's bytes.
#[test]
fn requested_flows_outlive_the_data_plane() {
    let Some(stage) = Stage::set() else { return };
    let (setup, running) = start(&stage, "");
    let listener = stage.listen(Family::V4);
    let target = listener.local_addr().expect("an address");
    let (by_http, head) = connect(&stage, Family::V4, &target.to_string(), b"early");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let accept = || listener.accept().expect("the far side").0;
    let server_of_http = accept();
    let (by_socks, code) = socks(&stage, Family::V4, target, b"early");
    assert_eq!(code, 0);
    let flows = [(by_http, server_of_http), (by_socks, accept())];
    for (client, server) in &flows {
        flows::impatient(server);
        let mut early = [0; 5];
        (&mut &*server).read_exact(&mut early).expect("what came with the request");
        // From here on the flow is relayed.
        flows::pass(client, server);
    }
    std::thread::scope(|scope| {
        for (client, server) in &flows {
            scope.spawn(|| flows::exchange(client, server, 20_000_000));
        }
        for _ in 0..2 {
            kill_data_plane(&running);
        }
    });
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

#[test]
fn both_protocols_carry_every_byte_and_every_end() {
    let Some(stage) = Stage::set() else { return };
    let (_setup, _running) = start(&stage, "");
    for family in [Family::V4, Family::V6] {
        let listener = stage.listen(family);
        let target = listener.local_addr().expect("an address");
        for by_socks in [false, true] {
            let client = if by_socks {
                let (client, code) = socks(&stage, family, target, b"early ");
                assert_eq!(code, 0);
                client
            } else {
                let (client, head) = connect(&stage, family, &target.to_string(), b"early ");
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
                client
            };
            let (server, peer) = listener.accept().expect("the far side");
            server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            assert_ne!(peer.ip(), family.client(), "the server sees the proxy");
            let bytes = noise(7, 500_000);
            std::thread::scope(|scope| {
                let received = scope.spawn(|| receive_all(&server));
                send_all(&client, &bytes);
                let received = received.join().expect("hearing");
                assert!(
                    received.starts_with(b"early ") && received[6..] == bytes,
                    "other bytes arrived"
                );
            });
            // The client has ended its half; the server's still flows.
            send_all(&server, &bytes);
            assert!(receive_all(&client) == bytes, "other bytes came back");
        }
    }
}

/// Bytes that were acknowledged to a server that then resets reach a client that reads late, and
/// then the reset.
#[test]
fn a_reset_comes_behind_what_was_acknowledged() {
    let Some(stage) = Stage::set() else { return };
    let (_setup, _running) = start(&stage, "");
    for family in [Family::V4, Family::V6] {
        let listener = stage.listen(family);
        let target = listener.local_addr().expect("an address");
        let flow: duties::Flow<'_> = &mut || {
            let (client, code) = socks(&stage, family, target, b"");
            assert_eq!(code, 0);
            let (server, _) = listener.accept().expect("the far side");
            flows::impatient(&server);
            (client, server)
        };
        for from_server in [false, true] {
            duties::late_resets(flow, from_server, false);
        }
    }
}

#[test]
fn refusals_are_answered_in_each_protocols_words() {
    let Some(stage) = Stage::set() else { return };
    let (_setup, _running) =
        start(&stage, "[[rules]]\nmatch = { destination_port = 99 }\naction = \"reject\"\n");
    for family in [Family::V4, Family::V6] {
        let closed = SocketAddr::new(family.server(), 9);
        let rejected = SocketAddr::new(family.server(), 99);
        let nowhere: SocketAddr = match family {
            Family::V4 => "192.0.2.1:80".parse().expect("an address"),
            Family::V6 => "[2001:db8::1]:80".parse().expect("an address"),
        };
        let own: SocketAddr = match family {
            Family::V4 => "127.0.0.1:9310".parse().expect("an address"),
            Family::V6 => "[::1]:9310".parse().expect("an address"),
        };
        // A private address in none of the permitted prefixes, and an address of this host in one
        // of them.
        let private: SocketAddr = match family {
            Family::V4 => "192.168.7.7:80".parse().expect("an address"),
            Family::V6 => "[fc00::1]:80".parse().expect("an address"),
        };
        let of_proxy = SocketAddr::new(gateway(family), HTTP);
        for (target, status, error, code) in [
            (private, "403", "destination_ip_prohibited", 2),
            (of_proxy, "403", "destination_ip_prohibited", 2),
            (closed, "502", "connection_refused", 5),
            (nowhere, "502", "destination_ip_unroutable", 3),
            (rejected, "403", "destination_ip_prohibited", 2),
            (own, "403", "destination_ip_prohibited", 2),
        ] {
            let (client, head) = connect(&stage, family, &target.to_string(), b"lost");
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {head}");
            assert!(head.contains(&format!("error={error}\r\n")), "{target}: {head}");
            assert!(receive_all(&client).is_empty());
            let (client, reply) = socks(&stage, family, target, b"lost");
            assert_eq!(reply, code, "{target}");
            assert!(receive_all(&client).is_empty());
        }
    }
}

#[test]
fn strangers_and_names_are_refused_where_that_was_asked_for() {
    let Some(stage) = Stage::set() else { return };
    let (setup, running) = start(&stage, "resolve = false\n");
    let (client, head) = connect(&stage, Family::V4, "server.example:80", b"");
    assert!(head.starts_with("HTTP/1.1 403 ") && head.contains("http_request_denied"), "{head}");
    drop(client);
    drop(running);
    let strangers = "[explicit]\nhttp_connect = \"[::]:3128\"\nclients = \"192.0.2.0/24\"\n";
    setup.rewrite(strangers);
    let _running = Running::start(&stage, &setup);
    // Not even the client's request is read.
    let client = stage.connect(SocketAddr::new(gateway(Family::V4), HTTP));
    // The reset may arrive before connecting has returned.
    let error = client.and_then(|mut client| client.read_once(&mut [0; 1])).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Clients that are not admitted, and those of a host that takes more than its share, keep no other
/// client out. There are sixteen places, and no request times out during the test.
#[test]
fn idle_connections_of_some_keep_no_others_out() {
    let Some(stage) = Stage::set() else { return };
    let (_setup, _running) =
        start(&stage, "request_timeout = \"10 min\"\n[limits]\npending = 20\n");
    for family in [Family::V4, Family::V6] {
        let proxy = SocketAddr::new(gateway(family), HTTP);
        let listener = stage.listen(family);
        let target = listener.local_addr().expect("an address").to_string();
        // Through the other network, which has no permitted clients.
        let from_server = || {
            let stream = TcpStream::connect_timeout(&proxy, PATIENCE);
            stream.map(|stream| stream.set_read_timeout(Some(PATIENCE)).map(|()| stream))
        };
        for _ in 0..40 {
            let stranger = stage.server.run(from_server).expect("entering");
            // Some receive the reset while they connect.
            let Ok(Ok(mut stranger)) = stranger else { continue };
            let error = stranger.read_once(&mut [0; 1]).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        let (_client, head) = connect(&stage, family, &target, b"");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    // One client holds as many places as it may; another one of its network is served.
    let own = |host: u8| SocketAddr::from(([10, 0, 1, host], 0));
    stage.client.add_address("lan0", own(3).ip(), 24).expect("a second address");
    let socket = |from: SocketAddr| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.bind(&from.into()).expect("an address");
        let proxy = SocketAddr::new(gateway(Family::V4), HTTP);
        socket.connect(&proxy.into()).expect("the proxy");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        TcpStream::from(socket)
    };
    let open = |host| stage.client.run(|| socket(own(host))).expect("entering");
    let idle: Vec<_> = (0..16).map(|_| open(2)).collect();
    let error = open(2).read_once(&mut [0; 1]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let mut other = open(3);
    other.write_all(b"nonsense\r\n\r\n").expect("asking");
    assert!(receive_all(&other).starts_with(b"HTTP/1.1 4"), "it is heard");
    drop(idle);
}

#[test]
fn one_flow_too_many_is_refused() {
    let Some(stage) = Stage::set() else { return };
    let (_setup, _running) = start(&stage, "[limits]\nflows = 1\n");
    let listener = stage.listen(Family::V4);
    let target = listener.local_addr().expect("an address").to_string();
    let (_first, head) = connect(&stage, Family::V4, &target, b"");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let (_second, head) = connect(&stage, Family::V4, &target, b"");
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(head.contains("connection_limit_reached"), "{head}");
}

#[test]
fn a_client_that_sends_nothing_is_shown_out() {
    let Some(stage) = Stage::set() else { return };
    let (_setup, _running) = start(&stage, "request_timeout = \"100 ms\"\n");
    let stream = stage.connect(SocketAddr::new(gateway(Family::V4), HTTP)).expect("the proxy");
    let answer = String::from_utf8(receive_all(&stream)).expect("text");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}
