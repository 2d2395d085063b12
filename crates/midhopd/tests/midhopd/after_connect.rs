//! A client receives what the far side responds: the SYN waits until then.

use crate::stage::{Family, Stage, nft, noise, receive_all, send_all, stop_listening, until};
use midhop_pep::config::Plan;
use midhopd::ledger::{Counter, Ledger};
use std::io::ErrorKind;
use std::net::SocketAddr;

fn split(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    for _ in 0..3 {
        let (client, server) = stage.flow(&listener);
        assert_eq!(server.peer_addr().expect("a peer"), client.local_addr().expect("an address"));
        let bytes = noise(1, 1_000_000);
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(&client, &bytes));
            assert!(receive_all(&server) == bytes);
        });
    }
    let flows: u64 = proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum();
    assert_eq!(flows, 3, "each flow was split");
}

#[test]
fn bytes_pass_after_connect_ipv4() {
    split(Family::V4);
}

#[test]
fn bytes_pass_after_connect_ipv6() {
    split(Family::V6);
}

fn refused(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    let address = listener.local_addr().expect("an address");
    stop_listening(listener);
    let error = stage.connect(address).expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let refused: u64 = proxy.ledgers().iter().map(|ledger| ledger.refused.value()).sum();
    assert_eq!(refused, 1, "it was the far side that refused");
}

#[test]
fn refused_stays_refused_after_connect_ipv4() {
    refused(Family::V4);
}

#[test]
fn refused_stays_refused_after_connect_ipv6() {
    refused(Family::V6);
}

fn unreachable(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let words = match family {
        Family::V4 => "icmp type host-unreachable",
        Family::V6 => "icmpv6 type addr-unreachable",
    };
    nft(&stage.server, "add table inet t");
    nft(&stage.server, "add chain inet t c { type filter hook input priority 0; }");
    nft(&stage.server, &format!("add rule inet t c tcp dport 9 reject with {words}"));
    let error = stage.connect(SocketAddr::new(family.server(), 9)).expect_err("not reachable");
    assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{error}");
    let reported: u64 = proxy.ledgers().iter().map(|ledger| ledger.unreachable.value()).sum();
    assert_eq!(reported, 1, "it was the far side's network that said so");
}

#[test]
fn unreachable_stays_unreachable_after_connect_ipv4() {
    unreachable(Family::V4);
}

#[test]
fn unreachable_stays_unreachable_after_connect_ipv6() {
    unreachable(Family::V6);
}

/// The far side responds so late that the client retransmits its SYN.
fn repeated(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    let address = listener.local_addr().expect("an address");
    nft(&stage.server, "add table inet t");
    nft(&stage.server, "add chain inet t c { type filter hook input priority 0; }");
    nft(&stage.server, &format!("add rule inet t c tcp dport {} drop", address.port()));
    let sum = |count: fn(&Ledger) -> &Counter| -> u64 {
        proxy.ledgers().iter().map(|ledger| count(ledger).value()).sum()
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| stage.connect(address).expect("a connection at last"));
        until("the client asks again", || sum(|ledger| &ledger.repeated_syns) > 0);
        assert_eq!(sum(|ledger| &ledger.held), 1);
        nft(&stage.server, "delete table inet t");
        let (server, _) = listener.accept().expect("a connection");
        let client = client.join().expect("the client");
        send_all(&client, b"hello");
        assert_eq!(receive_all(&server), b"hello");
    });
    listener.set_nonblocking(true).expect("a mode");
    let second = listener.accept().expect_err("no second connection");
    assert_eq!(second.kind(), ErrorKind::WouldBlock);
    assert_eq!(sum(|ledger| &ledger.flows), 1);
}

#[test]
fn a_repeated_syn_never_dials_twice_ipv4() {
    repeated(Family::V4);
}

#[test]
fn a_repeated_syn_never_dials_twice_ipv6() {
    repeated(Family::V6);
}

/// Rules decide about each flow, and a reload changes them.
fn rules(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let listener = stage.listen(family);
    let port = listener.local_addr().expect("an address").port();
    let config = |action: &str| {
        format!(
            "[intercept]\ninterfaces = \"lan0\"\n\
             [[rules]]\nmatch = {{ destination_port = {port} }}\naction = \"{action}\"\n"
        )
    };
    let proxy = stage.start(&config("bypass"));
    let split = || -> u64 { proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum() };
    let talk = || {
        let (client, server) = stage.flow(&listener);
        send_all(&client, b"hello");
        assert_eq!(receive_all(&server), b"hello");
    };
    let reload = |action| {
        let plan = Plan::read("test.toml", &config(action)).expect("a plan");
        stage.gateway.run(|| proxy.reload(plan)).expect("entering the gateway").expect("a reload");
    };
    talk();
    assert_eq!(split(), 0, "a rule lets it pass");
    reload("split");
    talk();
    assert_eq!(split(), 1, "now it is split");
    reload("reject");
    let address = listener.local_addr().expect("an address");
    let error = stage.connect(address).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn rules_bypass_split_and_reject_ipv4() {
    rules(Family::V4);
}

#[test]
fn rules_bypass_split_and_reject_ipv6() {
    rules(Family::V6);
}
