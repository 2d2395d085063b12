//! Flows through a tunnel between two proxies, end to end.
//!
//! `client – gateway with one proxy – server's host with the other, and the server`

mod ends;
mod stage;

use ends::Ends;
use midhopd::ledger::{Count, Ledger};
use stage::{Family, Stage, hear, noise, say};
use std::net::TcpStream;

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
