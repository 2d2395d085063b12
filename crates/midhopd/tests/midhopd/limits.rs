//! At its limits the proxy lets flows pass by or closes windows; it never resets.

use crate::stage::{Family, ReadOnce, Stage, noise, queued, receive_all, send_all, until};
use midhop_status::snapshot::FlowSnapshot;
use midhopd::data_plane::DataPlane;
use midhopd::snapshot::Source;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};

/// Two flows fill the proxy; the third passes by, and reaches the server itself.
fn beyond(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n[limits]\nflows = 2\n"));
    let split = || -> u64 { proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum() };
    let listener = stage.listen(family);
    let talk = |(client, server): (TcpStream, TcpStream)| {
        send_all(&client, b"question");
        assert_eq!(receive_all(&server), b"question");
        send_all(&server, b"answer");
        assert_eq!(receive_all(&client), b"answer");
    };
    let open = |listener: &TcpListener| stage.flow(listener);
    let first = open(&listener);
    let second = open(&listener);
    until("two places are taken", || proxy.admission().is_full());
    until("both are split", || split() == 2);
    if accept == "early" {
        until("the gate is shut", || proxy.admission().is_gate_shut());
    }
    let third = open(&listener);
    talk(third);
    assert_eq!(split(), 2, "the third flow passed by");
    talk(first);
    until("a place is free", || !proxy.admission().is_full());
    until("the gate is open", || !proxy.admission().is_gate_shut());
    talk(open(&listener));
    assert_eq!(split(), 3, "a later flow is split again");
    talk(second);
}

#[test]
fn flows_beyond_limit_bypass_early_ipv4() {
    beyond(Family::V4, "early");
}

#[test]
fn flows_beyond_limit_bypass_early_ipv6() {
    beyond(Family::V6, "early");
}

#[test]
fn flows_beyond_limit_bypass_after_connect_ipv4() {
    beyond(Family::V4, "after-connect");
}

#[test]
fn flows_beyond_limit_bypass_after_connect_ipv6() {
    beyond(Family::V6, "after-connect");
}

/// If a source has reached its limit, its next flow passes by, and flows of other sources are split
/// all the same.
fn beyond_of_a_source(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    let (own, other) = match family {
        Family::V4 => ("10.0.1.2/32", "10.0.1.0/24"),
        Family::V6 => ("fd00:0:0:1::2/128", "fd00:0:0:1::/64"),
    };
    let config = format!(
        "accept = \"{accept}\"\n[limits]\nflows_per_source = 2\n[sources]\nprefixes = [\"{own}\", \"{other}\"]\n"
    );
    let proxy = stage.proxy(&config);
    let split = || -> u64 { proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum() };
    let snapshots = Source::of(&proxy);
    let live = |source: &str| snapshots.take().source_prefixes.get(source).map_or(0, |it| it.flows);
    let listener = stage.listen(family);
    let first = stage.flow(&listener);
    let second = stage.flow(&listener);
    until("both are split", || split() == 2 && live(own) == 2);
    let (client, server) = stage.flow(&listener);
    send_all(&client, b"question");
    assert_eq!(receive_all(&server), b"question");
    assert_eq!(split(), 2, "the third flow passed by");
    assert_eq!(snapshots.take().limits_reached_total["source"], 1);
    drop(first);
    until("a place is free", || live(own) == 1);
    // The place is free, or will be in a moment: flows before that pass by.
    let started = || snapshots.take().source_prefixes[own].started_total;
    let mut next = Vec::new();
    until("the next is split", || {
        next.push(stage.flow(&listener));
        std::thread::sleep(std::time::Duration::from_millis(20));
        started() >= 3
    });
    assert_eq!((live(own), started()), (2, 3), "and no more than that");
    drop(second);
}

#[test]
fn flows_beyond_a_source_s_limit_bypass_early_ipv4() {
    beyond_of_a_source(Family::V4, "early");
}

#[test]
fn flows_beyond_a_source_s_limit_bypass_early_ipv6() {
    beyond_of_a_source(Family::V6, "early");
}

#[test]
fn flows_beyond_a_source_s_limit_bypass_after_connect_ipv4() {
    beyond_of_a_source(Family::V4, "after-connect");
}

/// Writes without waiting, as much as fits now.
fn stuff(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("no reset, no end: {error}"),
        }
    }
    written
}

fn stalled(family: Family) {
    const BUFFER: usize = 512 << 10;
    let Some(stage) = Stage::set() else { return };
    let config =
        format!("[legs.lan0]\nbuffer = \"{BUFFER} B\"\n[legs.wan0]\nbuffer = \"{BUFFER} B\"\n");
    let _proxy = stage.proxy(&config);
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    let bytes = noise(5, 8 << 20);
    server.set_nonblocking(true).expect("a mode");
    // The client does not read. At any moment, the proxy holds no more than its two legs may.
    let mut written = 0;
    let mut most = 0;
    let mut still = 0;
    while still < 50 {
        let count = stuff(&server, &bytes[written..]);
        written += count;
        let held =
            written.saturating_sub(queued::unacknowledged(&server) + queued::unread(&client));
        most = most.max(held);
        assert!(held <= 2 * BUFFER, "the proxy holds {held} bytes");
        still = if count == 0 { still + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(written < bytes.len(), "the windows are closed");
    assert!(most > BUFFER / 2, "the proxy was full: it held {most} bytes");
    // Then the client reads on, and everything continues.
    server.set_nonblocking(false).expect("a mode");
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&server, &bytes[written..]));
        assert!(receive_all(&client) == bytes, "every byte arrives");
    });
}

#[test]
fn stalled_peer_closes_windows_and_memory_is_bounded_ipv4() {
    stalled(Family::V4);
}

#[test]
fn stalled_peer_closes_windows_and_memory_is_bounded_ipv6() {
    stalled(Family::V6);
}

fn waits(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.memory_waits.value()).sum()
}

fn memory(family: Family) {
    // Two flows with all that each may hold would exceed the limit: the others wait.
    const LIMIT: u64 = 1 << 20;
    const FLOWS: u64 = 12;
    let Some(stage) = Stage::set() else { return };
    let config = format!(
        "[limits]\nmemory = \"{LIMIT} B\"\n[legs.lan0]\nbuffer = \"1 MiB\"\n[legs.wan0]\nbuffer = \"1 MiB\"\n"
    );
    let proxy = stage.proxy(&config);
    let listener = stage.listen(family);
    let flows: Vec<_> = (0..FLOWS).map(|_| stage.flow(&listener)).collect();
    let noises: Vec<_> = (0..FLOWS).map(|seed| noise(seed, 3 << 20)).collect();
    std::thread::scope(|scope| {
        for ((_, server), bytes) in flows.iter().zip(&noises) {
            scope.spawn(|| send_all(server, bytes));
        }
        until("the limit on memory is met", || waits(&proxy) > 0);
        until("each flow that waits for memory is reported so", || {
            let snapshot = Source::of(&proxy).take();
            let waits = |flow: &FlowSnapshot| flow.down_waits_for == Some("memory");
            let flows = snapshot.busiest.iter().filter(|flow| waits(flow)).count() as u64;
            flows > 0 && snapshot.waiting["memory"] == flows
        });
        // Each flow may have read a window and a stage before it was counted.
        let held = proxy.budget().held();
        assert!(held <= LIMIT + FLOWS * (1 << 20), "{held} bytes are held");
        // Now the clients read, all at once: no flow was reset, and nothing was lost.
        for ((client, _), bytes) in flows.iter().zip(&noises) {
            scope.spawn(move || assert!(receive_all(client) == *bytes, "every byte arrives"));
        }
    });
    until("everything is given back", || {
        drop_unread(&flows);
        proxy.budget().held() < LIMIT
    });
}

/// Ends flows on both sides.
fn drop_unread(flows: &[(TcpStream, TcpStream)]) {
    for (client, _) in flows {
        let _ = client.shutdown(std::net::Shutdown::Write);
    }
    for (_, server) in flows {
        let mut server: &TcpStream = server;
        let _ = server.read_once(&mut [0; 1]);
    }
}

#[test]
fn memory_limit_closes_windows_never_resets_ipv4() {
    memory(Family::V4);
}

#[test]
fn memory_limit_closes_windows_never_resets_ipv6() {
    memory(Family::V6);
}

/// Servers that do not read, and clients that write as much as they can. The kernel would open a
/// window of up to `net.ipv4.tcp_rmem` for each.
fn unread(family: Family) {
    const LIMIT: u64 = 8 << 20;
    const FLOWS: u64 = 16;
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(&format!("[limits]\nmemory = \"{LIMIT} B\"\n"));
    let listener = stage.listen(family);
    let flows: Vec<_> = (0..FLOWS).map(|_| stage.flow(&listener)).collect();
    for (client, _) in &flows {
        client.set_nonblocking(true).expect("a mode");
    }
    let bytes = noise(7, 48 << 20);
    let mut written = vec![0; flows.len()];
    let mut still = 0;
    while still < 50 {
        let before: usize = written.iter().sum();
        for ((client, _), written) in flows.iter().zip(&mut written) {
            *written += stuff(client, &bytes[*written..]);
        }
        still = if written.iter().sum::<usize>() == before { still + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let held = |((client, server), written): (&(TcpStream, TcpStream), &usize)| {
        written.saturating_sub(queued::unacknowledged(client) + queued::unread(server)) as u64
    };
    let held: u64 = flows.iter().zip(&written).map(held).sum();
    // Each flow may have its least window, and a stage that was read before it was counted.
    assert!(held <= LIMIT + FLOWS * ((256 << 10) + (1 << 20)), "{held} bytes are held");
    assert!(held > LIMIT / 2, "the memory was used: {held} bytes are held");
    let bounded: u64 = proxy.ledgers().iter().map(|it| it.windows_bounded.value()).sum();
    assert!(bounded > 0);
    // The servers read after all: no flow was reset, and nothing was lost.
    std::thread::scope(|scope| {
        for ((client, server), written) in flows.iter().zip(&written) {
            client.set_nonblocking(false).expect("a mode");
            let bytes = &bytes[..*written + (64 << 10)];
            scope.spawn(move || send_all(client, &bytes[*written..]));
            scope.spawn(move || assert!(receive_all(server) == bytes, "every byte arrives"));
        }
    });
    drop(flows);
    until("everything is given back", || {
        proxy.budget().held() == 0 && proxy.budget().promised() == 0
    });
}

#[test]
fn servers_that_do_not_read_fill_no_more_than_the_limit_ipv4() {
    unread(Family::V4);
}

#[test]
fn servers_that_do_not_read_fill_no_more_than_the_limit_ipv6() {
    unread(Family::V6);
}

#[test]
fn a_fast_flow_is_left_to_the_kernel_while_memory_is_free() {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let bytes = noise(8, 48 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&client, &bytes));
        assert!(receive_all(&server) == bytes, "every byte arrives");
    });
    let bounded: u64 = proxy.ledgers().iter().map(|it| it.windows_bounded.value()).sum();
    assert_eq!(bounded, 0, "the kernel alone sizes its window");
    assert!(proxy.budget().promised() > 0, "its window grew");
}
