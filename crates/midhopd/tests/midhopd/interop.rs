//! Tunnels with one end that others wrote.
//!
//! With the partner as the far end: `client – gateway with midhopd – server's host with the
//! partner, and the server`. With the partner as the near end, it is a program on the gateway, to
//! whose TCP listener the client connects. The results are in docs/interop.md.

use crate::ends::{Authority, Ends, PORT, near_config, start_far};
use crate::flows::{duties, impatient, reset};
use crate::partners::{Peer, Program, curl, envoy};
use crate::stage::{self, Family, ReadOnce, Stage, noise, stop_listening, until};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{scope, sleep};
use std::time::Duration;

const EARLY: &str = "accept = \"early\"\n";
const AFTER_CONNECT: &str = "accept = \"after-connect\"\n";

/// It announces extended CONNECT, and no template: it gets requests in the form that every proxy
/// serves.
#[test]
fn quic_go_is_a_far_end() {
    is_a_far_end(Program::QuicGo, &[EARLY, AFTER_CONNECT], &[], "");
}

#[test]
fn quic_go_is_a_far_end_that_serves_templates() {
    let modes = [EARLY, AFTER_CONNECT];
    is_a_far_end(Program::QuicGo, &modes, &["-template"], "request = \"template\"\n");
}

#[test]
fn quic_go_is_a_near_end() {
    is_a_near_end(Program::QuicGo, &[]);
}

#[test]
fn quic_go_is_a_near_end_that_asks_by_templates() {
    is_a_near_end(Program::QuicGo, &["-template"]);
}

/// The far midhopd passes flows on to quic-go, which is near the server.
#[test]
fn quic_go_is_the_last_of_a_chain() {
    let (Some(stage), Some(_)) = (Stage::set(), Program::QuicGo.words()) else { return };
    let authority = Authority::new(&["near", "far", "last"]);
    let listen = SocketAddr::new(Family::V4.server(), PORT + 1).to_string();
    let more = ["-listen", &listen];
    let _last = Peer::start(&stage.server, Program::QuicGo, "serve", &authority, "last", &more);
    let onwards = format!(
        "[peers.last]\naddress = \"{listen}\"\n\
         [[rules]]\ntunnel = \"last\"\notherwise = \"reject\"\n"
    );
    let far = start_far(&stage, Family::V4, &authority, &onwards);
    let config = near_config(Family::V4, &authority, EARLY, "", "otherwise = \"reject\"\n");
    let near = stage.start(&config);
    let _ends = Ends { near, far, authority };
    let listener = stage.listen(Family::V4);
    duties::all(&mut || stage.flow(&listener));
}

#[test]
fn aioquic_is_a_far_end() {
    is_a_far_end(Program::Aioquic, &[AFTER_CONNECT], &[], "");
}

#[test]
fn aioquic_is_a_near_end() {
    is_a_near_end(Program::Aioquic, &[]);
}

#[test]
fn envoy_is_a_far_end() {
    let (Some(stage), Some(_)) = (Stage::set(), envoy::words()) else { return };
    let authority = Authority::new(&["near", "far"]);
    let address = SocketAddr::new(Family::V4.server(), PORT);
    let _far = envoy::start(&stage.server, &authority, address);
    let rule = "otherwise = \"reject\"\n";
    let config = near_config(Family::V4, &authority, AFTER_CONNECT, "", rule);
    let _near = stage.start(&config);
    let listener = stage.listen(Family::V4);
    let flow: duties::Flow<'_> = &mut || stage.flow(&listener);
    // For Envoy the end of an origin ends the whole flow, so each direction uses a flow of its own.
    for from_server in [true, false] {
        duties::one_way(flow, from_server);
        duties::late_readers(flow, from_server, false);
    }
    duties::half_closes(flow, false);
    duties::resets(flow, true);
    // It forwards a client's reset as an end.
    assert_eq!(duties::end_after_reset(flow, false).ok(), Some(0));
    let closed = SocketAddr::new(Family::V4.server(), 9);
    let refused = stage.connect(closed).and_then(|mut client| client.read_once(&mut [0; 1]));
    assert!(refused.is_err(), "{refused:?}");
}

/// A far end may stop reading once it has sent everything (RFC 9114 §4.1). What it sent is read to
/// the end, however late, and a client that sends more is reset.
#[test]
fn a_far_end_that_wants_no_more_is_read_to_its_end() {
    let (Some(stage), Some(_)) = (Stage::set(), Program::Aioquic.words()) else { return };
    let authority = Authority::new(&["near", "far"]);
    let listen = SocketAddr::new(Family::V4.server(), PORT).to_string();
    let more = ["-listen", &listen, "-enough", "yes"];
    let _far = Peer::start(&stage.server, Program::Aioquic, "serve", &authority, "far", &more);
    let rule = "otherwise = \"reject\"\n";
    let config = near_config(Family::V4, &authority, AFTER_CONNECT, "", rule);
    let _near = stage.start(&config);
    let listener = stage.listen(Family::V4);
    duties::late_readers(&mut || stage.flow(&listener), true, false);
    let (mut client, server) = stage.flow(&listener);
    stage::send_all(&server, b"that is all");
    assert_eq!(stage::receive_all(&client), b"that is all");
    until("the client is reset", || client.write(b"and more").is_err());
}

/// `more` are arguments of the program, `peer` adds to the near midhopd's configuration.
fn is_a_far_end(program: Program, modes: &[&str], more: &[&str], peer: &str) {
    let (Some(stage), Some(_)) = (Stage::set(), program.words()) else { return };
    let authority = Authority::new(&["near", "far"]);
    let listen = SocketAddr::new(Family::V4.server(), PORT).to_string();
    let more = [&["-listen", &listen], more].concat();
    let _far = Peer::start(&stage.server, program, "serve", &authority, "far", &more);
    for mode in modes {
        let rule = "otherwise = \"reject\"\n";
        let config = near_config(Family::V4, &authority, mode, peer, rule);
        let _near = stage.start(&config);
        let listener = stage.listen(Family::V4);
        duties::all(&mut || stage.flow(&listener));
        let closed = SocketAddr::new(Family::V4.server(), 9);
        let kind = match stage.connect(closed) {
            Ok(mut client) => client.read_once(&mut [0; 1]).expect_err("a reset").kind(),
            Err(error) => error.kind(),
        };
        let expected =
            if *mode == EARLY { ErrorKind::ConnectionReset } else { ErrorKind::ConnectionRefused };
        assert_eq!(kind, expected, "{mode}");
    }
}

fn is_a_near_end(program: Program, how: &[&str]) {
    let (Some(stage), Some(_)) = (Stage::set(), program.words()) else { return };
    let authority = Authority::new(&["near", "far"]);
    let _far = start_far(&stage, Family::V4, &authority, "");
    let listener = stage.listen(Family::V4);
    let open = |listener: &TcpListener| {
        let proxy = SocketAddr::new(Family::V4.server(), PORT).to_string();
        let target = listener.local_addr().expect("an address").to_string();
        let more = ["-listen", "10.0.1.1:0", "-proxy", &proxy, "-name", "far", "-target", &target];
        let more = [&more[..], how].concat();
        Peer::start(&stage.gateway, program, "open", &authority, "near", &more)
    };
    let near = open(&listener);
    duties::all(&mut || {
        let client = stage.connect(near.address).expect("the near end");
        let (server, peer) = listener.accept().expect("the far side");
        assert_eq!(peer.ip(), Family::V4.server());
        impatient(&server);
        (client, server)
    });
    // There is no listener any more.
    stop_listening(listener);
    let kind = match stage.connect(near.address) {
        Ok(mut client) => client.read_once(&mut [0; 1]).expect_err("a refusal").kind(),
        Err(error) => error.kind(),
    };
    assert_eq!(kind, ErrorKind::ConnectionReset);
}

#[test]
fn libcurl_is_a_near_end() {
    libcurl("http3", |outcome| outcome.starts_with("code=18 ") && outcome.contains("error 0x10f"));
}

/// For paths on which UDP does not pass.
#[test]
fn libcurl_is_a_near_end_over_http2() {
    libcurl("http2", |outcome| !outcome.starts_with("code=0 "));
}

/// Sends requests to the far end over HTTP/3 or HTTP/2; `is_broken` recognizes what it prints after
/// a reset.
fn libcurl(over: &str, is_broken: impl Fn(&str) -> bool) {
    let (Some(stage), Some(_)) = (Stage::set(), curl::words()) else { return };
    let authority = Authority::new(&["near", "far"]);
    // libcurl leaves without a notice when it breaks off.
    let silence = "keepalive = \"1 s\"\ntimeout = \"3 s\"\n";
    let _far = start_far(&stage, Family::V4, &authority, silence);
    let listener = stage.listen(Family::V4);
    // If libcurl does not connect, the origin does not wait for ever.
    listener.set_nonblocking(true).expect("a listener that does not block");
    let proxy = SocketAddr::new(Family::V4.server(), PORT);
    let origin = listener.local_addr().expect("an address");
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("file");
    // The output of libcurl, and the origin's result.
    let ask = |authority: &Authority, action: &str, more: &[&str]| {
        let more = [&["-over", over][..], more].concat();
        curl::exchange(&stage, authority, (proxy, origin), action, &file, &more)
    };
    let exchange = |action: &str, more: &[&str], serve: &(dyn Fn(TcpStream) + Sync)| {
        scope(|scope| {
            let served = scope.spawn(|| {
                let mut came = None;
                until("the far side comes", || {
                    came = listener.accept().ok();
                    came.is_some()
                });
                let (stream, peer) = came.expect("it came");
                assert_eq!(peer.ip(), Family::V4.server());
                stream.set_nonblocking(false).expect("a stream that blocks");
                impatient(&stream);
                serve(stream);
            });
            let outcome = ask(&authority, action, more);
            served.join().expect("the origin");
            outcome
        })
    };
    let bytes = noise(4, 20_000_000);
    let whole = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
    let respond = |mut stream: &TcpStream, head: &str, bytes: &[u8]| {
        read_head(stream);
        stream.write_all(head.as_bytes()).expect("a head");
        stream.write_all(bytes).expect("a body");
    };

    std::fs::write(&file, &bytes).expect("a file");
    let outcome = exchange("put", &[], &|mut stream| {
        assert_eq!(read_head(&stream), Some(bytes.len()));
        let mut body = vec![0; bytes.len()];
        stream.read_exact(&mut body).expect("a body");
        assert!(body == bytes, "every byte came");
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n").expect("an answer");
    });
    assert_eq!(outcome, "code=0 status=201");

    // The origin closes first, whether the reader is late or not.
    for late in ["0", "0.5"] {
        let outcome = exchange("get", &["-wait", late], &|stream| respond(&stream, &whole, &bytes));
        assert_eq!(outcome, "code=0 status=200");
        assert!(std::fs::read(&file).expect("a file") == bytes, "every byte came before the end");
    }

    // A reset in the middle does not count as an end.
    let outcome = exchange("get", &[], &|stream| {
        respond(&stream, &whole, &bytes[..100_000]);
        sleep(Duration::from_millis(200));
        reset(stream);
    });
    assert!(is_broken(&outcome), "{outcome}");

    // libcurl breaks off, and the origin is reset.
    let outcome = exchange("get", &["-stop", "1000000"], &|mut stream| {
        read_head(&stream);
        stream.write_all(whole.as_bytes()).expect("a head");
        let error = loop {
            if let Err(error) = stream.write_all(&bytes) {
                break error;
            }
        };
        let broken = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(broken.contains(&error.kind()), "{error}");
    });
    assert!(outcome.starts_with("code=23 "), "{outcome}");

    // There is no listener any more.
    stop_listening(listener);
    let outcome = ask(&authority, "get", &[]);
    assert!(outcome.starts_with("code=7 "), "{outcome}");

    // An unknown client gets nothing.
    let other = Authority::new(&["near"]);
    std::fs::copy(authority.path().join("ca.pem"), other.path().join("ca.pem")).expect("a copy");
    let outcome = ask(&other, "get", &[]);
    assert!(outcome.starts_with("code=") && !outcome.starts_with("code=0 "), "{outcome}");
}

/// Reads the head of a request. Returns the length of the body.
fn read_head(mut stream: &TcpStream) -> Option<usize> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a request");
        head.extend_from_slice(&byte);
    }
    let head = String::from_utf8(head).expect("a head");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    length.and_then(|length| length.parse().ok())
}
