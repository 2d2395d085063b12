//! A flow that ended in order leaves no orphan to the kernel: the proxy keeps its sockets until
//! their far ends have acknowledged everything.
//!
//! Beyond `net.ipv4.tcp_max_orphans` the kernel resets orphans. That limit applies to the whole
//! machine and all namespaces, so a test may not set it. It counts orphans instead.

use crate::stage::{self, Family, Stage, nft, noise, receive_all, send_all, until};
use midhop_testbed::namespace::Namespace;
use midhopd::data_plane::DataPlane;
use std::net::{Shutdown, TcpStream};
use std::thread::scope;

const EARLY: &str = "accept = \"early\"\n";
const FLOWS: usize = 40;
/// The kernel's states in which the far end has not acknowledged our FIN.
const UNACKNOWLEDGED: [&str; 3] = ["04", "09", "0B"];

/// The number of sockets whose FIN has not been acknowledged: those that a process holds, and the
/// orphans.
fn closing(inside: &Namespace, family: Family) -> (usize, usize) {
    let table = match family {
        Family::V4 => "/proc/thread-self/net/tcp",
        Family::V6 => "/proc/thread-self/net/tcp6",
    };
    let text = inside.run(|| std::fs::read_to_string(table));
    let text = text.expect("entering").expect("the kernel's table");
    let mut found = (0, 0);
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if UNACKNOWLEDGED.contains(&fields[3]) {
            if fields[9] == "0" { found.1 += 1 } else { found.0 += 1 }
        }
    }
    found
}

/// Drops everything that `host` sends, until the rule is removed.
fn mute(host: &Namespace) {
    nft(
        host,
        "add table inet mute; \
         add chain inet mute output { type filter hook output priority 0; policy drop; }",
    );
}

fn unmute(host: &Namespace) {
    nft(host, "delete table inet mute");
}

fn ended(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.ended.value()).sum()
}

/// One end has ended its stream and then falls silent. The other end sends its last bytes and
/// closes.
fn last_words(stage: &Stage, family: Family, to_client: bool) {
    let listener = stage.listen(family);
    let flows: Vec<(TcpStream, TcpStream)> = (0..FLOWS)
        .map(|_| {
            let (client, server) = stage.flow(&listener);
            if to_client { (server, client) } else { (client, server) }
        })
        .collect();
    for (last, first) in &flows {
        first.shutdown(Shutdown::Write).expect("the first end");
        assert_eq!(receive_all(last), b"");
    }
    let silent = if to_client { &stage.client } else { &stage.server };
    mute(silent);
    let bytes = noise(4, 5_000);
    for (last, _) in &flows {
        send_all(last, &bytes);
    }
    until("both ends have been told, and one has not acknowledged it", || {
        let (held, orphans) = closing(&stage.gateway, family);
        held + orphans == FLOWS
    });
    assert_eq!(closing(&stage.gateway, family), (FLOWS, 0), "orphans that the kernel may reset");
    unmute(silent);
    for (_, first) in &flows {
        assert_eq!(receive_all(first), bytes);
    }
    until("nothing is left", || closing(&stage.gateway, family) == (0, 0));
}

fn no_orphans(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(EARLY);
    for to_client in [true, false] {
        last_words(&stage, family, to_client);
    }
    until("all have ended in order", || ended(&proxy) == 2 * FLOWS as u64);
    until("their places are free", || proxy.admission().flows() == 0);
}

#[test]
fn a_finished_flow_is_no_orphan_before_its_end_is_acknowledged_ipv4() {
    no_orphans(Family::V4);
}

#[test]
fn a_finished_flow_is_no_orphan_before_its_end_is_acknowledged_ipv6() {
    no_orphans(Family::V6);
}

/// Many flows end at once into ends that read slowly: every byte and every end arrives.
#[test]
fn many_ends_at_once_reach_their_slow_readers() {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(EARLY);
    let listener = stage.listen(Family::V4);
    let bytes = noise(9, 300_000);
    let flows: Vec<_> = (0..2 * FLOWS).map(|_| stage.flow(&listener)).collect();
    scope(|scope| {
        for (client, server) in &flows {
            client.shutdown(Shutdown::Write).expect("the client's end");
            scope.spawn(|| send_all(server, &bytes));
        }
        until("all wait for their readers", || {
            flows.iter().all(|(client, _)| stage::queued::unread(client) > 0)
        });
        for (client, _) in &flows {
            assert!(receive_all(client) == bytes, "every byte, and the end");
        }
    });
    until("all have ended in order", || ended(&proxy) == flows.len() as u64);
}

/// An end that never acknowledges is left to the kernel after a while, and takes no place.
fn given_up(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(&format!("{EARLY}[limits]\nlinger = \"300 ms\"\n"));
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    client.shutdown(Shutdown::Write).expect("the client's end");
    assert_eq!(receive_all(&server), b"");
    mute(&stage.client);
    send_all(&server, b"farewell");
    until("the kernel has it", || closing(&stage.gateway, family) == (0, 1));
    until("its place is free", || proxy.admission().flows() == 0);
    assert_eq!(ended(&proxy), 1);
    unmute(&stage.client);
    assert_eq!(receive_all(&client), b"farewell");
}

#[test]
fn an_end_that_never_answers_is_left_to_the_kernel_ipv4() {
    given_up(Family::V4);
}

#[test]
fn an_end_that_never_answers_is_left_to_the_kernel_ipv6() {
    given_up(Family::V6);
}
