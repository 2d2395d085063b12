//! Clients that ask for the proxy, by HTTP CONNECT and SOCKS5, end to end.

mod program;
mod stage;

use program::{Desk, Running};
use stage::{Family, PATIENCE, Stage, hear, noise, say};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

const HTTP: u16 = 3128;
const SOCKS: u16 = 1080;

/// A proxy that listens on the gateway's addresses and serves the client's network.
fn start(stage: &Stage, more: &str) -> (Desk, Running) {
    let desk = Desk::new(&format!(
        "[explicit]\nhttp_connect = \"[::]:{HTTP}\"\nsocks5 = \"[::]:{SOCKS}\"\n\
         clients = [\"10.0.1.0/24\", \"fd00:0:0:1::/64\"]\n{more}"
    ));
    let running = Running::start(stage, &desk);
    (desk, running)
}

/// The gateway as its client knows it.
fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 0, 1, 1]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 1, 0, 0, 0, 1]),
    }
}

/// Asks by CONNECT, with `early` right behind the request; gives the answer's head.
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

/// Asks by SOCKS5, with `early` right behind the request; gives the reply's code.
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

#[test]
fn both_protocols_carry_every_byte_and_every_end() {
    let Some(stage) = Stage::set() else { return };
    let (_desk, _running) = start(&stage, "");
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
                let heard = scope.spawn(|| hear(&server));
                say(&client, &bytes);
                let heard = heard.join().expect("hearing");
                assert!(heard.starts_with(b"early ") && heard[6..] == bytes, "other bytes arrived");
            });
            // The client has ended its half; the server's still flows.
            say(&server, &bytes);
            assert!(hear(&client) == bytes, "other bytes came back");
        }
    }
}

#[test]
fn refusals_are_told_in_each_protocols_words() {
    let Some(stage) = Stage::set() else { return };
    let (_desk, _running) =
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
        for (target, status, error, code) in [
            (closed, "502", "connection_refused", 5),
            (nowhere, "502", "destination_ip_unroutable", 3),
            (rejected, "403", "destination_ip_prohibited", 2),
            (own, "403", "destination_ip_prohibited", 2),
        ] {
            let (client, head) = connect(&stage, family, &target.to_string(), b"lost");
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {head}");
            assert!(head.contains(&format!("error={error}\r\n")), "{target}: {head}");
            assert!(hear(&client).is_empty());
            let (client, said) = socks(&stage, family, target, b"lost");
            assert_eq!(said, code, "{target}");
            assert!(hear(&client).is_empty());
        }
    }
}

#[test]
fn strangers_and_names_are_refused_where_that_was_asked_for() {
    let Some(stage) = Stage::set() else { return };
    let (desk, running) = start(&stage, "resolve = false\n");
    let (client, head) = connect(&stage, Family::V4, "server.example:80", b"");
    assert!(head.starts_with("HTTP/1.1 403 ") && head.contains("http_request_denied"), "{head}");
    drop(client);
    drop(running);
    let strangers = "[explicit]\nhttp_connect = \"[::]:3128\"\nclients = \"192.0.2.0/24\"\n";
    desk.rewrite(strangers);
    let _running = Running::start(&stage, &desk);
    let (_client, head) = connect(&stage, Family::V4, "10.0.2.2:80", b"");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
}

#[test]
fn one_flow_too_many_is_told_so() {
    let Some(stage) = Stage::set() else { return };
    let (_desk, _running) = start(&stage, "[limits]\nflows = 1\n");
    let listener = stage.listen(Family::V4);
    let target = listener.local_addr().expect("an address").to_string();
    let (_first, head) = connect(&stage, Family::V4, &target, b"");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let (_second, head) = connect(&stage, Family::V4, &target, b"");
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(head.contains("connection_limit_reached"), "{head}");
}

#[test]
fn a_client_that_says_nothing_is_shown_out() {
    let Some(stage) = Stage::set() else { return };
    let (_desk, _running) = start(&stage, "request_timeout = \"100 ms\"\n");
    let stream = stage.connect(SocketAddr::new(gateway(Family::V4), HTTP)).expect("the proxy");
    let said = String::from_utf8(hear(&stream)).expect("text");
    assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
}
