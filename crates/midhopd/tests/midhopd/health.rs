//! Failures are reported by `/healthz`, and what failed is replaced.
//!
//! The kernel makes sockets fail (`ss --kill`), as they do when their interface's driver gives up.

use crate::ends::{Authority, far_config, near_config};
use crate::program::{Running, Setup, log_of, output_in, wording_of};
use crate::stage::{Family, PATIENCE, Stage, receive_all, send_all, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:9310\"\n";

fn health(namespace: &midhop_testbed::namespace::Namespace) -> String {
    let ask = || {
        let address = SocketAddr::from(([127, 0, 0, 1], 9310));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    namespace.run(ask).expect("entering").unwrap_or_default()
}

/// Destroys the sockets that `ss` selects; `None` if this kernel cannot.
fn destroy(namespace: &midhop_testbed::namespace::Namespace, which: &[&str]) -> Option<()> {
    let mut command = Command::new("ss");
    let output = output_in(namespace, command.args(["--kill", "-H"]).args(which));
    if String::from_utf8_lossy(&output.stdout).trim().is_empty() {
        midhop_testkit::skipped("the kernel does not destroy sockets (CONFIG_INET_DIAG_DESTROY)");
        return None;
    }
    Some(())
}

fn a_socket_that_fails_is_reported_and_opened_again(family: Family, workers: u16) {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let quick = "keepalive = \"500 ms\"\ntimeout = \"4 s\"\n";
    let more = format!("{quick}{ADMIN}[daemon]\nworkers = {workers}\n");
    let far = Setup::new(&far_config(family, &authority, &more));
    let _far = Running::start_in(&stage.server, &far);
    let near = near_config(family, &authority, "", quick, "otherwise = \"reject\"\n");
    let near = Setup::new(&format!("{near}{ADMIN}"));
    let _near = Running::start(&stage, &near);
    let listener = stage.listen(family);
    let passes = || {
        let address = listener.local_addr().expect("an address");
        let Ok(client) = stage.connect(address) else { return false };
        let (mut server, _) = listener.accept().expect("the connection's other end");
        send_all(&client, b"through the tunnel");
        let mut received = String::new();
        server.read_to_string(&mut received).expect("reading");
        assert_eq!(received, "through the tunnel");
        true
    };
    assert!(passes());
    let (host, setup) = (&stage.server, &far);
    assert!(health(host).starts_with("HTTP/1.1 200 "), "{}", health(host));
    // Of several sockets at one address the kernel destroys one, whichever process owns it.
    if destroy(host, &["--udp", "--all", "sport = :4433"]).is_none() {
        return;
    }
    until("it is told", || setup.status().failures_total > 0);
    assert!(wording_of(setup).contains("tunnel.listen"), "{}", log_of(setup));
    until("all is well", || health(host).starts_with("HTTP/1.1 200 "));
    if workers == 1 {
        until("a tunnel is open again", || {
            let peer = near.peer("far");
            (peer.opened_total, peer.tunnels) == (2, 1)
        });
    }
    until("flows pass again", passes);
}

#[test]
fn a_listener_s_socket_that_fails_is_reported_and_opened_again_ipv4() {
    a_socket_that_fails_is_reported_and_opened_again(Family::V4, 1);
}

#[test]
fn a_listener_s_socket_that_fails_is_reported_and_opened_again_ipv6() {
    a_socket_that_fails_is_reported_and_opened_again(Family::V6, 1);
}

#[test]
fn one_of_a_listener_s_sockets_that_fails_is_reported_and_opened_again() {
    a_socket_that_fails_is_reported_and_opened_again(Family::V6, 3);
}

/// A listener for peers that cannot use UDP.
fn a_listener_over_tcp(family: Family, workers: u16) {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let more = format!("{ADMIN}[daemon]\nworkers = {workers}\n");
    let far = Setup::new(&far_config(family, &authority, &more));
    let _far = Running::start_in(&stage.server, &far);
    if destroy(&stage.server, &["--tcp", "--listening", "sport = :4433"]).is_none() {
        return;
    }
    until("it is told", || far.status().failures_total > 0);
    assert!(wording_of(&far).contains("(TCP"), "{}", log_of(&far));
    until("all is well", || health(&stage.server).starts_with("HTTP/1.1 200 "));
    let only = "fallback = \"only\"\n";
    let near = near_config(family, &authority, "", only, "otherwise = \"reject\"\n");
    let _near = stage.start(&near);
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    send_all(&client, b"through the tunnel");
    assert_eq!(receive_all(&server), b"through the tunnel");
}

#[test]
fn a_listener_over_tcp_that_fails_is_reported_and_opened_again_ipv4() {
    a_listener_over_tcp(Family::V4, 1);
}

#[test]
fn one_of_a_listener_s_sockets_over_tcp_that_fails_is_reported_and_opened_again() {
    a_listener_over_tcp(Family::V6, 3);
}
