//! Tunnels over TCP with one end that others wrote: Go's net/http at either end. libcurl is in
//! `interop.rs`.

use crate::ends::{Authority, PORT, near_config, start_far};
use crate::flows::duties::{self, Flow};
use crate::flows::{block, impatient};
use crate::partners::{Peer, Program};
use crate::stage::{Family, ReadOnce, Stage, noise, receive_all, send_all, stop_listening};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::scope;

/// The duties that Go can fulfil: the client ends its stream first, and the server closes first. Go
/// cannot be used at either end if the server ends its stream first. A handler ends its response
/// when it returns, and a client whose response has ended sends no more of its request.
fn does_what_go_can(flow: Flow<'_>) {
    let (client, server) = flow();
    exchange_until_the_client_ends(&client, &server, 20_000_000);
    duties::half_closes(flow, false);
    duties::late_readers(flow, true, true);
    for from_server in [false, true] {
        duties::resets(flow, from_server);
    }
}

/// Both send much at the same time, and the server ends once it has read the client's end: Go
/// cancels a request (RST_STREAM) if its response ends first.
fn exchange_until_the_client_ends(mut client: &TcpStream, server: &TcpStream, bytes: usize) {
    let (up, down) = (noise(1, bytes), noise(2, bytes));
    scope(|scope| {
        scope.spawn(|| send_all(client, &up));
        let received = scope.spawn(|| receive_all(server));
        let sent = scope.spawn(|| {
            let mut server = server;
            server.write_all(&down).expect("writing");
        });
        let mut came = vec![0; bytes];
        client.read_exact(&mut came).expect("what the server said");
        assert!(came == down, "what the server said");
        sent.join().expect("the server");
        assert!(received.join().expect("the server") == up, "what the client said");
        server.shutdown(Shutdown::Write).expect("the server's end");
        assert_eq!(receive_all(client), b"");
    });
}

#[test]
fn go_is_a_far_end() {
    let (Some(stage), Some(_)) = (Stage::set(), Program::GoHttp2.words()) else { return };
    block(&stage);
    let authority = Authority::new(&["near", "far"]);
    let listen = SocketAddr::new(Family::V4.server(), PORT).to_string();
    let _far = Peer::start(
        &stage.server,
        Program::GoHttp2,
        "serve",
        &authority,
        "far",
        &["-listen", &listen],
    );
    let rule = "otherwise = \"reject\"\n";
    let mode = "accept = \"after-connect\"\n";
    let config = near_config(Family::V4, &authority, mode, "rtt = \"20 ms\"\n", rule);
    let _near = stage.start(&config);
    let listener = stage.listen(Family::V4);
    does_what_go_can(&mut || stage.flow(&listener));
    let closed = SocketAddr::new(Family::V4.server(), 9);
    let error = stage.connect(closed).expect_err("nobody listens there");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn go_is_a_near_end() {
    let (Some(stage), Some(_)) = (Stage::set(), Program::GoHttp2.words()) else { return };
    let authority = Authority::new(&["near", "far"]);
    let _far = start_far(&stage, Family::V4, &authority, "");
    let listener = stage.listen(Family::V4);
    let near = {
        let proxy = SocketAddr::new(Family::V4.server(), PORT).to_string();
        let target = listener.local_addr().expect("an address").to_string();
        let more = ["-listen", "10.0.1.1:0", "-proxy", &proxy, "-name", "far", "-target", &target];
        Peer::start(&stage.gateway, Program::GoHttp2, "open", &authority, "near", &more)
    };
    does_what_go_can(&mut || {
        let client = stage.connect(near.address).expect("go-http2");
        let (server, peer) = listener.accept().expect("the far side");
        assert_eq!(peer.ip(), Family::V4.server());
        impatient(&server);
        (client, server)
    });
    // There is no listener any more.
    stop_listening(listener);
    // The reset may arrive before the connection is reported as open.
    let kind = match stage.connect(near.address) {
        Ok(mut client) => client.read_once(&mut [0; 1]).expect_err("a refusal").kind(),
        Err(error) => error.kind(),
    };
    assert_eq!(kind, ErrorKind::ConnectionReset);
}
