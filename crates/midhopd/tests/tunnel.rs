//! Flows through a tunnel between two proxies, end to end.
//!
//! `client – gateway with one proxy – server's host with the other, and the server`

mod ends;
mod program;
mod stage;

use ends::{Authority, Ends, far_config, near_tables};
use midhopd::ledger::{Count, Ledger};
use midhopd::snapshot::Source;
use program::{Desk, Running};
use stage::{Family, Stage, hear, noise, say, until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What both ends say arrives, and so does how they end.
fn exchange(client: &TcpStream, server: &TcpStream, bytes: usize) {
    let (up, down) = (noise(1, bytes), noise(2, bytes));
    std::thread::scope(|scope| {
        scope.spawn(|| say(client, &up));
        scope.spawn(|| say(server, &down));
        let heard = scope.spawn(|| hear(server));
        assert!(hear(client) == down, "what the server said");
        assert!(heard.join().expect("the server") == up, "what the client said");
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
    let sum = |count: fn(&Ledger) -> &Count| ends.sums(count);
    assert_eq!(sum(|ledger| &ledger.flows), [1, 1]);
    assert_eq!(sum(|ledger| &ledger.bytes_up), [20_000_000; 2]);
    assert_eq!(sum(|ledger| &ledger.bytes_down), [20_000_000; 2]);
    for (end, peer) in [(&ends.near, "far"), (&ends.far, "near")] {
        let snapshots = Source::of(end);
        until("a tunnel is told of", || {
            let told = snapshots.take().peers[peer].clone();
            told.tunnels == 1 && told.sent_packets_total > 1000 && told.rtt.is_some()
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

/// What a tunnel knows of a geostationary leg: its near end, and its far end, which says a rate.
fn geostationary(rate: &str) -> [String; 2] {
    [
        format!("rtt = \"600 ms\"\nrate = \"10 Mbit/s\"\nrate_in = \"{rate}\"\n"),
        format!("rtt = \"600 ms\"\nrate = \"{rate}\"\nrate_in = \"10 Mbit/s\"\n"),
    ]
}

/// A server says so much over a link, while another flow of the tunnel is silent; both are whole.
fn bulk_over(down: &str, told: &str, bytes: usize) {
    let up = "rate = \"10 Mbit/s\"\ndelay = \"300 ms\"\nloss = \"1 %\"\n";
    let Some(stage) = Stage::set_over(down, up, "600 ms") else { return };
    let [near, far] = geostationary(told);
    let ends = Ends::start_with(&stage, Family::V4, "", [&near, &far]);
    let listener = stage.listen(Family::V4);
    let silent = stage.flow(&listener);
    let bulk = stage.flow(&listener);
    let said = noise(3, bytes);
    std::thread::scope(|scope| {
        scope.spawn(|| say(&bulk.1, &said));
        assert!(hear(&bulk.0) == said, "what the server said");
    });
    // The tunnel is the same, or this flow would be dead.
    exchange(&silent.0, &silent.1, 1000);
    say(&bulk.0, b"");
    assert_eq!(ends.sums(|ledger| &ledger.bytes_down), [bytes as u64 + 1000; 2]);
    assert_eq!(ends.sums(|ledger| &ledger.reset_by_server), [0; 2]);
}

#[test]
fn a_long_lossy_link_is_crossed() {
    let down = "rate = \"140 Mbit/s\"\ndelay = \"300 ms\"\nloss = \"1 %\"\n";
    bulk_over(down, "140 Mbit/s", 60_000_000);
}

/// Every second datagram is dropped at first: more gaps in one stream than quinn would bear.
#[test]
fn a_link_that_carries_half_of_what_was_said_breaks_no_tunnel() {
    let down = "rate = \"60 Mbit/s\"\ndelay = \"300 ms\"\nqueue = \"200 KB\"\n";
    bulk_over(down, "120 Mbit/s", 40_000_000);
}

/// A client asks the near proxy by HTTP CONNECT, both proxies being programs of their own.
#[test]
fn a_client_that_asks_goes_through_the_tunnel() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let far = Desk::new(&far_config(Family::V4, &authority, ""));
    let _far = Running::start_in(&stage.server, &far);
    let asking = format!(
        "[explicit]\nhttp_connect = \"10.0.1.1:3128\"\nclients = \"10.0.1.0/24\"\n{}",
        near_tables(Family::V4, &authority, "", "")
    );
    let near = Desk::new(&asking);
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

/// Says without an end until the other end is gone.
fn say_on(mut stream: &TcpStream) {
    let piece = noise(4, 64 << 10);
    while stream.write_all(&piece).is_ok() {}
}

/// Counts what comes until the stream breaks.
fn count_on(mut stream: &TcpStream, counted: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = stream.read(&mut buffer)
        && count > 0
    {
        counted.fetch_add(count as u64, Relaxed);
    }
}

/// Flows of which the server says without an end, and the same of the client where `both`. What has come
/// of each to the client.
fn with_bulk(
    stage: &Stage,
    listener: &TcpListener,
    flows: usize,
    both: bool,
    what: impl FnOnce(&[AtomicU64]),
) {
    let flows: Vec<_> = (0..flows).map(|_| stage.flow(listener)).collect();
    let counts: Vec<_> = flows.iter().map(|_| AtomicU64::new(0)).collect();
    let other = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for ((client, server), count) in flows.iter().zip(&counts) {
            scope.spawn(|| say_on(server));
            scope.spawn(|| count_on(client, count));
            if both {
                scope.spawn(|| say_on(client));
                scope.spawn(|| count_on(server, &other));
            }
        }
        what(&counts);
        for (client, server) in &flows {
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = server.shutdown(std::net::Shutdown::Both);
        }
    });
}

fn sum(counts: &[AtomicU64]) -> u64 {
    counts.iter().map(|count| count.load(Relaxed)).sum()
}

/// Waits for bytes, which come as fast as the link lets them.
fn await_bytes(counts: &[AtomicU64], bytes: u64) {
    let start = sum(counts);
    while sum(counts) < start + bytes {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn bulk_flows_get_equal_parts_of_a_tunnel() {
    let link = "rate = \"40 Mbit/s\"\ndelay = \"50 ms\"\nloss = \"0.1 %\"\n";
    let Some(stage) = Stage::set_over(link, link, "100 ms") else { return };
    let told = "rtt = \"100 ms\"\nrate = \"40 Mbit/s\"\n";
    let _ends = Ends::start_with(&stage, Family::V4, "", [told, told]);
    let listener = stage.listen(Family::V4);
    with_bulk(&stage, &listener, 32, false, |counts| {
        await_bytes(counts, 5_000_000);
        let before: Vec<_> = counts.iter().map(|count| count.load(Relaxed)).collect();
        await_bytes(counts, 25_000_000);
        let parts: Vec<_> = before.iter().zip(counts).map(|(b, c)| c.load(Relaxed) - b).collect();
        let total = parts.iter().sum::<u64>() as f64;
        let squares: f64 = parts.iter().map(|part| (*part as f64).powi(2)).sum();
        let index = total * total / (parts.len() as f64 * squares);
        println!("Jain's index {index:.4}, {parts:?}");
        assert!(index >= 0.98, "Jain's index is {index:.4}: {parts:?}");
    });
}

/// What a request of a hundred bytes and its answer take.
fn asked(client: &mut TcpStream, server: &mut TcpStream) -> std::time::Duration {
    let start = std::time::Instant::now();
    let mut heard = [0; 100];
    client.write_all(&[1; 100]).expect("asking");
    server.read_exact(&mut heard).expect("a request");
    server.write_all(&[2; 100]).expect("answering");
    client.read_exact(&mut heard).expect("an answer");
    start.elapsed()
}

/// It waits behind nothing that was written before: neither a new flow's nor that of one that has rested.
#[test]
fn a_request_overtakes_the_bulk_of_its_tunnel() {
    let link = "rate = \"20 Mbit/s\"\ndelay = \"300 ms\"\n";
    let Some(stage) = Stage::set_over(link, link, "600 ms") else { return };
    let told = "rtt = \"600 ms\"\nrate = \"20 Mbit/s\"\n";
    let _ends = Ends::start_with(&stage, Family::V4, "accept = \"early\"\n", [told, told]);
    let listener = stage.listen(Family::V4);
    let mut known = stage.flow(&listener);
    let idle = asked(&mut known.0, &mut known.1);
    with_bulk(&stage, &listener, 8, true, |counts| {
        await_bytes(counts, 6_000_000);
        let old = asked(&mut known.0, &mut known.1);
        let (mut client, mut server) = stage.flow(&listener);
        let new = asked(&mut client, &mut server);
        println!("idle {idle:?}, an old flow {old:?}, a new one {new:?}");
        // Behind what the pool holds it would be two round trips more.
        for one in [old, new] {
            assert!(one < idle * 3 / 2, "{one:?} after {idle:?} when idle");
        }
    });
}
