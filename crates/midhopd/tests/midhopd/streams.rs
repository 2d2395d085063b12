//! Bytes of a flow's ends reach the other end, and so do their FIN and their reset.

use crate::stage::{Family, ReadOnce, Stage, noise, receive_all, send_all, stop_listening};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

const EARLY: &str = "accept = \"early\"\n";

/// Both ends send at the same time, then end one after the other.
fn talk(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(EARLY);
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    // Both legs keep the client's address and port.
    assert_eq!(server.peer_addr().expect("a peer"), client.local_addr().expect("an address"));
    let (up, down) = (noise(1, 3_000_000), noise(2, 5_000_000));
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&client, &up));
        scope.spawn(|| send_all(&server, &down));
        let received = scope.spawn(|| receive_all(&server));
        assert!(receive_all(&client) == down, "what the server sent");
        assert!(received.join().expect("the server") == up, "what the client sent");
    });
    let flows: u64 = proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum();
    assert_eq!(flows, 1, "the flow was split");
}

#[test]
fn bytes_pass_both_ways_ipv4() {
    talk(Family::V4);
}

#[test]
fn bytes_pass_both_ways_ipv6() {
    talk(Family::V6);
}

/// One end ends its stream; the other goes on for long.
fn half_close(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy(EARLY);
    let listener = stage.listen(family);
    let reply = noise(3, 4_000_000);
    let exchange = |first: &TcpStream, second: &TcpStream| {
        send_all(first, b"that is all");
        assert_eq!(receive_all(second), b"that is all");
        // The response begins only after the end has been received.
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(second, &reply));
            assert!(receive_all(first) == reply, "the whole answer after the half-close");
        });
    };
    let (client, server) = stage.flow(&listener);
    exchange(&client, &server);
    let (client, server) = stage.flow(&listener);
    exchange(&server, &client);
}

#[test]
fn half_close_both_directions_ipv4() {
    half_close(Family::V4);
}

#[test]
fn half_close_both_directions_ipv6() {
    half_close(Family::V6);
}

/// Closes with a reset.
fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(std::time::Duration::ZERO))
        .expect("a linger time");
}

fn rst(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy(EARLY);
    let listener = stage.listen(family);
    let swap = |(client, server): (TcpStream, TcpStream), from_server: bool| {
        if from_server { (server, client) } else { (client, server) }
    };
    for from_server in [false, true] {
        let (mut resetting, mut other) = swap(stage.flow(&listener), from_server);
        resetting.write_all(b"so far").expect("writing");
        let mut buffer = [0; 6];
        other.read_exact(&mut buffer).expect("what came before the reset");
        reset(resetting);
        let error = other.read_once(&mut buffer).expect_err("a reset, not an end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn rst_from_either_side_arrives_as_rst_ipv4() {
    rst(Family::V4);
}

#[test]
fn rst_from_either_side_arrives_as_rst_ipv6() {
    rst(Family::V6);
}

fn rst_while_full(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy(EARLY);
    let listener = stage.listen(family);
    let (client, mut server) = stage.flow(&listener);
    // The client does not read; the server writes until nothing is accepted any more.
    server.set_nonblocking(true).expect("a mode");
    let chunk = noise(4, 1 << 16);
    let mut quiet = 0;
    while quiet < 20 {
        match server.write(&chunk) {
            Ok(_written) => quiet = 0,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                quiet += 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }
    reset(server);
    // Bytes in the client's own queue may still be read; then the reset follows.
    let mut client = client;
    let error = loop {
        match client.read_once(&mut [0; 1 << 16]) {
            Ok(0) => panic!("a truncated stream ended as if it were whole"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn rst_passes_even_when_all_buffers_are_full_ipv4() {
    rst_while_full(Family::V4);
}

#[test]
fn rst_passes_even_when_all_buffers_are_full_ipv6() {
    rst_while_full(Family::V6);
}

fn refused_early(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy(EARLY);
    let listener = stage.listen(family);
    let address = listener.local_addr().expect("an address");
    stop_listening(listener);
    // The kernel may report the reset at once or at the first read: both mean that there is no
    // listener.
    let error = match stage.connect(address) {
        Ok(mut client) => client.read_once(&mut [0; 1]).expect_err("a reset, not an end"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn refused_becomes_rst_early_ipv4() {
    refused_early(Family::V4);
}

#[test]
fn refused_becomes_rst_early_ipv6() {
    refused_early(Family::V6);
}

fn server_first(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy(EARLY);
    let listener = stage.listen(family);
    let (mut client, mut server) = stage.flow(&listener);
    server.write_all(b"220 ready\r\n").expect("a greeting");
    let mut greeting = [0; 11];
    client.read_exact(&mut greeting).expect("the greeting, before the client sent anything");
    assert_eq!(&greeting, b"220 ready\r\n");
}

#[test]
fn server_speaks_first_ipv4() {
    server_first(Family::V4);
}

#[test]
fn server_speaks_first_ipv6() {
    server_first(Family::V6);
}
