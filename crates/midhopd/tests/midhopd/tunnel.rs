//! Flows through a tunnel between two proxies, end to end.
//!
//! `client – gateway with one proxy – server's host with the other, and the server`

use crate::ends::{Authority, Ends, far_config, near_tables};
use crate::program::{Running, Setup};
use crate::stage::{Family, Stage, noise, receive_all, send_all, until};
use midhopd::ledger::{Counter, Ledger};
use midhopd::snapshot::Source;
use std::io::{Read, Write};
use std::net::TcpStream;

/// What both ends send arrives, and so do their ends.
fn exchange(client: &TcpStream, server: &TcpStream, bytes: usize) {
    let (up, down) = (noise(1, bytes), noise(2, bytes));
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(client, &up));
        scope.spawn(|| send_all(server, &down));
        let received = scope.spawn(|| receive_all(server));
        assert!(receive_all(client) == down, "what the server sent");
        assert!(received.join().expect("the server") == up, "what the client sent");
    });
}

fn whole(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    let ends = Ends::start(&stage, family, &format!("accept = \"{accept}\"\n"));
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    let own = family.server();
    assert_eq!(server.peer_addr().expect("a peer").ip(), own, "the far proxy connects as itself");
    exchange(&client, &server, 20_000_000);
    let sum = |count: fn(&Ledger) -> &Counter| ends.sums(count);
    assert_eq!(sum(|ledger| &ledger.flows), [1, 1]);
    assert_eq!(sum(|ledger| &ledger.bytes_up), [20_000_000; 2]);
    assert_eq!(sum(|ledger| &ledger.bytes_down), [20_000_000; 2]);
    for (end, peer) in [(&ends.near, "far"), (&ends.far, "near")] {
        let snapshots = Source::of(end);
        until("a tunnel is reported", || {
            let snapshot = snapshots.take().peers[peer].clone();
            snapshot.tunnels == 1 && snapshot.sent_packets_total > 1000 && snapshot.rtt.is_some()
        });
    }
}

#[test]
fn twenty_megabytes_pass_both_ways_early_ipv4() {
    whole(Family::V4, "early");
}

#[test]
fn twenty_megabytes_pass_both_ways_after_connect_ipv4() {
    whole(Family::V4, "after-connect");
}

#[test]
fn twenty_megabytes_pass_both_ways_early_ipv6() {
    whole(Family::V6, "early");
}

/// The keys that describe a geostationary leg: for the near end, and for the far end, which sends
/// at this rate.
fn geostationary(rate: &str) -> [String; 2] {
    [
        format!("rtt = \"600 ms\"\nrate = \"10 Mbit/s\"\nrate_in = \"{rate}\"\n"),
        format!("rtt = \"600 ms\"\nrate = \"{rate}\"\nrate_in = \"10 Mbit/s\"\n"),
    ]
}

/// A server sends this many bytes over a link, while another flow of the tunnel is silent. Both
/// flows arrive complete.
fn bulk_over(down: &str, rate: &str, bytes: usize) {
    let up = "rate = \"10 Mbit/s\"\ndelay = \"300 ms\"\nloss = \"1 %\"\n";
    let Some(stage) = Stage::set_over(down, up, "600 ms") else { return };
    let [near, far] = geostationary(rate);
    let ends = Ends::start_with(&stage, Family::V4, "", [&near, &far]);
    let listener = stage.listen(Family::V4);
    let silent = stage.flow(&listener);
    let bulk = stage.flow(&listener);
    let sent = noise(3, bytes);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&bulk.1, &sent));
        assert!(receive_all(&bulk.0) == sent, "what the server sent");
    });
    // The tunnel is still the same one: otherwise this flow would be dead.
    exchange(&silent.0, &silent.1, 1000);
    send_all(&bulk.0, b"");
    assert_eq!(ends.sums(|ledger| &ledger.bytes_down), [bytes as u64 + 1000; 2]);
    assert_eq!(ends.sums(|ledger| &ledger.reset_by_server), [0; 2]);
}

#[test]
fn a_long_lossy_link_is_crossed() {
    let down = "rate = \"140 Mbit/s\"\ndelay = \"300 ms\"\nloss = \"1 %\"\n";
    bulk_over(down, "140 Mbit/s", 60_000_000);
}

/// Every second datagram is dropped at first: more gaps in one stream than quinn would accept.
#[test]
fn a_link_that_carries_half_of_the_configured_rate_breaks_no_tunnel() {
    let down = "rate = \"60 Mbit/s\"\ndelay = \"300 ms\"\nqueue = \"200 KB\"\n";
    bulk_over(down, "120 Mbit/s", 40_000_000);
}

/// A client uses the near proxy by HTTP CONNECT. Both proxies are separate programs.
#[test]
fn a_client_that_asks_goes_through_the_tunnel() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let far = Setup::new(&far_config(Family::V4, &authority, ""));
    let _far = Running::start_in(&stage.server, &far);
    let asking = format!(
        "[explicit]\nhttp_connect = \"10.0.1.1:3128\"\nclients = \"10.0.1.0/24\"\n{}",
        near_tables(Family::V4, &authority, "", "")
    );
    let near = Setup::new(&asking);
    let _near = Running::start(&stage, &near);
    let listener = stage.listen(Family::V4);
    let target = listener.local_addr().expect("an address");
    let mut client = stage.connect("10.0.1.1:3128".parse().expect("an address")).expect("a proxy");
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    client.write_all(request.as_bytes()).expect("asking");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("an answer");
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    let (server, peer) = listener.accept().expect("the far side");
    assert_eq!(peer.ip(), Family::V4.server(), "the far proxy connects as itself");
    exchange(&client, &server, 20_000_000);
}
