//! Which clients may use a tunnel over TCP and which may not, and the peers that are connected
//! meanwhile.

use crate::ends::{Authority, Ends, PORT, far_config, near_config};
use crate::flows::block;
use crate::program::{Running, Setup, log_of};
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, noise, pass, until};
use crate::visitor::{self, Shown};
use midhop_testbed::namespace::Namespace;
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

const EARLY: &str = "accept = \"early\"\n";
/// A tunnel that soon uses TCP.
const QUICK: &str = "rtt = \"20 ms\"\n";

/// The result of a visit.
#[derive(Debug)]
struct Seen {
    /// The certificate of the far end.
    certificate: Option<Vec<u8>>,
    /// Bytes received within TLS.
    received: Vec<u8>,
    /// Unit: bytes. Received over the wire.
    answered: usize,
}

fn connect(place: &Namespace) -> TcpStream {
    let address = SocketAddr::new(Family::V4.server(), PORT);
    let stream = place.run(|| TcpStream::connect(address)).expect("entering").expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// A stream that counts the bytes that are read.
struct Counted<'a>(&'a TcpStream, usize);

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read_once(buffer)?;
        self.1 += count;
        Ok(count)
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// HTTP/2's connection preface and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Connects, sends `sent` at once, and reads until the other end closes, or sends something.
fn visit(place: &Namespace, name: &str, shown: Option<&Shown>, sent: &[u8]) -> Seen {
    let (config, certificates) = visitor::tls(shown, b"h2");
    let name = rustls::pki_types::ServerName::try_from(name.to_owned()).expect("a name");
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = connect(place);
    let mut counted = Counted(&stream, 0);
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    // For the client the handshake is complete before the other end has checked the client's
    // certificate.
    let mut tls = rustls::Stream::new(&mut tls, &mut counted);
    if tls.write_all(sent).is_ok() {
        match tls.read(&mut buffer) {
            Ok(count) => received.extend(&buffer[..count]),
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "nobody sent anything"),
        }
    }
    let certificate = certificates.lock().expect("no panic").first().cloned();
    Seen { certificate, received, answered: counted.1 }
}

#[test]
fn strangers_get_nothing_over_tcp_and_learn_nothing() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let ends = Ends::start_with(&stage, Family::V4, EARLY, [QUICK, QUICK]);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = stage.flow(&listener);
    let others = Authority::new(&["near", "far"]);
    midhop_pki::authority::issue(ends.authority.path(), "unknown", 30).expect("a certificate");
    let own = |name| Shown::of(&ends.authority, name);
    for (who, shown) in [
        ("nothing shown", None),
        ("a known name by another authority", Some(Shown::of(&others, "near"))),
        ("our authority, but a name that nobody knows", Some(own("unknown"))),
    ] {
        let seen = visit(&stage.gateway, "far", shown.as_ref(), PREFACE);
        assert!(seen.received.is_empty(), "{who}: {seen:?}");
        // A client that does not know the name of the far end does not learn it.
        for name in ["other.example", "near"] {
            let seen = visit(&stage.gateway, name, shown.as_ref(), PREFACE);
            assert!(seen.received.is_empty() && seen.certificate.is_none(), "{who}: {seen:?}");
            assert!(seen.answered <= 7, "{who}: more than an alert: {seen:?}");
        }
        pass(&mut client, &mut server);
    }
    // The same visit by a peer gets a response: the request itself is valid.
    let seen = visit(&stage.gateway, "far", Some(&own("near")), PREFACE);
    assert!(!seen.received.is_empty() && seen.certificate.is_some(), "{seen:?}");
}

#[test]
fn an_expired_name_that_is_known_is_a_stranger_s_over_tcp() {
    let Some(stage) = Stage::set() else { return };
    let ends = Ends::start(&stage, Family::V4, EARLY);
    let again = Authority::new(&[]);
    for file in ["ca.pem", "ca.key"] {
        std::fs::copy(ends.authority.path().join(file), again.path().join(file)).expect("a copy");
    }
    for (from, to, welcome) in [(-3, -1, false), (1, 3, false), (-1, 1, true)] {
        again.issue("near", from, to);
        let shown = Shown::of(&again, "near");
        let seen = visit(&stage.gateway, "far", Some(&shown), PREFACE);
        assert_eq!(!seen.received.is_empty(), welcome, "{from} {to}: {seen:?}");
    }
}

#[test]
fn garbage_over_tcp_harms_nobody() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let ends = Ends::start_with(&stage, Family::V4, EARLY, [QUICK, QUICK]);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = stage.flow(&listener);
    for seed in 0..200 {
        let mut sent = noise(seed + 1, (seed * 37 % 1400) as usize + 1);
        // In turn: random bytes; a TLS handshake that begins correctly.
        if seed % 2 == 0 {
            let head = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
            let length = head.len().min(sent.len());
            sent[..length].copy_from_slice(&head[..length]);
        }
        let mut stream = connect(&stage.client);
        let _ = stream.write_all(&sent);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        assert!(received.len() <= sent.len().max(7), "{} for {}", received.len(), sent.len());
    }
    // A peer that sends random bytes ends its own tunnel and no other.
    let shown = Shown::of(&ends.authority, "near");
    for seed in 0..50 {
        let mut sent = PREFACE.to_vec();
        sent.extend(noise(seed, 2000));
        visit(&stage.gateway, "far", Some(&shown), &sent);
        visit(&stage.gateway, "far", Some(&shown), &noise(seed, 100));
    }
    pass(&mut client, &mut server);
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
}

/// Clients that connect and send nothing take their network's share of the places, and no peer's
/// place.
#[test]
fn a_flood_of_connections_keeps_no_peer_out() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let authority = Authority::new(&["near", "far"]);
    let far = Setup::new(&far_config(Family::V4, &authority, ""));
    let _far = Running::start_in(&stage.server, &far);
    // Connections beyond the bound are reset, some before connecting has returned.
    let attempt =
        || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| connect(&stage.client)));
    let flood: Vec<_> = (0..500).filter_map(|_| attempt().ok()).collect();
    until("the far end has noticed", || far.status().handshakes_limited_total["none"] > 0);
    let config = near_config(Family::V4, &authority, EARLY, QUICK, "otherwise = \"reject\"\n");
    let _near = stage.start(&config);
    let listener: TcpListener = stage.listen(Family::V4);
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
    assert_eq!(server.peer_addr().expect("a peer").ip(), Family::V4.server(), "by the tunnel");
    drop(flood);
}

/// New certificates are used from the next handshake on; existing connections stay.
#[test]
fn a_reload_takes_new_certificates_and_drops_no_tunnel_over_tcp() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let authority = Authority::new(&["near", "far"]);
    let far = Setup::new(&far_config(Family::V4, &authority, ""));
    let running_far = Running::start_in(&stage.server, &far);
    let near = Setup::new(&near_config(Family::V4, &authority, EARLY, QUICK, ""));
    let running_near = Running::start(&stage, &near);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
    let shown = Shown::of(&authority, "near");
    let others = Authority::new(&["near", "far"]);
    for file in ["ca.pem", "near.pem", "near.key", "far.pem", "far.key"] {
        std::fs::copy(others.path().join(file), authority.path().join(file)).expect("a copy");
    }
    for (running, setup) in [(&running_far, &far), (&running_near, &near)] {
        running.signal(Signal::SIGHUP);
        until("it has reloaded", || setup.reloads() == [1, 0]);
    }
    pass(&mut client, &mut server);
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
    assert_eq!(near.peer("far").opened_total, 1, "{}", log_of(&near));
    let now = Shown::of(&others, "near");
    assert!(!visit(&stage.gateway, "far", Some(&now), PREFACE).received.is_empty());
    assert!(visit(&stage.gateway, "far", Some(&shown), PREFACE).received.is_empty());
}
