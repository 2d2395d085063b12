//! Both protocols, spoken well, badly, and cut into pieces.

use super::*;
use proptest::{collection::vec, prelude::*};

/// Feeds `input` in pieces of `piece` bytes.
fn fed(protocol: Protocol, input: &[u8], piece: usize) -> (Handshake, Vec<u8>) {
    let mut handshake = Handshake::new(protocol);
    let mut output = Vec::new();
    for bytes in input.chunks(piece) {
        handshake.handle_input(bytes);
        output.extend(handshake.poll_output().unwrap_or_default());
    }
    (handshake, output)
}

fn http_status(request: &str) -> String {
    let (handshake, output) = fed(Protocol::HttpConnect, request.as_bytes(), usize::MAX);
    assert_eq!(*handshake.state(), State::Refused, "{request:?}");
    let output = String::from_utf8(output).expect("text");
    assert!(output.ends_with("\r\n\r\n") && output.contains("Proxy-Status: midhopd; error="));
    output.split(' ').nth(1).expect("status").to_owned()
}

fn target(text: &str) -> State {
    let (host, port) = text.rsplit_once(':').expect("port");
    let host = host.trim_matches(['[', ']']);
    State::Asked(Target::of(host, port.parse().expect("port")).expect("target"))
}

#[test]
fn connect_is_understood_in_any_pieces_and_what_follows_is_kept() {
    for wanted in ["192.0.2.1:443", "[2001:db8::1]:8443", "example.org:80"] {
        let request =
            format!("CONNECT {wanted} HTTP/1.1\r\nHost: {wanted}\r\n\r\nearly\r\n\r\ndata");
        for piece in [1, 2, 3, 7, 1000] {
            let (handshake, output) = fed(Protocol::HttpConnect, request.as_bytes(), piece);
            assert_eq!((handshake.state(), output.len()), (&target(wanted), 0));
            assert_eq!(handshake.into_rest(), b"early\r\n\r\ndata");
        }
    }
}

#[test]
fn bare_line_feeds_and_http_1_0_are_taken() {
    let (handshake, _) = fed(Protocol::HttpConnect, b"CONNECT a.example:1 HTTP/1.0\n\n", 1);
    assert_eq!(*handshake.state(), target("a.example:1"));
}

#[test]
fn wrong_requests_get_the_status_they_deserve() {
    let host = "Host: a\r\n";
    for (request, status) in [
        (format!("GET http://a/ HTTP/1.1\r\n{host}\r\n"), "405"),
        (format!("CONNECT a HTTP/1.1\r\n{host}\r\n"), "400"),
        (format!("CONNECT a: HTTP/1.1\r\n{host}\r\n"), "400"),
        (format!("CONNECT a:0 HTTP/1.1\r\n{host}\r\n"), "400"),
        (format!("CONNECT a:+80 HTTP/1.1\r\n{host}\r\n"), "400"),
        (format!("CONNECT a:65536 HTTP/1.1\r\n{host}\r\n"), "400"),
        (format!("CONNECT u@a:80 HTTP/1.1\r\n{host}\r\n"), "400"),
        (format!("CONNECT [1.2.3.4]:80 HTTP/1.1\r\n{host}\r\n"), "400"),
        ("CONNECT a:80 HTTP/1.1\r\n\r\n".to_owned(), "400"),
        (format!("CONNECT a:80 HTTP/1.1\r\n{host}Content-Length: 5\r\n\r\n"), "400"),
        (format!("CONNECT a:80 HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n"), "400"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (format!("CONNECT a:80 HTTP/1.1\r\n{host}{}\r\n", "X: y\r\n".repeat(64)), "431"),
        (format!("CONNECT a:80 HTTP/1.1\r\nX: {}", "y".repeat(9000)), "431"),
        (format!("CONNECT a:80 HTTP/1.1\r\n{host}X: {}\r\n\r\n", "y".repeat(9000)), "431"),
    ] {
        assert_eq!(http_status(&request), status, "{request:?}");
    }
}

#[test]
fn a_wrong_request_is_answered_at_once_however_it_comes() {
    let after_empty_lines = "\r\n\n\n\nCONN ECT 192.0.2.1:60 HTTP\n\n".to_owned();
    let long = format!("CONNECT {}:443 HTTP/1.1\r\n\r\n", "a".repeat(http::HEAD_BYTES_MAX));
    let wrong_and_long = format!("CON NECT {}:443 HTTP/1.1\r\n\r\n", "a".repeat(9000));
    for (request, status) in [(after_empty_lines, "400"), (long, "431"), (wrong_and_long, "431")] {
        assert_eq!(http_status(&request), status);
        let whole = fed(Protocol::HttpConnect, request.as_bytes(), usize::MAX).1;
        for piece in [1, 2, 3, 6, 33] {
            assert_eq!(fed(Protocol::HttpConnect, request.as_bytes(), piece).1, whole, "{piece}");
        }
    }
}

#[test]
fn http_reports_each_outcome_by_status_and_proxy_status() {
    let bound = SocketAddr::from(([192, 0, 2, 9], 40_000));
    for (outcome, status, error) in [
        (Err(Cause::NotAllowed), "403", "destination_ip_prohibited"),
        (Err(Cause::NamesOff), "403", "http_request_denied"),
        (Err(Cause::Refused), "502", "connection_refused"),
        (Err(Cause::HostUnreachable), "502", "destination_unavailable"),
        (Err(Cause::NetworkUnreachable), "502", "destination_ip_unroutable"),
        (Err(Cause::NameUnknown), "502", "dns_error"),
        (Err(Cause::TimedOut), "504", "connection_timeout"),
        (Err(Cause::Loop), "502", "proxy_loop_detected"),
        (Err(Cause::Full), "503", "connection_limit_reached"),
        (Err(Cause::Failed), "500", "proxy_internal_error"),
    ] {
        let (mut handshake, _) =
            fed(Protocol::HttpConnect, b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 9);
        handshake.answer(outcome);
        let reply = String::from_utf8(handshake.poll_output().expect("reply")).expect("text");
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
        assert!(reply.contains(&format!("Proxy-Status: midhopd; error={error}\r\n")), "{reply}");
        assert_eq!(*handshake.state(), State::Refused);
    }
    let (mut handshake, _) =
        fed(Protocol::HttpConnect, b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 9);
    handshake.answer(Ok(bound));
    let reply = handshake.poll_output().expect("reply");
    assert_eq!(reply, b"HTTP/1.1 200 Connection Established\r\n\r\n");
    assert_eq!(*handshake.state(), State::Connected);
}

fn socks_request(kind: u8, host: &[u8], port: u16) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0, 5, 1, 0, kind];
    bytes.extend(host);
    bytes.extend(port.to_be_bytes());
    bytes
}

#[test]
fn socks_is_understood_in_any_pieces_and_what_follows_is_kept() {
    let v6 = "2001:db8::1".parse::<std::net::Ipv6Addr>().expect("address");
    for (kind, host, wanted) in [
        (1, vec![192, 0, 2, 1], "192.0.2.1:443"),
        (4, v6.octets().to_vec(), "[2001:db8::1]:443"),
        (3, b"\x0bexample.org".to_vec(), "example.org:443"),
        (3, b"\x09192.0.2.1".to_vec(), "192.0.2.1:443"),
        (
            4,
            "::ffff:192.0.2.1".parse::<std::net::Ipv6Addr>().expect("a").octets().to_vec(),
            "192.0.2.1:443",
        ),
    ] {
        let mut bytes = socks_request(kind, &host, 443);
        bytes.extend(b"\x05\x01early");
        for piece in [1, 2, 5, 1000] {
            let (mut handshake, output) = fed(Protocol::Socks5, &bytes, piece);
            assert_eq!((handshake.state(), output.as_slice()), (&target(wanted), &[5u8, 0][..]));
            handshake.answer(Ok(SocketAddr::from(([10, 0, 0, 1], 258))));
            assert_eq!(handshake.poll_output(), Some(vec![5, 0, 0, 1, 10, 0, 0, 1, 1, 2]));
            assert_eq!(handshake.into_rest(), b"\x05\x01early");
        }
    }
}

#[test]
fn socks_refuses_with_the_codes_of_the_rfc() {
    for (outcome, code) in [
        (Err(Cause::NotAllowed), 2),
        (Err(Cause::NamesOff), 2),
        (Err(Cause::NetworkUnreachable), 3),
        (Err(Cause::HostUnreachable), 4),
        (Err(Cause::NameUnknown), 4),
        (Err(Cause::Refused), 5),
        (Err(Cause::TimedOut), 6),
        (Err(Cause::Loop), 1),
        (Err(Cause::Full), 1),
        (Err(Cause::Failed), 1),
    ] {
        let (mut handshake, _) = fed(Protocol::Socks5, &socks_request(1, &[1, 2, 3, 4], 9), 100);
        handshake.answer(outcome);
        assert_eq!(handshake.poll_output(), Some(vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]));
        assert_eq!(*handshake.state(), State::Refused);
    }
}

#[test]
fn wrong_socks_is_refused() {
    let bound = [0, 1, 0, 0, 0, 0, 0, 0];
    let reply = |code: u8| [&[5, 0, 5, code][..], &bound].concat();
    for (bytes, reply) in [
        (vec![4, 1, 0, 80, 1, 2, 3, 4, 0], vec![]),
        (b"GET / HTTP/1.1".to_vec(), vec![]),
        (vec![5, 1, 2], vec![5, 0xff]),
        (vec![5, 0], vec![5, 0xff]),
        (vec![5, 1, 0, 5, 2, 0, 1, 1, 2, 3, 4, 0, 80], reply(7)),
        (vec![5, 1, 0, 5, 3, 0, 1, 1, 2, 3, 4, 0, 80], reply(7)),
        (vec![5, 1, 0, 5, 1, 0, 9, 1, 2, 3, 4, 0, 80], reply(8)),
        (vec![5, 1, 0, 5, 1, 0, 1, 1, 2, 3, 4, 0, 0], reply(1)),
        (vec![5, 1, 0, 5, 1, 0, 3, 0, 0, 80], reply(1)),
        (vec![5, 1, 0, 5, 1, 0, 3, 2, 0xff, 0xfe, 0, 80], reply(1)),
        (vec![5, 1, 0, 6], reply(1)),
    ] {
        let (handshake, output) = fed(Protocol::Socks5, &bytes, 3);
        assert_eq!((handshake.state(), &output), (&State::Refused, &reply), "{bytes:?}");
        assert!(!handshake.wants_input());
    }
}

#[test]
fn a_late_client_is_answered_where_the_protocol_allows() {
    let mut handshake = Handshake::new(Protocol::HttpConnect);
    handshake.handle_timeout();
    assert!(handshake.poll_output().expect("reply").starts_with(b"HTTP/1.1 408 "));
    assert_eq!(*handshake.state(), State::Refused);
}

proptest! {
    #[test]
    fn no_input_panics_and_pieces_do_not_matter(
        socks: bool, bytes in vec(any::<u8>(), 0..300), prefix in 0usize..3, piece in 1usize..50,
    ) {
        let protocol = if socks { Protocol::Socks5 } else { Protocol::HttpConnect };
        let mut input: Vec<u8> = match (socks, prefix) {
            (true, 1) => vec![5, 1, 0],
            (true, 2) => vec![5, 1, 0, 5, 1, 0],
            (false, 1) => b"CONNECT ".to_vec(),
            (false, 2) => b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n".to_vec(),
            _ => Vec::new(),
        };
        input.extend(bytes);
        let (whole, reply) = fed(protocol, &input, usize::MAX);
        let (pieces, output_in_pieces) = fed(protocol, &input, piece);
        prop_assert_eq!(whole.state(), pieces.state());
        prop_assert_eq!(reply, output_in_pieces);
        prop_assert_eq!(whole.into_rest(), pieces.into_rest());
    }

    #[test]
    fn a_handshake_holds_little(bytes in vec(any::<u8>(), 1..200), times in 1usize..2000) {
        let mut handshake = Handshake::new(Protocol::HttpConnect);
        for _ in 0..times {
            if handshake.wants_input() {
                handshake.handle_input(&bytes);
            }
        }
        prop_assert!(handshake.input.len() <= http::HEAD_BYTES_MAX + bytes.len());
    }
}
