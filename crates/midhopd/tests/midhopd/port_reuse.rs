//! A client that uses its port again for another connection to the same server.
//!
//! The end that closes a connection first keeps it for a minute. A client whose system keeps it for
//! a shorter time, or a translator with many clients behind it, uses the port again before the
//! proxy's minute is over.

use crate::stage::{Family, PATIENCE, Stage, receive_all, send_all, until};
use midhop_testbed::namespace::Namespace;
use midhopd::data_plane::DataPlane;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

const PORT: u16 = 40_001;

/// Connects from the same port each time.
fn connect(client: &Namespace, family: Family, server: SocketAddr) -> io::Result<TcpStream> {
    let stream = client.run(|| {
        let domain = Domain::for_address(server);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(family.client(), PORT).into())?;
        socket.connect_timeout(&server.into(), PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok::<TcpStream, io::Error>(socket.into())
    });
    stream.expect("entering")
}

/// The number of connections of a host in this state.
fn remembered(host: &Namespace, family: Family, state: &str) -> usize {
    let table = if family == Family::V4 { "tcp" } else { "tcp6" };
    let text = host.run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")));
    let text = text.expect("entering").expect("the kernel's table");
    text.lines().filter(|line| line.split_whitespace().nth(3) == Some(state)).count()
}

fn live(stage: &Stage, family: Family, listener: &TcpListener, client_first: bool) {
    let address = listener.local_addr().expect("an address");
    let client = connect(&stage.client, family, address).expect("a connection");
    let mut accepted = None;
    listener.set_nonblocking(true).expect("a mode");
    until("the server has it, too", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (server, _) = accepted.expect("its other end");
    server.set_nonblocking(false).expect("a mode");
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (first, second) = if client_first { (&client, &server) } else { (&server, &client) };
    send_all(first, b"goodbye");
    assert_eq!(receive_all(second), b"goodbye");
    send_all(second, b"farewell");
    assert_eq!(receive_all(first), b"farewell");
}

fn flows(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum()
}

/// `timestamps`: whether the server's kernel, and so a connection to it, has them.
fn again(family: Family, accept: &str, timestamps: &str, client_first: bool) {
    let Some(stage) = Stage::set() else { return };
    // Both ends keep nothing in TIME-WAIT: a refusal is the proxy's.
    for host in [&stage.client, &stage.server] {
        host.set_sysctl("net.ipv4.tcp_max_tw_buckets", "0").expect("a parameter");
    }
    stage.server.set_sysctl("net.ipv4.tcp_timestamps", timestamps).expect("a parameter");
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    let listener = stage.listen(family);
    for round in 1..=3 {
        live(&stage, family, &listener, client_first);
        until("the proxy has done with it", || {
            proxy.admission().flows() == 0 && remembered(&stage.gateway, family, "06") == 1
        });
        assert_eq!(flows(&proxy), round, "each was split");
    }
}

fn all(family: Family) {
    for accept in ["early", "after-connect"] {
        for timestamps in ["0", "1"] {
            for client_first in [true, false] {
                again(family, accept, timestamps, client_first);
            }
        }
    }
}

#[test]
fn a_port_that_the_client_uses_again_is_used_again_ipv4() {
    all(Family::V4);
}

#[test]
fn a_port_that_the_client_uses_again_is_used_again_ipv6() {
    all(Family::V6);
}
