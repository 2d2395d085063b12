//! At its limits the proxy lets flows pass by or closes windows; it never resets.

mod stage;

use stage::{Family, Stage, hear, say, until};
use std::net::{TcpListener, TcpStream};

/// Two flows fill the proxy; the third passes by, and has the server's own reach.
fn beyond(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n[limits]\nflows = 2\n"));
    let split = || -> u64 { proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum() };
    let listener = stage.listen(family);
    let talk = |(client, server): (TcpStream, TcpStream)| {
        say(&client, b"question");
        assert_eq!(hear(&server), b"question");
        say(&server, b"answer");
        assert_eq!(hear(&client), b"answer");
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
